"""From what a rank launched to what its kernels lose, and why; and how long the step is after a fix."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby, product
from operator import attrgetter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.compute import attainable, heavy, unsized
from traceops.compute.judged import Judged, Kernels, judge_uses, kernel_works, launches_of, operator_times, time_of
from traceops.compute.model import OF_HOST, Bound, Impossible, KernelTables, Loss, RankCompute
from traceops.compute.named import built_for
from traceops.compute.passes import (
    find_broadcasts,
    find_casts,
    find_dense_table,
    find_float_logits,
    find_growing_cat,
    find_messages,
    find_one_hot,
    find_optimizer_loop,
    find_recomputation,
    find_scatter,
    find_slice_gradients,
    find_unfused,
    find_unread_logits,
)
from traceops.compute.uses import Launched, Schedule
from traceops.compute.work import NOT_OF_SHAPES
from traceops.core.arrays import grouped, total, uniques
from traceops.traces.windows import pack_part

# How long the host takes for a recorded step, times the device's: below and above these the trace decides.
_DEVICE_BOUND, _HOST_BOUND = 1.5, 2.0
_SMALL_NS = 12_000.0
_MANY = 150  # launches per step
_REPEATED, _REPEATED_LAYERS = 10, 24  # times from which a body is a loop's, and one with products
_OF_LAYERS = frozenset({"convolution", "norm"})  # layers that follow each other are no loop
_OF_LONG_LAYERS = _OF_LAYERS | {"attention", "softmax"}
_SUMS = frozenset({"aten::add", "aten::add_"})
_BODY, _LONG_BODY = 16, 64  # launches, of a loop's body, and of one that is no layer of any kind
_ROWS = 512  # of products, above which a batch is not small
_UNKNOWN_BATCHED = 0.7  # of the time of a loop's operator whose work is not known
_PASSES = 4  # forward and backward passes of a step, from which they run in turn
_PASS = 8  # operators of a pass at least
_CHOICES = frozenset({"aten::argmax", "aten::topk", "aten::sort", "aten::multinomial"})
_MOST_REPEATED = 0.7  # of the launches
_UNEVEN = 1.5  # times as long as a share, of passes of different shapes
_LARGER = 8  # times, of a batch that is no longer small
_CAN_BE_FUSED = re.compile(r"Optimizer\.step#(Adam|AdamW|SGD|Adagrad)\.step")


def _bound_of(ratio: float) -> Bound:
    """What bounds the step without the profiler, by the host's time over the device's."""
    return "device" if ratio < _DEVICE_BOUND else "host" if ratio > _HOST_BOUND else "unclear"


def find_small_kernels(kernels: Kernels, bound: Bound) -> list[Loss]:
    """Small kernels, where the host bounds the step: loops that one batched kernel does as well, or a small batch.
    These are no other claims' rest: to batch a loop is another way to fix what is in it."""
    if bound == "device":
        return [] if kernels.training else _passes_in_turn(kernels)
    # Kernels without an operator are a graph's, which no host launches one by one
    small = [one for one in kernels.all if one.ns / max(one.launches, 1e-9) < _SMALL_NS and not one.use.alone]
    launches = launches_of(small)
    if launches < _MANY or launches < 0.5 * kernels.launches:
        return []
    looped = [part for part in find_loops(kernels) if part.one.ns / part.one.launches < 3 * _SMALL_NS]
    saved = sum((part.saved_ns(kernels) for part in looped), 0.0)
    saved = max(saved, _claimed_in_loops(looped, kernels))
    removed = sum((part.removed for part in looped), 0.0)
    shown = sorted((part.one for part in looped), key=lambda one: -one.launches) or small
    loop = Loss(
        "many_small_kernels", saved, sum((one.ns for one in shown), 0.0), removed,
        tuple(dict.fromkeys(one.use.name.removeprefix("aten::") for one in shown))[:4],
        (round(kernels.launches), round(removed)),
    )  # fmt: skip
    if removed > 0.4 * kernels.launches or time_of(small) < 0.5 * kernels.busy_ns:
        return [loop]
    return [loop, *(_passes_in_turn(kernels) or _small_batch(kernels))]


