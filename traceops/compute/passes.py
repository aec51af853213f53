"""Causes in passes over memory: what one kernel could fuse, repeat less often, or not touch at all."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from itertools import groupby
from typing import Literal

import numpy as np

from traceops.compute.attainable import HALF_OF_STRIDED, expected_ns, is_strided, moved_ns
from traceops.compute.heavy import leaves_idle
from traceops.compute.judged import Judged, Kernels, call_ns, calls_of, launches_of, time_of
from traceops.compute.named import fused_names
from traceops.compute.uses import FLOATS

_FUSABLE = frozenset({"elementwise", "cast", "norm", "reduction", "softmax", "fill", "copy"})
_REPEATED = 0.8  # of what runs in backward as forward operators do
_LEAST_CHAIN = 4
_ISLAND = 8  # operators in float32 between a cast and the cast back
_BROADCAST = 8  # times as large as all that goes in, is a result that need not be written
_LEAST_BYTES = 2e6  # of a tensor: smaller ones cost the host, not the device
_FUSED_SUMS = "norm"
_FUSED = "softmax"  # at whose rate compiled chains run: they often end in sums
_LOGITS = 16_384  # classes from which the loss is worth a kernel of its own
_LOGITS_BYTES = 4e8
_LOGITS_PASSES = 5  # over logits of 16 bits, that a fused loss takes with its backward
_AFTER_LOGITS = 4  # operators, in which logits are read
_LOSS = re.compile(r"softmax|nll_loss|cross_entropy|logsumexp")
_UNSIZED = 0.4  # of an optimizer's time that one pass saves, where no shapes tell more
_PARAMETERS = 24  # updates per step from which a loop over parameters is one
_STATES = 28.0  # bytes per parameter that Adam moves: parameter and two states read and written, gradient read


def find_recomputation(kernels: Kernels) -> None:
    """Forward passes that backward runs again (activation checkpointing)."""
    forward = {_call(one) for one in kernels.all if not one.use.node}
    inside = [one for one in kernels.all if one.use.again]
    again = [one for one in inside if _call(one) in forward]
    if time_of(again) < _REPEATED * time_of(inside):  # a backward pass that is differentiated itself (create_graph)
        return
    if (total := time_of(again)) > 0.02 * kernels.busy_ns:
        kernels.claim("recompute_with_free_memory", again, total, launches=launches_of(again))


def _call(one: Judged) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """What is called, and the shapes of its tensors."""
    return one.use.name, tuple(t.dims for t in one.tensors)


def find_float_logits(kernels: Kernels) -> None:
    """A loss over many classes, whose logits pass through memory once for each operator, in float32."""
    sizes: defaultdict[int, list[Judged]] = defaultdict(list)
    for one in kernels.free(lambda one: one.kind in (*_FUSABLE, "loss") or one.use.within("aten::one_hot")):
        for tensor in one.tensors:
            large = tensor.dims and tensor.dims[-1] >= _LOGITS and tensor.numel * 4 >= _LOGITS_BYTES
            if large and one not in sizes[tensor.numel] and fused_names(one.use.name) is None:
                sizes[tensor.numel].append(one)
    for numel, uses in sizes.items():
        if not (losses := [one for one in uses if _LOSS.search(one.use.name)]):
            continue
        calls = max(one.calls for one in losses)
        passes = _LOGITS_PASSES if any(one.use.node for one in uses) else 2
        least = calls * moved_ns(passes * 2.0 * numel, "elementwise", kernels.gpu)
        classes = max(t.dims[-1] for one in uses for t in one.tensors if t.dims)
        kernels.claim(
            "large_float_logits", uses, time_of(uses) - least, sizes=(numel // classes, classes),
            launches=launches_of(uses) - 4 * calls,
        )  # fmt: skip


def find_unread_logits(kernels: Kernels) -> None:
    """Logits of all positions, where nothing trains and next only a few of them are read."""
    if kernels.training:
        return
    uses: dict[int, Judged] = {}
    saved = 0.0
    for at, one in enumerate(kernels.order):
        if (product := one.work.product) is None or product.columns < _LOGITS or one.cause is not None:
            continue
        made = product.batch * product.rows * product.columns
        after = kernels.order[at + 1 : at + 1 + _AFTER_LOGITS]
        whole = [each for each in after if each.numel == made]
        sizes = [t.numel for each in after for t in each.tensors if t.dims[-1:] == (product.columns,)]
        read = max((size for size in sizes if size < made), default=0)
        if not read or read * _FULL > made or any(each.kind not in ("cast", "copy") for each in whole):
            continue
        uses |= {id(each): each for each in (one, *whole)}
        saved += (1 - read / made) * call_ns([one, *whole])
    if saved > 0.02 * kernels.busy_ns:
        kernels.claim("large_float_logits", uses.values(), saved)


def find_optimizer_loop(kernels: Kernels) -> None:
    """An optimizer that updates one parameter at a time, or in several passes over all."""
    plain = kernels.free(lambda one: one.use.optimizing and "_fused_" not in one.use.name)
    updates = [one for one in plain if one.use.name.startswith(("aten::addcdiv", "aten::_foreach_addcdiv"))]
    updates = updates or [one for one in plain if one.use.name in ("aten::add_", "aten::sub_", "aten::axpy_")]
    loops = [one for one in updates if "_foreach_" not in one.use.name]
    if calls_of(loops) >= _PARAMETERS:
        least = (1 - _UNSIZED) * time_of(plain)
        if numel := sum(one.numel * one.calls for one in loops):  # with shapes: one pass in place of updates one by one
            adam = any("addcdiv" in one.use.name for one in loops)
            least = moved_ns((_STATES if adam else 12.0) * numel, "optimizer", kernels.gpu)
    elif updates and not loops and len(plain) >= 4 and any(one.tensors for one in kernels.all):
        # foreach: each pass reads all again; one of four tensors, of which a fused step takes 7
        least = 1.75 * time_of(updates)
    else:
        return
    kernels.claim(
        "optimizer_loop", plain, max(time_of(plain) - least, 1.0), sizes=(round(calls_of(plain)),),
        launches=launches_of(plain) - 2,
    )  # fmt: skip


def find_casts(kernels: Kernels) -> None:
    """Casts of a tensor to float32 and back around one or two operators, and of the same weights in each pass."""
    uses: dict[int, Judged] = {}
    saved = launches = 0.0
    order = kernels.order
    for at, first in enumerate(order):
        island = _island(order, at) if first.cause is None and _cast(first, "up") else []
        if island:
            uses |= {id(one): one for one in island if one.cause is None}
            saved += sum(map(_in_half_ns, island))
            launches += 2
    repeated, again = _repeated_casts(kernels)
    kept = _casts_of_kept_weights(kernels)
    repeated, again = [*repeated, *kept], again + time_of(kept)
    uses |= {id(one): one for one in repeated}
    if saved + again > 0.05 * kernels.busy_ns:
        kernels.claim("redundant_casts", uses.values(), saved + again, launches=launches + launches_of(repeated))


def _island(order: list[Judged], at: int) -> list[Judged]:
    """The cast to float32 at this place, what works on its result or halves of it, and the cast back; or empty."""
    size = order[at].numel
    for last in range(at + 1, min(at + 2 + _ISLAND, len(order))):
        one = order[last]
        if not (_fusable(one) or one.kind == "cat") or one.numel not in (size, size // 2):
            return []
        if _cast(one, "down") and one.numel == size:
            return order[at : last + 1]
    return []


def _in_half_ns(one: Judged) -> float:
    """What 16 bits save between two casts, which then go too."""
    call = one.ns / one.calls
    return call if one.kind == "cast" else call * (HALF_OF_STRIDED if is_strided(one.use.main_kernel) else 0.5)


def _cast(one: Judged, way: Literal["up", "down"]) -> bool:
    tensors = one.tensors[:2]
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
            if one.tensors and tuple(sorted(one.tensors[0].dims)) == size
        ]  # fmt: skip
        casts = [one for one in mine if one.kind == "cast"]
        sums = [one for one in mine if one.kind == "elementwise" and one.use.node.startswith("ToCopy")]
        back, added = calls_of(one for one in casts if one.use.node.startswith("ToCopy")), calls_of(sums)
        if added > 0.5 * back > 1:
            found += [*casts, *sums]
            saved += time_of(sums) + time_of(casts) * added / back
    return found, saved


def _casts_of_kept_weights(kernels: Kernels) -> list[Judged]:
    """Weights that no training changes, cast for each use, and what else is done to them, as to undo a quantisation."""
    if kernels.training:
        return []
    products = [one.work.product for one in kernels.all if one.work.product is not None]
    moving = {product.left.numel for product in products} | {one.batch * one.rows * one.columns for one in products}
    weights = {tuple(sorted(one.right.dims)) for one in products if one.right.numel not in moving}
    found: list[Judged] = []
    for size in weights:
        mine = kernels.free(
            lambda one, size=size: (
                one.kind in ("cast", "elementwise")  # type: ignore[misc]
                and one.numel * 2 >= _LEAST_BYTES
                and tuple(sorted(one.tensors[0].dims)) == size
            )
        )
        found += mine if any(one.kind == "cast" for one in mine) else []
    return found


def find_unfused(kernels: Kernels) -> None:
    """Kernels in a row over tensors of one size, where one would read and write them once."""
    uses: dict[int, Judged] = {}
    saved = launches = 0.0
    for chain, turns in _chains(kernels):
        gain = call_ns(chain) - turns * _least_of(chain, kernels)
        if gain > 0:
            saved += gain
            launches += len(chain) - 2 * turns
            uses |= {id(one): one for one in chain}
    if saved > 0.02 * kernels.busy_ns:
        kernels.claim("unfused_elementwise", uses.values(), saved, launches=launches)


def _chains(kernels: Kernels) -> Iterator[tuple[list[Judged], int]]:
    """Calls in a row that a compiler may fuse, in the order of launch, and how many chains alike they are."""
    for row in (list(calls) for fusable, calls in groupby(kernels.order, _fusable) if fusable):
        numel = max(one.numel for one in row)
        wide = [one for one in row if 2 * one.numel > numel and numel * 2 >= _LEAST_BYTES and one.cause is None]
        large = [one for one in wide if not leaves_idle(one, kernels)]  # its few blocks are what makes that slow
        # One call again and again is a loop, and so is a chain whose calls all come several times: one chain a turn.
        runs = (list(run) for _, run in groupby(large, key=id))
        large = [one for run in runs if len(run) <= _LEAST_CHAIN for one in run]
        turns = min(Counter(map(id, large)).values(), default=1)
        sums = any(
            one.kind in ("norm", "reduction", "softmax") for one in large
        )  # what they add to is often read again
        if len(large) >= (_LEAST_CHAIN if sums else _LEAST_CHAIN - 1) * turns:
            yield large, turns


def _fusable(one: Judged) -> bool:
    known = one.work.bytes is not None and bool(one.tensors)
    return known and one.kind in _FUSABLE and not one.use.optimizing and fused_names(one.use.name) is None


def find_broadcasts(kernels: Kernels) -> None:
    """Results far larger than all that they are made of, which are summed again at once; and their gradients."""
    run: list[Judged] = []  # calls on as many elements, back from a sum
    for one in reversed(kernels.order):
        if one.kind == "reduction":
            run = [one] if one.numel else []
        elif run and one.cause is None and _widened(one) == run[0].numel:
            uses = [use for use in kernels.free() if use.kind in _FUSABLE and use.numel == run[0].numel]
            if all(use.use.node or any(use is of for of in run) for use in uses):  # nothing else reads it
                taken = one.ns + time_of(uses)
                kernels.claim("unfused_elementwise", [one, *uses], 0.95 * taken, launches=launches_of(uses))
        else:
            run = [*run, one] if run and one.kind in _FUSABLE and one.numel == run[0].numel else []


def _widened(one: Judged) -> int:
    """Elements of a forward result far larger than all that it is made of, else 0."""
    of, numel = sum(t.numel for t in one.tensors if t.dims), _broadcast(one)
    large = numel >= _BROADCAST * of and numel * 4 > _LEAST_BYTES
    return numel if large and one.kind == "elementwise" and not one.use.node else 0


def _broadcast(one: Judged) -> int:
    """Elements of the result of one operator on tensors of several shapes."""
    shapes = [t.dims for t in one.tensors if t.dims]
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
    # Gradients of parameters are sums over rows: a kernel of their own, which reads all again.
    sums_rows = any(one.kind == "reduction" and one.use.node and one.use.name == "aten::sum" for one in chain)
    again = read + kept if sums_rows else 0.0
    sums = any(one.kind in ("reduction", "norm") for one in chain)
    return expected_ns(
        "norm" if sums else "elementwise",
        moved_ns(read + written + kept + again, _FUSED_SUMS if sums else _FUSED, kernels.gpu),
    )


_SLICES = re.compile(r"^(Select|Slice|Narrow|Unbind|Split|Index)\w*Backward")
_FULL = 4  # times the slice from which a gradient at full size is too large
_SORTS = re.compile(
    r"sort|topk|unique|scatter|index_put|index_add|index_reduce|_embedding_bag_dense|embedding_dense", re.IGNORECASE
)
_UNIQUE = ("aten::_unique", "aten::_unique2", "aten::unique_consecutive")
_AFTER_SORT = 6  # operators, in which what was sorted is read
_SELECTION = 5.0  # passes: four by digits of the numbers, one that gathers
_ADDS = re.compile(r"^aten::(scatter_add|scatter_reduce|index_add)")
_MESSAGES = 4  # times as many rows as are gathered from
_SPARSE = 6.0  # passes over the touched rows, with their optimizer
_SPARSE_RATE = "embedding"
_DECAYS = re.compile(r"lerp|^aten::(_foreach_)?mul_|_fused_")  # of an optimizer's states
_ADD_ALONE = ("aten::add_", "aten::_foreach_add_", "aten::_foreach_sub_")  # the part that adds the gradient
_RARE = 100  # times the rows that a step reads
_LARGE_TABLE = 0.15  # of the busy time
_GROWN = 6  # different lengths from which a tensor is grown
_APPENDED = 64  # times as long as what is joined to it, is a tensor that is copied to append a little
_HOT = 32  # classes


def find_slice_gradients(kernels: Kernels) -> None:
    """Backward of slices: each gradient is made at full size of zeros, and added to the others."""
    uses = kernels.free(lambda one: bool(_SLICES.match(one.use.node)) and one.kind in ("fill", "copy", "elementwise"))
    parts = [one for one in uses if one.kind == "copy"]
    written = [one.tensors[0].numel if one.tensors else 0 for one in parts]
    if not any(written):
        return
    fills = [one for one in uses if one.kind == "fill" and one.numel >= _FULL * max(min(written), 1)]
    if calls_of(fills) < _FULL:
        return
    full = {one.numel for one in fills}
    sums = [one for one in uses if one.kind == "elementwise" and one.numel in full]
    least = time_of(parts)
    for numel in full:  # each gradient written once
        least += call_ns(one for one in fills if one.numel == numel)
    together = [*fills, *sums, *parts]
    kernels.claim(
        "slice_gradients", together, time_of(together) - least,
        sizes=(round(calls_of(fills)),), launches=launches_of(together),
    )  # fmt: skip


def find_growing_cat(kernels: Kernels) -> None:
    """A tensor that is joined with a little more, again and again: all of it is copied each time."""
    grown: defaultdict[tuple[tuple[int, ...], int], list[tuple[Judged, int, int]]] = defaultdict(list)
    for one in [] if kernels.training else kernels.free(lambda one: one.kind == "cat"):  # backward keeps each length
        parts = one.tensors
        if len(parts) < 2 or len(parts[0].dims) != len(parts[-1].dims):
            continue
        axis = [at for at, (a, b) in enumerate(zip(parts[0].dims, parts[-1].dims, strict=True)) if a != b]
        if len(axis) == 1 and parts[0].dims[axis[0]] > parts[-1].dims[axis[0]]:
            rest = tuple(dim for at, dim in enumerate(parts[0].dims) if at != axis[0])
            grown[rest, axis[0]].append((one, parts[0].dims[axis[0]], parts[-1].dims[axis[0]]))
    for found in grown.values():
        longest = max(found, key=lambda part: part[0].ns)
        appended = longest[1] >= _APPENDED * longest[2]
        appended = appended and time_of(one for one, _, _ in found) > 0.1 * kernels.busy_ns
        if not appended and len({length for _, length, _ in found}) < _GROWN:
            continue
        uses = [one for one, _, _ in found]
        saved = sum(one.ns - max(one.ns * more / (length + more), 2_000 * one.calls) for one, length, more in found)
        kernels.claim("concat_growth", uses, saved, sizes=(max(length for _, length, _ in found),))


def find_dense_table(kernels: Kernels) -> None:
    """A gradient of all rows of a table of which few were read."""
    # Momentum decays in all rows, whatever the gradient: only optimizers without it take a sparse one as it is. Others
    # let it rest in rows that are not read, which is what one wants of a table that is read so little.
    adds = not any(_DECAYS.search(one.use.name) for one in kernels.all if one.use.optimizing)
    uses: dict[int, Judged] = {}
    tables: dict[tuple[int, int], int] = {}  # elements and width: rows that are read
    saved = 0.0
    for one in kernels.free(lambda one: "embedding" in one.use.name and "backward" in one.use.name):
        if not one.tensors or not one.tensors[0].dims:
            continue
        touched, width = _touched(one), one.tensors[0].dims[-1]
        least = max(_FULL * touched * width, int(_LEAST_BYTES) // 4)
        if (table := _filled_rows(one, least, width, kernels, uses)) is None:
            continue
        whole = [
            each
            for each in kernels.free(lambda each: each.kind in ("optimizer", "elementwise", "fill"))
            if (not each.use.optimizing or adds or table > _RARE * touched * width or each.use.name in _ADD_ALONE)
            and any(t.numel == table and t.dims[-1:] == (width,) for t in each.tensors)
        ]
        uses |= {id(each): each for each in (*whole, one)}
        saved += one.ns - moved_ns(_SPARSE * touched * width * 4.0, _SPARSE_RATE, kernels.gpu)
        if (table, width) not in tables:  # tables of one size are found together
            saved += sum(each.ns * _share(each, table) for each in whole)
        tables[table, width] = touched
    if saved > _LARGE_TABLE * kernels.busy_ns:  # a sparse gradient wants another optimizer, too
        (table, width), touched = max(tables.items())
        kernels.claim("dense_embedding_gradient", uses.values(), saved, sizes=(table // width, touched))


def _filled_rows(one: Judged, least: int, width: int, kernels: Kernels, known: Container[int]) -> int | None:
    """Elements of the gradient of all rows that this backward fills with zeros; None where it fills no so large one.
    known: the ids of what other tables' gradients are filled by."""
    for fill in kernels.free(lambda fill: fill.kind == "fill" and fill.use.node == one.use.node):
        if fill.numel >= least and fill.tensors[0].dims[-1:] == (width,) and id(fill) not in known:
            return fill.numel
    return None


