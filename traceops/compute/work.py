"""What an operator has to do on its inputs: floating point operations, and the least bytes it reads and writes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from traceops.compute.named import fused_names, joined_size, kind_of_kernel
from traceops.compute.uses import Tensor, Use

Kind = Literal[
    "product", "convolution", "attention", "norm", "softmax", "loss", "elementwise", "reduction", "embedding",
    "optimizer", "index", "copy", "cast", "cat", "fill", "recurrent", "other",
]  # fmt: skip


class Product(Struct, frozen=True):
    """One matrix product, `batch` times: rows x inner by inner x columns."""

    batch: int
    rows: int
    inner: int
    columns: int
    dtype: str
    left: Tensor
    right: Tensor

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.inner * self.columns

    @property
    def smallest(self) -> int:
        return min(self.rows, self.inner, self.columns)


class Attention(Struct, frozen=True):
    """Queries of `batch` heads in all, `query` long, over keys `key` long; heads are `width` wide."""

    batch: int
    query: int
    key: int
    width: int
    backward: bool
    dtype: str
    masked: bool  # a mask was given as a tensor
    causal: bool

    @property
    def flops(self) -> float:
        """Of the whole square, causal or not."""
        return (10.0 if self.backward else 4.0) * self.batch * self.query * self.key * self.width


class Work(Struct, frozen=True):
    """Of one call. flops and bytes: None where the inputs do not tell; passes: bytes count so many readings. at_most:
    rows of the inputs may be unused, as in a buffer of experts that is sized for the worst case."""

    kind: Kind
    flops: float = 0.0
    bytes: float | None = None
    product: Product | None = None
    attention: Attention | None = None
    at_most: bool = False


def work_of(use: Use) -> Work:
    """The work of one call of a use."""
    name = use.name.removeprefix("aten::")
    if NOT_OF_SHAPES.search(use.main_kernel):
        return Work("other")  # the link limits it, or how full a sparse tensor is
    try:
        if maker := _MAKERS.get(name):
            return maker(use)
        if fused := fused_names(use.name):
            moved = sum(t.stored for t in use.inputs.tensors)  # its arguments are its inputs and outputs
            return Work("elementwise" if fused[0] == "poi" else "reduction", bytes=float(moved) if moved else None)
        if family := _family_of(name):
            return Work(family[0], bytes=family[1](use.inputs.tensors, name) or None)  # none: its inputs are unknown
    except (IndexError, ValueError, TypeError, ZeroDivisionError, OverflowError):
        return Work("other")
    if not use.path and not use.inputs.given:
        return Work(kind_of_kernel(use.main_kernel))
    tensors = use.inputs.tensors
    if tensors and use.name.startswith("aten::") and not _NOT_ELEMENTWISE.search(name):
        return Work("elementwise", bytes=_elementwise(tensors, name))
    return Work("other")


NOT_OF_SHAPES = re.compile(r"HtoD|DtoH|PtoP|HostToDevice|DeviceToHost|PeerToPeer|(cu|roc)sparse::")
_OF_TWO = frozenset({"add", "sub", "mul", "div"})
_BytesOf = Callable[[Sequence[Tensor], str], float | None]


@lru_cache(maxsize=1 << 12)
def _family_of(name: str) -> tuple[Kind, _BytesOf] | None:
    """The kind of an operator of this name, and what counts its bytes; None for one of no family."""
    return next(((kind, bytes_of) for pattern, kind, bytes_of in _FAMILIES if pattern.search(name)), None)


def _elementwise(tensors: Sequence[Tensor], name: str) -> float:
    """Each input read once and the result written once."""
    if not tensors:
        return 0.0
    read = sum(t.stored for t in (tensors[:2] if name in _OF_TWO else tensors))  # a third is where the result goes
    largest = max(tensors, key=lambda t: t.numel)
    floats = [t.size for t in tensors if t.dims] or [largest.size]
    written = 1 if _COMPARES.match(name) else (tensors[0].size if name.endswith("_") else max(floats))
    return read + largest.numel * written


def _reduced(tensors: Sequence[Tensor], name: str) -> float:
    """Each input is read once; results are smaller."""
    return float(sum(t.stored for t in tensors))


def _normed(tensors: Sequence[Tensor], name: str) -> float:
    """Inputs read, a result like the largest written; statistics over a batch need a reading of their own."""
    largest = max(tensors, key=lambda t: t.numel)
    same = sum(t.stored for t in tensors if t.numel == largest.numel)
    return same * (2 if "batch_norm" in name else 1) + largest.numel * largest.size


def _updated(tensors: Sequence[Tensor], name: str) -> float | None:
    """Parameters, gradients and states are read, and all but the gradients written; long lists have no shapes."""
    return 1.75 * sum(t.numel * t.size for t in tensors) if any(t.dims for t in tensors) else None


def _copied(use: Use) -> Work:
    target, source = use.inputs.tensor(0), use.inputs.tensor(1)
    if target is None or source is None:
        return Work("copy", bytes=_elementwise(use.inputs.tensors, "copy_") or None)
    kind: Kind = "cast" if target.dtype != source.dtype else "copy"
    return Work(kind, bytes=float(target.numel * target.size + source.stored))


def _filled(use: Use) -> Work:
    first = use.inputs.tensor(0)
    return Work("fill", bytes=float(first.numel * first.size) if first else None)


def _joined(use: Use) -> Work:
    """A list does not tell its types, torch's kernel the bytes of one element; two are the most frequent."""
    numel = sum(t.numel for t in use.inputs.tensors)
    return Work("cat", bytes=2.0 * (joined_size(use.main_kernel) or 2) * numel if numel else None)


