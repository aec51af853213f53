"""What GPUs can do at most: dense matrix products, by precision, as their makers' data sheets say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp8", "bf16", "fp16", "tf32", "fp32", "fp64"]


@dataclass(frozen=True)
class DevicePeak:
    """A GPU by its name in torch: 1e12 floating point operations a second, dense, by the type of what is multiplied.

    Sums are in fp32 but for fp64. Where a data sheet has only the rate with sparsity, half of it stands here. A type
    that is missing is one that the GPU lacks, that its data sheet does not give, or that could not be checked
    (docs/metrics.md says against what).
    """

    name: re.Pattern[str]
    tflops: Mapping[Precision, float]
    source: str


def _device(name: str, source: str, **tflops: float) -> DevicePeak:
    return DevicePeak(re.compile(name), tflops, source)  # type: ignore[arg-type]


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
    """Dense peak in 1e12 operations a second and the data sheet it is from; None where not known.

    A part of a GPU (MIG) has no entry: the name then ends in its profile.
    """
    if device is None or precision is None or " MIG " in device:
        return None
    found = next((one for one in DEVICES if one.name.search(device)), None)
    if found is None or precision not in found.tflops:
        return None
    return found.tflops[precision], found.source
