"""Several starts in one log: which processes ended in each, and where another one begins."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from itertools import pairwise

from traceops.hangs.evidence import Frame, LogEvent
from traceops.hangs.readers.launchers import Exit, Exits
from traceops.hangs.readers.log_events import EventList, OpenEvent
from traceops.hangs.readers.messages import RESTARTS
from traceops.hangs.readers.steps import Scale, sightings
from traceops.hangs.readers.went_on import ADVANCE, as_outlived

_SEARCHED = 200  # characters of a line
_COMPARED = 40  # letters: what tells a line from another, whatever its times and numbers are
_FEWEST = 8
_FAR = 50  # lines
_MOST = 1 << 14


class Beginnings:
    """Looks for the log's first two lines, one behind the other, behind a failure.

    found: the lines in which an attempt begins. is_furthest: whether the last one has said more than each before it,
    or much.
    """

    def __init__(self) -> None:
        self._head: list[str] = []
        self._begun = 0  # the last line that says anything, where it is like the first
        self._ordinary = False  # such lines come before anything failed: they begin no attempt
        self._said = 0  # lines of this attempt, without its tracebacks
        self._most_said = 0
        self.found: list[int] = []

    @property
    def is_furthest(self) -> bool:
        return bool(self.found) and self._said > min(self._most_said, _FAR)

    def take(self, number: int, body: str, failed: bool) -> None:
        """A line that says something."""
        self._said += 1
        letters = "".join(filter(str.isalpha, body[:_SEARCHED]))[:_COMPARED]
        if len(self._head) < 2:
            self._head.append(letters)
            self._ordinary = len(letters) < _FEWEST or letters in self._head[:-1]
            return
        if self._begun and letters == self._head[1]:
            if not failed:
                self._ordinary = True
            elif len(self.found) < _MOST:
                self.found.append(self._begun)
                self._most_said, self._said = max(self._most_said, self._said - 2), 2
        self._begun = number if letters == self._head[0] and not self._ordinary else 0


# Starts that did not get past a program's imports, where a later one of the same file did: by its tracebacks alone.


_MODULE = "<module>"
_FROZEN = "<frozen "


def reruns(events: Sequence[LogEvent]) -> list[int]:
    """Lines of failures behind which the same program was started once more, of events that name no rank, in order.

    Code of a module runs from the top. Who failed in line 20 of `train.py` while it was imported ended there; who then
    comes to line 168 of it is another start.
    """
    raised = [event for event in events if event.kind == "error" and event.frames]
    return [
        before.line
        for before, after in pairwise(raised)
        if (at := _ended_in_imports(before.frames)) is not None and _comes_further(after.frames, at)
    ]


def _ended_in_imports(frames: Sequence[Frame]) -> tuple[str, int] | None:
    """The outermost line of an exception that modules raised while they were imported; None of another."""
    own = [frame for frame in frames if not frame.file.startswith(_FROZEN)]
    if not own or any(frame.function != _MODULE for frame in own) or own[-1].line is None:
        return None
    return own[-1].file, own[-1].line


def _comes_further(frames: Sequence[Frame], at: tuple[str, int]) -> bool:
    file, line = at
    return any(
        frame.function == _MODULE and frame.file == file and frame.line is not None and frame.line > line
        for frame in frames
    )


# The processes that ended in a log, and where another attempt begins in it.


FATAL = "Fatal Python error: "
_FATAL_SIGNALS = {
    f"{FATAL}Segmentation fault": signal.SIGSEGV,
    f"{FATAL}Aborted": signal.SIGABRT,
    f"{FATAL}Bus error": signal.SIGBUS,
    f"{FATAL}Floating-point exception": signal.SIGFPE,
    f"{FATAL}Illegal instruction": signal.SIGILL,
}
_SLURM = ("slurmstepd: ", "srun: ")  # what it says after it ended a job is of the same job
_JOB = re.compile(r"\*\*\* JOB (\d{1,12}) ")
_STEP_WORDS = ("tep", "TEP", "ter", "TER", "it/s", "s/it", "poch", "POCH", "Train:")
_OTHER_JOB_FAR = 10  # lines: tasks of one array that share a file are cancelled together
_MOST_EXITS = 1 << 14  # of exits, and of kills


class Attempts:
    """Collects the exits that launchers tell, and whose they were."""

    def __init__(self) -> None:
        self._exits = Exits()
        self._launched: list[Exit] = []
        self._unsure: list[Exit] = []
        self._pids: dict[int, int] = {}
        self._killed: list[tuple[int, OpenEvent]] = []
        self._reported = 0  # the line in which a launcher last reported a rank's end
        self._boundaries = [0]  # lines in which torchrun starts the ranks again, or Slurm ended a job
        self.begun = 0  # the line in which torchrun last started the ranks again
        self._head: str | None = None  # the first line
        self._failed = False  # an exception ended something
        self._again: list[int] = []  # lines that are the first one again, behind a failure
        self._beginnings = Beginnings()
        self._counts: dict[Scale, tuple[int, int]] = {}  # of steps since `begun`, the least and the most

    @property
    def is_open(self) -> bool:
        return self._exits.is_open

    @property
    def reported_rank(self) -> int | None:
        """The rank that torchrun's report is at."""
        return self._exits.rank

    def take(self, number: int, body: str) -> bool:
        """Whether the line tells that a process ended."""
        ended = self._exits.take(number, body)
        if ended is None:
            return False
        if ended.pid is not None and ended.sure:
            if ended.pid not in self._pids and ended.ranks[0] in self._pids.values():
                # This rank ended before: another run in the same file.
                self._boundaries.append(self._reported)
            self._pids[ended.pid] = ended.ranks[0]
            self._reported = ended.line
        (self._launched if ended.sure else self._unsure).append(ended)
        for exits in (self._launched, self._unsure):
            del exits[_MOST_EXITS:]
        return True

    def look_for_restart(self, number: int, body: str) -> None:
        """Note where the ranks start again."""
        if body.strip():
            self._beginnings.take(number, body, self._failed)
        if any(map(body.__contains__, RESTARTS)):
            self._boundaries.append(number)
            if not any(words in body for words in _SLURM):
                self.begun, self._counts = number, {}
            return
        if self.begun and any(map(body.__contains__, _STEP_WORDS)):
            self._look_for_steps(body)
        if self._head is None and body.strip():
            self._head = body
        elif body == self._head:
            if not self._failed:
                self._head = "\n"  # several processes begin alike, or it is a line of each step
            elif len(self._again) < _MOST_EXITS:
                self._again.append(number)

    def _look_for_steps(self, body: str) -> None:
        for sight in sightings(body.encode(errors="replace")):
            first, last = self._counts.get(sight.scale, (sight.number, sight.number))
            self._counts[sight.scale] = min(first, sight.number), max(last, sight.number)

    @property
    def _went_well(self) -> bool:
        """Whether the ranks that torchrun started again made steps: what earlier ones had printed came before that."""
        return any(last - first >= ADVANCE for scale, (first, last) in self._counts.items() if scale != "epochs")

    def failed(self) -> None:
        """A traceback ended something: whoever begins the log once more is another attempt."""
        self._failed = True

    def killed(self, pid: int, event: OpenEvent) -> None:
        """The kernel killed a process, whose rank an exit may tell."""
        if len(self._killed) < _MOST_EXITS:
            self._killed.append((pid, event))

    def add_to(self, events: EventList) -> None:
        """The exits, and the ranks of what is known by a process or a signal."""
        # A node's or a task's count is a rank only where nobody counts the ranks themselves.
        for ended in self._launched or self._unsure:
            events.add(
                "exit", None, ended.line, ended.text,
                accused=ended.ranks, exit_code=ended.code, root_cause=ended.root,
            )  # fmt: skip
        for pid, event in self._killed:
            if pid in self._pids:
                event.amend(accused=(self._pids[pid],))
        self._place_fatal(events)

    def earlier(self, events: tuple[LogEvent, ...], latest: tuple[LogEvent, ...]) -> tuple[tuple[LogEvent, ...], ...]:
        """By attempt the events of those before the one of which `latest` tells.

        What a program raises while it imports may be no end of it: it prints that an optional module is missing.
        """
        if not latest or len(latest) == len(events):
            return ()
        first = latest[0].line
        begun = [*self._boundaries, *self._again, *self._beginnings.found]
        ends = sorted(end for end in begun if end < first)
        parts = (tuple(event for event in events if after < event.line <= end) for after, end in pairwise([0, *ends]))
        return tuple(part for part in parts if part)

    def latest(self, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
        """Those of the last attempt that tells anything: one before it explains only itself."""
        alone = not (self._launched or self._unsure) and all(event.rank is None for event in events)
        begun = [*self._again, *self._beginnings.found, *reruns(events)] if alone else []
        last = max((event.line for event in events), default=0)
        if 0 < last <= self.begun and self._went_well:
            return _all_outlived(events)
        if self._beginnings.is_furthest and 0 < last < self._beginnings.found[-1]:
            return _all_outlived(events)
        for first in sorted({*self._boundaries, *begun}, reverse=True):
            latest = tuple(event for event in events if event.line > first)
            if any(not event.text.startswith(_SLURM) for event in latest):
                return latest
            if latest and _is_other_job(latest, [event for event in events if event.line <= first], first):
                return latest
        return events

    def _place_fatal(self, events: EventList) -> None:
        """Python says of itself which signal ended it, torchrun of which rank: one of each belong together."""
        for words, code in _FATAL_SIGNALS.items():
            told = [one for one in events.all_of("error", None) if words in one.event.text]
            ranks = [ended.ranks[0] for ended in self._launched if ended.code == -code]
            if len(told) == len(ranks) == 1:
                told[0].amend(rank=ranks[0])


def _all_outlived(events: Sequence[LogEvent]) -> tuple[LogEvent, ...]:
    return tuple(as_outlived(event) if event.kind != "status" else event for event in events)


def _is_other_job(latest: Sequence[LogEvent], before: Sequence[LogEvent], first: int) -> bool:
    """Whether Slurm ended a job that wrote its own lines behind the end of another, in the same file."""
    jobs = {match[1] for event in latest if (match := _JOB.search(event.text)) is not None}
    known = {match[1] for event in before if (match := _JOB.search(event.text)) is not None}
    return bool(jobs and known) and not jobs & known and min(event.line for event in latest) - first > _OTHER_JOB_FAR
