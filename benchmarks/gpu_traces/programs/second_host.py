"""Programs of the second set that their host holds up: by launches, by reads of the device, or by both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from case import CUDA, DEVICE, Case, Loop, around, by_schedule, nothing, small
from models import GPT, tokens
from second_models import down_and_up
from torch import nn
from torch.nn import functional


def experts(cured: bool, _folder: Path) -> Loop:
    """32 experts in each of four layers, one after the other, their rows found by nonzero(); cured: bmm of all."""
    many, width, wide, layers = small(32, 4), small(512, 16), small(1024, 32), small(4, 1)
    rows = small(8192, 16)
    gates = nn.ModuleList(nn.Linear(width, many) for _ in range(layers)).to(DEVICE)
    ups = nn.ParameterList(nn.Parameter(0.02 * torch.randn(many, width, wide)) for _ in range(layers)).to(DEVICE)
    downs = nn.ParameterList(nn.Parameter(0.02 * torch.randn(many, wide, width)) for _ in range(layers)).to(DEVICE)
    optimizer = torch.optim.AdamW([*gates.parameters(), *ups, *downs], lr=1e-4)
    x = torch.randn(rows, width, device=DEVICE)

    def one_by_one(y: torch.Tensor, chance: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        best, which = chance.max(-1)
        made = torch.zeros_like(y)
        for number in range(many):
            at = (which == number).nonzero(as_tuple=True)[0]
            if at.numel():
                seen = functional.gelu(y[at] @ up[number]) @ down[number]
                made = made.index_add(0, at, (seen * best[at, None]).to(made.dtype))
        return made

    def all_at_once(y: torch.Tensor, chance: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        best, order = chance.max(-1)
        parts = y[order.argsort()].view(many, rows // many, width)
        return torch.bmm(functional.gelu(torch.bmm(parts, up)), down).view(rows, width) * best[:, None]

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            y = x
            for gate, up, down in zip(gates, ups, downs, strict=True):
                y = y + (all_at_once if cured else one_by_one)(y, gate(y).softmax(-1), up, down)
            y.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def scan(cured: bool, _folder: Path) -> Loop:
    """A state-space model whose recurrence is a loop in Python; cured: one product with powers of its decay."""
    length, width, many = small(192, 8), small(512, 16), small(32, 2)
    first, last = nn.Linear(width, width).to(DEVICE), nn.Linear(width, width).to(DEVICE)
    decay = nn.Parameter(torch.rand(width, device=DEVICE))
    optimizer = torch.optim.AdamW([*first.parameters(), *last.parameters(), decay], lr=1e-4)
    x = torch.randn(many, length, width, device=DEVICE)
    apart = (torch.arange(length)[:, None] - torch.arange(length)[None]).to(DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            given, keep = first(x), decay.sigmoid()
            if cured:
                powers = torch.where(apart[..., None] >= 0, keep ** apart.clamp(min=0)[..., None], 0.0)
                states = torch.einsum("lmd,bmd->bld", powers, given)
            else:
                state, kept = torch.zeros(many, width, device=DEVICE), []
                for at in range(length):
                    state = keep * state + given[:, at]
                    kept.append(state)
                states = torch.stack(kept, 1)
            functional.mse_loss(last(states), x).backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def transducer(cured: bool, _folder: Path) -> Loop:
    """An encoder, a network of predictions stepped by GRU cells, and what joins them; cured: cuDNN's GRU."""
    many, heard, said, width, words = small(8, 2), small(64, 4), small(80, 4), small(256, 16), small(64, 8)
    encoder = nn.LSTM(80, width, 2, batch_first=True).to(DEVICE)
    embedding, cell = nn.Embedding(words, width).to(DEVICE), nn.GRUCell(width, width).to(DEVICE)
    whole = nn.GRU(width, width, batch_first=True).to(DEVICE)
    joint = nn.Linear(width, words).to(DEVICE)
    parts = (encoder, embedding, whole if cured else cell, joint)
    optimizer = torch.optim.Adam([p for part in parts for p in part.parameters()], lr=1e-4, foreach=False)
    x = torch.randn(many, heard, 80, device=DEVICE)
    text = torch.randint(0, words, (many, said), device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            seen, given = encoder(x)[0], embedding(text)
            if cured:
                told = whole(given)[0]
            else:
                state, kept = torch.zeros(many, width, device=DEVICE), []
                for at in range(said):
                    state = cell(given[:, at], state)
                    kept.append(state)
                told = torch.stack(kept, 1)
            scores = joint(torch.tanh(seen[:, :, None] + told[:, None])).log_softmax(-1)
            loss = -scores.gather(-1, text[:, None, :, None].expand(-1, heard, -1, 1)).logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after()

    return loop


def old_profiler(loop: Loop, folder: Path) -> None:
    """torch.autograd.profiler, as before torch 1.8."""
    with torch.autograd.profiler.profile(use_device="cuda" if CUDA else None, record_shapes=True) as prof:
        loop(4, nothing)
    prof.export_chrome_trace(str(folder / "old.json"))


def penalty(cured: bool, _folder: Path) -> Loop:
    """WGAN with a penalty of gradients: three updates of the critic a step; each gradient is asked if it is finite,
    and noise is drawn on the host."""
    width, many = small(512, 16), small(256, 4)
    shape = small(1024, 32)

    def net(a: int, b: int) -> nn.Sequential:
        hidden = [m for _ in range(small(6, 1)) for m in (nn.Linear(width, width), nn.LeakyReLU(0.2))]
        return nn.Sequential(nn.Linear(a, width), nn.LeakyReLU(0.2), *hidden, nn.Linear(width, b)).to(DEVICE)

    critic, maker = net(shape, 1), net(64, shape)
    of_critic, of_maker = (torch.optim.Adam(one.parameters(), lr=1e-4, betas=(0.0, 0.9)) for one in (critic, maker))
    real = torch.randn(many, shape, device=DEVICE)

    def noise() -> torch.Tensor:
        return torch.randn(many, 64, device=DEVICE) if cured else torch.randn(many, 64).to(DEVICE)

    def checked(module: nn.Module) -> None:
        for p in module.parameters():
            if not cured and not torch.isfinite(p.grad).all():
                raise ValueError("not finite")

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            for _ in range(3):
                fake = maker(noise()).detach()
                part = torch.rand(many, 1, device=DEVICE)
                between = (part * real + (1 - part) * fake).requires_grad_()
                slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
                loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(2, 1) - 1) ** 2).mean()
                of_critic.zero_grad()
                loss.backward()
                checked(critic)
                of_critic.step()
            of_maker.zero_grad()
            (-critic(maker(noise())).mean()).backward()
            checked(maker)
            of_maker.step()
            after()

    return loop


