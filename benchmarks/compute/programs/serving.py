"""Pairs of inference and generation as people write them themselves."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import DEVICE, Step, captured, inference, normal, pair, size, tokens
from torch import nn

BF16 = torch.bfloat16


class Attention(nn.Module):
    """Grouped-query attention over a cache made once: `how` says how the cache is read."""

    def __init__(self, width: int, heads: int, groups: int, batch: int, length: int, how: str) -> None:
        super().__init__()
        self.heads, self.groups, self.how, self.size = heads, groups, how, width // heads
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.keys = torch.zeros(batch, groups, length, self.size, device=DEVICE, dtype=BF16)
        self.values = torch.zeros_like(self.keys)

    def forward(self, x: torch.Tensor, at: int) -> torch.Tensor:
        batch = x.shape[0]
        q = self.q(x).view(batch, 1, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, 2, self.groups, self.size).unbind(1)
        self.keys[:, :, at], self.values[:, :, at] = k, v
        keys, values, mask = self.keys, self.values, None
        if self.how == "masked":
            mask = (torch.arange(keys.shape[2], device=x.device) <= at).view(1, 1, 1, -1)
        else:
            keys, values = keys[:, :, : at + 1], values[:, :, : at + 1]
        many = self.heads // self.groups
        if self.how == "repeated":
            keys, values = keys.repeat_interleave(many, 1), values.repeat_interleave(many, 1)
        grouped = many > 1 and self.how != "repeated"
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, 1, -1))


class Decoder(nn.Module):
    def __init__(
        self, width: int, heads: int, groups: int, layers: int, batch: int, length: int, how: str = "sliced"
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(Attention(width, heads, groups, batch, length, how) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width))
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.embedding, self.head = nn.Embedding(32000, width), nn.Linear(width, 32000, bias=False)

    def forward(self, ids: torch.Tensor, at: int) -> torch.Tensor:
        x = self.embedding(ids)
        for norm, attention, mlp in zip(self.norms, self.attention, self.mlp, strict=True):
            x = x + attention(norm(x), at)
            x = x + mlp(x)
        return self.head(x)


def decoder(*args: int, how: str = "sliced") -> Decoder:
    return Decoder(*args, how=how).to(DEVICE, BF16).eval()


@pair
def decode_one_by_one(sick: bool) -> Step:
    rows, at = (1 if sick else 8), size(512, 4)
    model = decoder(size(2048, 32), size(16, 2), size(16, 2), size(8, 1), rows, at + 8)
    ids = tokens(32000, rows, 1)

    def forward() -> None:
        for _ in range(8 // rows):
            model(ids, at).argmax(-1)

    return inference(forward)


@pair
def decode_without_graph(sick: bool) -> Step:
    at = size(512, 4)
    model = decoder(size(1536, 32), size(12, 2), size(4, 1), size(12, 1), size(16, 2), at + 8)
    ids = tokens(32000, size(16, 2), 1)
    token = inference(lambda: model(ids, at).argmax(-1))
    token = token if sick else captured(token)
    return lambda: [token() for _ in range(4)]


@pair
def decode_repeated_cache(sick: bool) -> Step:
    batch, at = size(16, 2), size(4096, 8)
    how = "repeated" if sick else "sliced"
    model = decoder(size(4096, 32), size(32, 4), size(4, 1), size(4, 1), batch, at + 8, how=how)
    ids = tokens(32000, batch, 1)
    return inference(lambda: [model(ids, at + i) for i in range(4)])


@pair
def decode_whole_cache(sick: bool) -> Step:
    batch, at = size(16, 2), size(512, 4)
    how = "masked" if sick else "sliced"
    model = decoder(size(4096, 32), size(32, 2), size(32, 2), size(4, 1), batch, size(8192, 64), how=how)
    ids = tokens(32000, batch, 1)
    return inference(lambda: [model(ids, at + i) for i in range(4)])


@pair
def sampling_by_sort(sick: bool) -> Step:
    logits = normal(size(128, 2), size(128256, 100), dtype=BF16)

    def sample() -> torch.Tensor:
        if sick:
            values, places = torch.softmax(logits.float(), -1).sort(-1, descending=True)
        else:
            best, places = logits.topk(64, -1)
            values = torch.softmax(best.float(), -1)
        values = values.masked_fill(values.cumsum(-1) - values > 0.9, 0.0)
        return places.gather(-1, torch.multinomial(values, 1))

    return inference(lambda: [sample() for _ in range(4)])


@pair
def adapter_per_request(sick: bool) -> Step:
    requests, width, rank = size(64, 3), size(4096, 32), 16
    weights = [normal(width, width, dtype=BF16) * 0.01 for _ in range(size(4, 1))]
    down, up = normal(requests, width, rank, dtype=BF16), normal(requests, rank, width, dtype=BF16)
    x = normal(requests, size(16, 2), width, dtype=BF16)

    def forward() -> None:
        h = x
        for weight in weights:
            low = torch.stack([h[i] @ down[i] @ up[i] for i in range(requests)]) if sick else (h @ down) @ up
            h = h @ weight + low * 1e-4

    return inference(forward)


@pair
def dequantized_each_token(sick: bool) -> Step:
    width, layers = size(8192, 32), size(6, 1)
    packed = [torch.randint(-127, 127, (width, width), device=DEVICE, dtype=torch.int8) for _ in range(layers)]
    scales = [torch.rand(width, 1, device=DEVICE, dtype=BF16) / 1e4 for _ in range(layers)]
    kept = [w.to(BF16) * s for w, s in zip(packed, scales, strict=True)]
    x = normal(size(16, 2), width, dtype=BF16)

    def forward() -> None:
        h = x
        for i in range(layers):
            h = F.silu(F.linear(h, packed[i].to(BF16) * scales[i] if sick else kept[i]))

    return inference(forward)


@pair
def frames_by_cat(sick: bool) -> Step:
    batch, frames, width = size(128, 2), size(192, 12), size(1024, 8)
    mix = nn.Linear(4 * width, width).to(DEVICE, BF16)
    start = normal(batch, 4, width, dtype=BF16)

    def generate() -> None:
        past = start if sick else torch.empty(batch, frames, width, device=DEVICE, dtype=BF16)
        if not sick:
            past[:, :4] = start
        for t in range(4, frames):
            frame = torch.tanh(mix(past[:, t - 4 : t].flatten(1)))
            if sick:
                past = torch.cat([past, frame[:, None]], 1)
            else:
                past[:, t] = frame

    return inference(generate)


@pair
def float32_ranker(sick: bool) -> Step:
    width = size(2048, 16)
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU()).to(DEVICE)
    dtype = torch.float32 if sick else BF16
    model, x = model.to(dtype), normal(size(8192, 4), width, dtype=dtype)
    return inference(lambda: model(model(x)))
