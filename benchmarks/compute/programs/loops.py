"""Further pairs of training as people write it themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from case import DEVICE, Step, adamw, images, normal, pair, size, tokens, training
from own import deep_mlp, mean_square, stack
from torch import nn

BF16 = torch.bfloat16


@pair
def experts_on_slices(sick: bool) -> Step:
    parts, narrow = size(24, 3), 128
    model = deep_mlp(2, parts * narrow)
    weights = nn.Parameter(normal(parts, narrow, narrow) * 0.02)
    x = normal(size(8192, 8), parts * narrow)

    def loss() -> torch.Tensor:
        h = model(x)
        if sick:
            y = torch.cat([h[:, i * narrow : (i + 1) * narrow] @ weights[i] for i in range(parts)], -1)
        else:
            y = torch.einsum("npi,pij->npj", h.view(-1, parts, narrow), weights).flatten(1)
        return y.float().square().mean()

    return training(loss, torch.optim.AdamW([*model.parameters(), weights], lr=1e-4, fused=True))


@pair
def quarters_by_slices(sick: bool) -> Step:
    width, side = size(96, 8), size(56, 8)
    lift = nn.Linear(width, width).to(DEVICE)
    reduce = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2)).to(DEVICE)
    x = normal(size(128, 2), side, side, width)

    def merged(h: torch.Tensor) -> torch.Tensor:
        if sick:
            return torch.cat([h[:, i::2, j::2] for j in range(2) for i in range(2)], -1)
        n, rows, columns, c = h.shape
        return h.view(n, rows // 2, 2, columns // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)

    def loss() -> torch.Tensor:
        h = lift(x)
        for part in reduce:
            h = part(merged(h))
        return h.float().square().mean()

    return training(loss, torch.optim.AdamW([*lift.parameters(), *reduce.parameters()], lr=1e-4, fused=True))


@pair
def batchnorm_by_transposes(sick: bool) -> Step:
    width, depth = size(1024, 16), size(6, 2)
    linears = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth)).to(DEVICE)
    norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth)).to(DEVICE)
    x = normal(size(32, 2), size(1024, 8), width)

    def loss() -> torch.Tensor:
        h = x
        for linear, norm in zip(linears, norms, strict=True):
            h = linear(h)
            if sick:
                h = norm(h.transpose(1, 2).contiguous()).transpose(1, 2).contiguous().relu()
            else:
                h = norm(h.flatten(0, 1)).relu().view_as(h)
        return h.float().square().mean()

    return training(loss, torch.optim.AdamW([*linears.parameters(), *norms.parameters()], lr=1e-4, fused=True))


@pair
def focal_loss_by_hand(sick: bool) -> Step:
    anchors, classes, width = size(120_000, 32), size(96, 8), size(256, 16)
    head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)).to(DEVICE)
    x = normal(anchors, width)
    wanted = (torch.rand(anchors, classes, device=DEVICE) < 0.01).float()

    def focal(logits: torch.Tensor) -> torch.Tensor:
        likely = torch.sigmoid(logits.float())
        entropy = F.binary_cross_entropy_with_logits(logits.float(), wanted, reduction="none")
        right = likely * wanted + (1 - likely) * (1 - wanted)
        weight = 0.25 * wanted + 0.75 * (1 - wanted)
        return (weight * (1 - right) ** 2 * entropy).sum() / anchors

    loss = focal if sick else torch.compile(focal, dynamic=False)
    return training(lambda: loss(head(x)), adamw(head))


@pair
def snake_by_hand(sick: bool) -> Step:
    width = size(2048, 16)
    up, down = nn.Linear(size(512, 8), width).to(DEVICE), nn.Linear(width, size(512, 8)).to(DEVICE)
    rate = nn.Parameter(torch.ones(width, device=DEVICE))
    x = normal(size(32768, 8), size(512, 8))

    def snake(h: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        h = h + torch.reciprocal(alpha + 1e-9) * torch.sin(h * alpha).pow(2)
        return h * torch.sigmoid(1.702 * h)

    act = snake if sick else torch.compile(snake, dynamic=False)
    optimizer = torch.optim.AdamW([*up.parameters(), *down.parameters(), rate], lr=1e-4, fused=True)
    return training(lambda: down(act(up(x), rate)).float().square().mean(), optimizer)


def orthogonal(g: torch.Tensor) -> torch.Tensor:
    """Newton and Schulz's five iterations, as Muon has them."""
    x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


