"""Floating point operations of a rank's steps, from the shapes of its products; and in which precision they ran."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.compute.work import ONE_GRADIENT
from traceops.core.arrays import Int
from traceops.core.text import pattern
from traceops.measure.activity import COMPUTE, Activity
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

Precision = Literal["fp8", "bf16", "fp16", "tf32", "fp32", "fp64"]


class DevicePeak(Struct, frozen=True):
    """A GPU by its name in torch: 1e12 floating point operations a second, dense, by the type of what is multiplied.
    Sums are in fp32 but for fp64. Where a data sheet has only the rate with sparsity, half of it stands here. A type
    that is missing is one that the GPU lacks, that its data sheet does not give, or that could not be checked
    (docs/metrics.md says against what)."""

    name: re.Pattern[str]
    tflops: Mapping[Precision, float]
    source: str


def _device(name: str, source: str, **tflops: float) -> DevicePeak:
    return DevicePeak(pattern(name), tflops, source)  # type: ignore[arg-type]


_HOPPER = {"fp8": 1978.9, "bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9, "fp64": 66.9}
_HOPPER_NVL = {"fp8": 1670.5, "bf16": 835.5, "fp16": 835.5, "tf32": 417.5, "fp32": 60, "fp64": 60}
_AMPERE = {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5, "fp64": 19.5}
_CDNA3 = {"fp8": 2614.9, "bf16": 1307.4, "fp16": 1307.4, "fp32": 163.4, "fp64": 163.4}

# The first whose pattern is found in the name counts, so variants come before the plain name.
DEVICES: tuple[DevicePeak, ...] = (
    _device(r"\bGB200\b", "NVIDIA GB200 NVL72 data sheet", fp8=5000, bf16=2500, fp16=2500, tf32=1250),
    _device(r"\bB200\b", "NVIDIA Blackwell data sheet (HGX B200)", fp8=4500, bf16=2250, fp16=2250, tf32=1100),
    _device(r"\bH[12]00 NVL\b", "NVIDIA H100 and H200 data sheets (NVL)", **_HOPPER_NVL),
    _device(r"\bG?H200\b", "NVIDIA H200 and GH200 data sheets", **_HOPPER),
    _device(
        r"\bH100 PCIe\b", "NVIDIA H100 data sheet (PCIe)", fp8=1513, bf16=756, fp16=756, tf32=378, fp32=51, fp64=51
    ),
    _device(r"\bH100\b", "NVIDIA H100 data sheet (SXM)", **_HOPPER),
    # H800 and A800: their data sheets were not to be had; others' tables all have H100's and A100's rates for 16 bits.
    _device(r"\bH800\b(?! PCIe)", "NVIDIA H100 data sheet (SXM), as H800", bf16=989.4, fp16=989.4),
    _device(r"\bH20\b", "NVIDIA H20 data sheet", fp8=296, bf16=148, fp16=148, tf32=74, fp32=44),
    _device(r"\bA100\b", "NVIDIA A100 data sheet", **_AMPERE),
    _device(r"\bA800\b", "NVIDIA A100 data sheet, as A800", bf16=312, fp16=312),
    _device(r"\bA30\b", "NVIDIA A30 data sheet", bf16=165, fp16=165, tf32=82, fp32=10.3, fp64=10.3),
    _device(r"\bA40\b", "NVIDIA A40 data sheet", bf16=149.7, fp16=149.7, tf32=74.8, fp32=37.4),
    _device(r"\bA10\b", "NVIDIA A10 data sheet", bf16=125, fp16=125, tf32=62.5, fp32=31.2),
    _device(r"\bL40S\b", "NVIDIA L40S data sheet", fp8=733, bf16=362, fp16=362, tf32=183, fp32=91.6),
    _device(r"\bL40\b", "NVIDIA L40 data sheet", fp8=362, bf16=181, fp16=181, tf32=90.5, fp32=90.5),
    _device(r"\bL4\b", "NVIDIA L4 data sheet", fp8=242.5, bf16=121, fp16=121, tf32=60, fp32=30.3),
    _device(r"\bV100-(SXM|DGXS)", "NVIDIA V100 data sheet (SXM2)", fp16=125, fp32=15.7, fp64=7.8),
    _device(r"\bV100-PCIE", "NVIDIA V100 data sheet (PCIe)", fp16=112, fp32=14, fp64=7),
    _device(r"\bT4\b", "NVIDIA T4 data sheet", fp16=65, fp32=8.1),
    _device(r"\bRTX 4090\b(?! D)", "NVIDIA Ada whitepaper", bf16=165.2, fp16=165.2, tf32=82.6, fp32=82.6),
    _device(r"\bRTX 3090\b(?! Ti)", "NVIDIA GA102 whitepaper", bf16=71, fp16=71, tf32=35.6, fp32=35.6),
    _device(r"\bMI3(00X|25X)\b", "AMD Instinct MI300X and MI325X data sheets", **_CDNA3),
    # Two dies that torch counts as two devices: half of the data sheet's figure each.
    _device(r"\bMI250X\b", "AMD Instinct MI250X data sheet, a die", bf16=191.5, fp16=191.5, fp32=47.9, fp64=47.9),
    _device(r"\bMI250\b", "AMD Instinct MI250 data sheet, a die", bf16=181, fp16=181, fp32=45.3, fp64=45.3),
    _device(r"\bMI210\b", "AMD Instinct MI210 data sheet", bf16=181, fp16=181, fp32=45.3, fp64=45.3),
)  # fmt: skip


def peak_of(device: str | None, precision: Precision | None) -> tuple[float, str] | None:
    """Dense peak in 1e12 operations a second and the data sheet it is from; None where not known. A part of a GPU (MIG)
    has no entry: the name then ends in its profile. Nor has a laptop's, which is another chip."""
    if device is None or precision is None or " MIG " in device or "Laptop" in device:
        return None
    found = next((one for one in DEVICES if one.name.search(device)), None)
    if found is None or precision not in found.tflops:
        return None
    return found.tflops[precision], found.source


