"""Functions of torch that take other kernels on a GPU, called on fake tensors.

C++ would choose for the CPU, where what is kept for backward is larger: masks as numbers, copies in fp32. `on` is where
the tensors of the GPU are: "cuda", or "cpu" in the built-in training, which is all on a fake CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _FusedRmsNorm(torch.autograd.Function):
    """Keeps its input and a number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, rows: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, rows)
        return torch.empty_like(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight), None


def rms_norm_on(usual: Callable[..., Any], on: str = "cuda") -> Callable[..., Any]:
    """`torch.nn.functional.rms_norm`, `usual` off the GPU and where weight and input are of different types."""

    def call(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: Any = None) -> Any:
        if _is_on(on, input) and torch.is_autocast_enabled(on):
            input, weight = input.float(), None if weight is None else weight.float()
        if not _is_on(on, input) or (weight is not None and weight.dtype is not input.dtype):
            return usual(input, normalized_shape, weight, eps)
        if isinstance(normalized_shape, int):
            normalized_shape = (normalized_shape,)
        rows = torch.empty_like(input.detach().select(-1, 0), dtype=torch.float32)
        return _FusedRmsNorm.apply(input, weight, rows)  # type: ignore[no-untyped-call]

    return call


def dropout_on(usual: Callable[..., Any], on: str = "cuda") -> Callable[..., Any]:
    """`torch.nn.functional.dropout`, `usual` off the GPU: the fused one keeps a byte an element."""

    def call(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if inplace or not training or not 0 < p < 1 or not _is_on(on, input) or not input.numel():
            return usual(input, p, training, inplace)
        return torch.ops.aten.native_dropout.default(input, p, True)[0]

    return call


def _is_on(device: str, tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.device.type == device