@pair
def muon_loop(sick: bool) -> Step:
    width = size(384, 16)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(size(36, 3))]).to(DEVICE)
    weights = list(model.parameters())
    speeds = [torch.zeros_like(w) for w in weights]
    x = normal(size(4096, 8), width)

    @torch.no_grad()
    def update() -> None:
        if sick:
            for w, speed in zip(weights, speeds, strict=True):
                speed.mul_(0.95).add_(w.grad)
                w.add_(orthogonal(speed.bfloat16()), alpha=-0.01)
                w.grad = None
            return
        torch._foreach_mul_(speeds, 0.95)
        torch._foreach_add_(speeds, [w.grad for w in weights])
        updates = orthogonal(torch.stack(speeds).bfloat16()).float().unbind()
        torch._foreach_add_(weights, updates, alpha=-0.01)
        for w in weights:
            w.grad = None

    return training(mean_square(model, x), after_step=update)


@pair
def master_weights_loop(sick: bool) -> Step:
    model = stack(size(8, 1), size(1024, 32), size(16, 2)).to(BF16)
    live = list(model.parameters())
    masters = [nn.Parameter(p.detach().float()) for p in live]
    for p in masters:
        p.grad = torch.zeros_like(p)
    gradients = [p.grad for p in masters]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    x = normal(size(2, 1), size(512, 8), size(1024, 32), dtype=BF16)

    def step() -> None:
        model(x).float().square().mean().backward()
        if sick:
            for p, master in zip(live, masters, strict=True):
                master.grad = p.grad.float() / 1.0
            optimizer.step()
            for p, master in zip(live, masters, strict=True):
                p.data.copy_(master.data)
        else:
            torch._foreach_copy_(gradients, [p.grad for p in live])
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(live, masters)
        for p in live:
            p.grad = None

    return step


@pair
def ensemble_in_a_loop(sick: bool) -> Step:
    members, width = size(48, 3), size(256, 16)
    weights = [nn.Parameter(normal(members, width, width) * 0.06) for _ in range(3)]
    x = normal(size(256, 4), width)

    def loss() -> torch.Tensor:
        if sick:
            total = x.new_zeros(())
            for i in range(members):
                h = x
                for w in weights:
                    h = torch.tanh(h @ w[i])
                total = total + h.float().square().mean()
            return total
        h = x.expand(members, -1, -1)
        for w in weights:
            h = torch.tanh(torch.bmm(h, w))
        return h.float().square().mean((1, 2)).sum()

    return training(loss, torch.optim.AdamW(weights, lr=1e-4, fused=True))


