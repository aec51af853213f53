"""Causes in heavy kernels: attention, products and convolutions in the wrong type, shape or layout."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

from msgspec import Struct

from traceops.compute.attainable import (
    FLOAT_ATTENTION,
    HALF_OF_STRIDED,
    Gpu,
    attention_ns,
    expected_ns,
    is_strided,
    moved_ns,
    product_ns,
)
from traceops.compute.judged import Judged, Kernels, launches_of, time_of
from traceops.compute.named import converts_layout
from traceops.compute.uses import FLOATS, HALVES, Tensor
from traceops.compute.work import Attention, Product

_PARTS = 64  # in which attention is computed at most
_LEAST_KEYS = 32  # shorter rows of scores are no attention worth fusing
_BIASED = 2.1  # times as long as without a tensor that is added to the scores
_FEW_QUERIES = 8
_SCORES = ("product", "softmax", "elementwise", "cast", "copy", "fill", "reduction")


class _Scores(Struct, frozen=True):
    """The scores of an attention whose kernels are apart: queries × keys of each head. width: of a head."""

    heads: int
    query: int
    key: int
    width: int
    dtype: str

    @property
    def numel(self) -> int:
        return self.heads * self.query * self.key

    def touched_by(self, one: Judged) -> bool:
        """Whether it reads or makes the scores."""
        if (product := one.work.product) is None:
            return any(t.numel == self.numel and t.dims[-1:] in ((self.key,), (self.query,)) for t in one.tensors)
        made = product.batch * product.rows * product.columns
        sides = {self.query, self.key} & {product.rows, product.columns, product.inner}
        return product.batch > 1 and bool(sides) and self.numel in (made, product.left.numel, product.right.numel)

    def read_by(self, one: Judged) -> bool:
        """Whether a product of the forward pass multiplies them again."""
        product = one.work.product
        return product is not None and not one.use.node and self.numel in (product.left.numel, product.right.numel)

    def uses(self, kernels: Kernels) -> list[Judged]:
        """What makes them, reads them or works on them between, but nothing that makes a mask or bias as large."""
        found, held = set[int](), False
        for one in kernels.order:
            made = one.work.product is not None and self.touched_by(one)
            found |= {id(one)} if held or made else set()
            held = (held or made) and not self.read_by(one)
        known = [one for one in kernels.free(self.touched_by) if one.kind in _SCORES]
        return [one for one in known if one.use.node or id(one) in found]

    def adds_bias(self, one: Judged) -> bool:
        """Whether it adds numbers of each head's own to the scores, which no causal attention does."""
        if one.use.node or one.use.name not in ("aten::add", "aten::add_"):
            return False
        square = (self.query, self.key)
        return any(
            t.dims[-2:] == square and t.dims[-3] > 1 and t.strides[-3] and t.numel < self.numel + (at > 0)
            for at, t in enumerate(one.tensors)
            if len(t.dims) > 2
        )

    def moved_by(self, one: Judged) -> bool:
        """Whether it copies what the products multiply."""
        if one.kind != "copy":
            return False
        sizes = (self.heads * self.query * self.width, self.heads * self.key * self.width)
        if one.use.within("aten::matmul", "aten::einsum"):
            return any(t.numel in sizes and self.width in t.dims[-2:] for t in one.tensors)
        # Heads and positions change places, of all heads where attention takes some of them at a time.
        whole = one.numel and any(one.numel % size == 0 and one.numel <= _PARTS * size for size in sizes)
        return bool(whole) and is_reordered(one) and one.tensors[0].dims[-1] == self.width

    def least_ns(self, gpu: Gpu, taken: float, calls: float, backward: bool, biased: bool, hidden: bool) -> float:
        """What fused attention takes, without the change to 16 bits. hidden: half of the keys are."""
        shape, causal = (self.heads, self.query, self.key, self.width), hidden and not biased and self.query == self.key
        ways = [Attention(*shape, way, self.dtype, False, causal) for way in (False, True)[: 1 + backward]]
        each = sum(attention_ns(way, gpu) for way in ways) * (_BIASED if biased else 1.0)
        least = calls * expected_ns("attention", each)
        return least if self.dtype in HALVES else min(least * FLOAT_ATTENTION, taken)