def _embedded(use: Use) -> Work:
    tensors = use.inputs.tensors
    table, ids = tensors[0], tensors[1]
    return Work("embedding", bytes=2.0 * ids.numel * table.dims[-1] * table.size + ids.stored)


def _embedding_backward(use: Use) -> Work:
    grad, ids = use.inputs.tensors[:2]
    return Work("embedding", bytes=2.0 * grad.stored + ids.stored)


def _gathered(use: Use) -> Work:
    """None without the positions: a trace has no shapes of what is in a list that may hold nothing."""
    table, *others = use.inputs.tensors
    moved = max(others, key=lambda t: t.numel, default=None)
    return Work("index", bytes=None if moved is None else 2.0 * moved.numel * table.size + moved.stored)


_SECTOR = 32  # bytes that memory gives at least


def _chosen(use: Use) -> Work:
    """The loss of one class in each row: the others are not read."""
    target = next((t for t in use.inputs.tensors if t.dtype == "long int"), None)
    return Work("loss", bytes=None if target is None else float(_SECTOR * target.numel + target.stored))


def _multiplied(first: int) -> Callable[[Use], Work]:
    def work(use: Use) -> Work:
        left, right = use.inputs.tensor(first), use.inputs.tensor(first + 1)
        if left is None or right is None:
            return Work("product")
        # of two matrices, or batches of them
        a, b = left.dims, right.dims
        if len(a) == 2 and len(b) == 1:
            b = (*b, 1)
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            raise ValueError
        batch = math.prod(a[:-2])
        product = Product(batch, a[-2], a[-1], b[-1], left.dtype, left, right)
        out = product.batch * product.rows * product.columns * (2 if left.size == 1 else left.size)
        return Work("product", product.flops, left.stored + right.stored + out, product)

    return work


def _grouped(use: Use) -> Work:
    left, right = use.inputs.tensor(0), use.inputs.tensor(1)
    if left is None or right is None:
        return Work("product")
    moved = left.stored + right.stored + left.numel * 2
    return Work("product", 2.0 * left.numel * right.dims[-1], moved, at_most=True)


def _of_experts(use: Use) -> Work:
    """Tokens, weights of gate and up, weights of down, weights of the chosen experts: each chosen one is read once."""
    tokens, up, down, chosen = (use.inputs.tensor(at) for at in range(4))
    if tokens is None or up is None or down is None or chosen is None or len(up.dims) != 3:
        return Work("product")
    experts, used = up.dims[0], tokens.dims[0] * chosen.dims[-1]
    one = math.prod(up.dims[1:]) + math.prod(down.dims[1:])
    read = experts * (1 - (1 - 1 / experts) ** used) * one * up.size  # evenly chosen
    return Work("product", 2.0 * used * one, read + 2 * tokens.stored, at_most=True)  # all may choose the same