def _touched(one: Judged) -> int:
    """Rows of the table that a step reads at most."""
    ids = [t for t in one.tensors[1:] if t.dtype in ("long int", "int", "long")]
    return ids[0].numel if ids else one.tensors[0].dims[0]


def _share(one: Judged, table: int) -> float:
    """How much of a use is the table's: an optimizer updates a list."""
    total = sum(t.numel for t in one.tensors)
    return sum(t.numel for t in one.tensors if t.numel == table) / max(total, 1)


def find_one_hot(kernels: Kernels) -> None:
    """Products with rows that hold a single one: a look-up does the same."""
    hot = _one_hot_rows(kernels)
    uses = []
    least = 0.0
    for one, product in kernels.free_products():
        left, right = product.left, product.right
        if any((t.numel, dim) in hot for t in (left, right) for dim in t.dims):
            uses.append(one)
            small = min(product.rows * product.columns, right.numel)
            least += one.calls * moved_ns(4.0 * small * right.size, "embedding", kernels.gpu)
    if all(one.use.node for one in uses):  # in backward alone it is the gradient of something as large
        return
    made = kernels.free(lambda one: any((t.numel, t.dims[-1]) in hot for t in one.tensors if len(t.dims) > 1))
    together = list({id(one): one for one in (*uses, *made)}.values())
    kernels.claim("one_hot_product", together, time_of(together) - least)


