"""Pairs of training loops that differ by their attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from case import DEVICE, Step, adamw, normal, pair, size, training
from own import mean_square, stack
from torch import nn


@pair
def padding_mask_of_ones(sick: bool) -> Step:
    batch, length = size(4, 1), size(2048, 8)
    mask = torch.ones(batch, 1, length, length, device=DEVICE, dtype=torch.bool)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    model = stack(size(6, 1), size(1024, 32), size(16, 2), attend if sick else None)
    return training(mean_square(model, normal(batch, length, size(1024, 32))), adamw(model))


@pair
def window_by_mask(sick: bool) -> Step:
    length, window, width, heads = size(8192, 32), size(512, 8), size(1024, 32), size(16, 2)
    at = torch.arange(length, device=DEVICE)
    near = (at[:, None] >= at) & (at[:, None] - at < window)
    inner = torch.arange(window, device=DEVICE)
    reach = torch.arange(2 * window, device=DEVICE) - window
    block_near = (inner[:, None] >= reach) & (inner[:, None] - reach < window)

    def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=near)

    def blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows, h, _, d = q.shape

        def with_previous(x: torch.Tensor) -> torch.Tensor:
            x = x.reshape(rows, h, length // window, window, d)
            previous = F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1]
            return torch.cat([previous, x], 3).reshape(rows, -1, 2 * window, d)

        q = q.reshape(rows, -1, window, d)
        out = F.scaled_dot_product_attention(q, with_previous(k), with_previous(v), attn_mask=block_near)
        return out.reshape(rows, h, length, d)

    model = stack(size(3, 1), width, heads, whole if sick else blocks)
    return training(mean_square(model, normal(1, length, width)), adamw(model))


@pair
def attention_with_weights(sick: bool) -> Step:
    width, depth = size(1024, 32), size(4, 1)
    parts = nn.ModuleList(nn.MultiheadAttention(width, size(16, 2), batch_first=True) for _ in range(depth)).to(DEVICE)
    x = normal(size(8, 1), size(1024, 8), width)

    def loss() -> torch.Tensor:
        h = x
        for part in parts:
            h = h + part(h, h, h, need_weights=sick)[0]
        return h.float().square().mean()

    return training(loss, adamw(parts))


def scores_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1]), -1) @ v


@pair
def odd_unfused_encoder(sick: bool) -> Step:
    length = size(1001 if sick else 1024, 7 if sick else 8)
    model = stack(size(4, 1), size(1024, 32), size(16, 2), scores_by_hand if sick else None)
    return training(mean_square(model, normal(size(8, 1), length, size(1024, 32))), adamw(model))
