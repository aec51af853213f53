"""Causes in passes over memory: what one kernel could fuse, repeat less often, or not touch at all."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Literal

import numpy as np

from traceops.compute.attainable import moved_ns
from traceops.compute.judged import Judged, Kernels
from traceops.compute.kernels import fused_names
from traceops.compute.operands import FLOATS

_FUSABLE = frozenset({"elementwise", "cast", "norm", "reduction", "softmax", "fill", "copy"})
_LEAST_CHAIN = 4
_ISLAND = 2  # operators in float32 between a cast and the cast back
_BROADCAST = 8  # times as large as all that goes in, is a result that need not be written
_LEAST_BYTES = 2e6  # of a tensor: smaller ones cost the host, not the device
_FUSED = "softmax"  # at whose rate compiled chains run: they often end in sums
_LOGITS = 16_384  # classes from which the loss is worth a kernel of its own
_LOGITS_BYTES = 4e8
_LOGITS_PASSES = 5  # over logits of 16 bits, that a fused loss takes with its backward
_LOSS = re.compile(r"softmax|nll_loss|cross_entropy|logsumexp")
_UNSIZED = 0.4  # of an optimizer's time that one pass saves, where no shapes tell more
_PARAMETERS = 24  # updates per step from which a loop over parameters is one
_STATES = 28.0  # bytes per parameter that Adam moves: parameter and two states read and written, gradient read


def find_recomputation(kernels: Kernels) -> None:
    """Forward passes that backward runs again (activation checkpointing)."""
    again = kernels.free(lambda one: one.use.again)
    total = sum(one.ns for one in again)
    if total > 0.02 * kernels.busy_ns:
        kernels.claim("recompute_with_free_memory", again, total, launches=sum(one.launches for one in again))


def find_float_logits(kernels: Kernels) -> None:
    """A loss over many classes, whose logits pass through memory once for each operator, in float32."""
    sizes: defaultdict[int, list[Judged]] = defaultdict(list)
    for one in kernels.free(lambda one: one.kind in (*_FUSABLE, "loss") or one.use.within("aten::one_hot")):
        for tensor in one.use.inputs.tensors:
            large = tensor.dims and tensor.dims[-1] >= _LOGITS and tensor.numel * 4 >= _LOGITS_BYTES
            if large and one not in sizes[tensor.numel] and fused_names(one.use.name) is None:
                sizes[tensor.numel].append(one)
    for numel, uses in sizes.items():
        if not any(_LOSS.search(one.use.name) for one in uses):
            continue
        calls = max(one.calls for one in uses if _LOSS.search(one.use.name))
        passes = _LOGITS_PASSES if any(one.use.node for one in uses) else 2
        least = calls * moved_ns(passes * 2.0 * numel, "elementwise", kernels.gpu)
        classes = max(t.dims[-1] for one in uses for t in one.use.inputs.tensors if t.dims)
        kernels.claim(
            "large_float_logits", uses, sum(one.ns for one in uses) - least, sizes=(numel // classes, classes),
            launches=sum(one.launches for one in uses) - 4 * calls,
        )  # fmt: skip


def find_optimizer_loop(kernels: Kernels) -> None:
    """An optimizer that updates one parameter at a time, or in several passes over all."""
    plain = kernels.free(lambda one: one.use.optimizing and "_fused_" not in one.use.name)
    updates = [one for one in plain if one.use.name.startswith(("aten::addcdiv", "aten::_foreach_addcdiv"))]
    if not updates:
        updates = [one for one in plain if one.use.name in ("aten::add_", "aten::sub_", "aten::axpy_")]
    loops = [one for one in updates if "_foreach_" not in one.use.name]
    numel = sum(one.numel * one.calls for one in loops)
    if sum(one.calls for one in loops) >= _PARAMETERS and not numel:  # without shapes
        least = (1 - _UNSIZED) * sum(one.ns for one in plain)
    elif sum(one.calls for one in loops) >= _PARAMETERS:
        adam = any("addcdiv" in one.use.name for one in loops)
        least = moved_ns((_STATES if adam else 12.0) * numel, "optimizer", kernels.gpu)
    elif (
        updates and not loops and len(plain) >= 4 and any(one.use.inputs.tensors for one in kernels.all)
    ):  # foreach: each pass reads all again
        taken = sum(one.ns for one in updates)  # one pass of four tensors, of which a fused step takes 7
        least = 1.75 * taken
    else:
        return
    saved = max(sum(one.ns for one in plain) - least, 1.0)
    kernels.claim(
        "optimizer_loop", plain, saved, sizes=(round(sum(one.calls for one in plain)),),
        launches=sum(one.launches for one in plain) - 2,
    )  # fmt: skip


def find_casts(kernels: Kernels) -> None:
    """Casts of a tensor to float32 and back around one or two operators, and of the same weights in each pass."""
    uses: dict[int, Judged] = {}
    saved = launches = 0.0
    order = kernels.order
    for at, first in enumerate(order):
        if first.cause is not None or not _cast(first, "up"):
            continue
        for last in range(at + 1, min(at + 2 + _ISLAND, len(order))):
            if not _fusable(order[last]) or order[last].numel != first.numel:
                break
            if _cast(order[last], "down"):
                island = order[at : last + 1]
                uses |= {id(one): one for one in island if one.cause is None}
                saved += sum(one.ns / one.calls * (1.0 if one.kind == "cast" else 0.5) for one in island)
                launches += 2
                break
    repeated, again = _repeated_casts(kernels)
    uses |= {id(one): one for one in repeated}
    if saved + again > 0.05 * kernels.busy_ns:
        kernels.claim(
            "redundant_casts", uses.values(), saved + again, launches=launches + sum(one.launches for one in repeated)
        )


def _cast(one: Judged, way: Literal["up", "down"]) -> bool:
    tensors = one.use.inputs.tensors[:2]
    if one.kind != "cast" or len(tensors) < 2 or tensors[0].numel * 2 < _LEAST_BYTES:
        return False
    return (tensors[0].size > tensors[1].size) == (way == "up")


def _repeated_casts(kernels: Kernels) -> tuple[list[Judged], float]:
    """Casts of weights whose gradients are added: the same weight was cast more than once."""
    rights = [one.work.product.right for one in kernels.all if one.work.product is not None and not one.use.node]
    weights = {tuple(sorted(right.dims)) for right in rights if len(right.dims) == 2}
    found: list[Judged] = []
    saved = 0.0
    for size in weights:
        mine = [
            one for one in kernels.free(lambda one: one.kind in ("cast", "elementwise"))
            if one.use.inputs.tensors and tuple(sorted(one.use.inputs.tensors[0].dims)) == size
        ]  # fmt: skip
        back = sum(one.calls for one in mine if one.kind == "cast" and one.use.node.startswith("ToCopy"))
        sums = [one for one in mine if one.kind == "elementwise" and one.use.node.startswith("ToCopy")]
        added = sum(one.calls for one in sums)
        if added > 0.5 * back > 1:
            casts = [one for one in mine if one.kind == "cast"]
            found += [*casts, *sums]
            saved += sum(one.ns for one in sums) + sum(one.ns for one in casts) * added / back
    return found, saved


def find_unfused(kernels: Kernels) -> None:
    """Four and more kernels in a row over tensors of one size, where one would read and write them once."""
    taken: dict[int, float] = {}
    uses: dict[int, Judged] = {}
    saved = launches = 0.0
    for chain in _chains(kernels.order):
        numel = max(one.numel for one in chain)
        large = [one for one in chain if 2 * one.numel > numel and numel * 2 >= _LEAST_BYTES and one.cause is None]
        if len(large) < _LEAST_CHAIN:
            continue
        each = [one.ns / one.calls for one in large]
        gain = sum(each) - _least_of(large, kernels)
        if gain <= 0:
            continue
        saved += gain
        launches += len(large) - 2
        for one, ns in zip(large, each, strict=True):
            uses[id(one)] = one
            taken[id(one)] = taken.get(id(one), 0.0) + ns
    if saved > 0.02 * kernels.busy_ns:
        kernels.claim("unfused_elementwise", uses.values(), saved, launches=launches)


def _chains(order: list[Judged]) -> list[list[Judged]]:
    """Calls in a row that a compiler may fuse, in the order of launch."""
    chains: list[list[Judged]] = [[]]
    for one in order:
        if _fusable(one):
            chains[-1].append(one)
        elif chains[-1]:
            chains.append([])
    return [chain for chain in chains if chain]


def _fusable(one: Judged) -> bool:
    known = one.work.bytes is not None and bool(one.use.inputs.tensors)
    return known and one.kind in _FUSABLE and not one.use.optimizing and fused_names(one.use.name) is None


def find_broadcasts(kernels: Kernels) -> None:
    """Results far larger than all that they are made of, which are summed again at once; and their gradients."""
    made = {
        _broadcast(one): one
        for one in kernels.free(lambda one: one.kind == "elementwise" and not one.use.node)
        if _broadcast(one) >= _BROADCAST * sum(t.numel for t in one.use.inputs.tensors if t.dims)
        and _broadcast(one) * 4 > _LEAST_BYTES
    }
    for numel, first in made.items():
        uses = [one for one in kernels.free(lambda one: one.kind in _FUSABLE) if one.numel == numel]
        if not any(one.kind == "reduction" for one in uses):
            continue
        together = [first, *uses]
        taken = sum(one.ns for one in together)
        kernels.claim("unfused_elementwise", together, 0.95 * taken, launches=sum(one.launches for one in uses))


def _broadcast(one: Judged) -> int:
    """Elements of the result of one operator on tensors of several shapes."""
    shapes = [t.dims for t in one.use.inputs.tensors if t.dims]
    if len(shapes) < 2 or not one.use.name.startswith("aten::"):
        return 0
    try:
        return math.prod(np.broadcast_shapes(*shapes[:8]))
    except ValueError:  # its inputs are no operands of one result
        return 0


def _least_of(chain: list[Judged], kernels: Kernels) -> float:
    """What comes in is read once and what goes out is written once; backward reads what forward kept, too."""
    numel = max(one.numel for one in chain)
    first, last = chain[0].use.inputs.tensors, chain[-1].use.inputs.tensors
    read = sum(t.stored for t in first if 2 * t.numel > numel)
    written = max((t.size for t in last if t.dims), default=4) * numel
    kept = 2.0 * numel if chain[0].use.node else 0.0
    return moved_ns(read + written + kept, _FUSED, kernels.gpu)


_SLICES = re.compile(r"^(Select|Slice|Narrow|Unbind|Split|Index)\w*Backward")
_FULL = 4  # times the slice from which a gradient at full size is too large
_SORTS = re.compile(
    r"sort|topk|unique|scatter|index_put|index_add|index_reduce|_embedding_bag_dense|embedding_dense", re.IGNORECASE
)
_ADDS = re.compile(r"^aten::(scatter_add|scatter_reduce|index_add)")
_MESSAGES = 16  # times as many rows as are gathered from
_SPARSE = 6.0  # passes over the touched rows, with their optimizer
_SPARSE_RATE = "embedding"
_DECAYS = re.compile(r"lerp|^aten::(_foreach_)?mul_|_fused_")  # of an optimizer's states
_LARGE_TABLE = 0.15  # of the busy time
_GROWN = 6  # different lengths from which a tensor is grown
_HOT = 32  # classes


def find_slice_gradients(kernels: Kernels) -> None:
    """Backward of slices: each gradient is made at full size of zeros, and added to the others."""
    uses = kernels.free(lambda one: bool(_SLICES.match(one.use.node)) and one.kind in ("fill", "copy", "elementwise"))
    copied = max((_written(one) for one in uses if one.kind == "copy"), default=0)
    fills = (
        [one for one in uses if one.kind == "fill" and one.numel >= _FULL * max(min(_copies(uses)), 1)]
        if copied
        else []
    )
    if not fills or sum(one.calls for one in fills) < _FULL:
        return
    full = {one.numel for one in fills}
    sums = [one for one in uses if one.kind == "elementwise" and one.numel in full]
    parts = [one for one in uses if one.kind == "copy"]
    least = sum(one.ns for one in parts)
    for numel in full:  # each gradient written once
        own = [one for one in fills if one.numel == numel]
        least += sum(one.ns / one.calls for one in own)
    together = [*fills, *sums]
    kernels.claim(
        "slice_gradients", [*together, *parts], sum(one.ns for one in (*together, *parts)) - least,
        sizes=(round(sum(one.calls for one in fills)),), launches=sum(one.launches for one in (*together, *parts)),
    )  # fmt: skip


def _copies(uses: list[Judged]) -> list[int]:
    return [_written(one) for one in uses if one.kind == "copy"] or [1]


def _written(one: Judged) -> int:
    return one.use.inputs.tensors[0].numel if one.use.inputs.tensors else 0


def find_growing_cat(kernels: Kernels) -> None:
    """A tensor that is joined with a little more, again and again: all of it is copied each time."""
    grown: defaultdict[tuple[tuple[int, ...], int], list[tuple[Judged, int, int]]] = defaultdict(list)
    for one in kernels.free(lambda one: one.kind == "cat"):
        parts = one.use.inputs.tensors
        if len(parts) < 2 or len(parts[0].dims) != len(parts[-1].dims):
            continue
        axis = [at for at, (a, b) in enumerate(zip(parts[0].dims, parts[-1].dims, strict=True)) if a != b]
        if len(axis) == 1 and parts[0].dims[axis[0]] > parts[-1].dims[axis[0]]:
            rest = tuple(dim for at, dim in enumerate(parts[0].dims) if at != axis[0])
            grown[rest, axis[0]].append((one, parts[0].dims[axis[0]], parts[-1].dims[axis[0]]))
    for found in grown.values():
        if len({length for _, length, _ in found}) < _GROWN:
            continue
        uses = [one for one, _, _ in found]
        saved = sum(one.ns - max(one.ns * more / (length + more), 2_000 * one.calls) for one, length, more in found)
        kernels.claim("concat_growth", uses, saved, sizes=(max(length for _, length, _ in found),))


def find_dense_table(kernels: Kernels) -> None:
    """A gradient of all rows of a table of which few were read."""
    # Momentum decays in all rows, whatever the gradient: only optimizers without it take a sparse one as it is.
    adds = not any(_DECAYS.search(one.use.name) for one in kernels.all if one.use.optimizing)
    for one in kernels.free(lambda one: "embedding" in one.use.name and "backward" in one.use.name):
        tensors = one.use.inputs.tensors
        if not tensors or not tensors[0].dims:
            continue
        touched, width = _touched(one), tensors[0].dims[-1]
        full = [
            fill
            for fill in kernels.free()
            if fill.kind == "fill"
            and fill.use.node == one.use.node
            and fill.numel >= _FULL * touched * width
            and fill.use.inputs.tensors[0].dims[-1:] == (width,)
        ]
        if not full:
            continue
        table = full[0].numel
        whole = [
            each
            for each in kernels.free()
            if each.kind in ("optimizer", "elementwise", "fill")
            and (not each.use.optimizing or adds or _adds_alone(each))
            and any(t.numel == table and t.dims[-1:] == (width,) for t in each.use.inputs.tensors)
        ]
        shares = sum(each.ns * _share(each, table) for each in whole)
        uses = [*whole, one]
        least = moved_ns(_SPARSE * touched * width * 4.0, _SPARSE_RATE, kernels.gpu)
        taken = shares + one.ns
        if taken - least > _LARGE_TABLE * kernels.busy_ns:  # a sparse gradient wants another optimizer, too
            kernels.claim("dense_embedding_gradient", uses, taken - least, sizes=(table // width, touched))


def _adds_alone(one: Judged) -> bool:
    """Whether it is the part of an optimizer that adds the gradient."""
    return one.use.name.removeprefix("aten::") in ("add_", "_foreach_add_", "_foreach_sub_")


def _touched(one: Judged) -> int:
    """Rows of the table that a step reads at most."""
    ids = [t for t in one.use.inputs.tensors[1:] if t.dtype in ("long int", "int", "long")]
    return ids[0].numel if ids else one.use.inputs.tensors[0].dims[0]


def _share(one: Judged, table: int) -> float:
    """How much of a use is the table's: an optimizer updates a list."""
    total = sum(t.numel for t in one.use.inputs.tensors)
    return sum(t.numel for t in one.use.inputs.tensors if t.numel == table) / max(total, 1)