@pair
def codebook_by_one_hot(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    codes, width, count = size(8192, 16), size(256, 8), size(16384, 16)
    encode, decode = nn.Linear(width, width).to(DEVICE), nn.Linear(width, width).to(DEVICE)
    book = nn.Parameter(normal(codes, width))
    x = normal(count, width)
    optimizer = torch.optim.AdamW([*encode.parameters(), *decode.parameters(), book], lr=1e-4, fused=True)

    def loss() -> torch.Tensor:
        z = encode(x)
        with torch.no_grad():
            nearest = (z @ book.T).argmax(-1)
        if sick:
            hot = torch.zeros(count, codes, device=DEVICE).scatter_(1, nearest[:, None], 1.0)
            picked = hot @ book
        else:
            picked = F.embedding(nearest, book)
        straight = z + (picked - z).detach()
        return (decode(straight) - x).square().mean() + (picked - z.detach()).square().mean()

    return training(loss, optimizer, autocast=False)


@pair
def packed_documents_mask(sick: bool) -> Step:
    documents, length = size(8, 2), size(1024, 4)
    owner = torch.arange(documents, device=DEVICE).repeat_interleave(length)
    mask = (owner[:, None] == owner).tril()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if sick:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        def apart(a: torch.Tensor) -> torch.Tensor:
            return a.view(*a.shape[:2], documents, length, -1).transpose(1, 2).flatten(0, 1)

        y = F.scaled_dot_product_attention(*map(apart, (q, k, v)), is_causal=True)
        return y.view(-1, documents, *y.shape[1:]).transpose(1, 2).flatten(2, 3)

    model = stack(size(4, 1), size(1024, 32), size(8, 2), attend)
    return training(mean_square(model, normal(1, documents * length, size(1024, 32))), adamw(model))


class Grouped(nn.Module):
    """Attention whose keys and values are shared by groups of heads, and an MLP."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int, repeat: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.depth, self.repeat = heads, groups, width // heads, repeat
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * groups * self.depth)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q = self.q(x).view(b, t, self.heads, self.depth).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.groups, self.depth).permute(2, 0, 3, 1, 4)
        many = self.heads // self.groups
        if self.repeat:
            k, v = (a[:, :, None].expand(-1, -1, many, -1, -1).reshape(b, self.heads, t, -1) for a in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not self.repeat)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        gate, value = self.up(x).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


def grouped(hidden: int, repeat: bool, layers: int, width: int = 2048) -> nn.Module:
    width = size(width, 32)
    return nn.Sequential(*[Grouped(width, size(32, 4), 2, hidden, repeat) for _ in range(size(layers, 1))]).to(DEVICE)


@pair
def grouped_keys_expanded(sick: bool) -> Step:
    model = grouped(size(2048, 32), sick, 5)
    return training(mean_square(model, normal(size(8, 1), size(1024, 8), size(2048, 32))), adamw(model))


@pair
def hidden_width_5461(sick: bool) -> Step:
    model = grouped(size(5461 if sick else 5504, 41 if sick else 48), False, 3)
    return training(mean_square(model, normal(size(8, 1), size(1024, 8), size(2048, 32))), adamw(model))


@pair
def keys_and_hidden_two(sick: bool) -> Step:
    model = grouped(size(3413 if sick else 3456, 41 if sick else 48), sick, 4)
    return training(mean_square(model, normal(size(8, 1), size(1024, 8), size(2048, 32))), adamw(model))


@pair
def unique_for_counts(sick: bool) -> Step:
    kinds, count, width = size(50_000, 20), size(2**24, 256), size(512, 16)
    ids = tokens(kinds, count)
    head = nn.Linear(width, width).to(DEVICE)
    x = normal(size(4096, 8), width)

    def loss() -> torch.Tensor:
        if sick:
            seen = torch.unique(ids, return_counts=True)[1]
        else:
            seen = torch.zeros(kinds, dtype=torch.int64, device=DEVICE).scatter_add_(0, ids, torch.ones_like(ids))
        return head(x).float().square().mean() / seen.max()

    return training(loss, adamw(head))


@pair
def two_tower_tables(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    users, items, width = size(3_000_000, 100), size(2_000_000, 80), size(64, 8)
    tables = nn.ModuleList(nn.Embedding(rows, width, sparse=not sick) for rows in (users, items)).to(DEVICE)
    who, what = tokens(users, size(16384, 8)), tokens(items, size(16384, 8))
    optimizer = (torch.optim.Adam if sick else torch.optim.SparseAdam)(list(tables.parameters()), lr=1e-3)

    def loss() -> torch.Tensor:
        a, b = tables[0](who), tables[1](what)
        return F.softplus(-(a * b).sum(-1)).mean()

    return training(loss, optimizer, autocast=False)


@pair
def word_vectors_dense(sick: bool) -> Step:
    words, width, negatives = size(2_000_000, 100), size(128, 8), 8
    table = nn.EmbeddingBag(words, width, mode="mean", sparse=not sick).to(DEVICE)
    context, wanted = tokens(words, size(8192, 8), negatives), normal(size(8192, 8), width)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    return training(lambda: (table(context) * wanted).sum(-1).sigmoid().mean(), optimizer, autocast=False)


@pair
def memory_bank_cat(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    rows, batch, width = size(2_000_000, 200), size(512, 8), size(128, 8)
    model = deep_mlp(2, width)
    bank, place, x = [normal(rows, width)], [0], normal(batch, width)

    def remember() -> None:
        with torch.no_grad():
            keys = model(x)
            if sick:
                bank[0] = torch.cat([bank[0][batch:], keys])
            else:
                bank[0][place[0] : place[0] + batch] = keys
                place[0] = (place[0] + batch) % (rows - batch)

    def loss() -> torch.Tensor:
        return (model(x) @ bank[0][: 64 * batch].T).logsumexp(-1).mean()

    return training(loss, adamw(model), autocast=False, after_step=remember)


@pair
def distilled_logits(sick: bool) -> Step:
    vocabulary, width = size(64000, 64), size(1024, 16)
    student, teacher = (nn.Linear(width, vocabulary, bias=False).to(DEVICE) for _ in range(2))
    x = normal(size(4096, 8), width)

    def divergence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        likely, wanted = F.log_softmax(a.float() / 2, -1), F.softmax(b.float() / 2, -1)
        return (wanted * (wanted.clamp(min=1e-9).log() - likely)).sum(-1).mean()

    loss = divergence if sick else torch.compile(divergence, dynamic=False)

    def distil() -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        return loss(student(x), wanted)

    return training(distil, adamw(student))


@pair
def returns_along_time(sick: bool) -> Step:
    steps, players, width = size(65536, 64), size(16, 2), size(64, 8)
    value = nn.Linear(width, 1).to(DEVICE)
    seen, rewards = normal(steps, players, width), normal(steps, players)

    def loss() -> torch.Tensor:
        advantage = rewards - value(seen).squeeze(-1).float()
        along = 0 if sick else 1
        returns = (advantage if sick else advantage.T.contiguous()).flip(along).cumsum(along).flip(along)
        return (returns / steps).square().mean()

    return training(loss, adamw(value))


@pair
def rotary_tables_float64(sick: bool) -> Step:
    heads, length, depth = size(16, 2), size(2048, 8), size(64, 16)
    dtype = torch.float64 if sick else torch.float32
    rates = 10000 ** -(torch.arange(depth // 2, dtype=dtype, device=DEVICE) / (depth // 2))
    angles = torch.outer(torch.arange(length, dtype=dtype, device=DEVICE), rates)
    cos, sin = angles.cos(), angles.sin()

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)

    model = stack(size(4, 1), heads * depth, heads, attend)
    return training(mean_square(model, normal(size(4, 1), length, heads * depth)), adamw(model))


@pair
def local_scores_by_hand(sick: bool) -> Step:
    heads, windows, rows, depth = size(16, 2), size(64, 2), size(256, 8), size(64, 16)
    bias = nn.Parameter(normal(heads, rows, rows) * 0.02)
    qkv, out = (nn.Linear(heads * depth, n * heads * depth).to(DEVICE) for n in (3, 1))
    x = normal(windows, rows, heads * depth)
    optimizer = torch.optim.AdamW([*qkv.parameters(), *out.parameters()], lr=1e-4, fused=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        near = bias.detach().to(q.dtype)
        if not sick:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=near.expand(windows, -1, -1, -1))
        scores = torch.einsum("bhid,bhjd->bhij", q * depth**-0.5, k) + near
        return torch.einsum("bhij,bhjd->bhid", F.dropout(scores.softmax(-1), 0.0), v)

    def loss() -> torch.Tensor:
        h = x
        for _ in range(3):
            q, k, v = qkv(h).view(windows, rows, 3, heads, depth).permute(2, 0, 3, 1, 4)
            h = h + out(attend(q, k, v).transpose(1, 2).flatten(2))
        return h.float().square().mean()

    return training(loss, optimizer)


class Down(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(32 if width >= 32 else 2, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.silu(self.norm(self.conv(x)))


@pair
def diffusion_float32_first_two(sick: bool) -> Step:
    form = torch.contiguous_format if sick else torch.channels_last
    width = size(192, 8)
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *[Down(width) for _ in range(size(6, 1))])
    model = model.to(DEVICE).to(memory_format=form)
    x = images(size(32, 1), size(64, 8), not sick)
    return training(mean_square(model, x), adamw(model), autocast=not sick)


def checkpointed(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(layer, x, use_reentrant=False)


@pair
def checkpointed_blocks_in_loop(sick: bool) -> Step:
    model = stack(size(6, 1), size(1536, 32), size(12, 2))
    x = normal(size(8, 1), size(1024, 8), size(1536, 32))

    def loss() -> torch.Tensor:
        h = x
        for layer in model:
            h = (partial(checkpointed, layer) if sick else layer)(h)
        return h.float().square().mean() / math.sqrt(2)

    return training(loss, adamw(model))