def physics(cured: bool, _folder: Path) -> Loop:
    """A network that must meet a heat equation, through second derivatives, with anomaly detection left on."""
    width = small(256, 16)
    layers = [m for _ in range(small(6, 1)) for m in (nn.Linear(width, width), nn.Tanh())]
    net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), *layers, nn.Linear(width, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=cured)
    at = torch.rand(small(4096, 8), 2, device=DEVICE)

    def slope(of: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(of, by, torch.ones_like(of), create_graph=True)[0]

    def loop(steps: int, after: Callable[[], None]) -> None:
        with torch.autograd.set_detect_anomaly(not cured):
            for _ in range(steps):
                place = at.clone().requires_grad_()
                first = slope(net(place), place)
                second = slope(first[:, :1], place)[:, :1]
                loss = (first[:, 1:] - 0.1 * second).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                after()

    return loop


def sampling(cured: bool, _folder: Path) -> Loop:
    """A diffusion model draws a picture in 20 passes; tqdm shows a norm behind each; cured: 16 pictures, none shown."""
    from tqdm import tqdm

    net = down_and_up("2d", 64, 3, 4, 4).eval()
    many, side = 1 if not cured else 16, small(32, 8)
    x = torch.randn(many, 4, side, side, device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            y = x
            with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
                bar = tqdm(range(small(20, 3)), disable=None, mininterval=1e9)
                for step in bar:
                    noise = net(y + 0.01 * step)
                    y = y - 0.05 * noise + 0.01 * torch.randn_like(y)
                    if not cured:
                        bar.set_postfix(norm=y.norm().item(), refresh=False)
            after()

    return loop


def speculative(cured: bool, _folder: Path) -> Loop:
    """A small model proposes four tokens, a larger one checks them, and each is compared on the host; no training.
    cured: eight texts of which all proposals are compared on the device."""
    draft, target = (GPT(n, w, 8).to(DEVICE, torch.bfloat16).eval() for n, w in ((2, 256), (12, 768)))
    start = tokens(8 if cured else 1, 128)

    def scores(model: GPT, ids: torch.Tensor) -> torch.Tensor:
        x = model.tokens(ids) + model.places(torch.arange(ids.shape[1], device=ids.device))
        for block in model.blocks:
            x = block(x)
        return model.head(model.norm(x))

    def loop(steps: int, after: Callable[[], None]) -> None:
        with torch.inference_mode():
            for _ in range(steps):
                ids = start
                for _ in range(4):
                    ids = torch.cat([ids, scores(draft, ids)[:, -1:].argmax(-1)], 1)
                wanted = scores(target, ids)[:, -5:-1].argmax(-1)
                same = wanted == ids[:, -4:]
                if cured:
                    same.cumprod(1).sum(1)
                else:
                    taken = 0
                    while taken < 4 and same[0, taken].item():
                        taken += 1
                    [int(one) for one in ids[0, -4:]]
                after()

    return loop


def broken_graph(cured: bool, _folder: Path) -> Loop:
    """torch.compile of layers that ask the device, each, whether a value is large: a break and a read in each."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(small(512, 16), small(512, 16)), nn.GELU(), nn.LayerNorm(small(512, 16)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.net(x)
            if not cured and x.abs().max().item() > 1e4:
                x = x.clamp(-1e4, 1e4)
            return x

    model = nn.Sequential(*(Asks() for _ in range(small(10, 2)))).to(DEVICE)
    fast = torch.compile(model, **({} if CUDA else {"backend": "eager"}))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(small(1024, 4), small(512, 16), device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            fast(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


CASES = (
    Case("experts", experts, by_schedule(1, 1, 2, with_stack=True), cure=True, ahead="cured"),
    Case("scan_loop", scan, around(3, "trace.json.gz"), cure=True, ahead="cured"),
    Case("transducer_old_api", transducer, old_profiler, cure=True, ahead="cured"),
    Case("penalty_checks", penalty, by_schedule(1, 1, 3), cure=True, ahead="cured"),
    Case("physics_anomaly", physics, around(4), cure=True, ahead="cured"),
    Case("sampling_bar", sampling, around(1, "sample.json", record_shapes=True), cure=True, steps=6, warm=2),
    Case("speculative", speculative, by_schedule(1, 1, 5), cure=True),
)
COMPILED = (Case("graph_breaks", broken_graph, by_schedule(1, 1, 4), cure=True, ahead="cured"),)
