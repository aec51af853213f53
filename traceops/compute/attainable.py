"""What a GPU attains, not its peak: rates by kind, type and size of the work.

H200: medians of kernels that were recorded on one (torch 2.11, CUDA 13; benchmarks/compute/README.md). Other GPUs: the
share of the data sheet's peak and bandwidth that the H200 attains, of theirs; AMD measured an MI300X's products.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from traceops.compute.named import Unit, fused_names, unit_of
from traceops.compute.uses import HALVES, Use
from traceops.compute.work import Attention, Work
from traceops.core.errors import InputError
from traceops.core.files import cache_folder, open_own


class Roofs(Struct, frozen=True):
    """What the GPU attains: operations by unit, TFLOP/s, and memory, TB/s."""

    half: float
    tf32: float
    float32: float
    float64: float
    memory: float


HalfType = Literal["bf16", "fp16"]
Source = Literal["measured", "own", "scaled", "assumed"]  # assumed: an unknown GPU, taken for an H200

_PEAK_OF_UNIT: dict[Unit, float] = {"tf32": 0.5, "fp8": 2.0}
_CACHED = 512 << 20  # bytes up to which caches of the GPU may have held what was moved
LEAST_NS = 2_000.0  # a kernel of next to no work


class Rates(Struct, frozen=True):
    """What a GPU attains, as measured on one.

    half: TFLOP/s of products in 16 bits by 1e9 operations in one call. units: of the others, as a share of that.
    simt, fp64: TFLOP/s without tensor cores. forward, backward: TFLOP/s of attention with heads of 64, of the whole
    square where the half above the diagonal is left out, by the length of the keys. memory: TB/s by kind.
    """

    half: tuple[tuple[float, float], ...]
    units: dict[str, float]
    simt: float
    fp64: float
    forward: tuple[tuple[float, float], ...]
    backward: tuple[tuple[float, float], ...]
    memory: dict[str, float]


H200 = Rates(
    half=((0.1, 60.0), (0.5, 200.0), (2.0, 430.0), (8.0, 580.0), (20.0, 680.0), (100.0, 740.0), (1000.0, 740.0)),
    units={"half": 1.0, "tf32": 0.46, "fp8": 1.7, "other": 1.0},
    simt=50.0,
    fp64=58.0,
    forward=((64, 40.0), (197, 165.0), (512, 345.0), (1024, 545.0), (2048, 676.0), (8192, 800.0)),
    backward=((64, 30.0), (197, 124.0), (512, 240.0), (1024, 416.0), (2048, 587.0), (8192, 680.0)),
    memory={
        "elementwise": 4.0, "cast": 3.2, "copy": 3.7, "cat": 2.6, "fill": 4.3, "reduction": 2.4, "norm": 2.2,
        "softmax": 3.2, "loss": 2.5, "embedding": 1.2, "index": 1.5, "optimizer": 3.3, "product": 3.9,
        "attention": 3.5, "convolution": 3.0, "recurrent": 3.0,
    },
)  # fmt: skip
_CDNA3 = replace(  # 708 TFLOP/s in bf16, as AMD measures an MI300X's products: 54 % of the sheet, and an H200 has 75 %
    H200,
    **{
        table: tuple((size, 0.724 * rate) for size, rate in getattr(H200, table))
        for table in ("half", "forward", "backward")
    },
)


class Gpu(Struct, frozen=True):
    """One GPU. tensor, simt, fp64, memory: times the rates, of tensor cores, units without them, and memory. half: the
    type of 16 bits that its tensor cores multiply; tf32: whether they multiply float32 in TF32. source: where the rates
    are from; own: measured on this machine."""

    name: str
    tensor: float = 1.0
    simt: float = 1.0
    fp64: float = 1.0
    memory: float = 1.0
    processors: int = 132
    half: HalfType = "bf16"
    tf32: bool = True
    source: Source = "scaled"
    rates: Rates = H200

    @property
    def is_amd(self) -> bool:
        """AMD's library of convolutions has no TF32, and torch gives it images with channels first."""
        return bool(re.search(r"\bMI\d", self.name))