def _convolved(use: Use) -> Work:
    """The output's size follows from padding, stride and dilation, which the concrete inputs tell."""
    source, weight = use.inputs.tensor(0), use.inputs.tensor(1)
    if source is None or weight is None:
        return Work("convolution")
    if use.inputs.value(6) == "True" and use.name != "aten::cudnn_convolution":
        return _transposed(use, 3)
    numbers = [_numbers(use.inputs.value(at)) for at in range(2, len(use.inputs.values))]
    lists = [one for one in numbers if one]
    space = source.dims[2:]
    stride, padding = (1,) * len(space), tuple(k // 2 for k in weight.dims[2:])
    dilation = lists[2] if len(lists) > 2 else (1,)
    if use.name.endswith(("cudnn_convolution", "miopen_convolution")) and len(lists) >= 2:
        padding, stride = lists[0], lists[1]
    elif len(lists) >= 2:
        stride, padding = lists[0], lists[1]
    out = [
        (d + 2 * _at(padding, i) - _at(dilation, i) * (k - 1) - 1) // max(_at(stride, i), 1) + 1
        for i, (d, k) in enumerate(zip(space, weight.dims[2:], strict=True))
    ]
    written = source.dims[0] * weight.dims[0] * math.prod(out)
    flops = 2.0 * written * math.prod(weight.dims[1:])
    return Work("convolution", flops, source.stored + weight.stored + written * source.size)


def _transposed(use: Use, stride: int) -> Work:
    """Each input element is multiplied by its channel's weights; `stride`: which concrete input has the steps."""
    source, weight = use.inputs.tensor(0), use.inputs.tensor(1)
    if source is None or weight is None:
        return Work("convolution")
    steps = _numbers(use.inputs.value(stride)) or (1,)
    written = (
        source.numel // source.dims[1] * weight.dims[1] * math.prod(_at(steps, i) for i in range(len(source.dims) - 2))
    )
    flops = 2.0 * source.numel * math.prod(weight.dims[1:])
    return Work("convolution", flops, source.stored + weight.stored + written * source.size)


def _convolution_backward(use: Use) -> Work:
    grad, source, weight = (use.inputs.tensor(at) for at in range(3))
    if grad is None or source is None or weight is None:
        return Work("convolution")
    multiplied = source if use.inputs.value(7) == "True" else grad  # of a transposed one
    gradients = 1 if ONE_GRADIENT(use.inputs.value(10)) else 2
    flops = gradients * 2.0 * multiplied.numel * math.prod(weight.dims[1:])
    return Work("convolution", flops, gradients * (grad.stored + source.stored + weight.stored))


ONE_GRADIENT = re.compile(r"\[(True, False|False, True)").search  # the first layer's input needs none


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.strip("[]()").split(",")) if text.startswith(("[", "(")) else ()
    except ValueError:
        return ()


def _at(numbers: Sequence[int], index: int) -> int:
    return numbers[index] if index < len(numbers) else (numbers[-1] if numbers else 0)


def _attended(layout: Literal["heads first", "length first"], first: int, mask: int | None) -> Callable[[Use], Work]:
    """Attention with query, key and value from position `first`, a mask's tensor at `mask`."""

    def work(use: Use) -> Work:
        query, key = use.inputs.tensor(first), use.inputs.tensor(first + 1)
        if query is None or key is None or len(query.dims) < 3 or len(key.dims) < 3:
            return Work("attention")
        length = -2 if layout == "heads first" else -3
        if len(query.dims) == 3:
            length = -3  # lengths of a batch end to end
        given = mask is not None and use.inputs.tensor(mask) is not None
        causal = "True" in use.inputs.values
        one = Attention(
            query.numel // (query.dims[length] * query.dims[-1]) if len(query.dims) > 3 else query.dims[-2],
            query.dims[length], key.dims[length], query.dims[-1], first > 0, query.dtype, given, causal,
        )  # fmt: skip
        moved = (2.5 if first else 2) * (query.stored + key.stored)
        return Work("attention", one.flops, moved, attention=one)

    return work


