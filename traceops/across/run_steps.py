"""All steps of a run, as the ranks' step logs tell them, and those that are unlike the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from traceops.core.arrays import Floats, Int, Mask, begins_far, median, nanmedian
from traceops.core.rank_files import EVENT, RECORDED, SPAN
from traceops.measure.host_places import CodePlace, FunctionTime, LoaderWork

_ENOUGH = 12  # steps of all ranks, to tell ranks that meet in few of them
_START = 8  # one in so many steps is the start
_APART = 1.5  # times the quickest rank's usual step: the slowest one's
_TOGETHER = 1.2  # times the least mean step of a rank: the longest of ranks that stay together


class Occasion(Struct, frozen=True):
    """Steps that are unlike the others for one reason. cause: as in TO-W001; "unknown" where nothing shows one. place:
    the function of the program that is seen most, and its line; placed: how much is seen in that function, of what is
    seen in any. times: how often such steps came, neighbours being one time. more_ms: what they take beyond the typical
    step, all together. ranks: that do it."""

    cause: str
    place: CodePlace | None
    steps: tuple[int, ...]
    times: int
    more_ms: float
    share_pct: float
    ranks: tuple[int, ...]
    placed: float = 1.0


class Share(Struct, frozen=True):
    """A part of a rank's time, percent, and in how many steps it took a twentieth or more."""

    pct: float
    steps: int


