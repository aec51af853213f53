"""The events of a log: timeouts, mismatches, errors, processes that ended, and where another attempt begins."""

from __future__ import annotations

import re
import signal
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from traceops.core.text import by_shape
from traceops.hangs.crashes import crash_kind
from traceops.hangs.evidence import Frame, LogEvent, LogKind
from traceops.hangs.readers import messages
from traceops.hangs.readers.launchers import Exit, Exits
from traceops.hangs.readers.log_events import EventList, OpenEvent, says_why, shortened, with_more
from traceops.hangs.readers.prefixes import label_of
from traceops.hangs.readers.steps import Scale, sightings
from traceops.hangs.readers.tracebacks import (
    NOT_THE_CAUSE,
    SURVIVED,
    LineFrames,
    Raised,
    Tracebacks,
    bare_exception,
    is_frame,
    operation_in,
)
from traceops.hangs.readers.trouble import Unexplained
from traceops.hangs.readers.went_on import ADVANCE, as_outlived
from traceops.hangs.readers.whole_lines import LogicalLines, relevant_lines

_SEARCHED = 200  # characters of a line
_COMPARED = 40  # letters: what tells a line from another, whatever its times and numbers are
_FEWEST = 8
_FAR = 50  # lines
_MOST = 1 << 14


class Beginnings:
    """Looks for the log's first two lines, one behind the other, behind a failure. found: the lines in which an attempt
    begins. is_furthest: whether the last one has said more than each before it, or much."""

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
        letters = _letters(body[:_SEARCHED])
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


@by_shape
def _letters(head: str) -> str:
    return "".join(filter(str.isalpha, head))[:_COMPARED]


# Starts that did not get past a program's imports, where a later one of the same file did: by its tracebacks alone.

_MODULE = "<module>"
_FROZEN = "<frozen "


def reruns(events: Sequence[LogEvent]) -> list[int]:
    """Lines of failures behind which the same program was started once more, of events that name no rank, in order.
    Code of a module runs from the top. Who failed in line 20 of `train.py` while it was imported ended there; who then
    comes to line 168 of it is another start."""
    raised = [event for event in events if event.kind == "error" and event.frames]
    return [
        before.line
        for before, after in pairwise(raised)
        if (at := _ended_in_imports(before.frames)) is not None
        and any(
            frame.function == _MODULE and frame.file == at[0] and (frame.line or 0) > at[1] for frame in after.frames
        )
    ]