def find_one_hot(kernels: Kernels) -> None:
    """Products with rows that hold a single one: a look-up does the same."""
    hot: set[tuple[int, ...]] = set()
    for one in kernels.all:
        if one.use.within("aten::one_hot") or (
            one.use.name.startswith("aten::scatter") and len(one.use.inputs.tensors) == 2
        ):
            hot |= {(t.numel, t.dims[-1]) for t in one.use.inputs.tensors if len(t.dims) > 1 and t.dims[-1] >= _HOT}
    uses = []
    for one in kernels.free(lambda one: one.work.product is not None):
        product = one.work.product
        assert product is not None
        left, right = product.left, product.right
        if (
            (left.numel, left.dims[-1]) in hot
            or (left.numel, left.dims[0]) in hot
            or (right.numel, right.dims[-1]) in hot
        ):
            uses.append(one)
    if all(one.use.node for one in uses):  # in backward alone it is the gradient of something as large
        return
    made = [
        one
        for one in kernels.free()
        if any((t.numel, t.dims[-1]) in hot for t in one.use.inputs.tensors if len(t.dims) > 1)
    ]
    least = 0.0
    for one in uses:
        product = one.work.product
        assert product is not None
        small = min(product.left.numel * 0 + product.rows * product.columns, product.right.numel)
        least += one.calls * moved_ns(4.0 * small * product.right.size, "embedding", kernels.gpu)
    together = list({id(one): one for one in (*uses, *made)}.values())
    kernels.claim("one_hot_product", together, sum(one.ns for one in together) - least)


