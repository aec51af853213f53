"""Floating point operations of a rank's steps, from the shapes of its products; and in which precision they ran."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import COMPUTE, Activity
from traceops.measure.peak_flops import Precision
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

# no_products: no operator that multiplies. no_shapes: they are there without shapes. unknown_shape: of some of them the
# shapes do not tell the work. uncounted: kernels that multiply and no such operator launched (graphs, own kernels).
WhyNoFlops = Literal["no_products", "no_shapes", "unknown_shape", "uncounted"]

UNCOUNTED = 0.02  # of the time of kernels that multiply, from which the count is not the step's
_MOST = 1e30  # of one operator
ONE_PRECISION = 0.9  # of that time: below it there is no one peak to compare with

Dims = Sequence[Any]


@dataclass(frozen=True)
class RankFlops:
    """Of one rank, a step: the median over its steps. None where it is not known, for the reason in `why`.

    model: what the model asks for. recomputed: operations of forward passes that backward repeats (activation
    checkpointing), which come on top. A product of m x k and k x n counts 2 m k n; attention counts its two products
    in full, causal or not, and twice as much in backward. Other operators count nothing.
    precision: of the products, None where the kernels' names do not tell, or tell of several.
    """

    model: float | None
    recomputed: float = 0.0
    why: WhyNoFlops | None = None
    precision: Precision | None = None


NOT_COUNTED = RankFlops(None, why="no_products")


def measure_flops(events: Events, activity: Activity, steps: StepBounds) -> RankFlops:
    """Count the products that operators of the host tell of, in each step."""
    nesting = activity.host.nesting
    rows = nesting.rows
    known = np.array([name in _FORMULAS for name in events.names] or [False])
    listed = known[events.name[rows]] if len(rows) else np.zeros(0, dtype=bool)
    within = _within(listed, nesting.parent)
    counted = np.flatnonzero(listed & ~within)
    precision, uncounted = _of_kernels(events, activity, steps, listed | within)
    if not len(counted):
        return replace(NOT_COUNTED, precision=precision)
    step = _step_of(events, rows[counted], steps)
    counted, step = counted[step >= 0], step[step >= 0]
    if not len(counted):
        return replace(NOT_COUNTED, precision=precision)
    work = _work(events, rows[counted])
    if np.isnan(work).any():
        none = not (events.shape[rows[counted]] >= 0).any()
        return RankFlops(None, why="no_shapes" if none else "unknown_shape", precision=precision)
    if uncounted > UNCOUNTED:
        return RankFlops(None, why="uncounted", precision=precision)
    again = _recomputed(events, nesting.parent, rows)[counted]
    model, repeated = (
        np.bincount(step[chosen], weights=work[chosen], minlength=len(steps)) for chosen in (~again, again)
    )
    return RankFlops(float(np.median(model)), float(np.median(repeated)), precision=precision)


def precision_of(kernel: str) -> Precision | None:
    """The type of what a kernel multiplies, as its name tells; None where it does not."""
    name = kernel.lower()
    return next((precision for precision, pattern in _PRECISIONS if pattern.search(name)), None)


def multiplies(kernel: str) -> bool:
    """Whether a kernel's name is one of matrix products, convolutions or attention."""
    return _PRODUCT.search(kernel.lower()) is not None


_PRODUCT = re.compile(
    r"gemm|nvjet|cutlass|xmma|cijk_|flash|fmha|attn_fwd|attn_bwd|_sdpa_|winograd|scudnn|hcudnn|wgrad|dgrad|implicit_conv|triton_tem_"
)
_PRECISIONS: tuple[tuple[Precision, re.Pattern[str]], ...] = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|nvjet_(sm\d+_)?qq")),
    ("bf16", re.compile(r"bf16|bfloat16|nvjet_(sm\d+_)?t[st]t|_bbs_|cijk_\w+_bb_")),
    ("fp16", re.compile(r"f16|fp16|half|hgemm|hcudnn|h884|h1688|h16816|nvjet_(sm\d+_)?h[sh]h|_hhs_|cijk_\w+_hb_")),
    ("tf32", re.compile(r"tf32|s1688|xf32")),
    ("fp64", re.compile(r"f64|fp64|dgemm|d884")),
    ("fp32", re.compile(r"sgemm|scudnn|f32f32|_ffma_|simt_s")),
)


