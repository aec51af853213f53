"""Numbers that are followed while a job runs: each rank's pace, what grows, and where the job's time goes.

Pace: whether a rank's steps take longer than they did, by a robust cumulative sum (CUSUM). A running median over five
steps keeps single long ones out, such as an evaluation or a checkpoint. It is measured in robust deviations (median
absolute deviation) from the rank's usual step, and summed up as long as it stays above it. A change counts from both
a significance (the sum) and a size on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from math import log
from statistics import fmean, median

from msgspec import Struct

from traceops.core.live_pulses import ENDED, KINDS, Pulse
from traceops.live.stream import RankLook

_SKIPPED = 4  # first steps that tell nothing of those after them
_LEARNED = 24  # steps that make the first usual step
_OF_MEDIAN = 5
_SLACK, _LIMIT = 1.5, 12.0  # of the sum: deviations per step that are allowed, and from where on it counts
_MOST_Z = 6.0
_LEAST_PART = 0.12  # of the usual step: smaller changes are not reported
_LEAST_DEVIATION = 0.025  # of the usual step
_BACK = 10  # steps near the usual one after which it is over
_NEAR = 0.06
_UP = 1.08  # how far the usual step may follow slower steps: what creeps beyond that is a change
_LEARN = 0.003
_ACCEPTED = 40  # slow steps that make the usual step where they are accepted
_GROWS_AFTER_S, _SETTLES = 40.0, 0.85
# Whiles in s that are judged, and for how many minutes their pace is taken to go on.
_GROWS_S = {24.0: 60.0, 90.0: 120.0, 300.0: 480.0}
# Growth that began so many seconds ago: by so much in each of them; before it, for so long, by such a part of that.
_SUDDEN_S, _SUDDEN_BYTES, _FLAT_S, _FLAT_PART = 7, 12 << 20, (4.0, 15.0), 0.25
_UNTIL_PEAK = 3  # pulses before one, in which some are likely to be near the peak of a step
_SEGMENTS, _GROWS_PART, _GROWS_BYTES = 8, 0.04, 64 << 20


class Change(Struct, frozen=True):
    """A rank's steps take longer. since: number of the first of them; ms of a step before and now."""

    since: int
    before_ms: float
    now_ms: float