_SHEET = {"bf16": 989.4, "fp32": 66.9, "fp64": 66.9, "memory": 4.8}
_SHEETS: tuple[tuple[str, float, float, float, float, int], ...] = (  # bf16, fp32, fp64 TFLOP/s; TB/s; processors
    (r"\bGH200 480GB\b", 989.4, 66.9, 66.9, 4.0, 132),
    (r"\bG?H200\b", 989.4, 66.9, 66.9, 4.8, 132),
    (r"\bH100 PCIe\b", 756, 51, 51, 2.0, 114),
    (r"\bH100 NVL\b", 835.5, 60, 60, 3.9, 132),
    (r"\bG?H100\b|\bH800\b", 989.4, 66.9, 66.9, 3.35, 132),
    (r"\bA[18]00.*80GB", 312, 19.5, 19.5, 2.0, 108),
    (r"\bA[18]00\b", 312, 19.5, 19.5, 1.56, 108),
    (r"\bL40S\b", 362, 91.6, 1.4, 0.864, 142),
    (r"\bL40\b", 181, 90.5, 1.4, 0.864, 142),
    (r"\bL4\b", 121, 30.3, 0.47, 0.3, 58),
    (r"\bA10\b", 125, 31.2, 0.49, 0.6, 72),
    (r"\bMI3(00X|25X)\b", 1307.4, 163.4, 163.4, 5.3, 304),
    (r"\bMI250X?\b", 191.5, 47.9, 47.9, 1.6, 110),
    (r"\bT4\b", 65, 8.1, 0.25, 0.32, 40),
    (r"\bV100\b", 125, 15.7, 7.8, 0.9, 80),
    (r"\bB200\b", 2250, 80, 40, 8.0, 148),
)
_ONLY_FP16 = re.compile(r"\bT4\b|\bV100\b")  # Turing and Volta
_NO_TF32 = re.compile(rf"{_ONLY_FP16.pattern}|\bMI\d")  # AMD's libraries have it only where a variable asks for it
UNKNOWN = Gpu("an H200", source="assumed")
FASTEST = Gpu(  # the most of each that any of them has: what is faster, no GPU did
    "any",
    max(row[1] for row in _SHEETS) / _SHEET["bf16"],
    max(row[2] for row in _SHEETS) / _SHEET["fp32"],
    max(row[3] for row in _SHEETS) / _SHEET["fp64"],
    max(row[4] for row in _SHEETS) / _SHEET["memory"],
    source="assumed",
)


def gpu_of(device: str | None) -> Gpu:
    """Rates of the GPU of this name: those kept on this machine, else measured or scaled ones that ship."""
    if not device:
        return UNKNOWN
    known = UNKNOWN
    for pattern, tensor, simt, fp64, memory, processors in _SHEETS if " MIG " not in device else ():
        if re.search(pattern, device):
            known = Gpu(
                device, tensor / _SHEET["bf16"], simt / _SHEET["fp32"], fp64 / _SHEET["fp64"],
                memory / _SHEET["memory"], processors, half_type_of(device), not _NO_TF32.search(device),
                "measured" if re.search(r"\bH200\b", device) else "scaled", _CDNA3 if "MI3" in pattern else H200,
            )  # fmt: skip
            break
    own = kept_rates(device)
    return known if own is None else _with_own(known, device, own)


def half_type_of(device: str | None) -> HalfType:
    """The type of 16 bits for training on a GPU of this name."""
    return "fp16" if _ONLY_FP16.search(device or "") else "bf16"


def _with_own(known: Gpu, device: str, own: Rates) -> Gpu:
    """Rates of this machine's GPU, relative to those of its data sheet, or to an H200's where none is known."""
    gpu = known
    if known.source == "measured":  # programs attained those on this kind of GPU: a trial that is slower shows less
        own = replace(
            own,
            memory={kind: max(rate, H200.memory.get(kind, 0.0)) for kind, rate in own.memory.items()},
            simt=max(own.simt, H200.simt),
            fp64=max(own.fp64, H200.fp64),
        )
    if known.source == "assumed":
        gpu = Gpu(
            device, own.half[-1][1] / H200.half[-1][1], own.simt / H200.simt, own.fp64 / H200.fp64,
            own.memory["copy"] / H200.memory["copy"],
        )  # fmt: skip
    rates = Rates(
        half=tuple((size, rate / gpu.tensor) for size, rate in own.half),
        units=own.units,
        simt=own.simt / gpu.simt,
        fp64=own.fp64 / gpu.fp64,
        forward=tuple((size, rate / gpu.tensor) for size, rate in own.forward),
        backward=tuple((size, rate / gpu.tensor) for size, rate in own.backward),
        memory={kind: rate / gpu.memory for kind, rate in own.memory.items()},
    )
    return replace(gpu, rates=rates, source="own")