def _one_hot_rows(kernels: Kernels) -> set[tuple[int, int]]:
    """Elements and classes of what holds one-hot rows, or is made to."""
    hot = {
        (t.numel, t.dims[-1])
        for one in kernels.all
        if one.use.within("aten::one_hot") or _puts_ones(one)
        for t in one.tensors
        if len(t.dims) > 1 and t.dims[-1] >= _HOT
    }
    for one in kernels.all:  # numbers that are compared with all classes
        classes = max((t.dims[-1] for t in one.tensors if t.dims), default=0) if one.use.name == "aten::eq" else 0
        if classes >= _HOT and not one.use.node and _broadcast(one) > one.numel:
            hot.add((_broadcast(one), classes))
    return hot


def _puts_ones(one: Judged) -> bool:
    """Whether it puts one number at a few places of each row."""
    if not one.use.name.startswith("aten::scatter") or len(one.tensors) != 2:
        return False
    rows, places = one.tensors
    return places.dims[:-1] == rows.dims[:-1] and places.numel * _FULL <= rows.numel


def find_messages(kernels: Kernels) -> None:
    """Rows that are gathered into a far larger tensor and added by index again: a sparse product adds them at once."""
    sums = kernels.free(lambda one: bool(_ADDS.match(one.use.name)) and not one.use.node)
    for one in sums:
        if not one.tensors:
            continue
        table = one.tensors[0]
        rows = max((t for t in one.tensors[1:] if t.dtype in FLOATS), key=lambda t: t.numel, default=None)
        if rows is None or rows.numel < _MESSAGES * table.numel:
            continue
        gathered = [
            each for each in kernels.free(lambda each: each.kind == "index")
            if any(t.numel == rows.numel for t in each.tensors)
        ]  # fmt: skip
        together = [one, *gathered]
        least = one.calls * moved_ns(float(rows.numel * rows.size), "elementwise", kernels.gpu)
        kernels.claim("scatter_or_sort", together, time_of(together) - least)