class Pace:
    """One rank's; `feed` each step in order."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._seen = 0
        self._last: deque[float] = deque(maxlen=_OF_MEDIAN)
        self._numbers: deque[int] = deque(maxlen=_OF_MEDIAN)
        self.usual_ms = 0.0  # 0 until it is known
        self._deviation = 0.0
        self._anchor = 0.0
        self._sum = 0.0
        self._since = 0
        self._count = 0  # steps since then
        self._near = 0
        self._slow: deque[float] = deque(maxlen=40)
        self._first_slow: list[float] = []
        self.change: Change | None = None

    def feed(self, number: int, ms: float, known_ms: float = 0.0) -> None:
        """A step ended. known_ms: of it, what is no slowdown."""
        self._seen += 1
        if self._seen <= _SKIPPED:
            return
        if not self.usual_ms:
            self._first.append(ms - known_ms)
            if len(self._first) >= _LEARNED:
                self.usual_ms = self._anchor = median(self._first)
                apart = 1.4826 * median(abs(ms - self.usual_ms) for ms in self._first)
                self._deviation = max(apart, _LEAST_DEVIATION * self.usual_ms)
                self._first = []
            return
        self._last.append(ms - min(known_ms, max(ms - self.usual_ms, 0.0)))
        self._numbers.append(number)
        if len(self._last) < _OF_MEDIAN:
            return
        self._judge(sorted(self._last)[_OF_MEDIAN // 2])

    def _judge(self, middle: float) -> None:
        z = (middle - self.usual_ms) / self._deviation
        before = self._sum
        self._sum = max(0.0, self._sum + min(max(z, -_MOST_Z), _MOST_Z) - _SLACK)
        if self._sum and not before:
            # The median follows when three of its five steps are slow: the third from the last is the first of them.
            self._since, self._count = self._numbers[_OF_MEDIAN // 2], 0
            self._slow.clear()
            self._first_slow = []
        if self._sum:
            self._count += 1
            self._slow.append(self._last[-1])
            if len(self._first_slow) < _ACCEPTED:
                self._first_slow.append(self._last[-1])
        if self.change is None:
            enough = self._sum > _LIMIT and self._count >= _OF_MEDIAN
            if enough and median(self._slow) - self.usual_ms >= _LEAST_PART * self.usual_ms:
                self.change = Change(self._since, self.usual_ms, median(self._slow))
                self._near = 0
            elif not self._sum:
                self._follow(middle)
            return
        self._sum = min(self._sum, 2 * _LIMIT)
        self.change = Change(self.change.since, self.change.before_ms, median(self._slow or [middle]))
        self._near = self._near + 1 if middle < self.usual_ms * (1 + _NEAR) + self._deviation else 0
        if self._near >= _BACK:
            self.change, self._sum = None, 0.0

    def _follow(self, middle: float) -> None:
        """Have the usual step and its deviation follow; upwards only so far."""
        up = middle > self.usual_ms
        self.usual_ms *= 1 + _LEARN if up else 1 - _LEARN
        if not up:
            self._anchor = min(self._anchor, self.usual_ms)
        self.usual_ms = min(self.usual_ms, _UP * self._anchor)
        farther = abs(self._last[-1] - middle) * 1.4826 > self._deviation
        self._deviation *= 1.01 if farther else 0.99
        self._deviation = min(max(self._deviation, _LEAST_DEVIATION * self.usual_ms), 0.5 * self.usual_ms)

    def accept(self) -> None:
        """Take the first steps since the change for the usual ones: their work has changed. What came later has not."""
        self.change, self._sum = None, 0.0
        self.usual_ms = self._anchor = median(self._first_slow or self._last)


KEPT = 1_200  # pulses of a rank: ten minutes
FIRST = 8  # steps that tell nothing of those after them
_LONG = 2.5  # times a step like those before: an evaluation, a checkpoint, a new epoch


class RankState:
    """What is known of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pace = Pace()
        self.pulses: deque[Pulse] = deque(maxlen=KEPT)
        self.recent: deque[float] = deque(maxlen=60)
        self.history: deque[tuple[int, float, float]] = deque(maxlen=2_000)  # steps, ms of each, and of that collected
        self.longest_ms = 0.0
        self.long: deque[int] = deque(maxlen=500)  # steps much longer than those before
        self.steps = 0
        self.weighed = 0  # number of the pulse at which memory was judged last

    @property
    def pulse(self) -> Pulse | None:
        """The latest one."""
        return self.pulses[-1] if self.pulses else None

    def part_above(self, ms: float, count: int) -> float:
        """Of so many steps, the latest ones, the part that takes longer."""
        steps = list(islice(reversed(self.recent), count))
        return sum(step > ms for step in steps) / max(len(steps), 1)

    def surprise(self, ms: float, since: int) -> float:
        """How little chance explains that steps take longer than this since one, as before some did too: a log
        likelihood ratio."""
        took = [(number >= since, step > ms) for number, step, _ in self.history]
        before, now = ([longer for late, longer in took if late is side] for side in (False, True))
        usual, part = (sum(before) + 1) / (len(before) + 2), sum(now) / max(len(now), 1)
        apart = sum(p * log(p / q) for p, q in ((part, usual), (1 - part, 1 - usual)) if p)
        return len(now) * apart if part > usual else 0.0

    def latest(self, count: int) -> list[Pulse]:
        """So many pulses, the latest ones."""
        return list(islice(reversed(self.pulses), count))[::-1]

    @property
    def ended(self) -> bool:
        """Whether the rank closed its file by itself."""
        return self.pulse is not None and bool(self.pulse.flags & ENDED)

    def take(self, look: RankLook) -> dict[str, float]:
        """What is new; returns where its host was seen meanwhile, ms by kind."""
        if look.anew:
            self.pulses.clear()
            self.pace, self.steps, self.weighed = Pace(), 0, 0
        before = self.pulse
        if before is not None and look.pulses and look.pulses[0].number <= before.number:  # they began anew
            self.pulses.clear()
            before, self.weighed = None, 0
        self.pulses.extend(look.pulses)
        seen = seen_ms(before, self.pulse) if before is not None and self.pulse is not None else {}
        for step in look.steps:
            self.steps, ms = step.number + 1, step.us / 1000
            if step.recorded:
                continue
            self.pace.feed(step.number, ms, step.compile_us / 1000)
            is_long = len(self.recent) >= FIRST and ms > _LONG * self.pace.usual_ms
            if is_long and ms > _LONG * median(islice(reversed(self.recent), FIRST)):
                self.long.append(step.number)
            self.recent.append(ms)
            self.history.append((step.number, ms, step.gc_us / 1000))
            if step.number > FIRST:
                self.longest_ms = max(self.longest_ms, ms)
        return seen

    def seen_in_step(self) -> dict[str, float]:
        """Where the rank's host was seen in the step that goes on, ms by kind; empty without two looks."""
        pulses = [pulse for pulse in self.pulses if pulse.steps == self.steps]
        return seen_ms(pulses[0], pulses[-1]) if len(pulses) > 1 else {}

    def garbage_grew_ms(self, change: int, since: int) -> float:
        """By how much more a step spends in Python's garbage collector since this one than before the change."""
        before = [ms for number, _, ms in self.history if number < change]
        now = [ms for number, _, ms in self.history if number >= since]
        return fmean(now) - fmean(before) if before and now else 0.0

    def long_ones(self, usual_ms: float) -> list[int]:
        """Steps much longer than those before, and the one that goes on where it is so by now."""
        pulse = self.pulse
        goes_on = pulse is not None and (pulse.time_ns - pulse.begun_ns) / 1e6 > _LONG * usual_ms
        return [*self.long, self.steps] if goes_on else [*self.long]

    def around(self, step: int) -> tuple[list[Pulse], list[Pulse]]:
        """The pulses before this step ended, of later than the start, and those since."""
        at = next((index for index, pulse in enumerate(self.pulses) if pulse.steps >= step), len(self.pulses))
        pulses = list(self.pulses)
        return [pulse for pulse in pulses[:at] if pulse.steps > FIRST], pulses[at:]


