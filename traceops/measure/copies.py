"""Copies between host and device: which way, from what memory, what for, and how much of a step nothing else runs."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.arrays import Int, Intervals, intersect, is_in, median, merge, subtract, union, uniques
from traceops.measure.activity import COMPUTE, MEMORY, Activity
from traceops.measure.host_rows import BACKWARD_NAME, begin_inside, find_nesting, groups, rows_named
from traceops.measure.ledger import Lane
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

# input: to the device and not back, as batches and other data. output: to the host and not back, as predictions and
# checkpoints. offload: what goes out and comes back, as weights, gradients and activations that are kept on the host.
# values: small, to the host, as .item() reads them. exchange: around a collective that the host runs.
CopyPurpose = Literal["input", "output", "offload", "values", "exchange"]
_INPUT, _OUTPUT, _OFFLOAD, _VALUES, _EXCHANGE = range(5)

SMALL_BYTES = 1 << 16  # to the host: the reader waits for the kernels before, hardly for the copy
_SMALL_NS = 20_000  # where no size is known
_SEVERAL = 4  # tensors a step that go both ways
_OFFLOADS = re.compile(r"^FSDP::|offload|swap_(in|out)", re.IGNORECASE)
_EXCHANGES = re.compile(r"^(c10d::|_?c10d_functional|gloo:|record_param_comms)")


def find_purposes(
    events: Events, activity: Activity, steps: StepBounds, which: Int, to_device: NDArray[np.bool_], size: Int
) -> Int:
    """The place of each copy's purpose in CopyPurpose. `which`: positions in `activity`. size: bytes, -1: not known."""
    took = activity.end[which] - activity.start[which]
    found = np.where(to_device, _INPUT, _OUTPUT)
    small = ~to_device & np.where(size >= 0, size < SMALL_BYTES, took < _SMALL_NS)
    found[_kept_on_host(activity, steps, which, to_device, size) & ~small] = _OFFLOAD
    unsized = (size < 0) & (took >= _SMALL_NS)
    goes, each_way = _out_and_back(activity, steps, which[unsized], to_device[unsized])
    if each_way >= _SEVERAL:
        found[unsized.nonzero()[0][goes]] = _OFFLOAD
    # Functions of autograd, and ranges that say what they do.
    noted = activity.host.annotations
    offloads = uniques(rows_named(events, BACKWARD_NAME), noted[_named(events, noted, _OFFLOADS)])
    found[_launched_in(events, activity, which, offloads) & ~small] = _OFFLOAD
    found[small] = _VALUES
    found[_of_exchanges(events, activity, which)] = _EXCHANGE
    return found.astype(np.int64)


