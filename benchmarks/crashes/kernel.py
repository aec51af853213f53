"""A kernel that writes where it is told to; imported on machines with GPUs only."""

import triton  # type: ignore[import-not-found]
from triton import language as tl


@triton.jit
def write(target, offset):  # type: ignore[no-untyped-def]
    """Store 64 numbers `offset` elements behind the tensor's first."""
    tl.store(target + offset + tl.arange(0, 64), 1.0)