def find_messages(kernels: Kernels) -> None:
    """Rows that are gathered into a far larger tensor and added by index again: a sparse product adds them at once."""
    sums = kernels.free(lambda one: bool(_ADDS.match(one.use.name)) and not one.use.node)
    for one in sums:
        if not one.use.inputs.tensors:
            continue
        table = one.use.inputs.tensors[0]
        rows = max((t for t in one.use.inputs.tensors[1:] if t.dtype in FLOATS), key=lambda t: t.numel, default=None)
        if rows is None or rows.numel < _MESSAGES * table.numel:
            continue
        gathered = kernels.free(lambda each, size=rows.numel: each.kind == "index" and _gathers(each, size))  # type: ignore[misc]
        together = [one, *gathered]
        least = one.calls * moved_ns(float(rows.numel * rows.size), "elementwise", kernels.gpu)
        kernels.claim("scatter_or_sort", together, sum(each.ns for each in together) - least)


def _gathers(one: Judged, size: int) -> bool:
    return any(t.numel == size for t in one.use.inputs.tensors)


def find_scatter(kernels: Kernels) -> None:
    """Rows that are sorted, or added by index: only the least that it takes is known, not what it takes here."""
    uses = kernels.free(lambda one: bool(_SORTS.search(one.use.name)) or "adix" in one.use.main_kernel)
    filled = kernels.free(
        lambda one: one.kind == "fill" and "aten::empty" in one.use.path[:1] and one.numel > 1
    )  # torch.use_deterministic_algorithms fills new memory
    total = sum(one.ns for one in uses)
    over = 0.0
    for one in uses:
        moved = sum(t.stored for t in one.use.inputs.tensors)
        over += max(one.ns - one.calls * moved_ns(2.0 * moved, "index", kernels.gpu), 0.0)
    saved = sum(one.ns for one in filled)
    if total > 0.05 * kernels.busy_ns or (filled and saved > 0.02 * kernels.busy_ns):
        kernels.claim(
            "scatter_or_sort", [*uses, *filled], saved, more_ns=over, launches=sum(one.launches for one in filled)
        )
