"""Programs of make.py with data, copies, evaluations or an optimizer on the host; inference; a busy stranger."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from case import CUDA, DEVICE, Case, Loop, around, by_schedule, looped, small
from models import GPT, Pictures, convolutions, deep, endless, tokens, wide
from torch import nn
from torch.nn import functional
from torch.profiler import record_function
from torch.utils.data import DataLoader

STRANGER = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


def pictures(workers: int, work: int, item: bool = False, tiny: bool = False) -> Callable[[bool, Path], Loop]:
    """Images from a DataLoader that makes them in numpy; cured: batches made before, and on the GPU.

    item: the loss and the accuracy are read in each step. tiny: a network of many small layers, host-bound by itself.
    """

    def make(cured: bool, _folder: Path) -> Loop:
        side = 32 if tiny else 128
        many = small(64, 2)
        if tiny:
            model = nn.Sequential(nn.Flatten(), nn.Linear(3 * small(side, 8) ** 2, small(256, 16)), deep(30)).to(DEVICE)
        else:
            model = convolutions(128, 5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=not tiny)
        classes = 10 if tiny else 100
        set_ = Pictures(side, work)
        stay = {"persistent_workers": True, "pin_memory": CUDA} if workers else {}
        fed = endless(DataLoader(set_, batch_size=many, num_workers=0 if cured else workers, **({} if cured else stay)))
        kept = [tuple(part.to(DEVICE) for part in next(fed)) for _ in range(2)] if cured else []
        seen: list[float] = []

        def step(number: int) -> None:
            x, y = kept[number % 2] if cured else next(fed)
            x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True) % classes
            with torch.autocast(DEVICE.type, torch.bfloat16):
                out = model(x)
                loss = functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            if item and not cured:
                seen[:] = [loss.item(), (out.argmax(1) == y).float().mean().item()]
            optimizer.step()

        return looped(step)

    return make


def pageable(cured: bool, _folder: Path) -> Loop:
    """Large batches in pageable memory, copied by .cuda(); cured: pinned, and copied beside the step before."""
    model = wide(2048, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = small(8192, 8)
    host = [torch.randn(rows, small(2048, 32)) for _ in range(3)]
    if cured and CUDA:
        host = [one.pin_memory() for one in host]
    side = torch.cuda.Stream() if cured and CUDA else None

    def fetch(number: int) -> torch.Tensor:
        with torch.cuda.stream(side):
            return host[number % 3].to(DEVICE, non_blocking=cured)

    def loop(steps: int, after: Callable[[], None]) -> None:
        following = fetch(0) if cured else None
        for number in range(steps):
            if cured and side is not None:
                torch.cuda.current_stream().wait_stream(side)
            x = following if following is not None else fetch(number)
            if cured:
                following = fetch(number + 1)
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def cpu_adam(cured: bool, _folder: Path) -> Loop:
    """The optimizer's states and master weights live on the host: gradients go there, weights come back."""
    model = GPT(4, 768, 12).to(DEVICE)
    masters = [p.detach().clone() if cured else p.detach().cpu().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-4)
    ids = tokens(16)

    def step(_: int) -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model(ids)
        loss.backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad if cured else p.grad.cpu()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)
                p.grad = None

    return looped(step)