def _claimed_in_loops(looped: Sequence[LoopPart], kernels: Kernels) -> float:
    """What goes with loops where causes have claimed some of them: these causes' part of it, and the others batched."""
    saved = sum((part.saved_ns(kernels) for part in looped if part.one.cause is None), 0.0)
    for loss in kernels.losses:
        mine = sum(part.calls * part.one.ns / part.one.calls for part in looped if part.one.cause == loss.cause)
        if loss.cause == "slice_gradients" and mine:
            saved += loss.device_ns
        elif loss.cause == "unfused_elementwise":
            saved += loss.device_ns * min(mine / loss.ns, 1.0)
    return saved


def _passes_in_turn(kernels: Kernels) -> list[Loss]:
    """The same passes several times in a step, each on a small batch: one batch of all does the same."""
    backward = groupby(bool(one.use.node) for one in kernels.order if not one.use.optimizing)
    passes = sum(own for own, _ in backward) or _turns(kernels)
    if passes < _PASSES or kernels.changing:
        return []
    small = [one for one in kernels.all if one.calls >= passes or one.ns / one.launches < _SMALL_NS]
    if launches_of(small) < _MOST_REPEATED * kernels.launches:
        return []
    weights = {one.work.product.right.numel for one in small if one.work.product is not None and not one.use.node}
    after = 0.0
    for one in small:
        if one.calls < passes or one.use.optimizing or (one.work.product is None and one.numel in weights):
            after += one.ns / passes * (1.0 if one.calls >= passes else _UNEVEN)
        else:
            after += min(one.calls / passes * batched_ns(one, passes, kernels.gpu), one.ns)
    saved = max(time_of(small) - after, 0.0)
    launches = launches_of(small) * (1 - 1 / passes)
    return [Loss("too_small_batch", saved, kernels.busy_ns, launches, (), (passes, passes))]


def _ends_passes(kernels: Kernels) -> bool:
    """Whether passes, not layers, follow each other: each ends with a choice, and none reads a cache of the others."""
    cached = any(one.work.attention is not None and one.work.attention.query == 1 for one in kernels.all)
    return not cached and any(one.use.name in _CHOICES and one.calls >= _PASSES for one in kernels.all)