def _of_kernels(
    events: Events, activity: Activity, steps: StepBounds, products: NDArray[np.bool_]
) -> tuple[Precision | None, float]:
    """The precision that most product kernels have, and the part of their time that no counted operator launched.

    products: positions of the nesting that lie in a counted operator, or are one.
    """
    if not activity.on_gpu:
        return None, 0.0
    named = np.array([multiplies(name) for name in events.names] or [False])
    inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps)) & (activity.kind == COMPUTE)
    kernels = np.flatnonzero(named[events.name[activity.row]] & inside)
    spent = events.dur[activity.row[kernels]].astype(float)
    if not len(kernels) or not spent.sum():
        return None, 0.0
    launch = activity.launch[kernels]
    around = np.full(len(kernels), -1, dtype=np.int64)
    if len(launched := np.flatnonzero(launch >= 0)):
        around[launched] = activity.host.nesting.innermost_around(launch[launched])
    told = np.append(products, False)[around]
    of_name = events.name[activity.row[kernels]].tolist()
    precisions = {name: precision_of(events.names[name]) for name in dict.fromkeys(of_name)}
    times: dict[Precision | None, float] = {}
    for name, own in zip(of_name, spent.tolist(), strict=True):
        precision = precisions[name]
        times[precision] = times.get(precision, 0.0) + own
    most = max(times, key=lambda precision: times[precision])
    # Attention is named f16 whichever of the two it has; both have one peak.
    half = times.get("bf16", 0.0) + times.get("fp16", 0.0)
    of_most = half if most in ("bf16", "fp16") else times[most]
    whole = float(spent.sum())
    return most if of_most >= ONE_PRECISION * whole else None, float(spent[~told].sum()) / whole


