"""From what a rank launched to what its kernels lose, and why; and how long the step is after a fix."""

from __future__ import annotations

from dataclasses import replace

from traceops.compute.attainable import gpu_of, moved_ns, product_ns
from traceops.compute.heavy import (
    find_at_limit,
    find_channels_first,
    find_float32,
    find_float64,
    find_idle_processors,
    find_layout_copies,
    find_masked_attention,
    find_misaligned,
    find_repeated_keys,
    find_unfused_attention,
)
from traceops.compute.judged import Judged, Kernels, judge_uses
from traceops.compute.model import Bound, Loss, OperatorTime, RankCompute
from traceops.compute.passes import (
    find_casts,
    find_dense_table,
    find_float_logits,
    find_growing_cat,
    find_one_hot,
    find_optimizer_loop,
    find_recomputation,
    find_scatter,
    find_slice_gradients,
    find_unfused,
)
from traceops.compute.uses import Launched

# How long the host takes for a recorded step, times the device's: below and above these the trace decides.
_DEVICE_BOUND, _HOST_BOUND = 1.5, 2.0
# A host without the profiler takes this share of the recorded time (H200, 54 programs: 0.44 to 0.85).
_FASTEST, _SLOWEST = 0.4, 0.85
_SMALL_NS = 12_000.0
_MANY = 150  # launches per step
_REPEATED = 12  # calls per step from which a use is in a loop
_BODY = 16  # launches, of a loop's body
_KEPT = 4.0  # calls of a loop's kernels that stay where it is batched: one for each layer, say
_ROWS = 512  # of products, above which a batch is not small
_LARGER = 8  # times, of a batch that is no longer small


def bound_of(launched: Launched) -> Bound:
    """What bounds the step without the profiler."""
    ratio = float(launched.host_ns.mean()) / max(launched.device_ns, 1.0)
    return "device" if ratio < _DEVICE_BOUND else "host" if ratio > _HOST_BOUND else "unclear"


def find_small_kernels(kernels: Kernels, bound: Bound) -> list[Loss]:
    """Small kernels, where the host bounds the step: loops that one batched kernel does as well, or a small batch.

    These are no other claims' rest: to batch a loop is another way to fix what is in it.
    """
    if bound == "device":
        return []
    small = [one for one in kernels.all if one.ns / max(one.launches, 1e-9) < _SMALL_NS]
    launches = sum(one.launches for one in small)
    if launches < _MANY or launches < 0.4 * kernels.launches:
        return []
    looped = [one for one in looped_uses(kernels) if one.ns / one.launches < 3 * _SMALL_NS]
    saved = sum((max(one.ns - _batched(one, kernels), 0.0) for one in looped), 0.0)
    removed = sum((one.launches * (1 - min(1.0, _KEPT / one.calls)) for one in looped), 0.0)
    shown = sorted(looped or small, key=lambda one: -one.launches)
    loop = Loss(
        "many_small_kernels", saved, sum((one.ns for one in looped or small), 0.0), removed,
        tuple(dict.fromkeys(one.use.name.removeprefix("aten::") for one in shown))[:4],
        (round(kernels.launches), round(removed)),
    )  # fmt: skip
    return [loop] if removed > 0.4 * kernels.launches else [loop, *_small_batch(kernels)]


def with_loop(loss: Loss, kernels: Kernels) -> Loss:
    """Gradients of slices, where a loop took the slices: the loop batched, all of its small kernels go."""
    looped = [one for one in looped_uses(kernels) if one.cause != loss.cause]
    if loss.cause != "slice_gradients":
        return loss
    saved = sum((max(one.ns - _batched(one, kernels), 0.0) for one in looped), 0.0)
    launches = sum(one.launches * (1 - min(1.0, _KEPT / one.calls)) for one in looped)
    return replace(loss, device_ns=loss.device_ns + saved, launches=loss.launches + launches)