def _ended_in_imports(frames: Sequence[Frame]) -> tuple[str, int] | None:
    """The outermost line of an exception that modules raised while they were imported; None of another."""
    own = [frame for frame in frames if not frame.file.startswith(_FROZEN)]
    if not own or any(frame.function != _MODULE for frame in own) or own[-1].line is None:
        return None
    return own[-1].file, own[-1].line


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
        self.exits = Exits()
        self._launched: list[Exit] = []
        self._unsure: list[Exit] = []
        self._pids: dict[int, int] = {}
        self._killed: list[tuple[int, OpenEvent]] = []
        self._reported = 0  # the line in which a launcher last reported a rank's end
        self._boundaries = [0]  # lines in which torchrun starts the ranks again, or Slurm ended a job
        self.begun = 0  # the line in which torchrun last started the ranks again
        self._head: str | None = None  # the first line
        self.failed: set[str] = set()  # labels of processes in which an exception ended something
        self._again: list[int] = []  # lines that are the first one again, behind a failure
        self._beginnings: defaultdict[str, Beginnings] = defaultdict(Beginnings)  # by label of the process
        self._counts: dict[Scale, tuple[int, int]] = {}  # of steps since `begun`, the least and the most

    def take(self, number: int, body: str) -> bool:
        """Whether the line tells that a process ended."""
        if (ended := self.exits.take(number, body)) is None:
            return False
        if ended.pid is not None and ended.sure:
            if ended.pid not in self._pids and ended.ranks[0] in self._pids.values():
                # This rank ended before: another run in the same file.
                self._boundaries.append(self._reported)
            self._pids[ended.pid] = ended.ranks[0]
            self._reported = ended.line
        (self._launched if ended.sure else self._unsure).append(ended)
        del self._launched[_MOST_EXITS:], self._unsure[_MOST_EXITS:]
        return True

    def look_for_restart(self, number: int, body: str, label: str) -> None:
        """Note where the ranks start again."""
        if body.strip() and (label in self._beginnings or len(self._beginnings) < _MOST_LABELS):
            self._beginnings[label].take(number, body, label in self.failed)
        if any(map(body.__contains__, messages.RESTARTS)):
            self._boundaries.append(number)
            if not any(words in body for words in _SLURM):
                self.begun, self._counts = number, {}
            return
        if self.begun and any(map(body.__contains__, _STEP_WORDS)):
            for sight in sightings(body.encode(errors="replace")):
                first, last = self._counts.get(sight.scale, (sight.number, sight.number))
                self._counts[sight.scale] = min(first, sight.number), max(last, sight.number)
        if self._head is None and body.strip():
            self._head = body
        elif body == self._head:
            if label not in self.failed:
                self._head = "\n"  # several processes begin alike, or it is a line of each step
            elif len(self._again) < _MOST_EXITS:
                self._again.append(number)

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
                accused=ended.ranks, exit_code=ended.code, root_cause=ended.root, when=ended.when,
            )  # fmt: skip
        for pid, event in self._killed:
            if pid in self._pids:
                event.amend(accused=(self._pids[pid],))
        # Python names the signal that ended it, torchrun the rank: one of each belong together.
        for words, code in _FATAL_SIGNALS.items():
            fatal = [one for one in events.all_of("error", None) if words in one.event.text]
            ranks = [ended.ranks[0] for ended in self._launched if ended.code == -code]
            if len(fatal) == len(ranks) == 1:
                fatal[0].amend(rank=ranks[0])

    def earlier(self, events: tuple[LogEvent, ...], latest: tuple[LogEvent, ...]) -> tuple[tuple[LogEvent, ...], ...]:
        """By attempt the events of those before the one of which `latest` tells. What a program raises while it imports
        may be no end of it: it prints that an optional module is missing."""
        if not latest or len(latest) == len(events):
            return ()
        first = latest[0].line
        ends = sorted(end for end in (*self._boundaries, *self._begun_again()) if end < first)
        parts: defaultdict[int, list[LogEvent]] = defaultdict(list)
        for event in events:
            if (part := bisect_left(ends, event.line)) < len(ends):
                parts[part].append(event)
        return tuple(tuple(parts[part]) for part in sorted(parts))

    def _went_on(self, last: int) -> bool:
        """Whether restarted ranks made steps, or the log's beginning came again, behind line `last`."""
        steps = any(last - first >= ADVANCE for scale, (first, last) in self._counts.items() if scale != "epochs")
        beyond = (one.found[-1] for one in self._beginnings.values() if one.is_furthest)
        return (last <= self.begun and steps) or any(last < begin for begin in beyond)

    def latest(self, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
        """Those of the last attempt that tells anything: one before it explains only itself."""
        last = max((event.line for event in events), default=0)
        if last > 0 and self._went_on(last):
            return tuple(as_outlived(event) if event.kind != "status" else event for event in events)
        alone = not (self._launched or self._unsure) and all(event.rank is None for event in events)
        begun = [*self._begun_again(), *reruns(events)] if alone else []
        for first in sorted({*self._boundaries, *begun}, reverse=True):
            latest = tuple(event for event in events if event.line > first)
            if any(not event.text.startswith(_SLURM) for event in latest):
                return latest
            if latest and _is_other_job(latest, [event for event in events if event.line <= first], first):
                return latest
        return events

    def _begun_again(self) -> list[int]:
        """The lines in which the log's beginning comes again."""
        return [*self._again, *(line for one in self._beginnings.values() for line in one.found)]


def _is_other_job(latest: Sequence[LogEvent], before: Sequence[LogEvent], first: int) -> bool:
    """Whether Slurm ended a job that wrote its own lines behind the end of another, in the same file."""
    jobs = {match[1] for event in latest if (match := _JOB.search(event.text)) is not None}
    known = {match[1] for event in before if (match := _JOB.search(event.text)) is not None}
    return bool(jobs and known) and not jobs & known and min(event.line for event in latest) - first > _OTHER_JOB_FAR


Speaker = tuple[int | None, str]  # the rank, and the label of the process
Starts = tuple[tuple[LogEvent, ...], ...]  # by start
_STACK_OF_FAILED = "Stack trace of the failed collective:"
_MOST_LABELS = 1 << 10
_MOST_SPEAKERS = 1 << 14
# Threads that end a process repeat, in other words, what was said before.
_TERMINATE = "terminate called after throwing an instance of "
_WHAT = "what():"
_ECHOES = ("watchdog thread terminated with exception", "what():")
_MOST_BARE = 16
_PRINTED_AGAIN = 500  # lines in which the same exception is the same failure
_SHOWN_BEHIND = 2  # lines behind a message that ends in a colon: what is raised there is what it means
# A heading of Markdown, as in an issue that was pasted whole: its title repeats what the text has.
_HEADING = re.compile(r"^#{1,6} (?=\S)")
_MOST_HEADINGS = 8
# vLLM logs an exception's message in front of its traceback.
_SAID_AT_HEAD = re.compile(r"while processing method \w{1,80}: (.{1,500}), Traceback \(most recent call last\):")
_WENT_ON = 50  # lines after an exception without a traceback: the program went on


def read_starts(path: str, rank: int | None = None) -> tuple[tuple[LogEvent, ...], Starts]:
    """The events of the last start that a log of any size tells of, in its order; of each kind and rank the first and
    last hundred. And by start those of the ones before it. rank: whose the lines are that name none. Raises InputError
    where the file cannot be read."""
    speakers = messages.Speakers(rank)
    events = _read(path, speakers)
    return _read(path, speakers) if speakers.misled else events


def _read(path: str, speakers: messages.Speakers) -> tuple[tuple[LogEvent, ...], Starts]:
    reader = _LogReader(path, speakers)
    for number, line, may_tell in relevant_lines(path, messages.WORDS, lambda: reader.busy):
        reader.read(number, line, may_tell)
    return reader.finish()


def _ends_nothing(text: str) -> bool:
    """Whether it is Ray's word on a process that ended, or the driver's on what a program survives."""
    return any(words in text for words in messages.OF_RAY) or (
        "Xid (" in text and crash_kind(text, raised=False) is None
    )


def _fields(told: messages.Told, group: re.Match[str] | None, frames: tuple[Frame, ...]) -> messages.ToldFields:
    """What a line, its group and the traceback that it ends tell together."""
    fields: messages.ToldFields = {**told.fields}
    if group is not None:
        fields["group"], fields["group_description"] = group["group"], group["description"] or None
    if frames:
        fields["frames"] = frames
        if "op" not in fields and told.kind in ("timeout", "connection"):
            fields["op"] = operation_in(frames)
    return fields


class _LogReader:
    """Goes through the lines; what takes several lines is kept apart by speaker."""

    def __init__(self, path: str, speakers: messages.Speakers) -> None:
        self._speakers = speakers
        self._lines: dict[str, LogicalLines] = {"": LogicalLines()}  # by label of the process
        self._label = ""  # of the line that is read
        self._events = EventList(path)
        self._attempts = Attempts()
        self._frames = LineFrames()
        self._tracebacks: defaultdict[Speaker, Tracebacks] = defaultdict(Tracebacks)
        self._open: set[Speaker] = set()  # in the middle of a traceback
        self._said = False  # a line that is not indented, and not of a traceback, has come
        self._at_head: int | None = None  # the line of the traceback that the log begins in the middle of
        self._raised: dict[int | None, OpenEvent] = {}
        self._ended: dict[int | None, int] = {}  # the last line of the last traceback
        self._bare: dict[int | None, tuple[int, str]] = {}  # exceptions without a traceback
        self._headings: list[tuple[int, int | None, str]] = []
        self._unexplained = Unexplained()
        self._last = 0  # line
        self._thrown: str | None = None  # the C++ exception that ends a process, whose message comes

    @property
    def busy(self) -> bool:
        """Whether the next lines matter, whatever they hold."""
        if self._open or self._thrown is not None or self._frames.is_open or self._attempts.exits.is_open:
            return True
        return any(lines.is_open for lines in self._lines.values())

    def read(self, number: int, line: str, may_tell: bool) -> None:
        """Take the next line. may_tell: it may hold one of `WORDS`; without, no rule knows it."""
        self._label = label_of(line)
        if self._label not in self._lines and len(self._lines) < _MOST_LABELS:
            self._lines[self._label] = LogicalLines()
        lines = self._lines.get(self._label, self._lines[""])
        joins = lines.is_open
        if self._events.says_nothing:
            self._unexplained.note(number, line)
        for its_number, whole in lines.take(number, line):
            self._take(its_number, whole, may_tell or joins)

    def _take(self, number: int, line: str, may_tell: bool = True) -> None:
        self._last = number
        rank, body = self._speakers.split(line)
        if self._frames.take(rank, body) or self._attempts.take(number, body):
            return
        if self._traceback(number, rank, body):
            return
        if body.startswith("#") and (heading := _HEADING.match(body)) is not None:
            if may_tell and len(self._headings) < _MOST_HEADINGS:
                self._headings.append((number, rank, body[heading.end() :]))
            return
        self._said = self._said or bool(body.strip() and not body[0].isspace())
        self._attempts.look_for_restart(number, body, self._label)
        self._events.since = self._attempts.begun
        if FATAL in body:
            self._attempts.failed.add(self._label)
            text = body[body.index(FATAL) :]
            self._frames.of_fatal(rank, self._events.add("error", rank, number, text))
            return
        if _TERMINATE in body:
            self._thrown = body.partition(_TERMINATE)[2].strip(" '")
        elif self._thrown is not None:
            thrown, self._thrown = self._thrown, None
            if _WHAT in body and messages.told_by(body) is None:
                text = f"{thrown}: {body.partition(_WHAT)[2].strip()}"
                self._events.add("error", rank, number, text)
                return
        if _STACK_OF_FAILED in body:
            open_event = self._events.recent("timeout", rank, lambda event: not event.frames)
            self._frames.of_failed(rank, open_event)
            return
        self._told(number, rank, body, may_tell=may_tell or messages.IN_PASSING in body)

    def _told(
        self, number: int, rank: int | None, body: str, frames: tuple[Frame, ...] = (), may_tell: bool = True
    ) -> OpenEvent | None:
        """Add what one line tells, if anything."""
        told = messages.told_by(body) if may_tell else None
        # A rank whose collective timed out, as another says that only dumps: once, where it says nothing itself.
        late = messages.timed_out_rank(body) if may_tell else None
        if late is not None and self._events.recent("timeout", late, lambda event: True) is None:
            self._events.add("timeout", late, number, body)
        if told is None:
            self._unknown(number, rank, body)
            return None
        if not frames and self._unexplained.survived(told.kind, number, rank, body):
            return None
        group = messages.GROUP.search(body) if "[PG " in body else None
        if group is not None and told.kind != "status":
            self._name_group(rank, group, None)
        rank = messages.rank_in_message(body, group) if rank is None else rank
        fields = _fields(told, group, frames)
        if any(words in body for words in _ECHOES) and self._is_echo(told.kind, rank, fields):
            return None
        if told.kind == "status" and group is not None:
            self._name_group(rank, group, fields["completed"])
        if (known := self._said_before(told.kind, rank, fields)) is not None:
            return known
        open_event = self._events.add(told.kind, rank, number, told.text, **fields)
        if told.pid is not None:
            self._attempts.killed(told.pid, open_event)
        return open_event

    def _unknown(self, number: int, rank: int | None, body: str) -> None:
        """A line that no rule knows."""
        self._unexplained.look_for_step(body)
        if self._events.says_nothing:
            self._unexplained.take(number, rank, body)
        if (bare := bare_exception(body)) is not None and not bare.startswith(NOT_THE_CAUSE):
            before = self._bare.get(rank)
            if len(self._bare) < _MOST_BARE if before is None else number - before[0] > _WENT_ON:
                self._bare[rank] = (number, bare)

    def _said_before(self, kind: LogKind, rank: int | None, fields: messages.ToldFields) -> OpenEvent | None:
        """The event of the same failure, with what this line adds to it: logged first, by the watchdog, then raised."""
        if kind == "timeout" and fields.get("sequence") is not None and "group" in fields:
            names = ("sequence", "op", "elements_in", "elements_out")

            def same_wait(event: LogEvent) -> bool:
                alike = all(getattr(event, name) == fields.get(name) for name in names)
                return alike and event.group in (None, fields["group"])

            if (known := self._events.recent("timeout", rank, same_wait)) is not None:
                known.amend(**{name: value for name, value in fields.items() if value is not None})
            return known
        if kind not in ("mismatch", "missing"):
            return None
        same = self._events.recent(kind, rank, lambda event: event.accused == fields.get("accused", ()))
        if same is not None and "frames" in fields and not same.event.frames:
            same.amend(frames=fields["frames"])
        return same

    def _name_group(self, rank: int | None, group: re.Match[str], completed: int | None) -> None:
        """The timeout itself names no group; the rank's next lines do."""

        def nameless(event: LogEvent) -> bool:
            late = completed is None or event.sequence is None or event.sequence > completed
            return event.group is None and late

        if (open_event := self._events.recent("timeout", rank, nameless)) is not None:
            open_event.amend(group=group["group"], group_description=group["description"] or None)

    def _is_echo(self, kind: LogKind, rank: int | None, fields: messages.ToldFields) -> bool:
        def same(event: LogEvent) -> bool:
            return all(getattr(event, name) == fields.get(name) for name in ("op", "sequence"))

        if rank is not None:
            return self._events.recent(kind, rank, same) is not None
        return self._events.any_rank(kind, same)

    def _traceback(self, number: int, rank: int | None, body: str) -> bool:
        """Whether the line is one of a traceback."""
        reported = self._attempts.exits.rank
        if rank is None and reported is not None and ("traceback :" in body or (reported, self._label) in self._open):
            rank = reported  # torchrun's report shows the error file of this rank
        speaker = rank, self._label
        if speaker not in self._tracebacks:
            begins = "Traceback" in body or body.startswith(SURVIVED) or is_frame(body)
            if not begins or len(self._tracebacks) >= _MOST_SPEAKERS:
                return False
        tracebacks = self._tracebacks[speaker]
        was_open = tracebacks.is_open
        raised = tracebacks.take(number, body)
        if tracebacks.is_open:
            self._open.add(speaker)
            if not was_open and (said := _SAID_AT_HEAD.search(body)) is not None:
                self._told(number, rank, said[1])
            if not was_open and not self._said:
                self._at_head = number
        else:
            self._open.discard(speaker)
        if raised is not None:
            self._add_raised(rank, raised)
        return (was_open and not tracebacks.dropped) or tracebacks.is_open

    def _add_raised(self, rank: int | None, raised: Raised) -> None:
        if not raised.survived:
            self._attempts.failed.add(self._label)
        if raised.survived or raised.text.startswith(NOT_THE_CAUSE):
            self._unexplained.failures.raised(raised.line, rank, raised.text)
            if raised.warned:
                self._unexplained.failures.warned(raised.end, rank, raised.text)
            return
        before, ended = self._raised.get(rank), self._ended.get(rank, 0)
        if rank in self._ended or len(self._ended) < _MOST_SPEAKERS:
            self._ended[rank] = raised.end
        if before is not None and before.event.line <= self._attempts.begun:
            before = None
        near = before is not None and raised.line - before.event.line <= _PRINTED_AGAIN
        if before is not None and near and before.event.text == shortened(raised.text):
            return  # it was printed, and is in an error file too
        # A message ends in a colon, behind which the program shows another's traceback.
        shown = not raised.link and 0 < raised.line - ended <= _SHOWN_BEHIND
        shown = shown and before is not None and before.event.kind == "error" and before.event.text.endswith(":")
        if before is not None and (raised.link == "origin" or shown):
            text = with_more(before.event.text, raised.text)
            before.amend(text=text, frames=raised.frames + before.event.frames)
            return
        if raised.link == "cause" and before is not None and messages.told_by(raised.text) is not None:
            if before.event.kind == "error" and crash_kind(before.event.text) == "exception":
                self._events.drop(before)  # what replaced it says more
            else:  # it was raised below, and says where that was called
                before.amend(frames=before.event.frames + raised.frames)
        if (open_event := self._told(raised.line, rank, raised.text, raised.frames)) is None:
            text = raised.text
            if raised.link == "cause" and before is not None and before.event.kind == "error":
                self._events.drop(before)
                text = f"{text} (after {before.event.text})"
            speaker = rank if rank is not None else messages.rank_in_message(text, None)
            open_event = self._events.add("error", speaker, raised.line, text, frames=raised.frames)
        if len(self._raised) < _MOST_SPEAKERS:
            self._raised[rank] = open_event

    def finish(self) -> tuple[tuple[LogEvent, ...], Starts]:
        for label, lines in self._lines.items():
            self._label = label
            for number, line in lines.flush():
                self._take(number, line)
        self._attempts.add_to(self._events)
        for number, rank, heading in self._headings if self._events.says_nothing else ():
            self._told(number, rank, heading)
        events = self._events.in_order()
        if all(not says_why(event) or _ends_nothing(event.text) for event in events):
            # a paste of the last line only, with Ray's word on it, or with the launcher's on the end of its process
            ended = next((event.line for event in events if event.kind == "exit"), None)
            for rank, (number, text) in self._bare.items():
                late = (self._last if ended is None else ended) - number
                if ended is not None and not 0 < late <= _WENT_ON:
                    continue
                kind: LogKind = "error" if late <= _WENT_ON else "trouble"
                speaker = rank if rank is not None else messages.rank_in_message(text, None)
                self._events.add(kind, speaker, number, text)
        tracebacks = [(rank, own) for (rank, _), own in self._tracebacks.items()]
        of_several = self._speakers.saw_ranks
        self._unexplained.add_to(self._events, tracebacks, self._at_head, self._last, of_several=of_several)
        events = self._events.in_order()
        latest = self._attempts.latest(events)
        return latest, self._attempts.earlier(events, latest)