def _named(events: Events, rows: Int, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    known = np.array([bool(pattern.search(name)) for name in events.names], dtype=bool)
    return known[events.name[rows]]


def _launched_in(events: Events, activity: Activity, which: Int, rows: Int) -> NDArray[np.bool_]:
    """Which copies are launched inside one of these rows."""
    launch = activity.launch[which]
    inside: NDArray[np.bool_] = begin_inside(events, np.maximum(launch, 0), rows) & (launch >= 0)
    return inside


def _of_exchanges(events: Events, activity: Activity, which: Int) -> NDArray[np.bool_]:
    """Copies around collectives that the host runs: a backend's own calls, and its own streams of pinned memory."""
    if not activity.through_host:
        return np.zeros(len(which), dtype=bool)
    rows = _named(events, np.arange(len(events)), _EXCHANGES).nonzero()[0]
    stream = events.stream[activity.row]
    kernels = uniques(stream[activity.kind == COMPUTE])
    own_stream = ~is_in(stream[which], kernels)
    pinned: NDArray[np.bool_] = np.array(["Pinned" in name for name in events.names], dtype=bool)[
        events.name[activity.row[which]]
    ]
    found: NDArray[np.bool_] = _launched_in(events, activity, which, rows) | (own_stream & pinned)
    return found


def _kept_on_host(
    activity: Activity, steps: StepBounds, which: Int, to_device: NDArray[np.bool_], size: Int
) -> NDArray[np.bool_]:
    """Copies of sizes that go both ways in a step: several of them, or to the host first. One tensor that comes before
    one of its size goes is an input and its output."""
    kept = np.zeros(len(which), dtype=bool)
    known = size >= SMALL_BYTES
    there = Counter(size[known & to_device].tolist())
    back = Counter(size[known & ~to_device].tolist())
    both = np.array(sorted(there.keys() & back.keys()), dtype=np.int64)
    if not len(both):
        return kept
    a_step = sum(min(there[one], back[one]) for one in both.tolist()) / max(len(steps), 1)
    for one in both.tolist():
        own = (size == one).nonzero()[0]
        if a_step >= _SEVERAL or _leaves_first(activity, steps, which[own], to_device[own]):
            kept[own] = True
    return kept


def _out_and_back(
    activity: Activity, steps: StepBounds, which: Int, to_device: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], float]:
    """Copies without sizes that leave in a step and those that come behind them, if most steps have both. What comes
    first in a step is its input, and what leaves last its results. With it how many go each way in the median step."""
    kept = np.zeros(len(which), dtype=bool)
    step = steps.of_activity[which]
    each_way = []
    numbers = uniques(step)
    for number in numbers.tolist():
        own = (step == number).nonzero()[0]
        own = own[activity.launched[which[own]].argsort(kind="stable")]
        out, back = (~to_device[own]).nonzero()[0], to_device[own].nonzero()[0]
        if not len(out) or not len(back) or back[-1] < out[0]:
            continue
        part = own[out[0] : back[-1] + 1]
        kept[part] = True
        each_way.append(min(int(to_device[part].sum()), int((~to_device[part]).sum())))
    if 2 * len(each_way) <= len(numbers):
        kept[:] = False
    return kept, median(each_way) if each_way else 0.0


def _leaves_first(activity: Activity, steps: StepBounds, which: Int, to_device: NDArray[np.bool_]) -> bool:
    """Whether in most steps the first of these copies goes to the host."""
    step = steps.of_activity[which]
    order = np.lexsort((activity.launched[which], step))
    _, first = np.unique(step[order], return_index=True)
    return float((~to_device[order][first]).mean()) > 0.5


Direction = Literal["to_device", "to_host"]
HostMemory = Literal["pageable", "pinned", "unknown"]

_MOST_KINDS = 40
_WAITED = 0.5  # of a copy: its host was in it for so long, so it waited for it
LARGE_BYTES = 8_000_000  # from here bandwidth, not latency, sets the time of a copy
_MOST_LATENCY_BYTES = 1 << 19  # up to here mostly latency does
_PURPOSES: tuple[CopyPurpose, ...] = get_args(CopyPurpose)
_MEMORIES: tuple[HostMemory, ...] = get_args(HostMemory)
_NAME = re.compile(r"(?P<to>HtoD|HostToDevice)|(?P<from>DtoH|DeviceToHost)")
_MEMORY = re.compile(r"\((\w+) -> (\w+)\)")


