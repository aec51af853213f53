"""Decides from the ranks' heartbeats, and from looks at them, whether a training is slow or hangs."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from traceops.capture.environment import host
from traceops.capture.progress import Progress
from traceops.hangs.evidence import Stall
from traceops.launch.hang_timeouts import HangTimeouts
from traceops.launch.process_activity import STARTING, ProcessSample, look, state

_LEAST_S = 60.0
_MEDIAN_STEPS = 10
_MOST_STEPS = 200
_SUSPECT_STEPS, _LEAST_SUSPECT_S, _UNKNOWN_SUSPECT_S = 3, 2.0, 10.0  # when Ctrl-C comes
_ENOUGH_STEPS = 20  # for a median to be believed
_EXTENSION = 10  # a step in which something moves may take as many times the limit
_LONGEST_QUIET_S = 15.0
_LOOKS = 10
_SHORTEST_PAUSE_S = 0.25
_ELSEWHERE = "the ranks of another machine still moved, or its launcher does not share the run folder"

Look = Callable[[Sequence[Progress], Path], Mapping[int, ProcessSample]]


class Watch:
    """Told of the ranks' records again and again, says when they hang.

    A training hangs if no rank on this machine has finished a step for the limit, and nothing has moved in
    the last part of it. What moves is a slow step: it may take ten times as long, or longer while
    collectives are called or where the capture has ended before the training, so that steps go unseen.

    folder: of the records. say: tells the user. all_still: told whether the ranks are still here, says
    whether they are on all machines. look: how to see the ranks.
    """

    def __init__(
        self,
        limits: HangTimeouts,
        folder: Path,
        say: Callable[[str], None],
        all_still: Callable[[bool], bool] = bool,
        look: Look = look,
    ) -> None:
        self._limits = limits
        self._all_still = all_still
        self._say = say
        self._stillness = _Stillness(folder, look)
        self._since = time.monotonic()  # when a step was finished last
        self._records: dict[int, Progress] = {}
        self._step_s: deque[float] = deque(maxlen=_MOST_STEPS)
        self._told = False

    @property
    def since(self) -> float:
        """When a step was finished last, by the monotonic clock."""
        return self._since

    def observe(self, records: Sequence[Progress], now: float) -> Stall | None:
        """The stall, if there is one by now; `now` is of the monotonic clock."""
        if self._advanced(records):
            self._since, self._told = now, False
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
        stalled, quiet = now - self._since, min(limit / 2, _LONGEST_QUIET_S)
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
        if stalled >= _EXTENSION * limit and not unseen and now - seen.collectives > limit:
            moved = f"something still moved: {seen.what}"
            return self._stall(records, stalled, limit, (_ELSEWHERE if still else moved,))
        if seen.what and not self._told:
            self._told = True
            self._say(f"slow step: no step for {stalled:.0f} s; {seen.what}")
        return None

    def suspect(self, records: Sequence[Progress], now: float) -> Stall | None:
        """What looks like a stall to somebody who ends the job: no step for three medians, or none at all."""
        stalled = now - self._since
        limit = _UNKNOWN_SUSPECT_S
        if self._step_s:
            known = max(_LEAST_SUSPECT_S, _SUSPECT_STEPS * statistics.median(self._step_s))
            limit = known if len(self._step_s) >= _ENOUGH_STEPS else min(known, limit)
        saving = any(record.phase == "profiler" for record in records)
        if saving or stalled < limit or not any(is_alive(record) for record in records):
            return None
        return self._stall(records, stalled, limit, ("the user ended the job",))

    def _advanced(self, records: Sequence[Progress]) -> bool:
        advanced = False
        for record in records:
            before = self._records.get(record.rank)
            if before is not None and before.pid == record.pid and 0 < before.step < record.step:
                taken = (record.time_ns - before.time_ns) / 1e9
                steps = record.step - before.step  # each counts: one that starts the profiler is one of many
                self._step_s.extend([taken / steps] * min(steps, _MOST_STEPS))
            if before is None or (before.pid, before.step, before.phase) != (
                record.pid, record.step, record.phase,
            ):  # fmt: skip
                advanced = True
            self._records[record.rank] = record
        return advanced

    def _limit(self, records: Sequence[Progress]) -> float:
        if _kind(records) == "init":
            return self._limits.init_s
        if self._limits.hang_s is not None:
            return self._limits.hang_s
        median = statistics.median(self._step_s) if self._step_s else 0.0
        return max(_LEAST_S, _MEDIAN_STEPS * median)

    def _stall(self, records: Sequence[Progress], stalled: float, limit: float, notes: tuple[str, ...]) -> Stall:
        gone = [str(record.rank) for record in records if not is_alive(record)]
        if gone:
            several = len(gone) > 1
            notes += (
                f"rank{'s' if several else ''} {', '.join(gone)} {'are' if several else 'is'} gone while others wait",
            )
        if not records:
            notes += ("no rank has started: torchrun waits for the other machines, or the ranks cannot start",)
        return Stall(_kind(records), stalled, limit, time.time_ns(), host(), notes)


class _Stillness:
    """Looks at the ranks again and again, and knows since when nothing has moved.

    looks: how often nothing had moved. since: when something moved last, and `what`.
    collectives: when collectives were called last.
    """

    def __init__(self, folder: Path, look: Look) -> None:
        self._folder = folder
        self._look = look
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
        saving = [record.rank for record in alive if record.phase == "profiler"]
        moving = [sample for sample, earlier in pairs if sample.moved_since(earlier)]
        moving += [s for s in self._samples.values() if s.rank in self._still and s.woken_since(self._still[s.rank])]
        if saving:
            self.what = f"the profiler of rank {saving[0]} starts or writes its trace"
        elif moving and moving[0].rank == STARTING:
            self.what = "the ranks are still being started"
        elif moving:
            rank, where = max(((sample.rank, sample.where()) for sample in moving), key=lambda told: bool(told[1]))
            self.what = f"rank {rank} is still working{where and f' in {where}'}"
        if saving or moving:
            self.since, self.looks, self._still = now, 0, self._samples
            self._due = now + quiet / 2  # a rank that works is not disturbed more than needed
        else:
            self.looks += 1


def is_alive(record: Progress) -> bool:
    """Whether the rank's process is still there."""
    return state(record.pid) not in ("gone", "Z")


def _kind(records: Sequence[Progress]) -> Literal["step", "init"]:
    return "step" if any(record.step for record in records) else "init"


class NodeStatus:
    """A file for each machine whose ranks are still: ranks that wait for a slow one elsewhere do not hang.

    folder: shared by the machines. Where it is not, no machine ever learns that all of them are still.
    """

    def __init__(self, folder: Path, nnodes: int) -> None:
        self._folder = folder
        self._nnodes = nnodes
        self._own = folder / f".still.{host()}.{os.getpid()}"
        self._told = False

    def all_still(self, here: bool) -> bool:
        """Tell the others whether the ranks are still here; returns whether they are everywhere."""
        if self._nnodes > 1 and here != self._told:
            self._told = here
            if here:
                self._own.touch()
            else:
                self._own.unlink(missing_ok=True)
        return here and (self._nnodes == 1 or len(list(self._folder.glob(".still.*"))) >= self._nnodes)