_NOW_AND_THEN, _OFTEN = ("checkpoint", "evaluation"), 0.4
_BEGUN = 0.1  # of the time between two pulses: of a step that has only begun
_ENOUGH = 120  # looks without those in single long steps

PARTS = (
    "start", "productive", "evaluation", "checkpoint", "compiling", "input", "slowdown", "hang", "restart", "other",
)  # fmt: skip


class Goodput:
    """One job's ledger, in seconds; what goes into it is the time of one rank, so that the parts add up."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def add(self, part: str, seconds: float) -> None:
        """Charge so much to a part."""
        self.seconds[part] += max(seconds, 0.0)

    def steps(self, whole_ms: float, usual_ms: float, count: int, seen_ms: Mapping[str, float], slow: bool) -> None:
        """Charge some steps. usual_ms: of one, 0 while it is not known; seen_ms: where their time was seen to go.

        slow: an open slowdown takes what no other part explains.
        """
        input_ms = min(seen_ms.get("input", 0.0), whole_ms)
        productive = min(whole_ms, usual_ms * count if usual_ms else whole_ms)
        rest = whole_ms - productive
        for part in ("compiling", "checkpoint", "evaluation"):
            took = min(rest, seen_ms.get(part, 0.0))
            self.add(part, took / 1000)
            rest -= took
        # Waiting for input is in the usual step too.
        waited = min(input_ms, productive + rest)
        beyond = min(waited, rest)
        self.add("input", waited / 1000)
        rest, productive = rest - beyond, productive - (waited - beyond)
        self.add("slowdown" if slow else "other", rest / 1000)
        self.add("productive", productive / 1000)

    @property
    def part(self) -> float:
        """Of all time, what was productive."""
        whole = sum(self.seconds.values())
        return self.seconds["productive"] / whole if whole else 0.0


def seen_ms(before: Pulse, now: Pulse) -> dict[str, float]:
    """Where a rank's host was seen between two pulses, ms by kind."""
    return {kind: max(b - a, 0) / 1000 for kind, a, b in zip(KINDS, before.seen_us, now.seen_us, strict=True)}


class Seen(Struct, frozen=True):
    """Where a rank's host was seen, ms by kind, in so many looks."""

    ms: dict[str, float]
    looks: int

    def of_step(self, ms: float) -> dict[str, float]:
        """Where a step of so many ms goes, by kind; empty where nothing was seen."""
        whole = sum(self.ms.values())
        return {kind: ms * own / whole for kind, own in self.ms.items()} if whole else {}