class CopyKind(Struct, frozen=True):
    """Copies of one rank that are alike; the numbers are by step: a checkpoint's copies are none of other steps.

    operator: the outermost around their calls, region: the innermost annotation; '' outside any. bytes: of a step's
    median one, total_bytes: of all; -1 in steps without one, and in all where the trace has no sizes. beside: whether
    their stream runs no kernels. blocked_ns: the host's time in their calls and in waiting for them. alone_ns: nothing
    runs but copies between host and device. exposed_ns: the same while no kernel runs, and where the host does not wait
    for the copy only from when it launched the next kernel. A moment counts for one kind.
    """

    direction: Direction
    memory: HostMemory
    purpose: CopyPurpose
    operator: str
    region: str
    beside: bool
    count: Int
    bytes: Int
    total_bytes: Int
    device_ns: Int
    blocked_ns: Int
    alone_ns: Int
    exposed_ns: Int

    def of_steps(self, chosen: NDArray[np.bool_]) -> CopyKind:
        """The same in these steps only."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in BY_STEP})

    @property
    def size(self) -> int:
        """Bytes of a typical one, -1 where that is not known."""
        known = self.bytes[self.bytes >= 0]
        return _middle(known) if len(known) else -1

    @property
    def gbs(self) -> float | None:
        """Bytes by the time that they take, None where that is not known."""
        moved, took = self.total_bytes[self.total_bytes >= 0].sum(), self.device_ns.sum()
        return float(moved / took) if moved > 0 and took > 0 else None

    def at_link_ns(self, gbs: float | None) -> float:
        """What these copies take from pinned memory over a link of `gbs`; as long as they take where nothing tells, and
        where latency sets their time."""
        took, now = float(self.device_ns.sum()), self.gbs
        if self.memory == "pinned" or not gbs or not now or now * took < _MOST_LATENCY_BYTES * float(self.count.sum()):
            return took
        return took * min(now / gbs, 1.0)


BY_STEP = ("count", "bytes", "total_bytes", "device_ns", "blocked_ns", "alone_ns", "exposed_ns")


class RankCopies(Struct, frozen=True):
    """All of one rank's copies between host and device inside its steps, most exposed first. sync_ns: for each step the
    idle time that began while the host waited for such a copy. best_gbs: the most that a large pinned copy of each
    direction reached."""

    kinds: tuple[CopyKind, ...]
    sync_ns: Int
    best_gbs: tuple[tuple[Direction, float], ...] = ()


def measure_copies(events: Events, activity: Activity, steps: StepBounds, lane: Lane) -> RankCopies:
    """The copies that were launched inside the steps. Empty without a GPU."""
    which, to_device, memory = _copies(events, activity, steps)
    if not len(which):
        return RankCopies((), np.zeros(len(steps), dtype=np.int64))
    size, called = _sizes(events, activity.row[which]), activity.launch[which]
    told = np.where(called >= 0, _sizes(events, np.maximum(called, 0)), -1)  # ROCm tells it in the call only
    size = np.where(size >= 0, size, told)
    purpose = find_purposes(events, activity, steps, which, to_device, size)
    calls, ops = activity.launch[which], activity.host.nesting
    inner = activity.host.operator_around.take(calls)
    outer = _around(ops.outermost_around, calls)
    noted = find_nesting(events, activity.host.annotations)
    region = _around(noted.innermost_around, calls)
    no_values = purpose < _PURPOSES.index("values")
    waits, of_copies = _waits(events, activity, inner[no_values], calls[no_values])
    blocked = _blocked(events, activity, calls, inner, waits)
    stream = events.stream[activity.row[which]]
    kernels = uniques(events.stream[activity.row[activity.kind == COMPUTE]])
    columns = (
        to_device.astype(np.int64),
        memory,
        purpose,
        _names(events, ops.rows, outer),
        _names(events, noted.rows, region),
        (~is_in(stream, kernels)).astype(np.int64),
    )
    took = activity.end[which] - activity.start[which]
    values, group = _fewer(*groups(*columns), took)
    kinds = []
    waited = blocked >= _WAITED * took
    left = alone = lane.own["memory"]
    late = _host_late(events, activity, steps, left)
    start, end = steps.edges[:-1], steps.edges[1:]
    order = np.lexsort((-np.bincount(group, weights=took, minlength=len(values)), values[:, 1], values[:, 2]))
    for number in order.tolist():
        own = (group == number).nonzero()[0]
        if not len(own):
            continue
        held, free = (which[own[some]] for some in (waited[own], ~waited[own]))
        runs = union(activity.start[held], activity.end[held])
        beside_host = subtract(union(activity.start[free], activity.end[free]), late)
        exposed = intersect(merge(runs, beside_host), left)
        left = subtract(left, exposed)
        of_these = intersect(union(activity.start[which[own]], activity.end[which[own]]), alone)
        alone = subtract(alone, of_these)
        of_step = steps.of_activity[which[own]]
        middle, total = _by_step(size[own], of_step, len(steps))
        direction, kind, what_for, operator, noted_name, beside = values[number].tolist()
        kinds.append(
            CopyKind(
                direction="to_device" if direction else "to_host",
                memory=_MEMORIES[kind],
                purpose=_PURPOSES[what_for],
                operator=_text(events, operator),
                region=_text(events, noted_name),
                beside=bool(beside),
                count=np.bincount(of_step, minlength=len(steps)),
                bytes=middle,
                total_bytes=total,
                device_ns=_sums(took[own], of_step, len(steps)),
                blocked_ns=_sums(blocked[own], of_step, len(steps)),
                alone_ns=of_these.within(start, end),
                exposed_ns=exposed.within(start, end),
            )
        )
    kinds.sort(key=lambda one: -int(one.exposed_ns.sum()))
    pinned = memory == _MEMORIES.index("pinned")
    best = tuple(
        (direction, rate)
        for direction, ways in (("to_device", to_device), ("to_host", ~to_device))
        if (rate := _best(size[pinned & ways], took[pinned & ways]))
    )
    idle = lane.own["idle_sync"]
    began = of_copies.holds(idle.start)
    synced = Intervals(idle.start[began], idle.end[began])
    return RankCopies(tuple(kinds), synced.within(start, end), best)  # type: ignore[arg-type]


def _copies(events: Events, activity: Activity, steps: StepBounds) -> tuple[Int, NDArray[np.bool_], Int]:
    """Positions in `activity` of copies inside the steps, whether each goes to the device, and the host's memory."""
    none = np.zeros(0, dtype=np.int64)
    if not activity.on_gpu or not len(steps):
        return none, none.astype(bool), none
    kind = np.array([_kind_of(name) for name in events.names], dtype=np.int64)
    inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps)) & (activity.kind == MEMORY)
    which = inside.nonzero()[0]
    which = which[kind.take(events.name.take(activity.row.take(which))) >= 0]
    found = kind[events.name[activity.row[which]]]
    return which, found % 2 == 1, found // 2


