"""What a kernel's name tells: the type and unit that it multiplies in, layout conversions, compiled code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

Maker = Literal["NVIDIA", "AMD"]
Unit = Literal["simt", "tf32", "half", "fp8", "fp64", "other"]

_SIMT = re.compile(
    r"simt|sgemm(?!.*tf32)|f32f32_f32f32_f32(?!.*tf32)|ffma|gemmSN|implicit_convolve_sgemm", re.IGNORECASE
)
_TF32 = re.compile(r"tf32|s1688gemm|tensorop_s1688|s1684|tt_tst_.*tf|_s_tensorop|sss_", re.IGNORECASE)
_HALF = re.compile(
    r"bf16|bfloat|f16|_h_|hgemm|hss|hsh|tst_\d+x\d+_\d+x\d+_\dx\d_h|h16816|s16816|s161616|h884|h1688|_hmma|cutlass.*half"
    r"|bf16bf16|f16f16",
    re.IGNORECASE,
)
_FP8 = re.compile(r"e4m3|e5m2|_qq|fp8", re.IGNORECASE)
_FP64 = re.compile(r"dgemm|d884|f64f64|tensorop_d|_ddd", re.IGNORECASE)
_UNALIGNED = re.compile(r"align1(?!\d)|align2(?!\d)|aligna1|aligna2", re.IGNORECASE)
_LAYOUT = re.compile(
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|tensorTransform|BatchedTranspose|batched_transpose", re.IGNORECASE
)
_TRITON = re.compile(r"^triton_(?P<kind>poi|red|per|tem|for)_fused_?(?P<names>.*?)(?:_\d+)?$")
_PRODUCT = re.compile(
    r"gemm|nvjet|cutlass.*(gemm|Kernel2?$)|xmma|cublas|gemv|splitk|Cijk_|triton_tem|_mm_|wgmma", re.IGNORECASE
)
_ATTENTION = re.compile(r"fmha|flash|attention|attn|sdpa|mha_|_flash_", re.IGNORECASE)


_AMD = re.compile(r"^Cijk_|igemm_(fwd|bwd|wrw)_gtc|\bck::|\bck_|aiter|rocm|miopen|hipblas|gfx9", re.IGNORECASE)
_NVIDIA = re.compile(r"cutlass|cudnn|cublas|nvjet|xmma|sm[789]0_|sm1\d0_|ampere_|volta_|turing_", re.IGNORECASE)


def maker_of(names: Iterable[str]) -> Maker | None:
    """Whose GPU ran kernels of these names; None where none of them tells."""
    for name in names:
        if _AMD.search(name):
            return "AMD"
        if _NVIDIA.search(name):
            return "NVIDIA"
    return None


_OF_TYPE: dict[str, Unit] = {
    "c10::Half": "half", "c10::BFloat16": "half", "double": "fp64", "signed char": "fp8",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
}  # fmt: skip


@lru_cache(maxsize=4096)
def unit_of(dtype: str, kernel: str) -> Unit:
    """Which unit multiplies numbers of this type; of float32 only the kernel's name tells."""
    if unit := _OF_TYPE.get(dtype):
        return unit
    patterns: tuple[tuple[Unit, re.Pattern[str]], ...] = (
        ("tf32", _TF32),
        ("simt", _SIMT),
        ("half", _HALF),
        ("fp64", _FP64),
        ("fp8", _FP8),
    )
    for name, pattern in patterns:
        if pattern.search(kernel):
            return name
    return "other"


@lru_cache(maxsize=4096)
def unaligned(name: str) -> bool:
    """Whether the kernel reads elements one or two at a time."""
    return bool(_UNALIGNED.search(name))


@lru_cache(maxsize=4096)
def converts_layout(name: str) -> bool:
    """Whether it changes channels first to last, or back."""
    return bool(_LAYOUT.search(name))


@lru_cache(maxsize=4096)
def fused_names(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Of a kernel that Inductor wrote: poi, red, per or tem, and words of the operators in it."""
    found = _TRITON.match(name)
    return None if found is None else (found["kind"], tuple(part for part in found["names"].split("_") if part))


@lru_cache(maxsize=4096)
def kind_of_kernel(name: str) -> Literal["product", "attention", "other"]:
    """What a kernel without an operator does, as far as its name tells."""
    if _ATTENTION.search(name):
        return "attention"
    return "product" if _PRODUCT.search(name) else "other"
