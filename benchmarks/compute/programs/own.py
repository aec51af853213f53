"""Pairs of training loops as people write them themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from case import DEVICE, Step, adamw, amp, images, layout, normal, pair, size, tokens, training
from torch import nn


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """A transformer's layer, normed by RMS, with the attention that it is given."""

    def __init__(self, width: int, heads: int, attend: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = SwiGLU(width, width * 2)
        self.attend = attend or F.scaled_dot_product_attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.between(x))


def stack(layers: int, width: int, heads: int, attend: Callable[..., torch.Tensor] | None = None) -> nn.Module:
    return nn.Sequential(*[Layer(width, heads, attend) for _ in range(layers)]).to(DEVICE)


def deep_mlp(layers: int, width: int) -> nn.Module:
    blocks = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    return nn.Sequential(*blocks).to(DEVICE)


def convolutions(width: int, depth: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        parts += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)).to(DEVICE)


def mean_square(model: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: model(x).float().square().mean()


def clip_in_a_loop(parameters: list[nn.Parameter], most: float) -> None:
    total = sum(p.grad.pow(2).sum() for p in parameters).sqrt()
    scale = torch.clamp(most / (total + 1e-6), max=1.0)
    for p in parameters:
        p.grad.mul_(scale)


@pair
def clip_per_parameter(sick: bool) -> Step:
    model = deep_mlp(size(48, 3), size(512, 32))
    parameters = list(model.parameters())
    x = normal(size(2048, 8), size(512, 32))

    def clip() -> None:
        if sick:
            clip_in_a_loop(parameters, 1.0)
        else:
            nn.utils.clip_grad_norm_(parameters, 1.0, foreach=DEVICE != "cpu")

    return training(mean_square(model, x), adamw(model), after_backward=clip)


@pair
def ema_loop(sick: bool) -> Step:
    model = convolutions(size(64, 8), size(32, 2)).to(memory_format=torch.channels_last)
    x = images(size(32, 2), size(32, 8), True)
    live = list(model.parameters())
    averaged = [p.detach().clone() for p in live]

    @torch.no_grad()
    def average() -> None:
        if sick:
            for mean, p in zip(averaged, live, strict=True):
                mean.mul_(0.999).add_(p, alpha=0.001)
        else:
            torch._foreach_lerp_(averaged, live, 0.001)

    return training(mean_square(model, x), adamw(model), after_step=average)


@pair
def handwritten_adam(sick: bool) -> Step:
    model = stack(size(6, 1), size(1536, 32), size(12, 2))
    x = normal(size(2, 1), size(512, 8), size(1536, 32))
    if not sick:
        return training(mean_square(model, x), adamw(model))
    state = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]

    @torch.no_grad()
    def update() -> None:
        for p, first, second in state:
            first.mul_(0.9).add_(p.grad, alpha=0.1)
            second.mul_(0.999).add_(p.grad * p.grad, alpha=0.001)
            p.mul_(1 - 1e-6)
            p.sub_(1e-4 * first / (second.sqrt() + 1e-8))
            p.grad = None

    return training(mean_square(model, x), after_step=update)


@pair
def gru_cells(sick: bool) -> Step:
    width, length = size(768, 16), size(48, 4)
    cell, gru = nn.GRUCell(width, width).to(DEVICE), nn.GRU(width, width, batch_first=True).to(DEVICE)
    x = normal(size(128, 2), length, width)

    def loss() -> torch.Tensor:
        if not sick:
            return gru(x)[0].float().square().mean()
        hidden, outputs = x.new_zeros(x.shape[0], width), []
        for t in range(length):
            hidden = cell(x[:, t], hidden)
            outputs.append(hidden)
        return torch.stack(outputs, 1).float().square().mean()

    return training(loss, adamw(cell if sick else gru))


@pair
def one_hot_embedding(sick: bool) -> Step:
    vocabulary, width = size(32000, 64), size(1024, 32)
    table = nn.Parameter(normal(vocabulary, width) * 0.02)
    model = deep_mlp(2, width)
    ids = tokens(vocabulary, size(8192, 16))
    optimizer = torch.optim.AdamW([table, *model.parameters()], lr=1e-4, fused=True)

    def loss() -> torch.Tensor:
        x = F.one_hot(ids, vocabulary).to(torch.bfloat16) @ table if sick else F.embedding(ids, table)
        return model(x).float().square().mean()

    return training(loss, optimizer)


@pair
def one_hot_targets(sick: bool) -> Step:
    vocabulary, width = size(32000, 64), size(1024, 32)
    model = nn.Sequential(deep_mlp(2, width), nn.Linear(width, vocabulary)).to(DEVICE)
    x, y = normal(size(8192, 16), width), tokens(vocabulary, size(8192, 16))

    def loss() -> torch.Tensor:
        logits = model(x)
        if sick:
            return -(F.one_hot(y, vocabulary).float() * torch.log_softmax(logits.float(), -1)).sum(-1).mean()
        return F.cross_entropy(logits, y)

    return training(loss, adamw(model))


