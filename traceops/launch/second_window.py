"""Whether the recorded steps turned out unlike those of the run since, so that a later window tells more of it.

Nobody knows at its start how a program's steps will be: compiled late, warm late, or broken by an evaluation just
where the schedule has its window. Later it shows, in the steps that every rank times (`core/rank_files.py`). Ranks that
judged by themselves would record different steps, so the launcher judges, by rank 0's, once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from enum import Enum
from itertools import pairwise
from math import gcd
from pathlib import Path
from statistics import median

from msgspec import Struct

from traceops.capture.manifest import RankManifest, readable_ranks
from traceops.capture.schedule import Schedule
from traceops.core.rank_files import RECORD, RECORDED, STEPS_FILE, split_log

_BEHIND = 40  # steps without a profiler, of which the later half says how long one takes
_NEAR = 4  # steps before the window
_SLOWER, _EACH_SLOWER = 1.25, 1.1  # these take than later ones: the median of them, and each
_SETTLED = 1.1  # the later half ÷ the half before it, or the other way round
_COMPILED = 0.2  # of a step
_ODD = 1.5  # times the usual step
_AGAIN = 3  # times that a step of one kind came, for a rhythm
_ROOM = 8  # steps from one to the next, so that a window fits between
_MOST_LOOKS = 7  # each after twice as many steps: the last one reads 100 kB


class Why(Enum):
    """What the first window holds that the run's later steps do not."""

    SLOWER = "slower"
    COMPILED = "compiled"
    INTERRUPTED = "interrupted"


class TimedStep(Struct, frozen=True):
    """A step of a rank's log. recorded: a profiler was at work in it, or in the one before."""

    number: int
    us: int
    compile_us: int = 0
    recorded: bool = False


class Rhythm(Struct, frozen=True):
    """Steps that take far longer come in steps `first`, `first` + `every`, …, each for `lasts` steps."""

    first: int
    every: int
    lasts: int

    def has(self, number: int) -> bool:
        """Whether the step is one of them."""
        return (number - self.first) % self.every < self.lasts

    def free_from(self, start: int, steps: int) -> int:
        """The first step from `start` on at which so many begin of which none is one of them, or right behind one."""
        wide = Rhythm(self.first, self.every, self.lasts + 1)
        for begin in range(start, start + self.every):
            if not any(wide.has(number) for number in range(begin, begin + steps)):
                return begin
        return start


class WindowDue(Struct, frozen=True):
    """Why another window is due, and what it has to be kept clear of."""

    why: Why
    rhythm: Rhythm | None = None


def unlike_since(steps: Sequence[TimedStep], window: Collection[int]) -> WindowDue | None:
    """Of a rank's steps until now, where those of the `window` were recorded. None where all is well, or is not known.

    Known it is only when the steps have settled: for a while they have taken as long, and none was compiled.
    """
    own = [step for step in steps if step.number in window]
    before = [step for step in steps if 0 < step.number < min(window) and not step.recorded][-_NEAR:]
    behind = [step for step in steps if step.number > max(window) and not step.recorded][-_BEHIND:]
    if len(own) < len(window) or len(behind) < _BEHIND:
        return None
    halves = [median(step.us for step in half) for half in (behind[: _BEHIND // 2], behind[_BEHIND // 2 :])]
    later = halves[1]
    if max(halves) > _SETTLED * min(halves) or any(map(_compiles, behind[_BEHIND // 2 :])):
        return None
    every = [step for step in steps if step.number > max(window) and not step.recorded]
    usual = median(step.us for step in own)
    odd = max(step.us for step in own)
    settled = every[-max(len(every) // 2, _BEHIND) :]  # slow steps at the start are not of what comes again
    rhythm = _rhythm(settled, (later + max(step.us for step in settled)) / 2, later)
    if any(map(_compiles, own)):
        return WindowDue(Why.COMPILED, rhythm)
    slow = [step.us for step in before]
    if len(slow) == _NEAR and median(slow) >= _SLOWER * later and min(slow) >= _EACH_SLOWER * later:
        return WindowDue(Why.SLOWER, rhythm)
    again = _rhythm(every, later + (odd - usual) / 2, later)
    if again is not None and any(again.has(step.number) and step.us >= _ODD * usual for step in own):
        return WindowDue(Why.INTERRUPTED, again)
    return None


def _compiles(step: TimedStep) -> bool:
    return step.compile_us >= _COMPILED * step.us > 0


def _rhythm(steps: Sequence[TimedStep], least_us: float, usual_us: float) -> Rhythm | None:
    """In which the steps come that take at least so long; None where they are few, or come as they like."""
    long = [step.number for step in steps if step.us >= max(least_us, _ODD * usual_us)]
    begins = [number for number in long if number - 1 not in long]
    if len(begins) < _AGAIN:
        return None
    every = gcd(*(b - a for a, b in pairwise(begins)))
    lasts = -(-len(long) // len(begins))
    return Rhythm(begins[0], every, lasts) if every >= _ROOM else None


def read_steps(path: Path) -> list[TimedStep]:
    """The steps that a rank has timed until now; none where the file is no such log. Raises OSError."""
    try:
        told, records = split_log(path.read_bytes())
    except ValueError:
        return []
    if told.get("first") != 0:
        return []
    return [
        TimedStep(number, host_us, compile_us, bool(flags & RECORDED))
        for number, (host_us, _, _, compile_us, _, _, _, flags) in enumerate(RECORD.iter_unpack(records))
    ]


class SecondWindow:
    """Whether one is due, asked again and again by the launcher of rank 0's node. out: the run folder."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._from = Schedule().total_steps + _BEHIND
        self._looks = 0

    def close(self) -> None:
        """None is due any more: somebody has asked for one."""
        self._looks = _MOST_LOOKS

    def due(self, step: int) -> WindowDue | None:
        """Whether the window that the schedule had is unlike what came since, until this step. Raises OSError."""
        if self._looks >= _MOST_LOOKS or step < self._from:
            return None
        self._looks, self._from = self._looks + 1, 2 * step
        ranks, _ = readable_ranks(self._out)
        log = self._out / "rank_0" / STEPS_FILE
        if not _may_have_another(ranks) or not log.is_file():
            return None
        found = unlike_since(read_steps(log), set(ranks[0].windows[0].steps))
        if found is not None:
            self.close()
        return found


def _may_have_another(ranks: Sequence[RankManifest]) -> bool:
    """All ranks have the default schedule's window and nothing else, and CUPTI is in none of them any more."""
    return (
        bool(ranks)
        and len(ranks) == ranks[0].world_size
        and all(
            rank.status == "running"
            and rank.failure is None
            and (rank.device.get("type") == "cpu" or (rank.detached is not None and rank.detached["done"]))
            and rank.script_profiler is None
            and rank.schedule == asdict(Schedule())
            and [(one.index, one.complete) for one in rank.windows] == [(0, True)]
            and rank.windows[0].steps == ranks[0].windows[0].steps
            for rank in ranks
        )
    )
