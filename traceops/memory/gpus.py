"""Memory of GPUs by name, and what CUDA, cuBLAS and NCCL take of it outside of a training's tensors."""

from __future__ import annotations

import re

from traceops.core.errors import UsageError

_MIB, _GIB = 1 << 20, 1 << 30

# As the driver tells torch (total_memory), which is less than the name says. From nvidia-smi's tables of these cards.
GPUS: dict[str, int] = {
    "H200": 150_109_880_320,
    "H100": 85_029_158_912,
    "A100-80": 85_094_825_984,
    "A100-40": 42_298_834_944,
    "L40S": 47_697_362_944,
    "A6000": 50_896_633_856,
    "A10": 23_609_475_072,
    "RTX4090": 25_252_789_248,
    "RTX3090": 25_438_126_080,
    "V100-32": 34_079_899_648,
    "T4": 15_655_829_504,
}
_HOPPER = ("H100", "H200")

# Measured on H200 (CUDA 13.0, NCCL 2.28): a process with a context alone, and one that has used a communicator of
# two ranks. On an A6000 a failed training told of 0.48 GiB outside of torch, without NCCL.
CONTEXT_BYTES = 520 * _MIB
NCCL_BYTES = 1_076 * _MIB

_LARGEST = 1e18  # of the number in a size
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def capacity_of(gpu: str) -> int:
    """The bytes of a GPU in `GPUS`, however its name is written. Raises UsageError."""
    plain = re.sub(r"[^A-Z0-9]", "", gpu.upper())
    for name, size in GPUS.items():
        card = name.replace("-", "")
        if plain.endswith(card) and not plain.endswith("G" + card):  # a GH200 is no H200
            return size
    raise UsageError(f"--gpu {gpu}: not one of {', '.join(GPUS)}; give its memory with --capacity, such as 47.4GiB")


def workspaces_of(gpu: str | None) -> dict[str, int]:
    """What matrix products take of a GPU: cuBLAS for each thread, cuBLASLt once. Without a name as on Hopper."""
    hopper = gpu is None or any(name in gpu.upper() for name in _HOPPER)
    return {"cublas": 32 * _MIB if hopper else 8_519_680, "cublaslt": _MIB}


def size_of(text: str) -> int:
    """``47.4GB`` or ``44.1GiB`` in bytes. Raises UsageError."""
    match = _SIZE.fullmatch(text)
    if match is None or not 0 < float(match[1]) < _LARGEST:
        raise UsageError(f"{text}: give a size such as 47.4GiB or 80GB")
    unit = _UNITS[match[2].upper()]
    if match[3]:
        unit = 1 << {1: 0, 1000: 10, 1000**2: 20, 1000**3: 30, 1000**4: 40}[unit]
    size = round(float(match[1]) * unit)
    if size < _MIB:
        raise UsageError(f"{text}: that is {size:,} bytes, too few for a GPU; give a unit, such as 80GB")
    return size
