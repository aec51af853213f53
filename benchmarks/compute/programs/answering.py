"""Further pairs of inference: prefill, decode, caches, graphs, and services that answer one request at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import DEVICE, Step, captured, images, inference, layout, normal, pair, size, tokens
from own import Layer
from serving import decoder
from torch import nn

BF16 = torch.bfloat16


@pair
def memory_repeated_for_beams(sick: bool) -> Step:
    width, heads, beams, batch, length = size(1024, 32), size(16, 2), 8, size(16, 2), size(1024, 8)
    layers = size(6, 1)
    q, out = ([nn.Linear(width, width).to(DEVICE, BF16) for _ in range(layers)] for _ in range(2))
    memory = [normal(2, batch, heads, length, width // heads, dtype=BF16) for _ in range(layers)]
    x = normal(batch * beams, 1, width, dtype=BF16)

    def forward() -> None:
        h = x
        for i in range(layers):
            asked = q[i](h).view(batch, beams, heads, -1).transpose(1, 2)
            k, v = memory[i]
            if sick:
                k, v = k.repeat_interleave(beams, 0), v.repeat_interleave(beams, 0)
                asked = asked.transpose(1, 2).reshape(batch * beams, heads, 1, -1)
            y = F.scaled_dot_product_attention(asked, k, v)
            y = y.view(batch, beams, heads, -1) if sick else y.transpose(1, 2)
            h = h + out[i](y.reshape(batch * beams, 1, width))

    return inference(forward)


@pair
def graphed_repeated_cache(sick: bool) -> Step:
    batch, at = size(16, 2), size(3000, 8)
    how = "repeated" if sick else "sliced"
    model = decoder(size(2048, 32), size(32, 4), size(8, 1), size(4, 1), batch, at + 2, how=how)
    ids = tokens(32000, batch, 1)
    token = captured(inference(lambda: model(ids, at)))
    return lambda: [token() for _ in range(3)]


@pair
def graphed_masked_cache(sick: bool) -> Step:
    batch, at = size(48, 2), size(1000, 4)
    how = "masked" if sick else "sliced"
    model = decoder(size(2048, 32), size(16, 2), size(16, 2), size(6, 1), batch, size(4096, 32), how=how)
    ids = tokens(32000, batch, 1)
    token = captured(inference(lambda: model(ids, at)))
    return lambda: [token() for _ in range(3)]


@pair
def decode_cat_cache(sick: bool) -> Step:
    batch, groups, many, depth, filled, new = size(48, 2), size(4, 2), 4, size(128, 16), size(2000, 4), size(5, 2)
    width, layers = groups * many * depth, size(4, 1)
    q, out = ([nn.Linear(width, width).to(DEVICE, BF16) for _ in range(layers)] for _ in range(2))
    kv = [nn.Linear(width, 2 * groups * depth).to(DEVICE, BF16) for _ in range(layers)]
    mlp = [nn.Linear(width, 8 * width).to(DEVICE, BF16) for _ in range(layers)]
    room = [normal(2, batch, groups, filled + new, depth, dtype=BF16) for _ in range(layers)]
    x = normal(batch, 1, width, dtype=BF16)

    def generate() -> None:
        cache = [(one[0, :, :, :filled], one[1, :, :, :filled]) for one in room]
        h = x
        for t in range(filled, filled + new):
            for i in range(layers):
                asked = q[i](h).view(batch, 1, groups * many, depth).transpose(1, 2)
                k, v = kv[i](h).view(batch, 1, 2, groups, depth).permute(2, 0, 3, 1, 4)
                if sick:
                    cache[i] = (torch.cat([cache[i][0], k], 2), torch.cat([cache[i][1], v], 2))
                    k, v = cache[i]
                else:
                    room[i][0, :, :, t : t + 1], room[i][1, :, :, t : t + 1] = k, v
                    k, v = room[i][:, :, :, : t + 1]
                y = F.scaled_dot_product_attention(asked, k, v, enable_gqa=True).transpose(1, 2).flatten(2)
                h = h + out[i](y) + mlp[i](h)[..., :width]

    return inference(generate)


@pair
def encoder_requests_singly(sick: bool) -> Step:
    count, length, width = 12, size(64, 8), size(1024, 32)
    model = nn.Sequential(*[Layer(width, size(16, 2)) for _ in range(size(8, 1))]).to(DEVICE, BF16).eval()
    x = normal(count, length, width, dtype=BF16)
    return inference(lambda: [model(rows) for rows in x.split(1 if sick else count)])


@pair
def speculative_rows(sick: bool) -> Step:
    """The large model checks drafted tokens one after the other, or all at once."""
    width, drafted, layers = size(8192, 32), 4, size(3, 1)
    parts = [p for _ in range(layers) for p in (nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))]
    model = nn.Sequential(*parts).to(DEVICE, BF16).eval()
    head = nn.Linear(width, size(32000, 50), bias=False).to(DEVICE, BF16)
    x = normal(2 * drafted, width, dtype=BF16)
    return inference(lambda: [head(model(rows)).argmax(-1) for rows in x.split(2 if sick else 2 * drafted)])


@pair
def rerank_head_29999(sick: bool) -> Step:
    classes, width = size(29999 if sick else 30016, 31 if sick else 32), size(2048, 16)
    body = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)).to(DEVICE, BF16)
    head = nn.Linear(width, classes).to(DEVICE, BF16)
    x = normal(size(16384, 8), width, dtype=BF16)
    return inference(lambda: head(body(x) + x).amax(-1))


@pair
def image_encoder_formats(sick: bool) -> Step:
    width = size(256, 16)
    parts = [p for _ in range(5) for p in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*parts).to(DEVICE, BF16).to(memory_format=torch.channels_last).eval()
    stem = nn.Conv2d(3, width, 4, stride=4).to(DEVICE, BF16).to(memory_format=torch.channels_last)
    x = images(size(32, 1), size(256, 32), True, BF16)

    def forward() -> None:
        h = stem(x)
        for part in model:
            h = part(h.contiguous(memory_format=layout(not sick)))

    return inference(forward)


@pair
def prefill_alibi_by_hand(sick: bool) -> Step:
    batch, heads, length, depth = size(2, 1), size(16, 2), size(2048, 16), size(128, 16)
    slopes = 2.0 ** -(8 * torch.arange(1, heads + 1, device=DEVICE) / heads)
    places = torch.arange(length, device=DEVICE)
    far = (places[None] - places[:, None]).to(BF16)
    bias = (slopes[:, None, None] * far).to(BF16) + torch.full_like(far, float("-inf")).triu(1)
    bias = bias.expand(batch, -1, -1, -1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not sick:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        scores = torch.matmul(q, k.transpose(-1, -2)) * depth**-0.5 + bias
        return torch.matmul(scores.float().softmax(-1).to(q.dtype), v)

    model = nn.Sequential(*[Layer(heads * depth, heads, attend) for _ in range(size(4, 1))]).to(DEVICE, BF16).eval()
    x = normal(batch, length, heads * depth, dtype=BF16)
    return inference(lambda: model(x))


@pair
def prefill_tril_mask(sick: bool) -> Step:
    heads, length, depth = size(24, 2), size(6144, 16), size(64, 16)
    mask = torch.zeros(length, length, dtype=BF16, device=DEVICE)
    mask = mask.masked_fill(torch.ones_like(mask, dtype=torch.bool).triu(1), float("-inf"))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask if sick else None, is_causal=not sick)

    model = nn.Sequential(*[Layer(heads * depth, heads, attend) for _ in range(size(3, 1))]).to(DEVICE, BF16).eval()
    x = normal(size(2, 1), length, heads * depth, dtype=BF16)
    return inference(lambda: model(x))


@pair
def casts_between_layers(sick: bool) -> Step:
    width, rows, layers = size(2048, 32), size(16384, 8), size(6, 1)
    weights = [normal(width, width, dtype=BF16) * 0.02 for _ in range(layers)]
    x = normal(rows, width, dtype=BF16)

    def forward() -> None:
        h = x
        for weight in weights:
            h = h @ weight
            h = F.relu(h.float()).to(BF16) if sick else F.relu(h)

    return inference(forward)


@pair
def swiglu_service_float32(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    dtype = torch.float32 if sick else BF16
    model = nn.Sequential(*[Layer(size(2048, 32), size(16, 2)) for _ in range(size(4, 1))]).to(DEVICE, dtype).eval()
    x = normal(size(16, 1), size(512, 8), size(2048, 32), dtype=dtype)
    return inference(lambda: model(x))


@pair
def penalty_by_one_hot(sick: bool) -> Step:
    batch, vocabulary, width, seen = size(128, 2), size(50304, 64), size(2048, 16), size(64, 4)
    head = nn.Linear(width, vocabulary, bias=False).to(DEVICE, BF16)
    h, ids = normal(batch, width, dtype=BF16), tokens(vocabulary, batch, seen)
    weight = normal(batch, 1, seen, dtype=BF16).abs()

    def choose() -> None:
        logits = head(h)
        if sick:
            logits = logits - torch.bmm(weight, F.one_hot(ids, vocabulary).to(BF16)).squeeze(1)
        else:
            logits = logits.scatter_add(1, ids, -weight.squeeze(1))
        logits.argmax(-1)

    return inference(choose)


@pair
def nearest_by_sort(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    library, width = normal(size(100_000, 64), size(512, 16)), size(512, 16)
    project = nn.Linear(width, width).to(DEVICE)
    queries = normal(size(512, 4), width)

    def forward() -> None:
        near = project(queries) @ library.T
        if sick:
            torch.sort(near, -1, descending=True)[1][:, :10].contiguous()
        else:
            torch.topk(near, 10)

    return inference(forward)


@pair
def decode_steps_ungraphed(sick: bool) -> Step:
    at = size(1000, 4)
    model = decoder(size(2048, 32), size(16, 2), size(16, 2), size(6, 1), size(4, 1), at + 4)
    ids = tokens(32000, size(4, 1), 1)
    token = inference(lambda: model(ids, at).argmax(-1))
    token = token if sick else captured(token)
    return lambda: [token() for _ in range(4)]


@pair
def instance_norm_of_waves(sick: bool) -> Step:
    channels, length = size(12, 2), size(4_000_000, 400)
    x = normal(2, channels, length)
    first = nn.Conv1d(channels, channels, 9, padding=4, groups=channels).to(DEVICE)

    def forward() -> None:
        h = first(x)
        if sick:
            F.instance_norm(h)
        else:
            var, mean = torch.var_mean(h, 2, correction=0, keepdim=True)
            torch.relu((h - mean) * torch.rsqrt(var + 1e-5))

    return inference(forward)


@pair
def softmax_of_long_rows(sick: bool) -> Step:
    rows, length, width = 4, size(8_000_000, 800), size(4096, 16)
    scores = normal(rows, length)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(DEVICE, BF16)
    x = normal(size(8192, 8), width, dtype=BF16)

    def forward() -> None:
        model(x)
        if sick:
            scores.softmax(-1)
        else:
            total = torch.logsumexp(torch.logsumexp(scores.view(rows, 200, -1), -1), -1, keepdim=True)
            (scores - total).exp_()

    return inference(forward)


@pair
def diffusion_guidance_two(sick: bool) -> Step:
    """Conditional and unconditional halves one after the other, attention by hand."""
    heads, pixels, depth = size(16, 2), size(1024, 16), 64

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if sick:
            return torch.softmax(q @ k.transpose(-1, -2) / depth**0.5, -1) @ v
        return F.scaled_dot_product_attention(q, k, v)

    model = nn.Sequential(*[Layer(heads * depth, heads, attend) for _ in range(size(6, 1))]).to(DEVICE, BF16).eval()
    x = normal(2, pixels, heads * depth, dtype=BF16)
    return inference(lambda: [model(part) for part in x.split(1 if sick else 2)])
