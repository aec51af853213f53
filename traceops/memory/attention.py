"""Which kernel torch's attention takes on a GPU, called on fake tensors: C++ would choose one for the CPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (one.to(dtype) if one.is_floating_point() else one for one in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
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
    short = -mask.size(-1) % 16
    if short:
        mask = torch.nn.functional.pad(mask, (0, short))[..., : mask.size(-1)]
    return mask.expand(*query.shape[:-1], key.size(-2))