def _within(listed: NDArray[np.bool_], parent: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which events lie inside one of those listed, at any depth."""
    within = np.zeros(len(listed) + 1, dtype=bool)  # the last is the parent of those that have none
    own = np.append(listed, False)
    while True:
        further = within.copy()
        further[:-1] = (own | within)[parent]
        if (further == within).all():
            return within[:-1]
        within = further


def _recomputed(events: Events, parent: NDArray[np.int32], rows: Int) -> NDArray[np.bool_]:
    """Which events belong to a forward pass that runs inside backward.

    Backward calls products themselves (aten::mm); what a module calls (aten::linear) is there only if it is run again.
    """
    names = np.array([name in _OF_MODULES for name in events.names] or [False])
    nodes = np.array([name.startswith("autograd::engine::evaluate_function") for name in events.names] or [False])
    backward = _within(nodes[events.name[rows]], parent)
    again = names[events.name[rows]] & backward
    return again | _within(again, parent)


def _step_of(events: Events, rows: Int, steps: StepBounds) -> Int:
    step = np.searchsorted(steps.host_start, events.ts[rows], side="right") - 1
    inside = (step >= 0) & (events.ts[rows] < steps.host_end[np.maximum(step, 0)])
    known: Int = np.where(inside, step, -1)
    return known


def _work(events: Events, rows: Int) -> NDArray[np.float64]:
    """Operations of each of these operators, NaN where its shapes are not known or do not tell."""
    shapes = events.shape[rows]
    outputs = _convolution_outputs(events, rows)
    known: dict[tuple[int, int], float] = {}
    work = np.empty(len(rows))
    for at, key in enumerate(zip(events.name[rows].tolist(), shapes.tolist(), strict=True)):
        if key not in known:
            dims = _dims(events.shapes[key[1]]) if key[1] >= 0 else None
            found = None if dims is None else _flops_of(events.names[key[0]], dims, outputs)
            known[key] = math.nan if found is None else found
        work[at] = known[key]
    return work


def _flops_of(name: str, dims: Dims, outputs: dict[str, Any]) -> float | None:
    """None where the shapes are not those of such an operator, whoever wrote the file."""
    try:
        if name in _CONVOLUTIONS:
            out = outputs.get(json.dumps([dims[0], dims[1]]))
            flops = None if out is None else float(_convolution(out, dims[1]))
        else:
            flops = float(_FORMULAS[name](dims))
    except (IndexError, TypeError, ValueError, OverflowError, KeyError):
        return None
    return flops if flops is not None and 0 <= flops < _MOST else None


def _dims(text: str) -> Dims | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) else None


def _convolution_outputs(events: Events, rows: Int) -> dict[str, Any]:
    """Input and weight of each convolution -> its output, which only its backward tells."""
    found: dict[str, Any] = {}
    for name, shape in set(zip(events.name[rows].tolist(), events.shape[rows].tolist(), strict=True)):
        if shape >= 0 and events.names[name] in _CONVOLUTION_BACKWARDS:
            dims = _dims(events.shapes[shape])
            if dims is not None and len(dims) > 2:
                first, second = (1, 0) if events.names[name].startswith("aten::cudnn") else (0, 1)
                found[json.dumps([dims[second], dims[2]])] = dims[first]
    return found


def _product(left: Sequence[int], right: Sequence[int]) -> int:
    """Of two matrices, or two batches of them."""
    if len(left) < 2 or left[-1] != right[-2]:
        raise ValueError
    return 2 * math.prod(left) * right[-1]


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """Scores and weighted values: batch, heads, length, width of a head (or length before heads, as flash has it)."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _flash(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """The same in the layout batch, length, heads, width."""
    return 2 * math.prod(query[:-1]) * key[-3] * (query[-1] + value[-1])


def _convolution(out: Sequence[int], weight: Sequence[int]) -> int:
    """Each number of the output takes a product of the filter's length."""
    return 2 * math.prod(out) * math.prod(weight[1:])


def _convolution_backward(dims: Dims) -> int:
    """With respect to input and weight; output's gradient, input, weight."""
    return 2 * _convolution(dims[0], dims[2])


_CONVOLUTIONS = frozenset(
    {"aten::convolution", "aten::cudnn_convolution", "aten::mkldnn_convolution", "aten::_convolution"}
)
_CONVOLUTION_BACKWARDS = frozenset({"aten::convolution_backward", "aten::cudnn_convolution_backward"})
_BEFORE = {  # names behind which query, key and value stand first; backward's own begins with the output's gradient
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::_flash_attention_forward": _flash,
    "aten::_efficient_attention_forward": _flash,
    "aten::_cudnn_attention_forward": _attention,
    "flash_attn::_flash_attn_forward": _flash,
}
_FORMULAS: dict[str, Callable[[Dims], int]] = {
    "aten::mm": lambda dims: _product(dims[0], dims[1]),
    "aten::bmm": lambda dims: _product(dims[0], dims[1]),
    "aten::addmm": lambda dims: _product(dims[1], dims[2]),
    "aten::baddbmm": lambda dims: _product(dims[1], dims[2]),
    "aten::_addmm_activation": lambda dims: _product(dims[1], dims[2]),
    "aten::_scaled_mm": lambda dims: _product(dims[0], dims[1]),
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward": lambda dims: 2 * _convolution(dims[1], dims[2]),
    **{name: lambda dims: 0 for name in _CONVOLUTIONS},
    **{name: lambda dims, of=of: of(dims[0], dims[1], dims[2]) for name, of in _BEFORE.items()},  # type: ignore[misc]
    **{
        _backward: lambda dims, of=of: 2 * of(dims[1], dims[2], dims[3])  # type: ignore[misc]
        for name, of in _BEFORE.items()
        for _backward in (
            name.replace("_forward", "_backward") if "_forward" in name
            else name.replace("_for_cpu", "_for_cpu_backward") if "_for_cpu" in name
            else name + "_backward",
        )
    },
}  # fmt: skip
# What a module calls in forward, and backward never does.
_OF_MODULES = frozenset(
    {
        "aten::linear", "aten::matmul", "aten::scaled_dot_product_attention", "aten::conv1d", "aten::conv2d",
        "aten::conv3d", "aten::convolution", *(name for name in _BEFORE if "backward" not in name),
    }
)  # fmt: skip
