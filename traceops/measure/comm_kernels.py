"""Which kernels communicate, by their names."""

from __future__ import annotations

import functools
import re

# What stands in front of a library's or a namespace's kernels, wherever it stands in the name.
_LIBRARIES = (
    r"(?<![a-z0-9_])(nccl|rccl|msccl|mscclpp|hccl|onccl|oneccl|uccl|xccl|ccl)(?=[_:]|dev|kernel|generic|all|reduce|broadcast|send)",
    r"ncclDevKernel|ncclKernel|rccl_main_kernel",
    r"nvshmem|symm_mem|multimem_|userbuffers|deep_ep|dpsk::ep::|\bmori::|cross_device_reduce|quick_?reduce",
    r"(inter|intra)node(_ll)?::",
)
# What a collective is called. One that is part of a product (all-gather and GEMM in one kernel) computes too, and what
# threads of a block do among each other is none.
_VERBS = r"all_?reduce|all_?gather|reduce_?scatter|all_?(to|2)_?all"
_NOT = r"gemm|matmul|_mm_|(block|warp|thread|cta|group)_?(all_?reduce|all_?gather|reduce_?scatter|all_?(to|2)_?all)"
_LIBRARY = re.compile("|".join(_LIBRARIES), re.IGNORECASE)
_VERB = re.compile(_VERBS, re.IGNORECASE)
_NONE = re.compile(_NOT, re.IGNORECASE)
_WORDS = (
    "ccl", "nvshmem", "deep_ep", "multimem_", "symm_mem", "reduce", "all", "scatter", "dpsk::ep::", "node::",
    "node_ll::", "userbuffers", "mori::",
)  # fmt: skip


@functools.lru_cache(maxsize=65536)
def communicates(name: str) -> bool:
    """Whether a kernel of this name moves data between ranks: by its library, or by the collective in its name."""
    lower = name.lower()
    if not any(word in lower for word in _WORDS):
        return False
    return _LIBRARY.search(name) is not None or (_VERB.search(name) is not None and _NONE.search(name) is None)


@functools.lru_cache(maxsize=64)
def own_pattern(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    """One pattern of a user's own, None for none. Raises ValueError naming the one that is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None