_COMPARES = re.compile(r"(eq|ne|lt|le|gt|ge|isnan|isinf|logical_\w+|bitwise_\w+|isfinite)_?$")
_NOT_ELEMENTWISE = re.compile(
    r"sort|topk|unique|nonzero|masked_select|scatter|index|gather|cumsum|cumprod|scan|conv|pool|upsample|interp|grid"
    r"|linalg|_cdist|embedding|fft|roll|rnn|lstm|gru|miopen|cudnn|mm|quant|histc|bincount|multinomial"
)
_FAMILIES: tuple[tuple[re.Pattern[str], Kind, _BytesOf], ...] = (
    (re.compile(r"(batch|layer|group|rms|instance)_norm"), "norm", _normed),
    (re.compile(r"softmax"), "softmax", _normed),
    (re.compile(r"nll_loss|cross_entropy|_ctc_loss|kl_div|mse_loss|l1_loss"), "loss", _reduced),
    (
        re.compile(r"^(sum|mean|amax|amin|max|min|var|std|norm|linalg_vector_norm|prod|any|all|argmax|argmin|var_mean|std_mean|logsumexp)(_|$)"),
        "reduction",
        _reduced,
    ),
    (re.compile(r"_(fused|foreach)_"), "optimizer", _updated),
    (re.compile(r"(max|avg)_pool|upsample|interpolate"), "reduction", _normed),
)  # fmt: skip
_ATTENTIONS: dict[str, Callable[[Use], Work]] = {
    "_scaled_dot_product_flash_attention": _attended("heads first", 0, None),
    "_scaled_dot_product_efficient_attention": _attended("heads first", 0, 3),
    "_scaled_dot_product_cudnn_attention": _attended("heads first", 0, 3),
    "_cudnn_attention_forward": _attended("heads first", 0, 3),
    "_flash_attention_forward": _attended("length first", 0, None),
    "_efficient_attention_forward": _attended("length first", 0, 3),
    "_cudnn_attention_backward": _attended("heads first", 1, 8),
    "_flash_attention_backward": _attended("length first", 1, None),
    "_efficient_attention_backward": _attended("length first", 1, 4),
    "_scaled_dot_product_flash_attention_backward": _attended("heads first", 1, None),
    "_scaled_dot_product_efficient_attention_backward": _attended("heads first", 1, 4),
    "_scaled_dot_product_cudnn_attention_backward": _attended("heads first", 1, 8),
}
_MAKERS: dict[str, Callable[[Use], Work]] = {
    "mm": _multiplied(0), "bmm": _multiplied(0), "matmul": _multiplied(0), "mv": _multiplied(0),
    "_scaled_mm": _multiplied(0), "_int_mm": _multiplied(0),
    "addmm": _multiplied(1), "addmm_": _multiplied(1), "baddbmm": _multiplied(1), "_addmm_activation": _multiplied(1),
    "addmv": _multiplied(1), "_grouped_mm": _grouped, "_scaled_grouped_mm": _grouped,
    "vllm::rocm_aiter_fused_moe": _of_experts,
    "cudnn_convolution": _convolved, "_convolution": _convolved, "convolution": _convolved, "conv2d": _convolved,
    "_conv_depthwise2d": _convolved, "conv_depthwise3d": _convolved, "slow_conv2d": _convolved,
    "miopen_convolution": _convolved, "convolution_backward": _convolution_backward,
    "cudnn_convolution_transpose": lambda use: _transposed(use, 4),
    "copy_": _copied, "fill_": _filled, "zero_": _filled, "cat": _joined, "stack": _joined,
    "embedding": _embedded, "_embedding_bag": _embedded, "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"), _chosen),
    "gather": _gathered, "index_select": _gathered, "index": _gathered,
    **_ATTENTIONS,
}  # fmt: skip