def looped_uses(kernels: Kernels) -> list[Judged]:
    """Uses that come back after few others, often: bodies of loops, and not layers or batches."""
    distances: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    uses: dict[int, Judged] = {}
    for at, one in enumerate(kernels.order):
        if id(one) in last:
            distances.setdefault(id(one), []).append(at - last[id(one)])
        last[id(one)] = at
        uses[id(one)] = one
    return [
        uses[key]
        for key, found in distances.items()
        if len(found) >= _REPEATED and sorted(found)[len(found) // 2] <= _BODY and not uses[key].use.optimizing
    ]


def _small_batch(kernels: Kernels) -> list[Loss]:
    """Products of few rows with large weights: what a batch several times as large saves for the same work."""
    products = [one for one in kernels.all if one.work.product is not None and one.work.bytes is not None]
    forward = [one.work.product for one in products if not one.use.node and one.work.product]
    if sum(one.ns for one in kernels.all if one.kind == "convolution") > sum(one.ns for one in products):
        return []
    rows = [product.rows * product.batch for product in forward]
    if not rows or max(rows) > _ROWS or sum(p.right.numel < p.left.numel for p in forward) > 0.2 * len(forward):
        return []
    weights = {product.right.numel for product in forward}
    after = 0.0
    for one in kernels.all:
        if one.use.optimizing or (one.kind in ("cast", "fill", "elementwise") and one.numel in weights):
            after += one.ns / _LARGER
        elif one.work.product is not None and one.work.bytes is not None:
            product = one.work.product
            moved = one.work.bytes - product.right.stored * (1 - 1 / _LARGER)
            after += one.calls * product_ns(one.work.flops * _LARGER, moved * _LARGER, one.unit, kernels.gpu) / _LARGER
        elif one.work.bytes is not None:
            least = max(moved_ns(one.work.bytes * _LARGER, one.kind, kernels.gpu), 2_000.0)
            after += min(1.3 * one.calls * least / _LARGER, one.ns)
        else:
            after += one.ns / 2
    launches = kernels.launches * (1 - 1 / _LARGER)
    return [
        Loss("too_small_batch", max(kernels.busy_ns - after, 0.0), kernels.busy_ns, launches, (), (max(rows), _LARGER))
    ]


def _batched(one: Judged, kernels: Kernels) -> float:
    """All calls at once: weights that they share are read once."""
    if one.work.product is not None and one.work.bytes is not None:
        moved = one.work.bytes - one.work.product.right.stored
        return product_ns(one.work.flops * one.calls, moved * one.calls, one.unit, kernels.gpu)
    if one.work.bytes is None:
        return one.ns / 2
    if one.work.attention is not None and one.attainable_ns is not None:
        return one.attainable_ns / min(one.calls, 8)
    return max(moved_ns(one.work.bytes * one.calls, one.kind, kernels.gpu), 2_000.0)


def with_step(loss: Loss, kernels: Kernels, launched: Launched, bound: Bound) -> Loss:
    """The loss with the range of the step after its fix, without the profiler."""
    now = launched.device_ns
    shown = min(now / max(kernels.busy_ns, 1.0), 1.0)  # kernels of several streams run at once
    device = max(now - shown * loss.device_ns, 0.0)
    least_device = max(device - shown * loss.more_ns, 0.0)
    share = min(loss.launches / max(kernels.launches, 1.0), 0.95)
    host = float(launched.host_busy_ns.mean()) * (1 - 0.9 * share)
    recorded = float(launched.host_ns.mean())
    least = max(0.95 * least_device, _FASTEST * host)
    if bound == "device":
        most = max(1.08 * device, min(_SLOWEST * host, 1.02 * now))
    elif bound == "host":
        most = max(1.08 * device, recorded * (1 - 0.9 * share))
    else:
        most = max(1.08 * device, min(host, max(_SLOWEST * recorded, 1.02 * now)))
    return replace(loss, step_after_ns=(min(least, most), most))


def find_causes(kernels: Kernels) -> None:
    """The specific before the general: what one claims is not another's."""
    for find in (
        find_recomputation,
        find_float64,
        find_slice_gradients,
        find_unfused_attention,
        find_masked_attention,
        find_repeated_keys,
        find_one_hot,
        find_growing_cat,
        find_dense_table,
        find_channels_first,
        find_misaligned,
        find_float32,
        find_float_logits,
        find_optimizer_loop,
        find_scatter,
        find_layout_copies,
        find_casts,
        find_unfused,
        find_idle_processors,
        find_at_limit,
    ):
        find(kernels)


_OPERATORS = 40  # that are kept, by their time
_HOST_CAUSES = frozenset({"many_small_kernels", "optimizer_loop", "too_small_batch"})


def measure_compute(launched: Launched, device: str | None) -> RankCompute | None:
    """None where no kernel ran in a step."""
    if not len(launched.row) or not launched.steps:
        return None
    gpu = gpu_of(device)
    kernels = judge_uses(launched, gpu)
    has_shapes = any(one.use.inputs.given for one in kernels.all)
    judged = has_shapes and gpu.source != "assumed"
    if judged:
        find_causes(kernels)
    bound = bound_of(launched)
    losses = [with_loop(loss, kernels) for loss in kernels.losses]
    if judged:
        losses += find_small_kernels(kernels, bound)
    losses = [with_step(loss, kernels, launched, bound) for loss in losses]
    known = [one for one in kernels.all if one.attainable_ns is not None]
    return RankCompute(
        busy_ns=kernels.busy_ns,
        known_ns=sum((one.ns for one in known), 0.0),
        attainable_ns=sum((min(one.ns, one.attainable_ns or 0.0) for one in known), 0.0),
        device_ns=launched.device_ns,
        host_ns=float(launched.host_ns.mean()),
        launches=kernels.launches,
        bound=bound,
        rates=gpu.source,
        losses=tuple(sorted(losses, key=lambda loss: -_weight(loss, kernels, launched, bound))),
        operators=tuple(_operator(one) for one in sorted(kernels.all, key=lambda one: -one.ns)[:_OPERATORS]),
        has_shapes=has_shapes,
    )


def _weight(loss: Loss, kernels: Kernels, launched: Launched, bound: Bound) -> float:
    """What orders losses: GPU time, half of what is uncertain; where the host is the limit, launches come first."""
    device = loss.device_ns + loss.more_ns / 2
    if bound != "host":
        return device
    spared = float(launched.host_busy_ns.mean()) * loss.launches / max(kernels.launches, 1.0)
    return device + (spared if loss.cause in _HOST_CAUSES else 0.3 * spared)


def _operator(one: Judged) -> OperatorTime:
    tensors = one.use.inputs.tensors
    return OperatorTime(
        one.use.name,
        one.work.kind,
        " ".join("×".join(map(str, t.dims)) for t in tensors[:3] if t.dims),
        one.calls,
        one.ns,
        one.work.flops * one.calls,
        -1.0 if one.work.bytes is None else one.work.bytes * one.calls,
        -1.0 if one.attainable_ns is None else one.attainable_ns,
        one.cause,
    )