class WholeRun(Struct, frozen=True):
    """All steps of a run.

    took_ms: rank by step, NaN where a rank has none; numbers: of the steps. timed: steps that no profiler was at, from
    the second on. like: of those, the typical ones. start: steps at the beginning that took longer. garbage,
    compiled: of each rank's time after them. on_device: by the GPU's timeline. loaders: of ranks whose loaders have
    workers that were looked at. in_time_ms: where input comes late in every few steps, the mean of the others, ms; the
    typical step is then the mean of all. host_ms: by the clock of its host, the third shortest of these steps on the
    slowest rank: a host that ran ahead needs no more.
    """

    ranks: tuple[int, ...]
    numbers: Int
    took_ms: Floats
    timed: Mask
    like: Mask
    start: tuple[int, ...]
    typical_ms: float
    total_ms: float
    occasions: tuple[Occasion, ...] = ()
    garbage: Mapping[int, Share] = field(default_factory=dict)
    compiled: Mapping[int, Share] = field(default_factory=dict)
    skipped: int = 0
    looks: Mapping[int, int] = field(default_factory=dict)
    on_device: bool = False
    host: Mapping[int, Sequence[FunctionTime]] = field(default_factory=dict)
    loaders: Mapping[int, LoaderWork] = field(default_factory=dict)
    in_time_ms: float | None = None
    host_ms: float | None = None

    @property
    def by_turns(self) -> bool:
        """Whether input comes late in every few steps, so that the typical step is the mean of all."""
        return self.in_time_ms is not None

    @property
    def typical_steps(self) -> int:
        """How many steps are like the others."""
        return int(self.like.sum())

    @property
    def usual_ms(self) -> Floats:
        """What each of these took."""
        return self.step_ms[self.like]

    @property
    def mean_ms(self) -> float:
        """The mean of all timed steps but those at the start, ms, typical or not."""
        return float(self.step_ms[self.timed & ~np.isin(self.numbers, self.start)].mean())

    @property
    def steady_ms(self) -> float:
        """The mean of these, ms, without the first fifth: a queue that filled before serves it. Of whole rounds, where
        long steps come again."""
        steps = self.step_ms[self.timed & ~np.isin(self.numbers, self.start)]
        steps = steps[len(steps) // 5 :]
        begins = begins_far(steps)
        whole_rounds = len(begins) > 3 and 2 * (begins[-1] - begins[0]) > len(steps)
        return float((steps[begins[0] : begins[-1]] if whole_rounds else steps).mean())

    @property
    def step_ms(self) -> Floats:
        """What each step took, of all ranks."""
        return step_of_ranks(self.took_ms)


def step_of_ranks(took: Floats) -> Floats:
    """Of each step the median over ranks, from rank by step; NaN where no rank has it. Ranks that meet in few steps
    (post-local SGD, DiLoCo) go on by themselves in most, and those that are early wait in the others. Then a step takes
    what it takes the rank that the others wait for."""
    known: Mask = np.asarray(~np.isnan(took).all(axis=0))
    if (slowest := _apart_in_most(took)) is not None:
        return np.where(known & np.isnan(took[slowest]), _median(took, known), took[slowest])
    return _median(took, known)


def _apart_in_most(took: Floats) -> int | None:
    """The row of the slowest rank where others take far less in most steps, and as long as it over all of them."""
    shared: Mask = np.asarray(~np.isnan(took).any(axis=0))
    shared[: len(shared) // _START + 1] = False  # ranks begin one after the other
    if len(took) < 2 or shared.sum() < _ENOUGH:
        return None
    usual, mean = median(took[:, shared], axis=1), took[:, shared].mean(axis=1)
    slowest = int(usual.argmax())
    apart = usual[slowest] >= _APART * usual.min() and mean.max() <= _TOGETHER * mean.min()
    return slowest if apart else None


def _median(took: Floats, known: Mask) -> Floats:
    found = np.full(took.shape[1], np.nan)
    found[known] = nanmedian(took[:, known], axis=0)
    return found


_MOST = 0.8  # of the steps: known by the device's own timeline
_LEAST_KNOWN = 4  # steps: fewer do not tell what the others take
_AHEAD = 0.8  # host ÷ device, of the median step: from there on down the host runs ahead
_AS_LONG = 0.05  # of as many usual steps: what both clocks may differ by in all
_STALLED = 2.0  # usual steps: one that takes so long is no even one
_UNEVEN = 0.1  # of a span: from so much more than its usual steps on, those that the host held up took it
_STEADIER = 0.5  # of what steps take beyond the median one by the device's clock
_LEAD = 50  # steps before a span, in which the host may have run ahead
_CLOSER = 0.2  # of what a span takes longer: by so much better the own host explains it, where ranks do not wait
_QUEUED = 0.5  # of what the device takes: by the host's clock a step takes less where it is only queued
_WAITED = 0.8  # of what a step takes longer: queued before it, so that the host waits for that
_MORE_IN_ALL = 1.05  # times as long in all steps: the device cannot have waited for the host
_OFTEN = 0.25  # of single steps and of spans: more than half of them may hold an odd step


def device_ms(steps: NDArray[np.void], hosts: Floats | None = None) -> Floats:
    """Each step by the device's clock, ms; NaN where that is not known.

    steps: records of `core.step_log`, of one rank, in order. hosts: what they took by the clock of each rank's host,
    rank by step, ms. Of a step between two events the device's time is known. Of a span of steps between two events
    their sum is: each takes an equal part. Where the span took longer than so many usual steps, the usual part is each
    one's, and the rest is given to those in which the host took longer than the work that was queued: this rank's, or
    that of a rank that this one waits for. The host's times alone would be false where it runs ahead: it waits in one
    step for the work of many.
    """
    flags = steps["flags"]
    took = steps["device_us"].astype(np.float64) / 1e3
    known = took > 0
    spans = known & (flags & SPAN > 0)
    found = np.where(known & ~spans, took, np.nan)
    marks, last = np.flatnonzero(flags & EVENT), np.flatnonzero(spans)
    before = np.searchsorted(marks, last) - 1
    last, before = last[before >= 0], before[before >= 0]
    first = marks[before] + 1
    recorded = np.concatenate([[0], np.cumsum(flags & RECORDED > 0)])
    even = recorded[last + 1] == recorded[first]  # steps under a profiler take longer than those beside them
    first, last = first[even], last[even]
    if len(last):
        host = steps["host_us"][None, :] / 1e3
        clocks = (host,) if hosts is None or len(hosts) < 2 else (hosts, host)
        _divide(found, first, last, took[last], clocks, flags & RECORDED > 0)
    return found


def took_ms(steps: NDArray[np.void], device: Floats | None) -> Floats:
    """Each step, ms: by the device's clock where that is given, else by the host's. Behind the last event the device's
    time is not known. A host that runs ahead waits there in one step for the work of many, as anywhere else: such a
    step takes a usual one, and what its host held the device up for."""
    host: Floats = steps["host_us"] / 1e3
    if device is None:
        return host
    found, recorded = np.where(np.isnan(device), host, device), steps["flags"] & RECORDED > 0
    known, open_ = device[~np.isnan(device) & ~recorded], np.isnan(device) & ~recorded
    open_[:1] = False  # the program's start
    if not len(known) or not open_.any():
        return found
    usual = median(known)
    at = np.flatnonzero(open_)
    for own in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1):
        first, last = int(own[0]), int(own[-1])
        before = np.flatnonzero(recorded[:first])
        begin = max(first - _LEAD, int(before[-1]) + 1 if len(before) else 0)
        found[own] = usual + _idle(host[begin : last + 1], usual)[first - begin :]
    return found


def single(steps: NDArray[np.void]) -> Mask:
    """Steps between two events: what the device took for each is known of it alone."""
    return np.asarray((steps["device_us"] > 0) & (steps["flags"] & SPAN == 0))


def tells_pace(devices: Floats, hosts: Floats) -> bool:
    """Whether steps are as long as the device takes. Both of the same steps, rank by step, ms. Not where the host is
    even and the device is not: that is behind now and then, and catches up while it waits for the host. A host that
    runs ahead is the less even one, for it waits in one step for the work of many, or in the end it has taken less time
    than the device."""
    both = ~np.isnan(devices) & ~np.isnan(hosts)
    if float(devices[both].sum()) >= _MORE_IN_ALL * float(hosts[both].sum()):
        return True
    return _beyond_median(hosts) >= _STEADIER * _beyond_median(devices)


def only_queued(steps: NDArray[np.void]) -> Mask:
    """Steps that the host queued ahead of the device, whose own time nothing tells: their length is not known. Of a
    short run few steps have the device's time. Where these took longer than by the host's clock, so did others. Nor is
    that of a step in which the host waits for what it queued before."""
    alone, host = single(steps) & (steps["flags"] & RECORDED == 0), steps["host_us"].astype(np.float64)
    alone[:1] = False
    device = steps["device_us"].astype(np.float64)[alone]
    ahead = int((host[alone] < _QUEUED * device).sum()) >= _LEAST_KNOWN  # until the queue was full
    if len(device) < _LEAST_KNOWN or (not ahead and host[alone].sum() > _AHEAD * device.sum()):
        return np.zeros(len(steps), dtype=bool)
    usual = float(np.quantile(device, _OFTEN))
    waits = (host > usual / _QUEUED) & (_queued(host, usual) >= _WAITED * (host - usual))
    return np.asarray((host < _QUEUED * usual) | waits)


def _beyond_median(took: Floats) -> float:
    return float(np.nansum(np.maximum(took - nanmedian(took, axis=1)[:, None], 0.0)))


def is_known(steps: NDArray[np.void], device: Floats) -> bool:
    """Whether the device's clock tells most of a rank's steps, the first and those under a profiler aside. Or a few of
    them, where events cost a short training much, if by these its host runs ahead, and all steps without a stall are
    then together as long as by the host's clock, which cannot be wrong about that."""
    free = steps["flags"] & RECORDED == 0
    free[:1] = False
    if not free.any():
        return False
    known = free & ~np.isnan(device)
    if float(known[free].mean()) >= _MOST:
        return True
    host = steps["host_us"] / 1e3
    if known.sum() < _LEAST_KNOWN or median(host[free]) > _AHEAD * median(device[known]):
        return False
    told, usual = took_ms(steps, device), median(device[known])
    even = free & (told < _STALLED * usual)  # a host that is held up for seconds leaves room for any queue
    return abs(float((told - host)[even].sum())) <= _AS_LONG * usual * int(even.sum())


def _divide(found: Floats, first: Int, last: Int, took: Floats, clocks: Sequence[Floats], recorded: Mask) -> None:
    """Give each step of the spans its part, in `found`. clocks: of all hosts, and of the own."""
    count = last - first + 1
    usual = float(np.quantile(took / count, _OFTEN))
    single = found[~np.isnan(found) & ~recorded]
    if len(single):  # an event makes a short step longer, and every span may hold an odd step
        usual = min(usual, float(np.quantile(single, _OFTEN)))
    excess = took - count * usual
    uneven = excess > _UNEVEN * count * usual
    within = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
    found[within] = np.repeat(took / count, count)
    for at in np.flatnonzero(uneven).tolist():
        begin = max(int(first[at]) - _LEAD, 0)
        idle, off = np.zeros(count[at]), float("inf")
        for hosts in clocks:
            told = _idle(_slowest(hosts[:, begin : last[at] + 1]), usual)[first[at] - begin :]
            own_off = abs(float(told.sum()) - excess[at]) + _CLOSER * excess[at]
            if own_off < off:
                idle, off = told, own_off - _CLOSER * excess[at]
        if (total := float(idle.sum())) > 0:
            found[first[at] : last[at] + 1] = usual + idle * (excess[at] / total)


def _slowest(hosts: Floats) -> Floats:
    """Each step by the clock of the host that is through with all steps until then last: its peers wait for it."""
    known = hosts[~np.isnan(hosts).any(axis=1)]
    through: Floats = known.cumsum(axis=1).max(axis=0, initial=0.0)
    return np.diff(through, prepend=0.0)


def _idle(host: Floats, usual: float) -> Floats:
    """How long a device has nothing to do in each step: what it takes beyond the work that is queued, and its own. A
    host that ran ahead may wait in one step for the work of many: nothing idles then."""
    idle: Floats = np.maximum(host - usual - _queued(host, usual), 0.0)
    return idle


def _queued(host: Floats, usual: float) -> Floats:
    """Work that is queued when each step begins: a queue's waiting time [Lindley 1952], which begins at 0."""
    ahead = np.concatenate([[0.0], np.cumsum(usual - host)])
    queued: Floats = (ahead - np.minimum.accumulate(ahead))[:-1]
    return queued