@pair
def frames_one_by_one(sick: bool) -> Step:
    width, frames = size(512, 16), size(64, 4)
    first, head = nn.Linear(width, width).to(DEVICE), nn.Linear(width, width).to(DEVICE)
    x = normal(size(256, 2), frames, width)
    optimizer = torch.optim.AdamW([*first.parameters(), *head.parameters()], lr=1e-4, fused=True)

    def loss() -> torch.Tensor:
        h = F.gelu(first(x))
        y = torch.stack([head(h[:, t]) for t in range(frames)], 1) if sick else head(h)
        return y.float().square().mean()

    return training(loss, optimizer)


@pair
def advanced_indexing(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    nodes, edges, width = size(100_000, 20), size(800_000, 60), size(128, 8)
    model = deep_mlp(3, width)
    x, source, target = normal(nodes, width), tokens(nodes, edges), tokens(nodes, edges)

    def loss() -> torch.Tensor:
        h = x
        for part in model:
            h = part(h)
            if isinstance(part, nn.Linear):
                sent = h[source] if sick else torch.index_select(h, 0, source)
                h = torch.zeros_like(h).index_add_(0, target, sent)
        return h.float().square().mean()

    return training(loss, adamw(model), autocast=False)


@pair
def adagrad_table(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    rows, width = size(8_000_000, 100), size(64, 8)
    table = nn.Embedding(rows, width, sparse=not sick).to(DEVICE)
    top = nn.Linear(width, 1).to(DEVICE)
    ids = tokens(rows, size(65536, 16))
    optimizer = torch.optim.Adagrad([*table.parameters(), *top.parameters()], lr=0.01)
    return training(lambda: top(table(ids)).square().mean(), optimizer, autocast=False)


@pair
def shared_layer_casts(sick: bool) -> Step:
    layer = Layer(size(2048, 32), size(16, 2)).to(DEVICE)
    x = normal(1, size(512, 8), size(2048, 32))
    optimizer = adamw(layer)

    def step() -> None:
        with amp(cache_enabled=not sick):
            h = x
            for _ in range(12):
                h = layer(h)
            value = h.float().square().mean()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Island(nn.Module):
    """A residual MLP in bfloat16 that goes to float and back around each of its operators, or doesn't."""

    def __init__(self, width: int, detour: bool) -> None:
        super().__init__()
        self.norm, self.detour = nn.LayerNorm(width), detour
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.detour:
            return x + self.down(F.gelu(self.up(self.norm(x))))
        norm = self.norm
        y = F.layer_norm(x.float(), norm.normalized_shape, norm.weight.float(), norm.bias.float()).to(x.dtype)
        y = F.gelu(self.up(y).float()).to(x.dtype)
        return (x.float() + self.down(y).float()).to(x.dtype)


@pair
def float_islands(sick: bool) -> Step:
    width = size(1024, 32)
    model = nn.Sequential(*[Island(width, sick) for _ in range(size(6, 1))]).to(DEVICE).bfloat16()
    x = normal(size(16384, 16), width, dtype=torch.bfloat16)
    return training(mean_square(model, x), torch.optim.SGD(model.parameters(), lr=1e-4), autocast=False)


@pair
def float64_window(sick: bool) -> Step:
    frame = size(1024, 32)
    model = nn.Sequential(nn.Conv1d(1, 16, 9, padding=4), nn.Tanh(), nn.Conv1d(16, 1, 9, padding=4)).to(DEVICE)
    x = normal(size(64, 2), 1, size(65536, 128))
    window = torch.hann_window(frame, dtype=torch.float64 if sick else torch.float32, device=DEVICE)

    def spectrum(signal: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(signal.squeeze(1).unfold(-1, frame, frame // 4) * window).abs()

    wanted = spectrum(x)
    return training(lambda: (spectrum(model(x)) - wanted).abs().mean(), adamw(model), autocast=False)


@pair
def micro_batches(sick: bool) -> Step:
    model = stack(size(6, 1), size(768, 32), size(12, 2))
    x = normal(8, size(128, 8), size(768, 32))
    optimizer = adamw(model)

    def step() -> None:
        for rows in x.split(1 if sick else 8):
            with amp():
                value = model(rows).float().square().mean()
            value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class HandMish(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tanh(torch.log(1 + torch.exp(x)))


@pair
def handmade_mish(sick: bool) -> Step:
    act = HandMish if sick else nn.Mish
    model = convolutions(size(128, 8), size(8, 1), act).to(memory_format=torch.channels_last)
    x = images(size(64, 2), size(64, 8), True)
    return training(mean_square(model, x), adamw(model))


@pair
def smoothing_by_hand(sick: bool) -> Step:
    vocabulary, width = size(50304, 64), size(768, 32)
    model = nn.Sequential(deep_mlp(2, width), nn.Linear(width, vocabulary)).to(DEVICE)
    x, y = normal(size(8192, 16), width), tokens(vocabulary, size(8192, 16))

    def loss() -> torch.Tensor:
        logits = model(x)
        if not sick:
            return F.cross_entropy(logits, y, label_smoothing=0.1)
        logits = logits.float()
        shifted = logits - logits.max(-1, keepdim=True).values.detach()
        likely = shifted - shifted.exp().sum(-1, keepdim=True).log()
        picked = likely.gather(-1, y[:, None]).squeeze(-1)
        return -(0.9 * picked + 0.1 * likely.mean(-1)).mean()

    return training(loss, adamw(model))


@pair
def class_head_21841(sick: bool) -> Step:
    classes, width = size(21841 if sick else 21848, 33 if sick else 40), size(1024, 32)
    model = nn.Sequential(deep_mlp(4, width), nn.Linear(width, classes)).to(DEVICE)
    x, y = normal(size(16384, 16), width), tokens(size(21841, 33), size(16384, 16))
    return training(lambda: F.cross_entropy(model(x), y), adamw(model))


@pair
def odd_channels(sick: bool) -> Step:
    width = size(125 if sick else 128, 5 if sick else 8)
    model = convolutions(width, size(6, 1)).to(memory_format=torch.channels_last)
    x = images(size(64, 2), size(64, 8), True)
    return training(mean_square(model, x), adamw(model))


@pair
def pairwise_by_broadcast(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    model = deep_mlp(2, size(128, 8))
    x = normal(size(2048, 8), size(128, 8))

    def loss() -> torch.Tensor:
        z = model(x)
        if sick:
            far = (z[:, None] - z[None]).pow(2).sum(-1)
        else:
            square = z.pow(2).sum(-1)
            far = square[:, None] + square[None] - 2 * (z @ z.T)
        return torch.exp(-far).mean()

    return training(loss, adamw(model), autocast=False)


@pair
def scan_in_python(sick: bool) -> Step:
    length, width = size(256, 8), size(1024, 16)
    lift, head = nn.Linear(width, width).to(DEVICE), nn.Linear(width, width).to(DEVICE)
    x = normal(size(16, 2), length, width)
    at = torch.arange(length, device=DEVICE)
    decays = torch.where(at[:, None] >= at, 0.95 ** (at[:, None] - at).clamp(min=0), 0.0)
    optimizer = torch.optim.AdamW([*lift.parameters(), *head.parameters()], lr=1e-4, fused=True)

    def loss() -> torch.Tensor:
        u = lift(x)
        if sick:
            state, states = torch.zeros_like(u[:, 0]), []
            for t in range(length):
                state = 0.95 * state + u[:, t]
                states.append(state)
            y = torch.stack(states, 1)
        else:
            y = decays @ u
        return head(y).float().square().mean()

    return training(loss, optimizer)


@pair
def float32_and_loop(sick: bool) -> Step:
    torch.set_float32_matmul_precision("highest" if sick else "high")
    model = stack(size(8, 1), size(1024, 32), size(16, 2))
    optimizer = adamw(model, foreach=False) if sick else adamw(model)
    x = normal(size(2, 1), size(512, 8), size(1024, 32))
    return training(mean_square(model, x), optimizer, autocast=False)


@pair
def clip_and_average(sick: bool) -> Step:
    model = stack(size(10, 1), size(512, 32), size(8, 2))
    live = list(model.parameters())
    averaged = [p.detach().clone() for p in live]
    x = normal(size(4, 1), size(512, 8), size(512, 32))

    def clip() -> None:
        if sick:
            clip_in_a_loop(live, 1.0)
        else:
            nn.utils.clip_grad_norm_(live, 1.0, foreach=DEVICE != "cpu")

    @torch.no_grad()
    def average() -> None:
        if sick:
            for mean, p in zip(averaged, live, strict=True):
                mean.copy_(0.99 * mean + 0.01 * p)
        else:
            torch._foreach_lerp_(averaged, live, 0.01)

    return training(mean_square(model, x), adamw(model), after_backward=clip, after_step=average)


@pair
def unet_first(sick: bool) -> Step:
    def double(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = double(3, width), double(width, 2 * width)
            self.up, self.last = nn.ConvTranspose2d(2 * width, 2 * width, 2, 2), double(3 * width, width)
            self.head = nn.Conv2d(width, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.first(x)
            b = self.up(self.second(F.max_pool2d(a, 2)))
            return self.head(self.last(torch.cat([a, b], 1)))

    model = UNet(size(64, 8)).to(DEVICE).to(memory_format=layout(not sick))
    x = images(size(16, 1), size(256, 16), not sick)
    return training(mean_square(model, x), adamw(model))
