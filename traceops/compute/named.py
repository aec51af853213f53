"""What a kernel's name tells: which unit multiplies, and with its grid the operator and its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

Unit = Literal["simt", "tf32", "half", "fp8", "fp64", "other"]

# Searched in names in lower case: expressions that ignore case try each alternative at each place.
_UNITS: tuple[tuple[Unit, re.Pattern[str]], ...] = (
    ("tf32", re.compile(r"tf32|s1688gemm(?!_b?f16)|tensorop_s1688|s1684|tt_tst_.*tf|_s_tensorop|sss_")),
    (
        "simt",
        re.compile(
            r"simt|sgemm(?!.*tf32)|f32f32_f32f32_f32(?!.*tf32)|ffma|gemmsn|implicit_convolve_sgemm"
            r"|gemv\w*<(?:int, int, )?float, float"
        ),
    ),
    (
        "half",
        re.compile(
            r"bf16|bfloat|f16|_h_|hgemm|hss|hsh|tst_\d+x\d+_\d+x\d+_\dx\d_h|h16816|s16816|s161616|h884|h1688|_hmma"
            r"|cutlass.*half"
        ),
    ),
    ("fp64", re.compile(r"dgemm|d884|f64f64|tensorop_d|_ddd")),
    ("fp8", re.compile(r"e4m3|e5m2|_qq|fp8")),
)
_UNALIGNED = re.compile(r"aligna?([12])(?!\d)", re.IGNORECASE)
_LAYOUT = re.compile(
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|tensorTransform|BatchedTranspose|batched_transpose", re.IGNORECASE
)
_TRITON = re.compile(r"^triton_(?P<kind>poi|red|per|tem|for)_fused_?(?P<names>.*?)(?:_\d+)?$")
_PRODUCT = re.compile(
    r"gemm|nvjet|cutlass.*(gemm|Kernel2?$)|xmma|cublas|gemv|splitk|Cijk_|triton_tem|_mm_|wgmma", re.IGNORECASE
)
_ATTENTION = re.compile(r"fmha|flash|attention|attn|sdpa|mha_|_flash_", re.IGNORECASE)
_BUILT_FOR = {"ISA942": "AMD Instinct MI300X"}  # the part of a name by which AMD's products are built for one GPU


def built_for(names: Iterable[str]) -> str | None:
    """The GPU that a kernel is built for and runs on no other, by its name; None if none shows one."""
    return next((gpu for name in names for part, gpu in _BUILT_FOR.items() if f"_{part}_" in name), None)


_OF_TYPE: dict[str, Unit] = {
    "c10::Half": "half", "c10::BFloat16": "half", "double": "fp64", "signed char": "fp8",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
}  # fmt: skip


@lru_cache(maxsize=4096)
def unit_of(dtype: str, kernel: str) -> Unit:
    """Which unit multiplies numbers of this type; for float32, only the kernel's name shows it."""
    if unit := _OF_TYPE.get(dtype):
        return unit
    lower = kernel.lower()
    return next((name for name, pattern in _UNITS if pattern.search(lower)), "other")


@lru_cache(maxsize=4096)
def unaligned(name: str) -> int:
    """How many elements the kernel reads at once where rows are misaligned, one or two; else 0."""
    found = _UNALIGNED.search(name)
    return int(found[1]) if found else 0


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
    """What a kernel without an operator does, as far as its name shows."""
    if _ATTENTION.search(name):
        return "attention"
    return "product" if _PRODUCT.search(name) else "other"


_JOINED = re.compile(r"CatArrayBatchedCopy\w*<[^<]*OpaqueType<(\d+)u>")


@lru_cache(maxsize=4096)
def joined_size(kernel: str) -> int:
    """Bytes of an element that torch's kernel of a concatenation moves; 0 for other kernels."""
    found = _JOINED.search(kernel)
    return int(found[1]) if found else 0


_TILE = re.compile(r"nvjet_\w+?_(\d+)x(\d+)_|gemv|gemmSN|dot_kernel")
_FEW_ROWS = 64


@lru_cache(maxsize=4096)
def few_rows_of(kernel: str) -> int:
    """The most rows that a product of few rows can have, by the tile in its kernel's name; 0 for other products."""
    found = _TILE.search(kernel) if kind_of_kernel(kernel) == "product" else None
    if found is None:
        return 0
    sides = [int(side) for side in found.groups() if side]
    least = min(sides, default=1)
    return least if least < _FEW_ROWS else 0


# Kernels without an operator, as a CUDA graph replays them: each block of torch's kernels takes as many elements.