# The table of this machine's GPU, which traceops doctor --compute measures and keeps.

KEPT = "gpus"
_LARGEST_BYTES = 1 << 20


class KeptRates(Struct, frozen=True):
    """A file of the cache's folder `gpus`."""

    gpu: str
    rates: Rates
    torch: str = ""


def rates_path(device: str) -> Path | None:
    """Where the table of a GPU of this name is kept; None for nowhere."""
    folder = cache_folder(KEPT)
    return None if folder is None else folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', device)[:80]}.json"


def kept_rates(device: str) -> Rates | None:
    """The table that is kept of a GPU of this name; None without one that can be believed and read."""
    path = rates_path(device)
    try:
        if path is None or not path.exists():
            return None
        with open_own(path, path.parent) as file:
            kept = msgspec.json.decode(file.read(_LARGEST_BYTES), type=KeptRates)
    except (OSError, msgspec.MsgspecError, InputError):
        return None
    return kept.rates if kept.gpu == device and is_usable(kept.rates) else None


def is_usable(rates: Rates) -> bool:
    """Whether all rates are there, and speeds."""
    tables = (rates.half, rates.forward, rates.backward)
    numbers = [number for table in tables for row in table for number in row]
    numbers += [*rates.units.values(), *rates.memory.values(), rates.simt, rates.fp64]
    rising = all(a < b for table in tables for (a, _), (b, _) in pairwise(table))
    whole = all(tables) and rates.units.keys() >= H200.units.keys() and rates.memory.keys() >= H200.memory.keys()
    return whole and rising and all(0 < number < 1e6 for number in numbers)