def _sorted_for_the_first(kernels: Kernels) -> float:
    """What sorts take beyond the selection of the largest, where next only a few of the sorted places are read."""
    saved = 0.0
    for at, one in enumerate(kernels.order):
        if one.cause is not None or not one.use.within("aten::sort"):
            continue
        places = [t.numel for each in kernels.order[at + 1 : at + 1 + _AFTER_SORT] for t in each.tensors
                  if t.dtype == "long int" and t.dims]  # fmt: skip
        if places and max(places) * _FULL <= one.numel:
            moved = _SELECTION * sum(t.stored for t in one.tensors)
            saved += max(one.ns / one.calls - moved_ns(moved, "index", kernels.gpu), 0.0)
    return saved


def find_scatter(kernels: Kernels) -> None:
    """Rows that are sorted, or added by index: only the least that it takes is known, not what it takes here."""
    uses = kernels.free(lambda one: bool(_SORTS.search(one.use.name)) or "adix" in one.use.main_kernel)
    filled = kernels.free(
        lambda one: one.kind == "fill" and "aten::empty" in one.use.path[:1] and one.numel > 1
    )  # torch.use_deterministic_algorithms fills new memory
    total = time_of(uses)
    over = counted = 0.0
    for one in uses:
        moved = sum(t.stored for t in one.tensors)
        own = max(one.ns - one.calls * moved_ns(2.0 * moved, "index", kernels.gpu), 0.0)
        over += own
        counted += own if one.use.within(*_UNIQUE) else 0.0  # adding at each number counts in one pass
    selected = _sorted_for_the_first(kernels) if any(one.use.within("aten::sort") for one in uses) else 0.0
    saved = time_of(filled) + selected + counted
    over = max(over - selected - counted, 0.0)
    if total > 0.05 * kernels.busy_ns or (filled and saved > 0.02 * kernels.busy_ns):
        kernels.claim("scatter_or_sort", [*uses, *filled], saved, more_ns=over, launches=launches_of(filled))