_ELEMENTWISE = re.compile(
    r"^(?:void )?at::native::(?:(?P<way>vectorized|unrolled)_)?elementwise_kernel<(?:128, (?P<each>\d+))?(?P<rest>.*)"
)
_EACH, _EACH_BEFORE = 1024, 512  # elements of a block of the vectorised kernels; those of torch up to 2.6
_ARRAYS = re.compile(r"(?P<now>std::array|detail::Array)<char ?\*, (?P<count>\d+)")
_WRAPPER = re.compile(r"at::native::gpu_kernel_impl(?P<nocast>_nocast)?<")
_FUNCTION = re.compile(
    r"(?:native|namespace\)|_internal)::(\w+?)(?:_kernel|_?Functor|CUDAKernel|KernelImpl|_cuda|<|\()"
)
_ARGUMENT = re.compile(r"lambda\(([\w:]+(?: char)?)|Functor\w*<([\w:]+(?: char)?)")
_TYPES = {"c10::BFloat16", "c10::Half", "float", "double", "int", "bool", "signed char", "unsigned char"}
_LONG_TYPES = {"long": "long int", "short": "short int"}
_NAMES = {"CUDA": "add", "CUDAFunctor": "add", "Fill": "fill_", "direct_copy": "copy_"}
_CASTS = {
    "bfloat16_copy": ("c10::BFloat16", "float"), "bfloat16tofloat32_copy": ("float", "c10::BFloat16"),
    "float16_copy": ("c10::Half", "float"), "float16tofloat32_copy": ("float", "c10::Half"),
}  # fmt: skip
_TWO = re.compile(r"CUDAFunctor_add|BinaryFunctor<|where_kernel")
_SOFTMAX = re.compile(
    r"softmax_warp_(?P<way>for|back)ward<(?P<type>[\w:]+), [\w:]+, [\w:]+, (?P<width>\d+), (?P<log>true|false)"
    r"|cunn_SoftMax(?P<block>For|Back)ward"
)
_WARPS, _SHORT_ROW = 4, 128  # warps of a block, each with one row, or two short ones
_OTHERS = (
    (re.compile(r"CatArrayBatchedCopy"), "aten::cat"),
    (re.compile(r"layer_norm_kernel|RowwiseMoments|rms_norm"), "aten::native_layer_norm"),
    (re.compile(r"vectorized_gather_kernel|indexSelect"), "aten::index_select"),
    (re.compile(r"^(?:void )?at::native::reduce_kernel<"), "aten::sum"),
)


@lru_cache(maxsize=4096)
def operator_of(kernel: str, blocks: int) -> tuple[str, int, tuple[str, ...]] | None:
    """The operator that launches it, and elements and types of the inputs of so many blocks; None for no such name."""
    if found := _ELEMENTWISE.match(kernel):
        arrays = _ARRAYS.search(kernel)
        each = 128 * int(found["each"] or 4)
        if found["way"] == "vectorized":
            each = _EACH_BEFORE if arrays and arrays["now"] == "detail::Array" else _EACH
        return _elementwise(found["rest"], blocks * each, int(arrays["count"]) if arrays else 0) if blocks else None
    if found := _SOFTMAX.search(kernel):
        name = "log_softmax" if found["log"] == "true" or "LogSoftMax" in kernel else "softmax"
        name = f"aten::_{name}" if "for" in (found["way"] or found["block"]).lower() else f"aten::_{name}_backward_data"
        if found["block"] or not blocks:
            return name, 0, ()
        width = 1 << int(found["width"])  # or less, down to half of it
        return name, blocks * _WARPS * (2 if width <= _SHORT_ROW else 1) * width * 3 // 4, (found["type"],)
    return next(((name, 0, ()) for pattern, name in _OTHERS if pattern.search(kernel)), None)


def _elementwise(function: str, numel: int, arrays: int) -> tuple[str, int, tuple[str, ...]]:
    """function: what the kernel applies. arrays: which it reads and writes, 0 where the name does not tell."""
    wrapper = _WRAPPER.search(function)
    inner = function[wrapper.end() :] if wrapper else function
    names = [one for one in _FUNCTION.findall(inner) if one not in ("Binary", "AUnary", "BUnary")]
    name = _NAMES.get(names[0], names[0].lower()) if names else "elementwise"
    if name in _CASTS:
        return "aten::copy_", numel, _CASTS[name]
    types = [_LONG_TYPES.get(one or other, one or other) for one, other in _ARGUMENT.findall(inner)]
    dtype = next((one for one in types if one in _TYPES or one in _LONG_TYPES.values()), "float")
    if name == "copy_":
        casts = (wrapper and not wrapper["nocast"]) or "LoadWithCast" in function
        source = dtype if not casts else "c10::BFloat16" if dtype == "float" else "float"
        return "aten::copy_", numel, (dtype, source)
    count = max(arrays - 1, 1) if arrays else 2 if _TWO.search(inner) else 1
    return f"aten::{name}", numel, (dtype,) * min(count, 4)
