"""Further pairs of training as people write it themselves."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import DEVICE, Step, adamw, images, normal, pair, size, tokens, training
from parts import convolutions, deep_mlp, mean_square, stack
from torch import nn

BF16 = torch.bfloat16


@pair
def width_2999(sick: bool) -> Step:
    width = size(2999 if sick else 3008, 31 if sick else 32)
    model = deep_mlp(size(4, 1), width)
    return training(mean_square(model, normal(size(8192, 8), width)), adamw(model))


@pair
def heads_made_contiguous(sick: bool) -> Step:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if sick:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.contiguous() if sick else y

    model = stack(size(4, 1), size(1024, 32), size(16, 2), attend)
    return training(mean_square(model, normal(size(16, 1), size(1024, 8), size(1024, 32))), adamw(model))


class GeluByHand(nn.Module):
    def __init__(self, sick: bool) -> None:
        super().__init__()
        self.sick = sick

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.sick:
            return F.gelu(x, approximate="tanh")
        return 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


@pair
def gelu_by_hand(sick: bool) -> Step:
    width, hidden = size(1536, 16), size(6144, 32)
    parts = [p for _ in range(2) for p in (nn.Linear(width, hidden), GeluByHand(sick), nn.Linear(hidden, width))]
    model = nn.Sequential(*parts).to(DEVICE)
    return training(mean_square(model, normal(size(8192, 8), width)), adamw(model))


@pair
def momentum_by_hand(sick: bool) -> Step:
    model = convolutions(size(128, 8), size(24, 2)).to(memory_format=torch.channels_last)
    x = images(size(32, 2), size(32, 8), True)
    if not sick:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=DEVICE != "cpu")
        return training(mean_square(model, x), optimizer)
    speeds = [(p, torch.zeros_like(p)) for p in model.parameters()]

    @torch.no_grad()
    def update() -> None:
        for p, speed in speeds:
            speed.mul_(0.9).add_(p.grad)
            p.add_(speed, alpha=-1e-3)
            p.grad = None

    return training(mean_square(model, x), after_step=update)


@pair
def adamw_per_parameter(sick: bool) -> Step:
    model = stack(size(6, 1), size(1280, 32), size(10, 2))
    optimizer = adamw(model, **({"foreach": False} if sick else {"fused": True}))
    return training(mean_square(model, normal(size(4, 1), size(512, 8), size(1280, 32))), optimizer)


@pair
def slots_by_slices(sick: bool) -> Step:
    slots, width = size(32, 3), size(512, 8)
    weights = nn.Parameter(normal(slots, width, width) * 0.02)
    body = nn.Linear(width, width).to(DEVICE)
    x = normal(size(2048, 4), slots, width)

    def loss() -> torch.Tensor:
        h = body(x)
        if sick:
            h = torch.stack([h[:, i] @ weights[i] for i in range(slots)], 1)
        else:
            h = torch.bmm(h.transpose(0, 1), weights)
        return h.float().square().mean()

    return training(loss, torch.optim.AdamW([*body.parameters(), weights], lr=1e-4, fused=True))


@pair
def table_of_features_dense(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    rows, width = size(1_500_000, 100), size(96, 8)
    table, model = nn.Embedding(rows, width, sparse=not sick).to(DEVICE), deep_mlp(3, width)
    ids = tokens(rows, size(65536, 8))
    first = (torch.optim.Adam if sick else torch.optim.SparseAdam)(table.parameters(), lr=1e-3)
    second = adamw(model)

    def step() -> None:
        model(table(ids)).square().mean().backward()
        for one in (first, second):
            one.step()
            one.zero_grad(set_to_none=True)

    return step


@pair
def positions_by_one_hot(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    rows, width, count = size(4096, 16), size(512, 8), size(16384, 8)
    table, model = nn.Parameter(normal(rows, width)), deep_mlp(4, width)
    ids = tokens(rows, count)
    optimizer = torch.optim.AdamW([table, *model.parameters()], lr=1e-4, fused=True)

    def loss() -> torch.Tensor:
        picked = F.one_hot(ids, rows).float() @ table if sick else F.embedding(ids, table)
        return model(picked).square().mean()

    return training(loss, optimizer, autocast=False)


@pair
def head_with_z_loss(sick: bool) -> Step:
    vocabulary, width, rows = size(50304, 64), size(1024, 16), size(8192, 8)
    head = nn.Linear(width, vocabulary, bias=False).to(DEVICE)
    x, y = normal(rows, width), tokens(vocabulary, rows)

    def judged(logits: torch.Tensor) -> torch.Tensor:
        logits = logits.float()
        return F.cross_entropy(logits, y) + 1e-4 * torch.logsumexp(logits, -1).square().mean()

    loss = judged if sick else torch.compile(judged, dynamic=False)
    return training(lambda: loss(head(x)), adamw(head))


@pair
def top_of_features_by_sort(sick: bool) -> Step:
    rows, width, kept = size(16384, 8), size(4096, 32), 32
    into, out = nn.Linear(size(512, 8), width).to(DEVICE), nn.Linear(width, size(512, 8)).to(DEVICE)
    x = normal(rows, size(512, 8))
    optimizer = torch.optim.AdamW([*into.parameters(), *out.parameters()], lr=1e-4, fused=True)

    def loss() -> torch.Tensor:
        h = into(x)
        with torch.no_grad():
            least = (h.sort(-1, descending=True)[0] if sick else h.topk(kept)[0])[:, kept - 1, None]
        return out(torch.where(h >= least, h, 0.0)).float().square().mean()

    return training(loss, optimizer)


@pair
def float32_transformer(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    model = stack(size(5, 1), size(1280, 32), size(10, 2))
    x = normal(size(8, 1), size(512, 8), size(1280, 32))
    return training(mean_square(model, x), adamw(model), autocast=not sick)


@pair
def causal_mask_and_width_two(sick: bool) -> Step:
    width, length = size(1024, 32), size(2048, 8)
    mask = torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask if sick else None, is_causal=not sick)

    model, classes = stack(size(3, 1), width, size(16, 2), attend), size(9999 if sick else 10048, 31 if sick else 32)
    head = nn.Linear(width, classes).to(DEVICE)
    both = nn.Sequential(model, head)
    return training(mean_square(both, normal(size(4, 1), length, width)), adamw(both))