def where_seen(pulses: Sequence[Pulse], long: Iterable[int]) -> Seen:
    """Each look counts alike, whatever time it stands for, so that close looks are not hidden by rare ones; without
    single long steps, where that leaves enough: they would hide what each step does."""
    pairs = [(_steps_in(a, b), seen_ms(a, b), b.looks - a.looks) for a, b in pairwise(pulses)]
    usual = [pair for pair in pairs if not any(step in pair[0] for step in long)]
    whole, left = (sum(looks for *_, looks in some) for some in (pairs, usual))
    ms = dict.fromkeys(KINDS, 0.0)
    kept = [(seen, looks) for _, seen, looks in (usual if left >= min(_ENOUGH, 0.35 * whole) else pairs) if looks]
    for kind in KINDS:
        parts = [seen[kind] * looks / max(sum(seen.values()), 1e-9) for seen, looks in kept]
        # What comes now and then, for a while, is none of what each step does.
        if kind not in _NOW_AND_THEN or sum(part > 0 for part in parts) > _OFTEN * len(parts):
            ms[kind] = sum(parts)
    return Seen(ms, round(sum(ms.values())))


def _steps_in(a: Pulse, b: Pulse) -> range:
    """The steps between two pulses, the one that goes on then too unless it has only begun."""
    goes_on = b.time_ns - b.begun_ns > _BEGUN * (b.time_ns - a.time_ns)
    return range(a.steps, b.steps + goes_on)


def held_at_peaks(pulses: Sequence[Pulse]) -> float:
    """What tensors held near the peak of steps: pulses come at any moment of a step."""
    return sorted(pulse.held for pulse in pulses)[int(0.9 * len(pulses))] if pulses else 0.0


def at_peaks(sizes: Sequence[int]) -> list[int]:
    """The most of the latest sizes until each one: a pulse comes at any moment of a step, which holds less at most."""
    return [max(sizes[max(at - _UNTIL_PEAK, 0) : at + 1]) for at in range(len(sizes))]


def steady_growth(sizes: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """By how much per minute a size grows all the time, of late, and for how many minutes it may be taken to go on.
    None where it does not grow. sizes: seconds, and bytes."""
    end, job_s = sizes[-1][0], sizes[-1][0] - sizes[0][0]
    for seconds, minutes in _GROWS_S.items() if job_s >= _GROWS_AFTER_S else ():
        recent = [(at, size) for at, size in sizes if end - at <= seconds]
        if job_s >= seconds and len(recent) >= 2 * _SEGMENTS:
            grown = growth([size for _, size in recent])
            if grown is not None:
                return 60 * grown / (recent[-1][0] - recent[0][0]), minutes
    sudden = _sudden_growth(sizes)
    return None if sudden is None else (sudden, max(_GROWS_S.values()))


def _sudden_growth(sizes: Sequence[tuple[float, float]]) -> float | None:
    """One that began some seconds ago, in a job whose memory did not grow before."""
    end = sizes[-1][0]
    marks = [next((size for at, size in reversed(sizes) if at <= end - ago), None) for ago in range(_SUDDEN_S, -1, -1)]
    before = [(at, size) for at, size in sizes if end - _SUDDEN_S - _FLAT_S[1] <= at <= end - _SUDDEN_S - 1]
    known = [size for size in marks if size is not None]
    if len(known) < len(marks) or len(before) < 2 or before[-1][0] - before[0][0] < _FLAT_S[0]:
        return None
    rises = [b - a for a, b in pairwise(known)]
    middle, rate = median(rises), (known[-1] - known[0]) / _SUDDEN_S
    if middle < _SUDDEN_BYTES or min(rises) < middle / 4 or max(rises) > 4 * middle:
        return None
    if sum(rises[-3:]) < _SETTLES * sum(rises[:3]):
        return None
    rose = max(size for _, size in before) - min(size for _, size in before)
    return None if rose > _FLAT_PART * rate * (before[-1][0] - before[0][0]) else 60 * rate


def growth(sizes: Sequence[float]) -> float | None:
    """By how much a size grew from the first segment to the last; None where it does not grow all the time."""
    length = len(sizes) // _SEGMENTS
    levels = [median(sizes[at * length : (at + 1) * length]) for at in range(_SEGMENTS)]
    rises = [b - a for a, b in pairwise(levels)]
    grown = levels[-1] - levels[0]
    if grown < max(_GROWS_PART * levels[0], _GROWS_BYTES) or min(rises) <= 0 or max(rises) > 4 * median(rises):
        return None
    if min(b - a for a, b in pairwise(sizes)) < -median(rises):  # something was given back
        return None
    # What grows ever more slowly settles: caches and pools do.
    return None if sum(rises[-3:]) < _SETTLES * sum(rises[:3]) else grown