def kept_fingerprint() -> str:
    """A digest of all tables that are kept here; '' without any."""
    folder = cache_folder(KEPT)
    digest = hashlib.sha256()
    try:
        paths = sorted(folder.glob("*.json")) if folder is not None else []
        for path in paths:
            digest.update(path.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()[:16] if paths else ""


# Measured on an H200.

_FIXED_NS = {  # of any kernel, however little it does: beginning, ending, and what its blocks wait for
    "product": 1_800.0, "convolution": 2_500.0, "attention": 3_500.0, "norm": 2_000.0, "softmax": 2_500.0,
    "reduction": 2_300.0, "loss": 2_000.0, "index": 2_000.0, "embedding": 2_000.0, "fill": 700.0,
}  # fmt: skip
_FIXED_OF_OTHERS = 1_000.0
_STRIDED = "::elementwise_kernel<"  # takes elements one by one, at places that it calculates
_STRIDED_RATE = 1.8  # TB/s
HALF_OF_STRIDED = 0.1  # of their time goes with 16 bits
_WIDE = 1.32  # times the rate of attention with heads of 64, with those of 128
_CAUSAL_FROM = 512  # from which a causal square takes clearly less than a whole one
_WHOLE = 0.58
FLOAT_ATTENTION = 9.0  # times as long as with 16 bits
_MULTIPLIES_LESS = re.compile(r"winograd|fft|Sp3Asm", re.IGNORECASE).search  # convolutions that transform their input
_COMPILED = {"poi": 3.6, "per": 3.0, "red": 2.9}


def product_ns(flops: float, moved: float, unit: Unit, gpu: Gpu) -> float:
    """Least time of a product, or of a convolution."""
    if unit == "simt" or (unit == "tf32" and not gpu.tf32):
        rate = gpu.rates.simt * gpu.simt
    elif unit == "fp64":
        rate = gpu.rates.fp64 * gpu.fp64
    else:
        rate = _between(gpu.rates.half, flops / 1e9) * gpu.rates.units[unit] * gpu.tensor
    return max(flops / rate / 1e3, moved_ns(moved, "product", gpu), LEAST_NS)


def attention_ns(one: Attention, gpu: Gpu, causal: bool | None = None) -> float:
    """Least time of fused attention in a type of 16 bits; as causal as it is, or as `causal` says."""
    table = gpu.rates.backward if one.backward else gpu.rates.forward
    rate = _between(table, min(one.key, one.query) if one.query > 1 else 64) * (_WIDE if one.width >= 128 else 1.0)
    if not (one.causal if causal is None else causal) and one.key >= _CAUSAL_FROM:
        rate *= _WHOLE
    # The rates are of batches that fill the device.
    blocks = one.batch * max(one.query // 128, 1)
    rate *= min(1.0, max(blocks / gpu.processors, 0.05))
    moved = 2.0 * one.batch * one.width * (one.query + one.key) * 2 * (2.5 if one.backward else 1.0)
    return max(one.flops / (rate * gpu.tensor) / 1e3, moved_ns(moved, "attention", gpu), 2 * LEAST_NS)


def moved_ns(bytes_: float, kind: str, gpu: Gpu) -> float:
    """Least time to read and write so many bytes."""
    return max(bytes_ / (gpu.rates.memory.get(kind, 3.0) * gpu.memory) / 1e3, 0.0)


def expected_ns(kind: str, least_ns: float) -> float:
    """What a kernel is expected to take whose work takes so long at the attainable rate."""
    return _FIXED_NS.get(kind, _FIXED_OF_OTHERS) + least_ns


def is_strided(kernel: str) -> bool:
    """Whether a kernel of this name takes elements one by one, at places that it calculates."""
    return _STRIDED in kernel


def passed_ns(bytes_: float, kind: str, kernel: str, gpu: Gpu) -> float:
    """What a kernel of this kind and name is expected to take for so many bytes."""
    rate = _STRIDED_RATE * gpu.memory if is_strided(kernel) else gpu.rates.memory.get(kind, 3.0) * gpu.memory
    return expected_ns(kind, bytes_ / rate / 1e3)


def roofs_of(gpu: Gpu) -> Roofs:
    """The most that large operators attain."""
    half, memory = gpu.rates.half[-1][1] * gpu.tensor, max(gpu.rates.memory.values()) * gpu.memory
    float32 = gpu.rates.simt * gpu.simt
    tf32 = half * gpu.rates.units["tf32"] if gpu.tf32 else float32
    return Roofs(half, tf32, float32, gpu.rates.fp64 * gpu.fp64, memory)


def times_of_peak(use: Use, work: Work, ns: float, gpu: Gpu) -> tuple[float, bool]:
    """How many times the data sheet's peak one call's work takes in so long, and whether of memory or of the units."""
    unit = "half" if work.attention is not None else unit_of_use(use)
    peak = {"fp64": _SHEET["fp64"] * gpu.fp64, "simt": _SHEET["fp32"] * gpu.simt}.get(
        unit, _SHEET["bf16"] * gpu.tensor * _PEAK_OF_UNIT.get(unit, 1.0)
    )
    known = work.kind in ("product", "convolution", "attention") and not work.at_most
    if not known or any(map(_MULTIPLIES_LESS, use.kernels)):  # bytes and operations are sure of the others
        return 0.0, False
    computes = work.flops / peak / 1e3 / ns * (0.5 if work.attention is not None else 1.0)  # it may be causal
    size = work.bytes or 0.0
    moves = size / (_SHEET["memory"] * gpu.memory) / 1e3 / ns if size > _CACHED else 0.0
    return (moves, True) if moves > computes else (computes, False)


def unit_of_use(use: Use) -> Unit:
    """Which unit multiplies in a product or convolution."""
    first = next((t for t in use.inputs.tensors if len(t.dims) > 1), None)
    return unit_of(first.dtype if first else "", use.main_kernel)


def attainable_ns(use: Use, work: Work, gpu: Gpu) -> float | None:
    """Least time of one call, in the type and layout that it has; None where its work is not known."""
    if work.attention is not None:
        slower = 1.0 if work.attention.dtype in HALVES else FLOAT_ATTENTION
        return attention_ns(work.attention, gpu) * slower
    if work.bytes is None:
        return None
    if work.kind in ("product", "convolution"):
        return product_ns(work.flops, work.bytes, unit_of_use(use), gpu)
    if fused := fused_names(use.name):
        rate = _COMPILED.get(fused[0], 2.9)
        return max(work.bytes / (rate * gpu.memory) / 1e3, LEAST_NS)
    return max(moved_ns(work.bytes, work.kind, gpu), LEAST_NS)


def _between(table: Sequence[tuple[float, float]], at: float) -> float:
    """The table's value at `at`, linear in its logarithm between entries."""
    if at <= table[0][0]:
        return table[0][1] * max(at / table[0][0], 0.05)
    for (low, first), (high, second) in pairwise(table):
        if at <= high:
            share = math.log(at / low) / math.log(high / low)
            return first + (second - first) * share
    return table[-1][1]