# no_products: no operator that multiplies. no_shapes: they are there without shapes. unknown_shape: of some of them the
# shapes do not tell the work. uncounted: kernels that multiply and no such operator launched (graphs, own kernels).
WhyNoFlops = Literal["no_products", "no_shapes", "unknown_shape", "uncounted"]

UNCOUNTED = 0.02  # of the time of kernels that multiply, from which the count is not the step's
_MOST = 1e30  # of one operator
ONE_PRECISION = 0.9  # of that time: below it there is no one peak to compare with

Dims = Sequence[Any]


class RankFlops(Struct, frozen=True):
    """Of one rank, a step: the mean over its steps. None where it is not known, for the reason in `why`. model: what
    the model asks for. recomputed: operations of forward passes that backward repeats (activation checkpointing), which
    come on top. A product of m x k and k x n counts 2 m k n; attention counts its two products in full, causal or not,
    and twice as much in backward. Other operators count nothing. precision: of the products, None where the kernels'
    names do not tell, or tell of several."""

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
    listed = known.take(events.name.take(rows)) if len(rows) else np.zeros(0, dtype=bool)
    within = _within(listed, nesting.parent)
    counted = (listed & ~within).nonzero()[0]
    precision, uncounted = _of_kernels(events, activity, steps, listed | within)
    if not len(counted):
        return replace(NOT_COUNTED, precision=precision)
    step = steps.on_host(events.end[rows[counted]] - 1)  # a found step may begin with a launch in its first operator
    counted, step = counted[step >= 0], step[step >= 0]
    if not len(counted):
        return replace(NOT_COUNTED, precision=precision)
    work = _work(events, rows[counted])
    if np.count_nonzero(np.isnan(work)) or any("sparse::" in name for name in events.names):
        none = not np.count_nonzero(events.shape[rows[counted]] >= 0)
        return RankFlops(None, why="no_shapes" if none else "unknown_shape", precision=precision)
    if uncounted > UNCOUNTED:
        return RankFlops(None, why="uncounted", precision=precision)
    # What belongs to a forward pass inside backward: that calls products themselves (aten::mm), and what a module calls
    # (aten::linear) only if it is run again.
    names = np.array([name in _OF_MODULES for name in events.names] or [False])
    nodes = np.array([name.startswith("autograd::engine::evaluate_function") for name in events.names] or [False])
    rerun = names[events.name[rows]] & _within(nodes[events.name[rows]], nesting.parent)
    again = (rerun | _within(rerun, nesting.parent))[counted]
    model, repeated = (
        np.bincount(step[chosen], weights=work[chosen], minlength=len(steps)) for chosen in (~again, again)
    )
    return RankFlops(float(model.mean()), float(repeated.mean()), precision=precision)


@lru_cache(maxsize=1 << 12)
def precision_of(kernel: str) -> Precision | None:
    """The type of what a kernel multiplies, as its name tells; None where it does not."""
    name = kernel.lower()
    return next((precision for precision, pattern in _PRECISIONS if pattern.search(name)), None)