def _turns(kernels: Kernels) -> int:
    """How often a step without backward does the same from its beginning to its end: 1 for no whole number of times."""
    names = [one.use.name for one in kernels.order] if _ends_passes(kernels) else []  # blocks of layers repeat too
    for turns in range(len(names) // _PASS, 1, -1):
        length = len(names) // turns
        if length * turns == len(names) and names[length:] == names[:-length]:
            return turns
    return 1


def with_loop(loss: Loss, kernels: Kernels) -> Loss:
    """Gradients of slices, where a loop took the slices: the loop batched, all of its small kernels go."""
    if loss.cause != "slice_gradients":
        return loss
    parts = [part for part in find_loops(kernels) if part.one.cause != loss.cause]
    saved = sum((part.saved_ns(kernels) for part in parts), 0.0)
    launches = sum((part.removed for part in parts), 0.0)
    taken = sum((part.calls * part.one.ns / part.one.calls for part in parts), 0.0)
    ns, device_ns = loss.ns + taken, loss.device_ns + saved
    return replace(loss, device_ns=device_ns, ns=ns, launches=loss.launches + launches)


class LoopPart(Struct):
    """A use in the bodies of loops: its calls there per step, in how many loops, and those of its operator in these."""

    one: Judged
    calls: int = 0
    loops: int = 0
    alike: int = 0

    @property
    def removed(self) -> float:
        """Launches that are left out where each loop is one call."""
        return self.calls * (1 - self.loops / self.alike) * self.one.launches / self.one.calls

    def saved_ns(self, kernels: Kernels) -> float:
        """What the device is spared where each loop is one call."""
        turns = self.alike / self.loops
        together = batched_ns(self.one, turns, kernels.gpu, shared=self.calls == self.alike)
        return max(self.calls * (self.one.ns / self.one.calls - together / turns), 0.0)


def find_loops(kernels: Kernels) -> list[LoopPart]:
    """Bodies of loops: a few operators in a row that come again and again, whatever their shapes."""
    if kernels.loops is not None:
        return kernels.loops
    order = kernels.order
    known: dict[tuple[str, str, bool], int] = {}
    number_of = {
        id(one): known.setdefault((one.use.name, one.use.node, one.use.optimizing), len(known)) for one in kernels.all
    }
    names = np.array([number_of[id(one)] for one in order])
    inside = np.zeros(len(names), dtype=np.int64)  # which loop
    number = 0
    for body in range(1, _LONG_BODY + 1):
        same = np.concatenate(([False] * (body + 1), names[body:] == names[:-body], [False]))
        turns = np.flatnonzero(same[1:] != same[:-1])
        starts, ends = turns[::2], turns[1::2]
        long = ends - starts + body >= _REPEATED * body
        for start, end in zip(starts[long].tolist(), ends[long].tolist(), strict=True):
            own = inside[start - body : end]
            if own.all():  # several turns of a shorter body
                continue
            kinds = {one.kind for one in order[start : start + body]}
            least = max(_REPEATED, _REPEATED_LAYERS * ("product" in kinds))
            if end - start + body < least * body or kinds & (_OF_LAYERS if body <= _BODY else _OF_LONG_LAYERS):
                continue
            if all(one.use.node and one.use.name in _SUMS for one in order[start : start + body]):
                continue  # autograd's sum of a tensor's gradients, one for each layer that read it
            number += 1
            own[own == 0] = number
    parts: dict[int, LoopPart] = {}
    seen: defaultdict[int, set[int]] = defaultdict(set)
    alike = Counter(zip(inside.tolist(), names.tolist(), strict=True))  # turns may differ in their shapes
    for one, loop in zip(order, inside.tolist(), strict=True):
        if loop and not (one.use.optimizing or NOT_OF_SHAPES.search(one.use.main_kernel)):  # nor what the link limits
            parts.setdefault(id(one), LoopPart(one)).calls += 1
            seen[id(one)].add(loop)
    for key, part in parts.items():
        part.loops = len(seen[key])
        part.alike = sum(alike[loop, number_of[key]] for loop in seen[key])
    kernels.loops = list(parts.values())
    return kernels.loops


def _small_batch(kernels: Kernels) -> list[Loss]:
    """Products of few rows with large weights: what a batch several times as large saves for the same work."""
    products = [(one, of) for one in kernels.all if (of := one.work.product) and one.work.bytes is not None]
    forward = [of for one, of in products if not one.use.node]
    if time_of(one for one in kernels.all if one.kind == "convolution") > time_of(one for one, _ in products):
        return []
    rows = [product.rows * product.batch for product in forward]
    if not rows or max(rows) > _ROWS or sum(p.right.numel < p.left.numel for p in forward) > 0.2 * len(forward):
        return []
    weights = {product.right.numel for product in forward}
    after = 0.0  # ns per sample of the larger batch
    for one in kernels.all:
        if one.use.optimizing or (one.kind in ("cast", "fill", "elementwise") and one.numel in weights):
            after += one.ns / _LARGER
        else:
            after += min(one.calls * batched_ns(one, _LARGER, kernels.gpu) / _LARGER, one.ns)
    launches, sizes = kernels.launches * (1 - 1 / _LARGER), (max(map(attrgetter("rows"), forward)),)
    return [Loss("too_small_batch", max(kernels.busy_ns - after, 0.0), kernels.busy_ns, launches, (), sizes)]


def batched_ns(one: Judged, times: float, gpu: attainable.Gpu, *, shared: bool = True) -> float:
    """The time of so many calls as one: never less than a single call. shared: all read the same weights, once."""
    once, moved = one.ns / one.calls, one.work.bytes
    if moved is None:
        fixed = min(one.launches / one.calls * attainable.expected_ns("index", 0.0), once)
        return fixed + max(times * _UNKNOWN_BATCHED, 1.0) * (once - fixed)
    if one.work.attention is not None and one.attainable_ns is not None:
        work = times * one.attainable_ns / one.calls / min(times, 8)
    elif one.kind in ("product", "convolution"):
        if shared and one.work.product is not None:
            moved -= one.work.product.right.stored * (1 - 1 / max(times, 1.0))
        work = attainable.product_ns(one.work.flops * times, moved * times, one.unit, gpu)
        work *= heavy.CONVOLVED if one.kind == "convolution" else 1.0
    else:
        return max(attainable.passed_ns(moved * times, one.kind, one.use.main_kernel, gpu), once)
    return max(attainable.expected_ns(one.kind, work), once)


_WITHOUT_SHAPES = (
    unsized.find_unsized_attention, unsized.find_unsized_products, unsized.find_converted_layouts, find_optimizer_loop,
)  # fmt: skip
_KERNELS_ALONE = (  # which have no operator: their names tell inputs, not shapes
    unsized.find_widened_weights, unsized.find_float32_kernels, heavy.find_float64, find_casts, find_unfused,
    find_scatter, heavy.find_idle_processors, unsized.find_small_chains,
)  # fmt: skip
_WITH_SHAPES = (
    find_recomputation, heavy.find_float64, find_slice_gradients, heavy.find_unfused_attention,
    heavy.find_masked_attention, heavy.find_repeated_keys, find_one_hot, find_growing_cat, find_dense_table,
    heavy.find_channels_first, heavy.find_misaligned, find_broadcasts, find_unread_logits, heavy.find_float32,
    find_float_logits, find_optimizer_loop, find_messages, find_scatter, heavy.find_layout_copies, find_casts,
    find_unfused, heavy.find_idle_processors,
)  # fmt: skip


def _is_rated(one: Judged) -> bool:
    """Whether its work sets its least time, not what any kernel takes, or it takes 20 times that."""
    floor = attainable.expected_ns(one.kind, attainable.LEAST_NS) * one.launches
    return max(one.attainable_ns or 0.0, one.ns / 10) > 2 * floor


def measure_compute(launched: Launched, device: str | None) -> RankCompute | None:
    """None where no kernel ran in a step."""
    if not len(launched.row) or not launched.steps:
        return None
    events = launched.events
    device = device or built_for(events.names[at] for at in np.unique(events.name[launched.row]).tolist())
    gpu = attainable.gpu_of(device)
    kernels = judge_uses(launched, gpu)
    has_shapes = any(one.tensors and not one.use.alone for one in kernels.all)
    host_ns = total(launched.host_ns) / len(launched.host_ns)
    bound = _bound_of(host_ns / max(launched.device_ns, 1.0))
    losses = [] if gpu.source == "assumed" else _losses(kernels, has_shapes, launched, bound)
    by_time = sorted(kernels.all, key=lambda one: -one.ns)
    beyond = _beyond_peak(by_time, attainable.FASTEST if gpu.source == "assumed" else gpu)
    known = [one for one in kernels.all if one.attainable_ns is not None and id(one) not in beyond]
    if time_of(filter(_is_rated, known)) < 0.5 * time_of(known):
        known = []  # their speed would be that of what any kernel takes
    compute = RankCompute(
        busy_ns=kernels.busy_ns,
        known_ns=sum((one.ns for one in known), 0.0),
        attainable_ns=sum((min(one.ns, one.attainable_ns or 0.0) for one in known), 0.0),
        device_ns=launched.device_ns,
        host_ns=host_ns,
        launches=kernels.launches,
        bound=bound,
        rates=gpu.source,
        losses=tuple(losses),
        tables=pack_part(KernelTables(tuple(operator_times(by_time)), tuple(kernel_works(by_time)))),
        roofs=None if gpu.source == "assumed" else attainable.roofs_of(gpu),
        has_shapes=has_shapes,
        gpu=device or "",
        impossible=tuple(sorted(beyond.values(), key=lambda one: -one.times)),
        replayed=_is_replayed(kernels, launched),
    )
    if not losses:
        return compute
    schedule = launched.schedule()
    return with_replays(compute, schedule, [fix_of(loss, kernels, schedule, launched) for loss in losses])


def _losses(kernels: Kernels, has_shapes: bool, launched: Launched, bound: Bound) -> list[Loss]:
    """What is lost, and why: the largest first."""
    alone = not has_shapes and any(one.use.alone for one in kernels.all)
    # The specific before the general: what one claims is not another's.
    for find in _WITH_SHAPES if has_shapes else (*_WITHOUT_SHAPES, *(_KERNELS_ALONE if alone else ())):
        find(kernels)
    fused = any(_CAN_BE_FUSED.match(name) for name in launched.events.names)
    found = [loss for loss in kernels.losses if fused or loss.cause != "optimizer_loop"]
    losses = [with_loop(loss, kernels) for loss in found] + find_small_kernels(kernels, bound)
    losses.sort(key=lambda loss: -_weight(loss, kernels, launched, bound))
    causes = [loss.cause for loss in losses]
    if {"float32_products", "float32_training"} <= set(causes):  # first the fix that leaves the model's types alone
        other = losses.pop(causes.index("float32_training"))
        losses.insert([loss.cause for loss in losses].index("float32_products") + 1, other)
    return losses


def _is_replayed(kernels: Kernels, launched: Launched) -> bool:
    """Whether CUDA graphs replay most of it."""
    alone = time_of(one for one in kernels.all if one.use.alone)
    return alone > kernels.busy_ns / 2 and any("GraphLaunch" in name for name in launched.events.names)


def fix_of(loss: Loss, kernels: Kernels, schedule: Schedule, launched: Launched) -> Fix:
    """What a loss's fix removes of each launch of the typical step."""
    spared = _spared(loss, kernels)
    of_use = np.array([spared.get(id(one), (0.0, 0.0)) for one in kernels.all] + [(0.0, 0.0)]).reshape(-1, 2)
    kernel = schedule.kernel
    uses = np.where(kernel >= 0, kernels.of_kernel[np.maximum(kernel, 0)], len(kernels.all))
    own = np.flatnonzero(kernel >= 0)
    rows = launched.row[kernel[own]]
    left = launched.events.dur[rows] * (1 - of_use[uses[own], 1])
    streams = grouped(launched.events.stream[rows].astype(np.int64))[1]
    busiest = float(np.bincount(streams, weights=left).max(initial=0.0))
    return Fix(of_use[uses, 0], of_use[uses, 1], busiest - loss.more_ns)


def _spared(loss: Loss, kernels: Kernels) -> dict[int, tuple[float, float]]:
    """By a use's id, the shares of its launches and of its device time that go."""
    causes = {loss.cause, "float32_products"} if loss.cause == "float32_training" else {loss.cause}
    uses = [one for one in kernels.all if one.cause in causes]
    found: dict[int, tuple[float, float]] = {}
    if loss.cause == "many_small_kernels" or (uses and loss.cause == "slice_gradients"):
        for part in find_loops(kernels):
            taken = part.calls * part.one.ns / part.one.calls
            saved = part.saved_ns(kernels) / taken if taken else 0.0
            found[id(part.one)] = (min(part.removed / max(part.one.launches, 1e-9), 1.0), min(saved, 1.0))
    if loss.cause == "many_small_kernels":
        return found
    if loss.cause == "too_small_batch":
        uses = kernels.all
    launches, ns = launches_of(uses), time_of(uses)
    own = (min(loss.launches / launches, 1.0) if launches else 0.0, min(loss.device_ns / ns, 1.0) if ns else 0.0)
    return found | {id(one): own for one in uses}


_BEYOND = 1.05  # times the data sheet's peak, from which a recorded speed is impossible
_MUCH_OF_BUSY = 0.05  # from which an operator counts


def _beyond_peak(judged: Sequence[Judged], gpu: attainable.Gpu) -> dict[int, Impossible]:
    """Uses, by id, that would have to be faster than the GPU can be."""
    busy, found = time_of(judged), {}
    for one in judged:
        if one.ns < _MUCH_OF_BUSY * busy or one.ns <= 0:
            continue
        times, moves = attainable.times_of_peak(one.use, one.work, one.ns / one.calls, gpu)
        if times > _BEYOND:
            found[id(one)] = Impossible(one.use.name, times, moves)
    return found


_LITTLE = 0.05


def _weight(loss: Loss, kernels: Kernels, launched: Launched, bound: Bound) -> float:
    """What orders losses: GPU time, half of what is uncertain; where the host is the limit, launches come first."""
    device = loss.device_ns + loss.more_ns / 2
    if bound != "host":
        return device
    share = loss.launches / max(kernels.launches, 1.0)
    host = float(launched.host_busy_ns.mean())
    if loss.cause == "many_small_kernels" and not loss.launches:  # no loop: before causes that matter little, alone
        return _LITTLE * (kernels.busy_ns + host)
    if loss.cause == "slice_gradients" and find_loops(kernels):  # the loop that takes the slices is what to change
        share = 0.0
    return device + host * share


# The step of one rank replayed: the host launches at a pace, the device works off what it is given, and both may wait.
#
# A trace has the host's pace with the profiler. Without it the host is faster, by a share of all its time or by so much
# for each event that was recorded: the replay tries both at several paces, and the paces at which the replayed step
# takes as long as an unprofiled one are the run's.

Floats = NDArray[np.float64]

PACES = (0.25, 0.4, 0.6, 0.85, 1.0)  # of the recorded time that the host needs without the profiler
_LEAST_LEFT = 0.1  # of the host's time between two launches, however many events were recorded in it
_STEPS = 4  # replayed: the last one's length counts
_SURE = 0.9  # of the launches and of the device's time that a fix saves, at least
_GONE = 0.97  # of its launches, at most
_KNOWN = 0.75  # of the recorded step is what its replay at the recorded pace takes, and at most as much longer
_ALIKE = 0.03  # of the step: paces whose replayed step is this near may all be the run's
LEAST_PACE = 0.4  # of the recorded time, what a host needs at least without the profiler (H200, 54 programs)
_MOST_PACE = 0.85  # the same at most, where nothing shows that the host is the limit
_BELOW, _ABOVE = 0.95, 1.08  # beyond the replayed step, where none was timed
_DEVICE_LIMITS = 1.1  # step ÷ device time, up to which the device limits the step


class Fix(Struct, frozen=True):
    """What a fix removes of each launch of a schedule: shares of the host's and the device's time. busiest_ns: what is
    left on the stream with most of it."""

    host: Floats
    device: Floats
    busiest_ns: float = 0.0


def replayed_ns(schedule: Schedule, host: Floats, device: Floats) -> Floats:
    """The step by the host's times (variants by launches and one more) and the device's (variants by launches)."""
    count = device.shape[1]
    variants = host.shape[0]
    if not count:
        alone: Floats = host.sum(axis=1)
        return alone
    ends = uniques(np.flatnonzero(schedule.waits), np.array([count - 1])) + 1
    starts = np.concatenate(([0], ends[:-1]))
    issued, done = np.cumsum(host[:, :-1], axis=1), np.cumsum(device, axis=1)
    # Work of a stretch without waits is done `lag` after its first launch could begin, and takes at least `work`.
    before_host = np.where(starts > 0, issued[:, starts - 1], 0.0)
    before_done = np.where(starts > 0, done[:, starts - 1], 0.0)
    lag = np.maximum.reduceat(issued - (done - device), starts, axis=1) - before_host + before_done
    spent, work = issued[:, ends - 1] - before_host, done[:, ends - 1] - before_done
    waits = schedule.waits[ends - 1]
    now, free = np.zeros(variants), np.zeros(variants)
    last = free
    for _ in range(_STEPS):
        last = np.maximum(now, free)
        for at in range(len(ends)):
            free = np.maximum(free, now + lag[:, at]) + work[:, at]
            now = now + spent[:, at]
            if waits[at]:
                now = np.maximum(now, free)
        now = now + host[:, -1]
    step: Floats = np.maximum(now, free) - last
    return step


def paced_hosts(schedule: Schedule) -> Floats:
    """The host's times at all paces: first by a share of all time, then by so much an event."""
    recorded = schedule.host_ns.astype(np.float64)
    shares = np.outer(PACES, recorded)
    spread = recorded.sum() / max(schedule.events.sum(), 1)
    rows = [np.maximum(recorded - (1 - pace) * spread * schedule.events, _LEAST_LEFT * recorded) for pace in PACES]
    return np.concatenate((shares, np.array(rows)))


def with_replays(compute: RankCompute, schedule: Schedule, fixes: Sequence[Fix]) -> RankCompute:
    """The losses with the step after each fix at all paces. fixes: of the losses, in their order."""
    host, device = paced_hosts(schedule), schedule.device_ns.astype(np.float64)[np.newaxis, :]
    paces = len(host)
    parts_host, parts_device = [host], [np.repeat(device, paces, axis=0)]
    for loss, fix in zip(compute.losses, fixes, strict=True):
        more = 1 + loss.more_ns / loss.device_ns if loss.device_ns > 0 else 1.0
        for sure in (1.0, _SURE):
            kept = 1 - np.append(np.minimum(sure * fix.host, _GONE), 0.0)
            left = 1 - np.minimum(fix.device * (more if sure == 1.0 else sure), 1.0)
            parts_host.append(host * kept)
            parts_device.append(np.repeat(device * left, paces, axis=0))
    steps = replayed_ns(schedule, np.concatenate(parts_host), np.concatenate(parts_device)).reshape(-1, paces)
    least = 0.0 if compute.bound == "device" else _KNOWN  # a step that the device bounds may hold the profiler's start
    if schedule.step_ns and not least <= steps[0, len(PACES) - 1] / schedule.step_ns <= 1 / _KNOWN:
        return replace(compute, losses=tuple(_unreplayed(loss, compute, schedule.step_ns) for loss in compute.losses))
    compute = replace(compute, paced_ns=tuple(steps[0].tolist()))
    losses = [
        _at_any_pace(replace(loss, paced_ns=tuple(map(tuple, np.maximum(after, fix.busiest_ns).tolist()))), compute)
        for loss, fix, after in zip(compute.losses, fixes, steps[1:].reshape(-1, 2, paces), strict=True)
    ]
    return replace(compute, losses=tuple(losses))


def _unreplayed(loss: Loss, compute: RankCompute, step_ns: float) -> Loss:
    """The loss where the replay does not give the recorded step: at best all of it goes, at worst nothing."""
    least = step_ns * (1 - loss.launches / max(compute.launches, 1.0)) - loss.device_ns - loss.more_ns
    return replace(loss, step_after_ns=(max(least, 0.0), step_ns))


def _at_any_pace(loss: Loss, compute: RankCompute) -> Loss:
    """The loss with the step after its fix, where no unprofiled step was timed."""
    slowest = 1.0 if compute.bound == "host" else _MOST_PACE
    likely = [at for at, pace in enumerate((*PACES, *PACES)) if LEAST_PACE <= pace <= slowest]
    least, most = (find(ns[at] for at in likely) for find, ns in zip((min, max), loss.paced_ns, strict=True))
    if loss.cause == "many_small_kernels":  # whose launches a CUDA graph may spare all
        least = min(least, compute.device_ns - loss.device_ns)
    if compute.bound == "device":  # a host that is slower than the device would have shown
        least, most = min(least, compute.device_ns), min(most, compute.device_ns)
    before = max(compute.paced_ns[at] for at in likely)  # a fix makes no step longer
    most = min(_ABOVE * most, before)
    return replace(loss, step_after_ns=(min(_BELOW * least, most), most))


def at_pace(compute: RankCompute, steps_ns: Sequence[float]) -> RankCompute:
    """The losses with the step after their fix, where steps take so long without the profiler: never longer."""
    if not (steps_ns := [ns for ns in steps_ns if ns > 0]):
        return compute
    most = _DEVICE_LIMITS  # in a device time beyond it collectives wait for ranks that the profiler holds up
    by_device = compute.device_ns / most <= min(steps_ns) <= most * compute.device_ns
    bound: Bound = "device" if by_device else compute.bound
    kept = [one for one in compute.losses if not by_device or compute.bound == "device" or one.cause not in OF_HOST]
    losses = tuple(_at_pace(loss, compute, steps_ns) if compute.paced_ns else loss for loss in kept)
    return replace(compute, bound=bound, losses=losses)


def _at_pace(loss: Loss, compute: RankCompute, steps_ns: Sequence[float]) -> Loss:
    found = []
    paces = len(PACES)
    for first, step_ns in product((0, paces), steps_ns):  # by a share, and by the event
        now = np.array(compute.paced_ns[first : first + paces])
        alike = (np.abs(now - step_ns) <= _ALIKE * step_ns) & (np.array(PACES) >= LEAST_PACE)
        for after in loss.paced_ns:
            # What is beyond the slowest pace is neither the host's nor the device's, and stays.
            saved = now - np.array(after[first : first + paces])
            all_saved = (np.interp(step_ns, now, saved), *saved[alike])
            found += [min(max(step_ns - float(one), 0.0), step_ns) for one in all_saved]
    if not found:
        return loss
    least, most = min(found), max(found)
    if loss.cause == "many_small_kernels":  # whose launches a CUDA graph may spare all
        least = min(least, compute.device_ns - loss.device_ns)
    return replace(loss, step_after_ns=(max(least, 0.0), most))