def find_unfused_attention(kernels: Kernels) -> None:
    """Products whose result, rows of scores, passes a softmax and is multiplied again."""
    for scores in _scores(kernels):
        uses = scores.uses(kernels)
        softmax = [one for one in uses if _is_softmax(one)]
        products = [one for one in uses if one.work.product is not None]
        if not softmax or not any(map(scores.read_by, products)):
            continue
        # Attentions per step: a softmax of several at once counts as often.
        forward = [one.calls * max(one.numel // scores.numel, 1) for one in softmax if not one.use.node]
        calls = max(forward or [one.calls for one in softmax])
        together = [*uses, *kernels.free(scores.moved_by)]
        taken = time_of(together)
        biased = any(map(scores.adds_bias, uses))
        masks = any("mask" in one.use.name or one.use.within("aten::where", "aten::tril", "aten::triu") for one in uses)
        backward = any(one.use.node for one in products)
        hidden = masks, masks or any("add" in one.use.name for one in uses)  # what is added may be a mask
        least, best = (scores.least_ns(kernels.gpu, taken, calls, backward, biased, of_keys) for of_keys in hidden)
        sizes, launches = (scores.query, scores.key), launches_of(together) - 3 * calls
        kernels.claim(
            "unfused_attention", together, taken - least, sizes=sizes, launches=launches, more_ns=least - best
        )


def _is_softmax(one: Judged) -> bool:
    """Whether it is a softmax, or the part of one by hand that only a softmax has."""
    return "softmax" in one.use.name or one.use.name in ("aten::exp", "aten::exp_")


def _scores(kernels: Kernels) -> list[_Scores]:
    """Those that a softmax takes and a product made."""
    rows = {
        (tensor.numel, tensor.dims[-2], tensor.dims[-1])
        for one in kernels.free(_is_softmax)
        for tensor in one.tensors
        if len(tensor.dims) >= 3 and tensor.dims[-1] >= _LEAST_KEYS and tensor.numel
    }
    found: dict[tuple[int, int, int], _Scores] = {}
    for one, product in kernels.free_products():
        shape = (product.batch, product.rows, product.columns)
        read = (math.prod(shape), product.rows, product.columns) in rows
        if read and product.batch > 1 and not one.use.node:
            found[shape] = _Scores(*shape, product.inner, product.dtype)
    return list(found.values())


def find_masked_attention(kernels: Kernels) -> None:
    """Fused attention with a tensor as its mask, which computes the hidden half; or on a kernel that is slow for it."""
    masked = kernels.free(lambda one: one.work.attention is not None and one.work.attention.masked and _by_query(one))
    made = _made_into_numbers(masked, kernels)
    saved, more = time_of(made), 0.0
    masked = [one for one in masked if one.work.attention and (made or _hides_much(one.work.attention))]
    for one in masked:
        attention = one.work.attention
        assert attention is not None
        if not _hides_much(attention):
            continue
        whole, half = (one.calls * attention_ns(attention, kernels.gpu, causal) for causal in (False, True))
        slow = "efficient" in one.use.name and one.ns > 1.8 * whole  # a faster kernel takes masks, if not all
        taken = whole if slow else one.ns
        saved += one.ns - taken
        if attention.query == 1:  # of the cache's places, how many are filled no trace has: over all steps about half
            saved += one.ns / 2
            continue
        # The same mask for all batches and heads is most often a causal one; which one it is, no trace has.
        if _is_shared(one):
            saved += max(taken - half, 0.0)
        else:
            more += max(taken - half, 0.0)
    if masked:
        attention = masked[0].work.attention
        assert attention is not None
        kernels.claim("masked_attention", [*masked, *made], saved, sizes=(attention.query, attention.key), more_ns=more)


def _made_into_numbers(masked: list[Judged], kernels: Kernels) -> list[Judged]:
    """What makes numbers of a mask of truth values before each attention, which adds them to the scores."""
    sizes = {(one.work.attention.query, one.work.attention.key) for one in masked if one.work.attention}
    return kernels.free(
        lambda one: one.use.name == "aten::where" and bool(one.tensors) and one.tensors[0].dtype == "bool"
        and one.tensors[0].dims[-2:] in sizes
    )  # fmt: skip


def _hides_much(one: Attention) -> bool:
    """Whether a mask may hide half of the keys and more: a causal one, or that of a cache."""
    return one.query == one.key > 128 or (one.query == 1 and one.key >= 1024)


def _by_query(one: Judged) -> bool:
    """Whether the mask may hide other keys from each query; one of padding hides the same from all."""
    attention = one.work.attention
    assert attention is not None
    masks = [t for t in one.tensors if t.dims[-2:] == (attention.query, attention.key)]
    return attention.query == 1 or any(t.strides[-2] for t in masks)


def _is_shared(one: Judged) -> bool:
    """Whether one mask serves all batches and heads."""
    attention = one.work.attention
    assert attention is not None
    square = (attention.query, attention.key)
    masks = [t for t in one.tensors if t.dims[-2:] == square]
    return any(t.stored <= attention.query * attention.key * t.size for t in masks)


def find_repeated_keys(kernels: Kernels) -> None:
    """Copies of an expanded tensor that attention then reads, and the sums of their gradients."""
    lengths = {
        (one.work.attention.batch, one.work.attention.key, one.work.attention.width)
        for one in kernels.all
        if one.work.attention is not None
    }
    read = {math.prod(key): key for key in lengths}
    copies = []
    summed: defaultdict[int, float] = defaultdict(float)
    for one in kernels.free(lambda one: one.kind == "copy" and not one.use.node):
        tensors = one.tensors
        if len(tensors) < 2 or not tensors[1].expanded or tensors[0].numel not in read:
            continue
        if tensors[1].numel < 2 * tensors[1].stored // tensors[1].size:
            continue
        copies.append(one)
        summed[tensors[0].numel] += one.calls
    if not copies:
        return
    sums = kernels.free(
        lambda one: one.kind == "reduction" and one.numel in summed and one.use.node.startswith(("Expand", "Repeat"))
    )
    stored = copies[0].use.inputs.tensors[1]
    times = stored.numel * stored.size // max(stored.stored, 1)
    uses = [*copies, *sums]
    # Of few queries, attention takes as long as its keys take to be read: each once where they are not repeated.
    reads = kernels.free(
        lambda one: (a := one.work.attention) is not None and a.query <= _FEW_QUERIES
        and a.batch * a.key * a.width in summed
    )  # fmt: skip
    saved = time_of(uses) + (1 - 1 / times) * time_of(reads)
    kernels.claim("repeated_kv", [*uses, *reads], saved, sizes=(times,), launches=launches_of(uses))


_SLOWER = 1.25  # times its least, from which a shape is blamed
_OF_IDLE = 0.7  # of what idle processors cost is saved where they work
_LEAST_SIDE = 32
_LEAST_WIDTH = 16  # of a product or convolution that gains from tensor cores
CONVOLVED = 1.4  # times as long as a product of as much work takes a convolution with aligned channels
_HALF_UNDER_AUTOCAST = {"elementwise": 0.25, "copy": 0.4, "cat": 0.4, "fill": 0.4, "reduction": 0.3}  # of the bytes go
_BY_BYTES = frozenset({"elementwise", "copy", "cat", "fill", "reduction", "norm", "softmax"})
_CAST_AROUND = 6.0  # bytes for each element that autocast brings to 16 bits, half of what products read
_LEAST_CONVOLVED = 0.35  # of a convolution in float32 takes the same in 16 bits at least
_MOST_HALF = 0.1  # of the products' time may be in 16 bits already
_LONG_NS = 20_000
_MULTIPLE = {2: 8, 4: 4, 1: 16, 8: 2}  # elements of 16 bytes, by their size


def find_float64(kernels: Kernels) -> None:
    """Work on doubles: half of the bytes, and other units, do in float32."""
    uses, saved = [], 0.0
    for one in kernels.free():
        types = {t.dtype for t in one.tensors if t.dims and t.dtype in FLOATS}
        if not types & {"double", "c10::complex<double>"} or (len(types) > 1 and one.work.bytes is None):
            continue
        uses.append(one)
        if one.kind in ("product", "convolution") and one.work.bytes is not None:
            least = one.calls * product_ns(one.work.flops, one.work.bytes / 2, "simt", kernels.gpu)
            saved += max(min(one.attainable_ns or one.ns, one.ns) - least, 0.0)  # no kernel's slowness is its type's
        else:
            saved += one.ns / 2
    lists = kernels.free(lambda one: one.kind == "optimizer" and uses != [] and "double" in one.use.main_kernel)
    saved += time_of(lists) / 2
    kernels.claim("float64", [*uses, *lists], saved)


def find_misaligned(kernels: Kernels) -> None:
    """Products with rows that do not begin at multiples of 16 bytes, which kernels read element by element."""
    uses, saved, worst = [], 0.0, (0.0, 0)
    for one, product in kernels.free_products():
        odd = odd_side(product)
        if odd is None or product.smallest < _LEAST_SIDE or (product.dtype == "float" and one.unit != "tf32"):
            continue
        unit = one.unit if one.unit in ("half", "fp8") else ("half" if product.dtype != "float" else "tf32")
        least = _expected(one, unit, kernels)
        if one.ns < _SLOWER * least or _slow_in_any_type(one, kernels):
            continue
        uses.append(one)
        saved += one.ns - least
        worst = max(worst, (one.ns - least, odd or 0))
    multiple = _MULTIPLE[uses[0].work.product.left.size] if uses and uses[0].work.product else 8
    for one in kernels.free(lambda one: one.kind == "convolution" and one.unit == "half"):
        odd = _odd_channels(one)
        gain = one.ns - CONVOLVED * _least(one, "half", kernels)
        if odd and gain > (_SLOWER - 1) * one.ns and not _slow_in_any_type(one, kernels):
            uses.append(one)
            saved += gain
            worst = max(worst, (gain, odd))
    # what torch's users pad to: 64, where that adds little, else the next multiple
    step = 64 if worst[1] > 1024 else multiple
    kernels.claim("misaligned_shape", uses, saved, sizes=(worst[1], -(-worst[1] // step) * step))


def odd_side(product: Product) -> int | None:
    """The length of a row that is no multiple of 16 bytes; None where all are."""
    for tensor in (product.left, product.right):
        if len(tensor.dims) < 2:
            continue
        rows, columns = tensor.strides[-2:]
        leading = max(rows, columns)
        if leading % _MULTIPLE.get(tensor.size, 8) and min(tensor.dims[-2:]) > 1:
            return leading
    out = product.columns
    return out if out % _MULTIPLE.get(product.left.size, 8) and out > 1 else None


def _odd_channels(one: Judged) -> int:
    """Channels of a convolution that are no multiple of 16 bytes, and many; 0 where there are none."""
    weight = one.use.inputs.tensor(2 if one.use.node else 1)
    if weight is None or len(weight.dims) < 3 or one.work.bytes is None or weight.dims[1] == 1:
        return 0
    multiple = _MULTIPLE.get(weight.size, 8)
    return next((side for side in weight.dims[:2] if side % multiple and side >= _LEAST_SIDE), 0)


_OF_OTHER_REASON = 6.0  # times as long as float32 takes without tensor cores


def find_float32(kernels: Kernels) -> None:
    """Products of float32: on units without tensor cores, or else in TF32 where 16 bits would train as well."""
    # Where convolutions may use TF32, cuDNN took a kernel without it because it is faster.
    convolved = (one.use.inputs for one in kernels.all if one.use.name == "aten::cudnn_convolution")
    allowed = any(inputs.value(8) == "True" for inputs in convolved)
    slow = kernels.free(
        lambda one: one.kind in ("product", "convolution") and one.work.bytes is not None and _is_float(one)
        and one.unit in ("simt", "other") and one.work.flops > 0 and _is_wide(one)
        and not (one.kind == "convolution" and allowed)
    )  # fmt: skip
    # What ran without tensor cores, by its kernel's name or its speed
    slow = [
        one for one in slow
        if (one.unit == "simt" or (one.work.flops > 1e9 and one.ns > 0.8 * _least(one, "simt", kernels)))
        and not _slow_in_any_type(one, kernels)
    ]  # fmt: skip
    saved = sum(max(one.ns - _expected(one, "tf32", kernels), 0.0) for one in slow)
    if kernels.gpu.tf32 and saved > 0.02 * kernels.busy_ns:
        around = _casts_around(slow, kernels)
        kernels.claim("float32_products", [*slow, *around], saved + time_of(around))
    _find_float32_training(kernels)


def _casts_around(slow: list[Judged], kernels: Kernels) -> list[Judged]:
    """Casts to float32 and back for a few products, of a model that multiplies in 16 bits else."""
    if time_of(one for one in kernels.all if one.kind == "product" and one.unit == "half") < time_of(slow):
        return []
    products = [one.work.product for one in slow if one.work.product is not None]
    sizes = {size for one in products for size in (one.left.numel, one.right.numel, one.batch * one.rows * one.columns)}

    casts = kernels.free(lambda one: one.kind == "cast" and one.numel in sizes)
    types = [{t.dtype for t in one.tensors[:2]} for one in casts]
    return [one for one, own in zip(casts, types, strict=True) if "float" in own and own & HALVES]


def _find_float32_training(kernels: Kernels) -> None:
    """All that 16 bits save, of products for which TF32 is another fix too."""
    products = [one for one in kernels.all if one.kind in ("product", "convolution", "attention")]
    halves = time_of(one for one in products if one.unit in ("half", "fp8") and not _is_float(one))
    if halves > _MOST_HALF * time_of(products):
        return
    uses, saved = [], 0.0
    for one in kernels.all:
        gain = _gain_in_half(one, kernels) if one.cause in (None, "float32_products") and _is_float(one) else 0.0
        if gain > 0:
            uses.append(one)
            saved += gain
    saved += _gain_of_fused_attention(kernels)
    if kernels.training:
        saved -= _cast_ns(uses, kernels)
    if not {"product", "convolution", "attention"} & {one.kind for one in uses} or saved <= 0.05 * kernels.busy_ns:
        return
    before = [one.cause for one in uses]
    kernels.claim("float32_training", uses, saved)
    if any(before):  # where TF32 is the other fix, all of them stay free for other causes
        for one, cause in zip(uses, before, strict=True):
            one.cause = cause


def _gain_of_fused_attention(kernels: Kernels) -> float:
    """What 16 bits save of attention in float32 once it is fused."""
    unfused = time_of(one for one in kernels.all if one.cause == "unfused_attention" and _is_float(one))
    left = unfused - sum(loss.device_ns for loss in kernels.losses if loss.cause == "unfused_attention")
    return max(left, 0.0) * (1 - 1 / FLOAT_ATTENTION)


def _cast_ns(uses: list[Judged], kernels: Kernels) -> float:
    """What autocast takes to cast what products multiply, and their gradients back."""
    forward = [(one.calls, one.work.product) for one in uses if one.work.product and not one.use.node]
    numel = sum(calls * (one.left.numel + 2 * one.right.numel) for calls, one in forward)
    fixed = 3 * sum(calls for calls, _ in forward) * expected_ns("cast", 0.0)
    return fixed + moved_ns(_CAST_AROUND * numel, "cast", kernels.gpu)


def _gain_in_half(one: Judged, kernels: Kernels) -> float:
    if one.kind in ("product", "convolution"):
        known = one.work.bytes is not None and not _slow_in_any_type(one, kernels)
        return one.ns - _taken_in_half(one, kernels) if known else 0.0
    if one.work.attention is not None:
        least = attention_ns(one.work.attention, kernels.gpu, True)
        return one.ns - one.calls * expected_ns("attention", least)
    if leaves_idle(one, kernels) or one.work.bytes is None:  # what takes long there are not the bytes
        return 0.0
    if is_strided(one.use.main_kernel):
        return HALF_OF_STRIDED * one.ns
    share = _HALF_UNDER_AUTOCAST.get(one.kind, 0.0) if kernels.training else 0.5 * (one.kind in _BY_BYTES)
    return min(one.calls * share * moved_ns(one.work.bytes, one.kind, kernels.gpu), share * one.ns)


def _taken_in_half(one: Judged, kernels: Kernels) -> float:
    """What a product or convolution of float32 takes in 16 bits, at most what it takes now."""
    if one.kind == "convolution" and (_is_grouped(one) or _depthwise(one) or not _is_wide(one)):
        return one.ns
    least = _least(one, "half", kernels)
    if one.kind == "convolution":
        least = max(CONVOLVED * least, _LEAST_CONVOLVED * one.ns)
    elif one.unit == "tf32" and one.attainable_ns:  # what keeps it from its least now will then, too
        least /= min(max(one.attainable_ns / one.ns, 0.5), 1.0)
    return min(least + one.launches * expected_ns(one.kind, 0.0), one.ns)


def _is_float(one: Judged) -> bool:
    floats = [t for t in one.tensors if t.dims and t.dtype in ("float", "c10::Half", "c10::BFloat16")]
    return bool(floats) and all(t.dtype == "float" for t in floats)


def _is_wide(one: Judged) -> bool:
    """Whether tensor cores have enough to multiply: few channels leave most of them idle."""
    if one.work.product is not None:
        return one.work.product.smallest >= _LEAST_WIDTH
    weight = one.use.inputs.tensor(2 if one.use.node else 1)
    return weight is None or not weight.dims or min(weight.dims[:2]) > _LEAST_WIDTH


def _is_grouped(one: Judged) -> bool:
    """Whether it is a convolution in groups of channels, whose kernels for 16 bits may be slower."""
    source, weight = one.use.inputs.tensor(int(bool(one.use.node))), one.use.inputs.tensor(2 if one.use.node else 1)
    if one.kind != "convolution" or source is None or weight is None or len(weight.dims) < 3:
        return False
    return 1 < weight.dims[1] < source.dims[1]


def _slow_in_any_type(one: Judged, kernels: Kernels) -> bool:
    """Whether it takes so long that neither its type nor its shape is what makes it slow."""
    return one.ns > _OF_OTHER_REASON * _expected(one, "simt", kernels)


def _expected(one: Judged, unit: str, kernels: Kernels) -> float:
    return _least(one, unit, kernels) + one.launches * expected_ns(one.kind, 0.0)


def _least(one: Judged, unit: str, kernels: Kernels) -> float:
    moved = (one.work.bytes or 0.0) * (0.5 if unit == "half" and _is_float(one) else 1.0)
    return one.calls * product_ns(one.work.flops, moved, unit, kernels.gpu)  # type: ignore[arg-type]


def find_idle_processors(kernels: Kernels) -> None:
    """Long kernels of fewer blocks than the GPU has processors, and slow products of few tiles."""
    processors = kernels.gpu.processors
    # With the blocks of a kernel that leaves most processors idle, or the tiles of a product that does
    few: list[tuple[Judged, int]] = []
    for one in kernels.free(lambda one: "spin_kernel" not in one.use.main_kernel):  # which only waits
        if (made := one.work.product) is not None:
            tiles = made.batch * -(-made.rows // _TILE) * -(-made.columns // _TILE)
            tiles = one.use.blocks if 0 < one.use.blocks < processors else tiles  # others take several in turn
            if one.over_ns > _MUCH_OVER * one.ns and one.ns > _LONG_NS * one.launches and 0 < tiles < processors // 8:
                few.append((one, tiles))
        elif leaves_idle(one, kernels) and one.kind not in ("product", "attention", "copy"):
            few.append((one, one.use.blocks))
    saved = taken = 0.0
    for one, blocks in few:
        share = _OF_IDLE if blocks > processors // 4 else 1.0  # of so few, each has far too much to do
        ns = one.use.kernels[one.use.main_kernel][1] * one.calls / one.use.calls  # others of it may have many blocks
        saved += share * min(ns * (1 - blocks / processors), one.over_ns or ns)
        taken += ns
    if few and saved > 0.014 * kernels.busy_ns:
        most = max(few, key=lambda of: of[0].ns)[1]
        kernels.claim("low_occupancy", [one for one, _ in few], saved, sizes=(most, processors), ns=taken)


_MUCH_OVER = 0.75  # of its time
_TILE = 128


def leaves_idle(one: Judged, kernels: Kernels) -> bool:
    """Whether a long kernel has fewer blocks than half of the processors."""
    return 0 < one.use.blocks < kernels.gpu.processors // 2 and one.ns > _LONG_NS * max(one.launches, 1)


_NORM_LAST = {4: (1.25, 2.2), 5: (0.35, 1.6)}  # TB/s of batch norm with channels last, forward and backward
_DEPTHWISE_LAST = 0.9  # TB/s
_LEAST_CHANNELS = 8


def find_channels_first(kernels: Kernels) -> None:
    """Convolutions whose input has channels first: conversions around them, and slower kernels between."""
    if kernels.gpu.is_amd or kernels.norms_groups:
        return
    saved, uses = 0.0, []
    for one in kernels.free(lambda one: one.kind == "convolution" and _channels_first(one)):
        if _is_grouped(one):  # whose kernels for channels last take about twice as long
            gain = -one.ns
        elif _depthwise(one) and one.work.bytes:
            rate = _DEPTHWISE_LAST * kernels.gpu.memory
            gain = max(one.ns - one.calls * one.work.bytes / rate / 1e3, 0.0)
        else:
            gain = one.use.kernel_ns_of(converts_layout) * one.calls / max(one.use.calls, 1)
        saved += gain
        if gain:
            uses.append(one)
    for one in kernels.free(lambda one: "batch_norm" in one.use.name):
        tensor = next((t for t in one.tensors if len(t.dims) in (4, 5)), None)
        if tensor is None or not _first(tensor) or one.work.bytes is None:
            continue
        rate = _NORM_LAST[len(tensor.dims)][bool(one.use.node)] * kernels.gpu.memory
        least = one.calls * one.work.bytes / rate / 1e3
        if one.ns > least:
            uses.append(one)
            saved += one.ns - least
    if sum(one.ns for one in uses if one.kind == "convolution"):
        first = max(uses, key=lambda one: one.ns).use.inputs.tensors[0].dims
        kernels.claim("channels_first_layout", uses, saved, sizes=tuple(first))


def _channels_first(one: Judged) -> bool:
    tensors = [t for t in one.tensors if len(t.dims) in (4, 5)]
    # A convolution over one dimension has images one row high, and takes no other order.
    return bool(tensors) and _first(tensors[0]) and tensors[0].dims[1] >= _LEAST_CHANNELS and tensors[0].dims[-2] > 1


def _first(tensor: Tensor) -> bool:
    """Whether width moves faster than channels, where the two can be told apart."""
    return tensor.dims[1] > 1 and math.prod(tensor.dims[2:]) > 1 and tensor.strides[1] > 1 and tensor.strides[-1] == 1


def _depthwise(one: Judged) -> bool:
    weight = one.use.inputs.tensor(2 if one.use.node else 1)
    return weight is not None and len(weight.dims) >= 4 and weight.dims[1] == 1 and weight.dims[0] > 1


def find_layout_copies(kernels: Kernels) -> None:
    """Copies that only change the order of dimensions."""
    copies = []
    for one in kernels.free(lambda one: one.kind == "copy"):
        if not one.use.within("aten::contiguous", "aten::reshape", "aten::clone") or not is_reordered(one):
            continue
        if one.tensors[0].numel * one.tensors[0].size > 1e6:
            copies.append(one)
    total = time_of(copies)
    # Sizes of what is copied right before a convolution, which takes either order
    own = {id(one) for one in copies}
    pairs = itertools.pairwise(kernels.order) if own else ()
    back = _there_and_back(kernels.order, copies) | {
        one.numel for one, after in pairs if id(one) in own and after.kind == "convolution" and not one.use.node
    }
    whole = time_of(one for one in copies if one.numel in back)
    explicit = time_of(one for one in copies if one.numel not in back and one.use.within("aten::contiguous"))
    # Some order must change anyway, and a kernel that reads it as it is loses a little.
    saved = whole + 0.5 * explicit + 0.3 * (total - whole - explicit)
    norms = kernels.free(lambda one: one.kind == "norm" and one.numel in back)
    if total > 0.03 * kernels.busy_ns:
        saved += sum(one.over_ns for one in norms)
        kernels.claim("layout_copies", [*copies, *norms], saved, launches=0.5 * launches_of(copies))


def is_reordered(one: Judged) -> bool:
    """Whether a copy changes the order of dimensions, and nothing else."""
    tensors = one.tensors
    same = len(tensors) > 1 and tensors[0].dims == tensors[1].dims and not tensors[1].expanded
    return same and _order(tensors[0]) != _order(tensors[1])


_ANY_ORDER = frozenset({"norm", "elementwise", "cast", "reduction", "softmax"})  # work in which each order does


def _there_and_back(order: list[Judged], copies: list[Judged]) -> set[int]:
    """Sizes of what is copied to another order for a norm alone, which takes either order, and back."""
    own = {id(one) for one in copies}
    found: set[int] = set()
    opened, norms = 0, False
    for one in order if own else ():
        if id(one) in own and not one.use.node:
            if opened == one.numel and norms:
                found.add(one.numel)
            opened, norms = (0 if opened == one.numel and norms else one.numel), False
        elif one.kind not in _ANY_ORDER:
            opened = 0
        norms = norms or one.kind == "norm"
    return found


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions longer than 1 from the slowest to the fastest."""
    long = [at for at, dim in enumerate(tensor.dims) if dim > 1]
    return tuple(sorted(long, key=lambda at: -tensor.strides[at]))
