"""Functions of torch that take other kernels on a GPU, called on fake tensors.

C++ would choose for the CPU, where what is kept for backward is larger: masks as numbers, copies in fp32. `on` is where
the tensors of the GPU are: "cuda", or "cpu" in the built-in training, which is all on a fake CPU."""

from __future__ import annotations

import functools
import math
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


_ATEN = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_MOST_FLASH = 256  # elements of a head
_EFFICIENT = (*_HALVES, torch.float32)


def attention_on(usual: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.nn.functional.scaled_dot_product_attention`, `usual` off the GPU."""

    @functools.wraps(usual)
    def call(query: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (attention if query.device.type == "cuda" else usual)(query, *args, **kwargs)

    return call


def _autocast(one: Tensor) -> Tensor:
    return one.to(torch.get_autocast_dtype("cuda")) if one.is_floating_point() else one


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention as on a GPU since Ampere, from queries of 4 dimensions."""
    if torch.is_autocast_enabled("cuda"):
        query, key, value = map(_autocast, (query, key, value))
        attn_mask = None if attn_mask is None else _autocast(attn_mask)
    flat = query.dim() == 4
    if query.dtype in _HALVES and attn_mask is None and flat and query.size(-1) <= _MOST_FLASH:
        width = query.size(-1)
        padded = [_padded(one) for one in (query, key, value)]
        said = 1 / math.sqrt(width) if scale is None else scale
        out = _ATEN._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=said)[0]
        return out[..., :width] if out.size(-1) != width else out
    if enable_gqa:
        times = query.size(-3) // key.size(-3)
        key, value = (one.repeat_interleave(times, -3) for one in (key, value))
    learned = attn_mask is not None and attn_mask.requires_grad  # no fused kernel takes such a mask
    if query.dtype in _EFFICIENT and flat and query.is_cuda and not learned:
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        grad = any(one.requires_grad for one in (query, key, value)) and torch.is_grad_enabled()
        return _ATEN._scaled_dot_product_efficient_attention(
            query, key, value, bias, grad, dropout_p, is_causal, scale=scale
        )[0]
    return _ATEN._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale
    )[0]


def _padded(tensor: Tensor) -> Tensor:
    short = -tensor.size(-1) % 8
    return torch.nn.functional.pad(tensor, (0, short)) if short else tensor


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask as the kernel takes it: added to the scores, of the scores' shape."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    if short := -mask.size(-1) % 16:
        mask = torch.nn.functional.pad(mask, (0, short))[..., : mask.size(-1)]
    return mask.expand(*query.shape[:-1], key.size(-2))


# What torchao's AdamW8bit allocates, without its kernels: on fake tensors its quantisation reads values.

_LEAST = 4096  # elements of a parameter whose state is quantised
_BLOCK = 256  # elements with a scale in common; a parameter that is no multiple keeps its type


class AdamW8bitSizes(torch.optim.Optimizer):
    """Two states of a byte an element with a float32 scale for each block, updated in one compiled kernel."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                local = getattr(parameter, "_local_tensor", parameter)
                if not (state := self.state[parameter]):
                    small = local.numel() < _LEAST or local.numel() % _BLOCK
                    for name in ("exp_avg", "exp_avg_sq"):
                        if small:
                            state[name] = torch.empty_like(local)
                            continue
                        state[name] = torch.empty(local.numel(), dtype=torch.uint8)
                        state[f"{name}_scale"] = torch.empty(-(-local.numel() // _BLOCK))