@cache
def _kind_of(name: str) -> int:
    """Twice the memory's place in _MEMORIES, and one more to the device; -1 for what is no such copy."""
    if (found := _NAME.search(name)) is None:
        return -1
    memory = _MEMORY.search(name)
    of_host = "" if memory is None else memory[1 if found["to"] else 2].lower()
    place = _MEMORIES.index(of_host) if of_host in ("pageable", "pinned") else 2
    return 2 * place + bool(found["to"])


def _sizes(events: Events, rows: Int) -> Int:
    """Bytes of each copy, -1 where the trace does not say."""
    shape = events.shape[rows]
    found = np.full(len(rows), -1, dtype=np.int64)
    for number in uniques(shape[shape >= 0]).tolist():
        text = events.shapes[number].strip().strip('"')
        found[shape == number] = int(text) if text.isdigit() and len(text) < 17 else -1
    return found


def _sums(values: Int, of_step: Int, steps: int) -> Int:
    """Their sum in each step."""
    found = np.zeros(steps, dtype=np.int64)
    np.add.at(found, of_step, values)
    return found


def _by_step(size: Int, of_step: Int, steps: int) -> tuple[Int, Int]:
    """The median size in each step and the sum, -1 in a step without copies, and everywhere if a size is not known."""
    middle, total = np.full(steps, -1, dtype=np.int64), np.full(steps, -1, dtype=np.int64)
    for step in uniques(of_step).tolist() if (size >= 0).all() else ():
        own = size[of_step == step]
        middle[step], total[step] = _middle(own), own.sum()
    return middle, total


