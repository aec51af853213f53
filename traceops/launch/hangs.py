"""Whether a training is slow or hangs, from heartbeats and looks at the ranks, and what the launcher does about it."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from traceops.capture.environment import host
from traceops.capture.progress import LastWords, Progress
from traceops.capture.responder import DUMP, ask
from traceops.core.capture_failure import steps_unseen
from traceops.core.claims import Wording
from traceops.core.errors import TraceopsError
from traceops.hangs.evidence import Stall
from traceops.launch.display import Screen
from traceops.launch.evidence import collect, set_aside
from traceops.launch.folder import short_path
from traceops.launch.launchers import HangTimeouts
from traceops.launch.process_activity import STARTING, ProcessSample, is_alive, look

_LEAST_S = 60.0
_START_S = 1800.0  # models load and kernels compile, and a job of many ranks starts slowly
_MEDIAN_STEPS = 10
_MOST_STEPS = 200
_SUSPECT_STEPS, _LEAST_SUSPECT_S, _UNKNOWN_SUSPECT_S = 3, 2.0, 10.0  # when Ctrl-C comes
_ENOUGH_STEPS = 20  # for a median to be believed
_EXTENSION = 10  # a step in which something moves may take as many times the limit
_LONGEST_QUIET_S = 15.0
_LOOKS = 10
_SHORTEST_PAUSE_S = 0.25
_text = Wording("launch", "hang")

Look = Callable[[Sequence[Progress], Path], Mapping[int, ProcessSample]]


class Watch:
    """Sees the ranks' records again and again, and says when they hang.

    A training hangs if no rank on this machine has finished a step for the limit, and nothing has moved in
    the last part of it. What moves is a slow step: it may take ten times as long, or longer while
    collectives are called or where the capture has ended before the training, so that steps go unseen.

    folder: of the records. say: shows the user a line. all_still: gets whether the ranks are still here, returns
    whether they are on all machines. look: how to see the ranks. since: when a step was finished last, by the monotonic
    clock.
    """

    def __init__(
        self,
        limits: HangTimeouts,
        folder: Path,
        say: Callable[[str], None],
        all_still: Callable[[bool], bool] = bool,
        look: Look = look,
    ) -> None:
        self._limits, self._say, self._all_still = limits, say, all_still
        self._stillness = _Stillness(folder, look)
        self.since = time.monotonic()
        self._records: dict[int, Progress] = {}
        self._step_s: deque[float] = deque(maxlen=_MOST_STEPS)
        self._reported = False

    def observe(self, records: Sequence[Progress], now: float) -> Stall | None:
        """The stall, if there is one by now; `now` is of the monotonic clock."""
        if self._advanced(records):
            self.since, self._reported = now, False
            self._stillness.reset()
            self._all_still(False)
            return None
        limit = self._limit(records)
        alive = [record for record in records if is_alive(record)]
        if records and not alive:  # torchrun waits for other machines
            self._all_still(True)
            return None
        if not limit:
            return None
        stalled, quiet = now - self.since, min(limit / 2, _LONGEST_QUIET_S)
        if stalled < limit - quiet:
            return None
        seen = self._stillness
        seen.look(alive, now, quiet)
        if stalled < limit:
            return None
        still = seen.looks >= 2 and now - seen.since >= quiet
        if self._all_still(still):
            return self._stall(records, stalled, limit, ())
        unseen = all(record.phase == "ended" for record in alive)
        longest = max(_EXTENSION * limit, _START_S if _kind(records) == "init" and self._limits.init_s is None else 0.0)
        if stalled >= longest and not unseen and now - seen.collectives > limit:
            note = _text("moved_elsewhere") if still else _text("moved", what=seen.what)
            return self._stall(records, stalled, limit, (note,))
        if seen.what and not self._reported:
            self._reported = True
            self._say(_text("slow_step", starts=_kind(records) == "init", seconds=stalled, what=seen.what))
        return None

    def suspect(self, records: Sequence[Progress], now: float) -> Stall | None:
        """What looks like a stall to somebody who ends the job: no step for three medians, or none at all."""
        stalled = now - self.since
        limit = _UNKNOWN_SUSPECT_S
        if self._step_s:
            known = max(_LEAST_SUSPECT_S, _SUSPECT_STEPS * statistics.median(self._step_s))
            limit = known if len(self._step_s) >= _ENOUGH_STEPS else min(known, limit)
        saving = any(record.phase == "profiler" for record in records)
        if saving or stalled < limit or not any(is_alive(record) for record in records):
            return None
        return self._stall(records, stalled, limit, (_text("ended_by_user"),))

    def _advanced(self, records: Sequence[Progress]) -> bool:
        advanced = False
        for record in records:
            before = self._records.get(record.rank)
            if before is not None and before.pid == record.pid and 0 < before.step < record.step:
                taken = (record.time_ns - before.time_ns) / 1e9
                steps = record.step - before.step  # each counts: one that starts the profiler is one of many
                self._step_s.extend([taken / steps] * min(steps, _MOST_STEPS))
            now = record.pid, record.step, record.phase
            advanced = advanced or before is None or (before.pid, before.step, before.phase) != now
            self._records[record.rank] = record
        return advanced

    def _limit(self, records: Sequence[Progress]) -> float:
        if _kind(records) == "init":
            if self._limits.init_s is not None:
                return self._limits.init_s
            return _LEAST_S if records and not self._limits.kills else _START_S
        if self._limits.hang_s is not None:
            return self._limits.hang_s
        median = statistics.median(self._step_s) if self._step_s else 0.0
        return max(_LEAST_S, _MEDIAN_STEPS * median)

    def _stall(self, records: Sequence[Progress], stalled: float, limit: float, notes: tuple[str, ...]) -> Stall:
        if gone := [record.rank for record in records if not is_alive(record)]:
            notes += (_text("gone", ranks=gone),)
        if not records:
            notes += (_text("none_started"),)
        return Stall(_kind(records), stalled, limit, time.time_ns(), host(), notes)


class _Stillness:
    """Looks at the ranks again and again, and knows since when nothing has moved. looks: how often nothing had moved.
    since: when something moved last, and `what`. collectives: when collectives were called last."""

    def __init__(self, folder: Path, look: Look) -> None:
        self._folder, self._look = folder, look
        self.reset()

    def reset(self) -> None:
        self._samples: Mapping[int, ProcessSample] | None = None
        self._still: Mapping[int, ProcessSample] = {}  # at the beginning of what may be a stillness
        self._due = 0.0
        self.looks = 0
        self.since = self.collectives = float("-inf")
        self.what = ""

    def look(self, alive: Sequence[Progress], now: float, quiet: float) -> None:
        """Look again if it is time to; `quiet` is how long nothing has to move to count as still."""
        if now < self._due:
            return
        before, self._samples = self._samples, self._look(alive, self._folder)
        self._due = now + max(quiet / _LOOKS, _SHORTEST_PAUSE_S)
        if before is None:
            self.since, self._still = now, self._samples
            return
        pairs = [(sample, before[rank]) for rank, sample in self._samples.items() if rank in before]
        if any(sample.collectives_since(earlier) for sample, earlier in pairs):
            self.collectives = now
        moving = [sample for sample, earlier in pairs if sample.moved_since(earlier)]
        moving += [s for s in self._samples.values() if s.rank in self._still and s.woken_since(self._still[s.rank])]
        if moves := _what_moves(alive, moving):
            self.what = moves
            self.since, self.looks, self._still = now, 0, self._samples
            self._due = now + quiet / 2  # a rank that works is not disturbed more than needed
        else:
            self.looks += 1


def _what_moves(alive: Sequence[Progress], moving: Sequence[ProcessSample]) -> str:
    """What is going on, for people; '' where nothing is. moving: ranks that did something since they were looked at."""
    for record in alive:
        if record.phase == "profiler":
            return _text("profiling", rank=record.rank)
    if not moving:
        return ""
    if moving[0].rank == STARTING:
        return _text("starting")
    rank, where = max(((sample.rank, sample.where()) for sample in moving), key=lambda found: bool(found[1]))
    return _text("working", rank=rank, where=where)


def _kind(records: Sequence[Progress]) -> Literal["step", "init"]:
    return "step" if any(record.step for record in records) else "init"


class NodeStatus:
    """A file for each machine whose ranks are still: ranks that wait for a slow one elsewhere do not hang. folder:
    shared by the machines. Where it is not, no machine ever learns that all of them are still."""

    def __init__(self, folder: Path, nnodes: int) -> None:
        self._folder, self._nnodes = folder, nnodes
        self._own = folder / f".still.{host()}.{os.getpid()}"
        self._still_here = False

    def all_still(self, here: bool) -> bool:
        """Show the others whether the ranks are still here; returns whether they are everywhere."""
        if self._nnodes > 1 and here != self._still_here:
            self._still_here = here
            if here:
                self._own.touch()
            else:
                self._own.unlink(missing_ok=True)
        return here and (self._nnodes == 1 or len(list(self._folder.glob(".still.*"))) >= self._nnodes)


_LONGEST_S = 25.0
INTERRUPTED_S = 5.0
_HURRIED_S = 0.5
_MOST_STALLS = 5  # that are saved, of a job that goes on after each
_AGAIN = 2.0  # times as long as when it was said last


class HangWatch:
    """Watches the ranks of one run; after a stall it needs a moment to save what they are doing.

    out: the run folder. progress: the launcher's own. last_words: what ended captures, where somebody listens.
    all_still: how several nodes agree that none of them moves, where not by files in the run folder.
    stall: the one that lasts. saved: whether what the ranks are doing was saved, before the user or we end them.
    """

    def __init__(
        self,
        limits: HangTimeouts,
        out: Path,
        progress: Path,
        screen: Screen,
        nnodes: int = 1,
        all_still: Callable[[bool], bool] | None = None,
    ) -> None:
        self._limits, self._out, self._progress, self._screen = limits, out, progress, screen
        agree = NodeStatus(out / "evidence", nnodes).all_still if all_still is None else all_still
        self._watch = Watch(limits, progress, screen.say, agree)
        self._work: threading.Thread | None = None
        self._deadline = 0.0
        self._began = time.monotonic()
        self._seen_s = self._say_again_s = 0.0
        self._stalls = 0
        self.stall: Stall | None = None
        self.saved = False
        self.last_words: LastWords | None = None

    @property
    def kills(self) -> bool:
        """Whether the job is ended at a hang."""
        return self._limits.kills

    def observe(self, records: Sequence[Progress]) -> bool:
        """Look at the ranks' records, again and again; returns whether it is time to end the job."""
        now = time.monotonic()
        if self._work is not None and self.kills:
            return not self._work.is_alive() or now > self._deadline
        if self.last_words is not None and any(steps_unseen(failure) for failure in self.last_words.heard()):
            return False  # what does not move may well train: it cannot be seen
        stall, say = self._watch.observe(records, now), self._screen.say
        if self._work is None and stall is not None:
            say(_text("begins", starts=stall.kind == "init", seconds=stall.stalled_s, goes_on=not self.kills))
            self.stall, self._seen_s, self._say_again_s = stall, now, _AGAIN * stall.stalled_s
            self._stalls += 1
            if self._stalls <= _MOST_STALLS:
                self.saved = True
                # Not in the launcher's own thread, where Ctrl-C would have to wait for it.
                self._start(self._respond, records, stall, _LONGEST_S)
        elif self._work is not None and not self._work.is_alive():  # the ranks' state is saved: do they go on?
            assert self.stall is not None
            if self._watch.since > self._seen_s:
                say(_text("over", seconds=self._watch.since - self._seen_s + self.stall.stalled_s))
                self._keep_apart()
            elif stall is not None and stall.stalled_s > self._say_again_s:
                self._say_again_s = _AGAIN * stall.stalled_s
                say(_text("lasts", seconds=stall.stalled_s))
        return False

    def _keep_apart(self) -> None:
        """It was no hang: what was saved is none of the run's end."""
        self.stall, self.saved, self._work = None, False, None
        try:
            kept = set_aside(self._out)
        except OSError as error:
            self._screen.say(_text("not_apart", error=error))
            return
        if kept is not None:
            self._screen.say(_text("apart", folder=short_path(kept)))

    def rank_failed(self, records: Sequence[Progress]) -> None:
        """torchrun ends the ranks because one failed: have the others write what they wait in, if they can."""
        for record in records:
            ask(self._progress, record.rank, DUMP)

    def interrupted(self, records: Sequence[Progress]) -> bool:
        """The user ends the job: begin to save what ranks that seem to hang are doing, if they do; returns whether.
        `saves` says when to end the job."""
        if self._work is not None:
            return False
        if (stall := self._watch.suspect(records, time.monotonic())) is None:
            return False
        self._screen.say(_text("saved_first", seconds=stall.stalled_s))
        self.saved = True
        self._start(self._save, records, stall, INTERRUPTED_S)
        return True

    def _start(
        self,
        work: Callable[[Sequence[Progress], Stall], None],
        records: Sequence[Progress],
        stall: Stall,
        most_s: float,
    ) -> None:
        self._work = threading.Thread(target=work, args=(records, stall), daemon=True)
        self._work.start()
        self._deadline = time.monotonic() + most_s

    def saves(self) -> bool:
        """Whether what the ranks are doing is still being saved, and may be."""
        return self._work is not None and self._work.is_alive() and time.monotonic() < self._deadline

    def finish(self, *, hurried: bool, well: bool) -> None:
        """The job has ended. Wait for a verdict that is not ready; hurried: for a moment only. well: it was no hang."""
        if self._work is not None:
            self._work.join(_HURRIED_S if hurried else _LONGEST_S)
        if well and self.stall is not None:
            self._keep_apart()

    def _save(self, records: Sequence[Progress], stall: Stall) -> None:
        try:
            collect(self._out, self._progress, records, stall, began_s=self._began, within_s=INTERRUPTED_S - 0.5)
        except (TraceopsError, OSError) as error:  # a full disk, say; the job is ended all the same
            self._screen.say(_text("not_saved", error=error))

    def _respond(self, records: Sequence[Progress], stall: Stall) -> None:
        try:
            collect(self._out, self._progress, records, stall, began_s=self._began)
            from traceops.hangs.diagnose import diagnose
            from traceops.render.hang.terminal import print_diagnosis

            diagnosis = diagnose(self._out, jobs=1)
        except (TraceopsError, OSError) as error:  # a full disk, say
            self._screen.say(_text("not_explained", error=error))
            return
        with self._screen.paused():
            print_diagnosis(diagnosis, sys.stderr)