@lru_cache(maxsize=1 << 12)
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
    products: positions of the nesting that lie in a counted operator, or are one."""
    if not activity.on_gpu:
        return None, 0.0
    named = np.array([multiplies(name) for name in events.names] or [False])
    inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps)) & (activity.kind == COMPUTE)
    kernels = (named.take(events.name.take(activity.row)) & inside).nonzero()[0]
    spent = events.dur[activity.row[kernels]].astype(float)
    if not len(kernels) or not spent.sum():
        return None, 0.0
    devices = events.pid.take(activity.row.take(kernels))
    told = np.append(products, False)[activity.host.operator_around.take(activity.launch[kernels])]
    name = events.name.take(activity.row.take(kernels))
    times: dict[Precision | None, float] = {}
    for number, own in enumerate(np.bincount(name, weights=spent).tolist()):
        if own:
            precision = precision_of(events.names[number])
            times[precision] = times.get(precision, 0.0) + own
    most = max(times, key=lambda precision: times[precision])
    # Attention is named f16 whichever of the two it has; both have one peak.
    half = times.get("bf16", 0.0) + times.get("fp16", 0.0)
    of_most = half if most in ("bf16", "fp16") else times[most]
    whole = float(spent.sum())
    one = of_most >= ONE_PRECISION * whole and (devices == devices[0]).all()  # one peak
    return most if one else None, float(spent[~told].sum()) / whole


def _within(listed: NDArray[np.bool_], parent: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which events lie inside one of those listed, at any depth."""
    within = np.zeros(len(listed) + 1, dtype=bool)  # the last is the parent of those that have none
    own = np.concatenate((listed, [False]))
    while True:
        further = within.copy()
        further[:-1] = (own | within).take(parent)
        if (further == within).all():
            return within[:-1]
        within = further


def _work(events: Events, rows: Int) -> NDArray[np.float64]:
    """Operations of each of these operators, NaN where its shapes are not known or do not tell."""
    shapes, values = (*events.shapes, ""), (*events.concrete_lists, "")
    keys = list(zip(*(of[rows].tolist() for of in (events.name, events.shape, events.concrete)), strict=True))
    calls = {key: (events.names[key[0]], _dims(shapes[key[1]]) or [], values[key[2]]) for key in set(keys)}
    # Input and weight of each convolution -> its output, which only its backward shows.
    outputs: dict[str, Any] = {}
    for name, dims, _ in calls.values():
        if name in _CONVOLUTION_BACKWARDS and len(dims) > 2:
            first, second = (1, 0) if name.startswith("aten::cudnn") else (0, 1)
            outputs[json.dumps([dims[second], dims[2]])] = dims[first]
    known = {key: _flops_of(*call, outputs) for key, call in calls.items()}
    return np.array([known[key] for key in keys])


def _flops_of(name: str, dims: Dims, values: str, outputs: dict[str, Any]) -> float:
    """NaN where the shapes are not those of such an operator, whoever wrote the file."""
    try:
        if name in _CONVOLUTIONS:
            flops = float(_convolution(outputs[json.dumps([dims[0], dims[1]])], dims[0], dims[1]))
        else:
            flops = float(_FORMULAS[name](dims))
    except (IndexError, TypeError, ValueError, OverflowError, KeyError):
        return math.nan
    if name in _CONVOLUTION_BACKWARDS and ONE_GRADIENT(values):
        flops /= 2
    return flops if 0 <= flops < _MOST else math.nan


def _dims(text: str) -> Dims | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) else None


def _product(left: Sequence[int], right: Sequence[int]) -> int:
    """Of two matrices, or two batches of them."""
    if len(left) < 2 or left[-1] != right[-2]:
        raise ValueError
    return 2 * math.prod(left) * right[-1]


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], length: int = -2) -> int:
    """Scores and weighted values: batch, heads, length, width of a head. length: where that stands in a shape."""
    return 2 * math.prod(query[:-1]) * key[length] * (query[-1] + value[-1])


_flash = partial(_attention, length=-3)  # batch, length, heads, width


def _convolution(out: Sequence[int], source: Sequence[int], weight: Sequence[int]) -> int:
    """Each number of the output takes a product of the filter's length; of a transposed one, each of the input."""
    return 2 * min(math.prod(one) for one in (out, source) if one[1] == weight[0]) * math.prod(weight[1:])


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
    "aten::convolution_backward": lambda dims: 2 * _convolution(dims[0], dims[1], dims[2]),
    "aten::cudnn_convolution_backward": lambda dims: 2 * _convolution(dims[1], dims[0], dims[2]),
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