def _middle(size: Int) -> int:
    """The median, of an even number the lower one: a size that is there."""
    return int(np.sort(size)[(len(size) - 1) // 2])


def _around(find: object, calls: Int) -> Int:
    """What `find` finds around each call, -1 where there is no call."""
    found = np.full(len(calls), -1, dtype=np.int64)
    known = (calls >= 0).nonzero()[0]
    if len(known):
        found[known] = find(calls[known])  # type: ignore[operator]
    return found


def _names(events: Events, rows: Int, position: Int) -> Int:
    """The number of each one's name, -1 for none."""
    if not len(rows):
        return np.full(len(position), -1, dtype=np.int64)
    return np.where(position >= 0, events.name[rows[np.maximum(position, 0)]], -1).astype(np.int64)


def _text(events: Events, name: int) -> str:
    return events.names[name] if name >= 0 else ""


def _fewer(values: Int, group: Int, took: Int) -> tuple[Int, Int]:
    """The groups, those beyond the longest _MOST_KINDS without operator and region, joined where they are alike."""
    if len(values) <= _MOST_KINDS:
        return values, group
    least = (-np.bincount(group, weights=took, minlength=len(values))).argsort(kind="stable")[_MOST_KINDS:]
    values = values.copy()
    values[least, 3:5] = -1
    joined, place = np.unique(values, axis=0, return_inverse=True)
    return joined, place.reshape(-1)[group]


def _waits(events: Events, activity: Activity, inner: Int, calls: Int) -> tuple[tuple[Int, Int], Intervals]:
    """The blocking calls (rows, and their operator's position) in the operators at `inner`, and when they wait. They
    wait in the copies themselves where those are to pageable memory. Outside of operators, as in a trace without any,
    they are the ones right behind these copies' `calls`."""
    rows = activity.host.waiting
    around = activity.host.operator_around.take(rows)
    launches = activity.host.launches[events.ts[activity.host.launches].argsort(kind="stable")]
    before = np.append(-1, launches)[events.ts[launches].searchsorted(events.ts[rows])]
    own = is_in(around, inner[inner >= 0]) | ((around < 0) & is_in(before, calls[calls >= 0]))
    rows, around = rows[own], around[own]
    behind = is_in(rows, activity.host.blocking)
    return (rows[behind], around[behind]), union(events.ts[rows], events.end[rows])


def _blocked(events: Events, activity: Activity, calls: Int, inner: Int, waits: tuple[Int, Int]) -> Int:
    """How long the host was in each copy's call, and in the wait behind it in the same operator, ns."""
    found = np.where(calls >= 0, events.dur[np.maximum(calls, 0)], 0)
    rows, around = waits
    spent = np.zeros(len(activity.host.nesting.rows) + 1, dtype=np.int64)
    np.add.at(spent, around, events.dur[rows])
    spent[-1] = 0
    _, first = np.unique(inner, return_index=True)  # a wait counts once, for the first copy of its operator
    found[first] += spent[inner[first]]
    return found


def _host_late(events: Events, activity: Activity, steps: StepBounds, alone: Intervals) -> Intervals:
    """Of the time in which copies run alone, what passes before the next kernel is launched: the host is late then. A
    copy for which the host does not wait holds nothing up meanwhile. Behind the last kernel nobody knows. A host that
    waits until the copies are done is not late."""
    kernels = activity.by_start[activity.kind[activity.by_start] != MEMORY]
    place = activity.start[kernels].searchsorted(alone.end, side="left")
    some = place < len(kernels)
    over = alone.end.copy()
    following = kernels[place[some]]
    known = activity.launch[following] >= 0
    launched = np.where(known, activity.launched[following], alone.start[some])
    over[some] = np.minimum(np.maximum(launched, alone.start[some]), alone.end[some])
    calls = activity.host.blocking
    calls = calls[events.ts[calls] < steps.host_end[-1]]  # behind the last step the profiler itself waits
    waits = union(events.ts[calls], events.end[calls])
    if len(waits):
        last = np.maximum(waits.start.searchsorted(alone.end, side="left") - 1, 0)
        until = (waits.start[last] < alone.end) & (waits.end[last] >= alone.end)
        over[until] = np.minimum(over, np.maximum(waits.start[last], alone.start))[until]
    return union(alone.start, over)


def _best(size: Int, took: Int) -> float:
    """The most GB/s of the large copies, 0 without one."""
    large = (size >= LARGE_BYTES) & (took > 0)
    return float((size[large] / took[large]).max()) if np.count_nonzero(large) else 0.0
