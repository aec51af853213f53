"""Windows while a run goes on: those that `traceops capture` asks for, and one the launcher requests by itself.

How a program's steps will be is not known at its start: compiled late, warm late, or interrupted by an evaluation just
where the schedule has its window. It shows later, in the steps that every rank times (`core/rank_files.py`). Ranks that
judged by themselves would record different steps, so the launcher judges once, by those of rank 0.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from enum import Enum
from itertools import pairwise
from math import gcd
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from traceops.capture.manifest import RankManifest, readable_ranks
from traceops.capture.progress import Progress
from traceops.capture.schedule import LaterWindow, Schedule, ask
from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.files import write_whole
from traceops.core.rank_files import RECORD, RECORDED, STEPS_FILE, split_log
from traceops.core.run_lock import in_use
from traceops.words.catalogue import fill

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
    Known it is only when the steps have settled: for a while they have taken as long, and none was compiled."""
    own = [step for step in steps if step.number in window]
    plain = [step for step in steps if not step.recorded]
    behind = [step for step in plain if step.number > max(window)]
    later = _settled_us(behind)
    if len(own) < len(window) or later is None:
        return None
    settled = behind[-max(len(behind) // 2, _BEHIND) :]  # slow steps at the start are not of what comes again
    rhythm = _rhythm(settled, (later + max(step.us for step in settled)) / 2, later)
    if any(map(_compiles, own)):
        return WindowDue(Why.COMPILED, rhythm)
    if _were_slower([step.us for step in plain if 0 < step.number < min(window)][-_NEAR:], later):
        return WindowDue(Why.SLOWER, rhythm)
    usual, odd = median(step.us for step in own), max(step.us for step in own)
    again = _rhythm(behind, later + (odd - usual) / 2, later)
    if again is not None and any(again.has(step.number) and step.us >= _ODD * usual for step in own):
        return WindowDue(Why.INTERRUPTED, again)
    return None


def _were_slower(steps_us: Sequence[int], later_us: float) -> bool:
    """Whether the steps just before the window took longer than later ones."""
    if len(steps_us) < _NEAR:
        return False
    return median(steps_us) >= _SLOWER * later_us and min(steps_us) >= _EACH_SLOWER * later_us


def _settled_us(behind: Sequence[TimedStep]) -> float | None:
    """How long the latest steps take; None as long as they change, are compiled, or are few."""
    first, last = behind[-_BEHIND : -_BEHIND // 2], behind[-_BEHIND // 2 :]
    if len(behind) < _BEHIND or any(map(_compiles, last)):
        return None
    halves = [median(step.us for step in half) for half in (first, last)]
    return halves[1] if max(halves) <= _SETTLED * min(halves) else None


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
        header, records = split_log(path.read_bytes())
    except ValueError:
        return []
    if header.get("first") != 0:
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
        if (found := unlike_since(read_steps(log), set(ranks[0].windows[0].steps))) is not None:
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


REQUEST, ANSWER = "capture.request.json", "capture.window.json"  # in the run folder, while the run goes on
_LOOK_EVERY_S = 1.0
_AHEAD_S = 3.0  # until then each rank has looked, whatever its launcher and the file system take
_LEAST_AHEAD = 2  # steps: a rank may be a step ahead of what its heartbeat says
_text = Wording("launch", "window")


class Request(Struct, frozen=True):
    """How many steps to warm up and to record, and whether with memory; `id`: no other request has it."""

    id: str
    warmup: int = 2
    active: int = 4
    with_memory: bool = False


class OnDemand:
    """A launcher's part: asks its ranks. That of rank 0's node chooses the step, the others do as it says. out: run
    folder. progress: the folder of this node's heartbeats. say: shows the user a line."""

    def __init__(self, out: Path, progress: Path, say: Callable[[str], None]) -> None:
        self._out, self._progress, self._say = out, progress, say
        self._next = 0.0
        self._before: tuple[float, int] | None = None
        self._answered: int | None = None  # inode of the last answer
        self._number = self._free_from = 0  # of the next window, and the first step that none has
        self._signalled = False
        self._second = SecondWindow(out)

    def signalled(self) -> None:
        """SIGUSR2 came, to which no rank listens: a window of the usual size."""
        self._signalled = True

    def look(self, records: Sequence[Progress]) -> None:
        """Do what was asked since the last look, if that is a second ago. Raises OSError."""
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + _LOOK_EVERY_S
        step = max((record.step for record in records), default=0)
        per_s = 0.0
        if self._before is not None:
            per_s = (step - self._before[1]) / (now - self._before[0])
        self._before = now, step
        soon = step + max(_LEAST_AHEAD, math.ceil(per_s * _AHEAD_S))
        if all(record.rank for record in records):
            self._follow()
        elif (request := self._request()) is not None:
            self._second.close()
            self._answer(request, soon)
        elif (unlike := self._second.due(step)) is not None:
            request, start = Request("second"), max(soon, self._free_from)
            if unlike.rhythm is not None:
                start = unlike.rhythm.free_from(start, request.warmup + request.active)
            self._answer(request, start, unlike.why)

    def close(self) -> None:
        """Nobody is asked any more."""
        for name in (REQUEST, ANSWER):
            (self._out / name).unlink(missing_ok=True)

    def _request(self) -> Request | None:
        path = self._out / REQUEST
        if path.exists():
            try:
                return Request(**json.loads(path.read_bytes()))
            except (ValueError, TypeError):
                path.unlink(missing_ok=True)
        return Request("signal") if self._signalled else None

    def _answer(self, request: Request, start: int, why: Why | None = None) -> None:
        ranks, _ = readable_ranks(self._out)
        taken = [rank.schedule.get("repeat", 1) for rank in ranks]
        taken += [window.index + 1 for rank in ranks for window in rank.windows]
        self._number = max([self._number, *taken])
        self._free_from = max([self._free_from, *(Schedule(**rank.schedule).total_steps for rank in ranks)])
        start = max(start, self._free_from)
        window = LaterWindow(self._number, start, request.warmup, request.active, request.with_memory)
        if why is not None:
            window = replace(window, why=why.value)
        self._number, self._free_from = self._number + 1, window.end
        ask(self._progress, window)
        write_whole(self._out / ANSWER, json.dumps({"id": request.id, **asdict(window)}).encode())
        (self._out / REQUEST).unlink(missing_ok=True)
        self._signalled = False
        begin, reason = window.end - window.active, None if why is None else why.value
        self._say(_text("requested", window=window.number, steps=request.active, begin=begin, reason=reason))

    def _follow(self) -> None:
        """Ask this node's ranks for what the first node's launcher chose."""
        path = self._out / ANSWER
        try:
            inode = path.stat().st_ino
        except FileNotFoundError:
            return
        if inode != self._answered:
            self._answered = inode
            answer = json.loads(path.read_bytes())
            answer.pop("id", None)
            ask(self._progress, LaterWindow(**answer))


class Recorded(Struct, frozen=True):
    """What came of a request: the steps of each rank that has recorded the window, and how many ranks there are."""

    window: int
    steps: dict[int, list[int]]
    ranks: int


def request_window(out: Path, request: Request) -> None:
    """Ask the launcher of the run in `out`. Raises UsageError where no run goes on there, or it cannot be asked."""
    if not in_use(out):
        raise UsageError(fill("launch", "not_active", "refused", out=str(out)))
    try:
        write_whole(out / REQUEST, json.dumps(msgspec.to_builtins(request)).encode())
    except OSError as error:
        raise UsageError(fill("launch", "not_asked", "refused", out=str(out), why=error.strerror)) from error


def answer_to(out: Path, request: Request, wait_s: float = 10.0) -> LaterWindow:
    """The window that the launcher chose. Raises UsageError where none answers within `wait_s`."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            answer = json.loads((out / ANSWER).read_bytes())
            if answer.pop("id", None) == request.id:
                return LaterWindow(**answer)
        except (OSError, ValueError, TypeError):
            pass
        if not in_use(out):
            raise UsageError(f"the run in {out} ended before the request reached it")
        time.sleep(0.1)
    (out / REQUEST).unlink(missing_ok=True)
    raise UsageError(fill("launch", "no_answer", "refused", out=str(out), wait_s=wait_s))


def recorded(out: Path, window: int) -> Recorded:
    """Who has recorded the window so far."""
    ranks, _ = readable_ranks(out)
    steps = {
        rank.rank: kept.steps
        for rank in ranks
        for kept in rank.windows
        if kept.index == window and kept.trace is not None
    }
    return Recorded(window, steps, max((rank.world_size for rank in ranks), default=0))