def gan(cured: bool, _folder: Path) -> Loop:
    """DCGAN as in torch's tutorial: two optimizers, three .item() a step, pictures made in the main process."""
    wide_ = small(64, 4)

    def down(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]

    def up(a: int, b: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    judge = nn.Sequential(*down(3, wide_), *down(wide_, 2 * wide_), nn.Conv2d(2 * wide_, 1, small(16, 2))).to(DEVICE)
    maker = nn.Sequential(
        nn.ConvTranspose2d(100, 2 * wide_, small(16, 2), 1, 0),
        *up(2 * wide_, wide_),
        nn.ConvTranspose2d(wide_, 3, 4, 2, 1),
    ).to(DEVICE)
    of_judge, of_maker = (torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (judge, maker))
    many = small(64, 2)
    fed = endless(DataLoader(Pictures(64, 6), batch_size=many))
    kept = next(fed)[0].to(DEVICE)
    told: list[float] = []

    def against(out: torch.Tensor, value: float) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(
            out.view(-1), torch.full((out.shape[0],), value, device=DEVICE)
        )

    def step(_: int) -> None:
        real = kept if cured else next(fed)[0].to(DEVICE)
        with record_function("discriminator"):
            of_judge.zero_grad()
            loss_real = against(judge(real), 1.0)
            loss_real.backward()
            fake = maker(torch.randn(many, 100, 1, 1, device=DEVICE))
            out = judge(fake.detach())
            loss_fake = against(out, 0.0)
            loss_fake.backward()
            of_judge.step()
        with record_function("generator"):
            of_maker.zero_grad()
            loss = against(judge(fake), 1.0)
            loss.backward()
            of_maker.step()
        if not cured:
            told[:] = [(loss_real + loss_fake).item(), loss.item(), out.mean().item()]

    return looped(step)


def evaluations(cured: bool, folder: Path) -> Loop:
    """An evaluation and a checkpoint behind each third step, and batches of text that are made slowly."""
    model = GPT(4, 512, 8).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = tokens(16)
    fed = endless(DataLoader(Pictures(128, 2), batch_size=small(16, 2)))

    def step(number: int) -> None:
        if not cured:
            next(fed)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model(ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 3 == 2 and not cured:
            model.eval()
            with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
                sum(model(ids).item() for _ in range(10))
            model.train()
            torch.save(model.state_dict(), folder.parent.parent / "checkpoint.bin")

    return looped(step)


def predictions(cured: bool, _folder: Path) -> Loop:
    """Inference: a batch from the host, convolutions, the answer back on the host."""
    model = convolutions(128, 8).eval().to(memory_format=torch.channels_last)
    x = torch.randn(small(64, 2), 3, small(128, 16), small(128, 16))
    kept = x.to(DEVICE)

    def step(_: int) -> None:
        with torch.inference_mode(), torch.autocast(DEVICE.type, torch.bfloat16):
            out = model(kept if cured else x.to(DEVICE)).softmax(1)
        if not cured:
            out.cpu()

    return looped(step)


def with_stranger(cured: bool, folder: Path) -> Loop:
    """A GPT while another process multiplies matrices on the same GPU; cured: without that."""
    from plain import gpt_training

    if not cured and CUDA:
        other = subprocess.Popen([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE)
        assert other.stdout is not None
        other.stdout.readline()
        others.append(other)
    return gpt_training()(cured, folder)


others: list[subprocess.Popen] = []

CASES = (
    Case("loader_main", pictures(0, 3), by_schedule(1, 1, 4, record_shapes=True), cure=True, ahead="cured", steps=12),
    Case("loader_workers_item", pictures(2, 12, item=True), by_schedule(1, 1, 6), cure=True, ahead="cured", steps=12),
    Case("loader_tiny", pictures(0, 4, tiny=True), around(6), cure=True, steps=16),
    Case("pageable", pageable, by_schedule(1, 1, 4, record_shapes=True), cure=True, ahead="cured"),
    Case("cpu_adam", cpu_adam, by_schedule(1, 1, 3), cure=True, ahead="cured", steps=10, warm=3),
    Case("gan", gan, around(6, "gan.json"), cure=True, ahead="cured"),
    Case("evaluations", evaluations, by_schedule(1, 1, 7), cure=True, ahead="cured", steps=12),
    Case("predictions", predictions, around(8, with_stack=True), cure=True, ahead="cured"),
)  # fmt: skip
STRANGERS = (Case("stranger", with_stranger, by_schedule(1, 1, 3), cure=True, ahead="cured"),)
COLD = (Case("cold_start", pictures(0, 1), by_schedule(0, 0, 6), steps=12),)
