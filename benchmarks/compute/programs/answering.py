"""Further pairs of inference: prefill, decode, caches, graphs, and services that answer one request at a time."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from case import DEVICE, Step, amp, captured, inference, normal, pair, size, tokens
from serving import decoder
from torch import nn

BF16 = torch.bfloat16


@pair
def chunked_prefill_mask(sick: bool) -> Step:
    from torch.nn.attention.bias import causal_lower_right

    heads, chunk, past, depth = size(32, 2), size(1024, 8), size(8192, 16), size(128, 16)
    keys = past + chunk
    mask = torch.ones(chunk, keys, dtype=torch.bool, device=DEVICE).tril(past)
    weights = [normal(heads * depth, heads * depth, dtype=BF16) * 0.01 for _ in range(size(4, 1))]
    k, v = (normal(1, heads, keys, depth, dtype=BF16) for _ in range(2))
    x = normal(chunk, heads * depth, dtype=BF16)

    def forward() -> None:
        h = x
        for weight in weights:
            q = (h @ weight).view(1, chunk, heads, depth).transpose(1, 2)
            near = mask if sick else causal_lower_right(chunk, keys)
            h = h + F.scaled_dot_product_attention(q, k, v, attn_mask=near).transpose(1, 2).flatten(2)[0]

    return inference(forward)


@pair
def sliced_cross_attention(sick: bool) -> Step:
    batch, heads, pixels, words, depth = size(4, 1), size(10, 2), size(4096, 16), size(4096, 16), 64
    width = heads * depth
    to_q, to_kv, out = (nn.Linear(width, n * width).to(DEVICE, BF16) for n in (1, 2, 1))
    x, text = normal(batch, pixels, width, dtype=BF16), normal(batch, words, width, dtype=BF16)

    def forward() -> None:
        h = x
        for _ in range(3):
            q = to_q(h).view(batch, pixels, heads, depth).transpose(1, 2)
            k, v = to_kv(text).view(batch, words, 2, heads, depth).permute(2, 0, 3, 1, 4)
            if sick:
                q, k, v = (a.flatten(0, 1) for a in (q, k, v))
                y = torch.empty_like(q)
                for at in range(0, batch * heads, heads):
                    rows = slice(at, at + heads)
                    scores = torch.baddbmm(
                        torch.empty(heads, pixels, words, dtype=BF16, device=DEVICE),
                        q[rows], k[rows].transpose(1, 2), beta=0, alpha=1 / math.sqrt(depth),
                    )  # fmt: skip
                    y[rows] = torch.bmm(scores.softmax(-1), v[rows])
                y = y.view(batch, heads, pixels, depth)
            else:
                y = F.scaled_dot_product_attention(q, k, v)
            h = h + out(y.transpose(1, 2).flatten(2))

    return inference(forward)


@pair
def mqa_prefill_expanded(sick: bool) -> Step:
    batch, heads, length, depth = size(8, 1), size(32, 2), size(2048, 8), size(64, 16)
    width = heads * depth
    layers = [
        (nn.Linear(width, width + 2 * depth).to(DEVICE, BF16), nn.Linear(width, width).to(DEVICE, BF16))
        for _ in range(size(6, 1))
    ]
    x = normal(batch, length, width, dtype=BF16)

    def forward() -> None:
        h = x
        for into, out in layers:
            q, k, v = into(h).split([width, depth, depth], -1)
            q = q.view(batch, length, heads, depth).transpose(1, 2)
            k, v = k[:, None], v[:, None]
            if sick:
                k, v = (a.expand(-1, heads, -1, -1).contiguous() for a in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not sick)
            h = h + out(y.transpose(1, 2).flatten(2))

    return inference(forward)


@pair
def speech_decoder_cat(sick: bool) -> Step:
    batch, heads, depth, filled, new = size(32, 2), size(16, 2), 64, size(1024, 4), size(6, 2)
    width, layers = heads * depth, size(6, 1)
    qkv = [nn.Linear(width, 3 * width).to(DEVICE, BF16) for _ in range(layers)]
    out = [nn.Linear(width, width).to(DEVICE, BF16) for _ in range(layers)]
    past = [normal(2, batch, heads, filled, depth, dtype=BF16) for _ in range(layers)]
    room = [torch.cat([p, torch.zeros_like(p[:, :, :, :new])], 3) for p in past]
    x = normal(batch, 1, width, dtype=BF16)

    def generate() -> None:
        cache, h = list(past), x
        for t in range(new):
            for i in range(layers):
                q, *kv = qkv[i](h).view(batch, 1, 3, heads, depth).permute(2, 0, 3, 1, 4)
                if sick:
                    cache[i] = torch.cat([cache[i], torch.stack(kv)], 3)
                    k, v = cache[i]
                else:
                    for one, written in zip(room[i], kv, strict=True):
                        one[:, :, filled + t] = written[:, :, 0]
                    k, v = room[i][:, :, :, : filled + t + 1]
                h = h + out[i](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    return inference(generate)


@pair
def autocast_service(sick: bool) -> Step:
    width, layers = size(4096, 32), size(8, 1)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.SiLU())]
    model = nn.Sequential(*parts).to(DEVICE).requires_grad_(False)
    if not sick:
        model = model.to(BF16)
    x = normal(size(32, 2), width, dtype=torch.float32 if sick else BF16)

    def forward() -> None:
        with amp(sick):
            model(x)

    return inference(forward)


@pair
def weights_read_per_request(sick: bool) -> Step:
    width, requests = size(12288, 32), 8
    layers = [nn.Linear(width, width, bias=False).to(DEVICE, BF16) for _ in range(size(3, 1))]
    x = normal(requests, width, dtype=BF16)

    def forward() -> None:
        for rows in x.split(1 if sick else requests):
            for layer in layers:
                rows = F.relu(layer(rows))

    return inference(forward)


@pair
def retrieval_float32(sick: bool) -> Step:
    torch.set_float32_matmul_precision("highest" if sick else "high")
    library = F.normalize(normal(size(200_000, 64), size(1024, 16)), dim=-1)
    project = nn.Linear(size(1024, 16), size(1024, 16)).to(DEVICE)
    queries = normal(size(1024, 4), size(1024, 16))
    return inference(lambda: (F.normalize(project(queries), dim=-1) @ library.T).amax(-1))


@pair
def crops_one_by_one(sick: bool) -> Step:
    count, side = size(192, 3), size(64, 8)
    photos = normal(count, 3, 2 * side, 2 * side)
    corners = [(i * 7 % side, i * 13 % side) for i in range(count)]
    at = torch.tensor(corners, device=DEVICE)
    steps = torch.arange(side, device=DEVICE)
    rows = (at[:, 0, None] + steps)[:, None, :, None]
    columns = (at[:, 1, None] + steps)[:, None, None, :]
    image, channel = torch.arange(count, device=DEVICE)[:, None, None, None], torch.arange(3, device=DEVICE)
    head = nn.Conv2d(3, 32, 8, stride=8).to(DEVICE)

    def forward() -> None:
        if sick:
            cut = torch.stack([photos[i, :, y : y + side, x : x + side] for i, (y, x) in enumerate(corners)])
            cut = torch.stack([(one - one.mean()) / (one.std() + 1e-6) for one in cut])
        else:
            cut = photos[image, channel[None, :, None, None], rows, columns]
            std, mean = torch.std_mean(cut, (1, 2, 3), keepdim=True)
            cut = (cut - mean) / (std + 1e-6)
        head(cut)

    return inference(forward)


@pair
def normalised_in_float64(sick: bool) -> Step:
    frames = torch.randint(0, 256, (size(192, 2), size(224, 16), size(224, 16), 3), dtype=torch.uint8, device=DEVICE)
    dtype = torch.float64 if sick else torch.float32
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=dtype, device=DEVICE)
    std = torch.tensor([0.229, 0.224, 0.225], dtype=dtype, device=DEVICE)
    stem = nn.Conv2d(3, 64, 16, stride=16).to(DEVICE, BF16).to(memory_format=torch.channels_last)

    def forward() -> None:
        x = (frames / torch.tensor(255.0, dtype=dtype, device=DEVICE).expand(3) - mean) / std
        stem(x.to(BF16).permute(0, 3, 1, 2))

    return inference(forward)


@pair
def policy_one_by_one(sick: bool) -> Step:
    width, players = size(512, 16), 16
    parts = [part for _ in range(5) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh())]
    policy = nn.Sequential(*parts, nn.Linear(width, 18)).to(DEVICE)
    seen = normal(players, width)

    def act() -> None:
        for rows in seen.split(1 if sick else players):
            torch.multinomial(policy(rows).softmax(-1), 1)

    return inference(act)


@pair
def batch_of_one_without_graph(sick: bool) -> Step:
    at = size(256, 4)
    model = decoder(size(1024, 32), size(16, 2), size(4, 1), size(10, 1), 1, at + 8)
    ids = tokens(32000, 1, 1)
    token = inference(lambda: model(ids, at).argmax(-1))
    token = token if sick else captured(token)
    return lambda: [token() for _ in range(3)]


@pair
def beams_by_full_sort(sick: bool) -> Step:
    batch, beams, vocabulary, width = size(32, 2), 8, size(64000, 50), size(1024, 16)
    head = nn.Linear(width, vocabulary, bias=False).to(DEVICE, BF16)
    h, scores = normal(batch * beams, width, dtype=BF16), normal(batch, beams, 1)

    def choose() -> None:
        likely = (torch.log_softmax(head(h), -1, dtype=torch.float32).view(batch, beams, -1) + scores).flatten(1)
        if sick:
            order = torch.argsort(likely, -1, descending=True)[:, : 2 * beams]
            likely.gather(-1, order)
        else:
            likely.topk(2 * beams, -1)

    return inference(choose)
