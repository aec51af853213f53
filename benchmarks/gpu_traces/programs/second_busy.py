"""Programs of the second set that the GPU bounds, and to which nothing that costs is done."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from case import BOTH, CUDA, DEVICE, Case, Loop, around, by_schedule, nothing, small, wait
from models import convolutions
from second_models import Speech, Tower, conv_next
from torch import nn
from torch.nn import functional
from torch.profiler import profile, record_function, schedule


def speech(_cured: bool, _folder: Path) -> Loop:
    """An encoder-decoder for speech in bf16, with a scheduler of the learning rate."""
    model = Speech().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    heard = torch.randn(small(32, 2), 80, small(3000, 32), device=DEVICE)
    text = torch.randint(0, model.words, (small(32, 2), small(128, 8)), device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(heard, text)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
            optimizer.zero_grad()
            after()

    return loop


def convnext(_cured: bool, _folder: Path) -> Loop:
    """ConvNeXt, channels last, with a running mean of its weights by torch._foreach_lerp_."""
    model = conv_next().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    mean = [p.detach().clone() for p in model.parameters()]
    side = small(192, 32)
    x = torch.randn(small(128, 2), 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (small(128, 2),), device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = functional.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(mean, list(model.parameters()), 0.001)
            after()

    return loop


def named_by_step(loop: Loop, folder: Path) -> None:
    """on_trace_ready writes trace_STEP.json, as in torch's recipe."""

    def ready(prof: profile) -> None:
        prof.export_chrome_trace(str(folder / f"trace_{prof.step_num}.json"))

    with profile(
        activities=BOTH, schedule=schedule(skip_first=2, wait=1, warmup=1, active=3), on_trace_ready=ready,
        profile_memory=True, with_flops=True,
    ) as prof:  # fmt: skip
        loop(12, prof.step)


def contrastive(cured: bool, _folder: Path) -> Loop:
    """Two towers; two batches a step, the first within what no_sync() is for one rank; each loss is printed."""
    pictures = Tower(768, 8, small(768, 16)).to(DEVICE)
    texts = Tower(512, 8, small(512, 16)).to(DEVICE)
    both = [*pictures.parameters(), *texts.parameters()]
    optimizer = torch.optim.AdamW(both, lr=1e-4)
    many = small(256, 4)
    x = torch.randn(many, small(196, 4), small(768, 16), device=DEVICE)
    z = torch.randn(many, small(77, 4), small(512, 16), device=DEVICE)
    aim = torch.arange(many, device=DEVICE)
    sink = io.StringIO()

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            for part in range(2):
                with nullcontext():
                    with torch.autocast(DEVICE.type, torch.bfloat16):
                        alike = 20 * pictures(x) @ texts(z).t()
                        loss = functional.cross_entropy(alike, aim) + functional.cross_entropy(alike.t(), aim)
                    (loss / 2).backward()
                if not cured:
                    print("loss of part", part, loss, file=sink)
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def tasks(_cured: bool, _folder: Path) -> Loop:
    """Three heads on one trunk, each with its own optimizer."""
    trunk = convolutions(256, 6).to(memory_format=torch.channels_last)
    heads = [nn.Linear(100, n).to(DEVICE) for n in (10, 20, 30)]
    optimizers = [torch.optim.SGD(part.parameters(), lr=1e-3, momentum=0.9) for part in (trunk, *heads)]
    x = torch.randn(small(128, 2), 3, small(160, 16), small(160, 16), device=DEVICE)
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (small(128, 2),), device=DEVICE)
    around_backward: list[profile] = []

    def loop(steps: int, after: Callable[[], None]) -> None:
        for number in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                seen = trunk(x)
                loss = sum(functional.cross_entropy(head(seen), y) for head in heads)
            if around_backward and number == steps - 1:
                wait()
                with around_backward[0]:
                    loss.backward()  # type: ignore[union-attr]
                    wait()
            else:
                loss.backward()  # type: ignore[union-attr]
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            after()

    loop.around_backward = around_backward  # type: ignore[attr-defined]
    return loop


def only_backward(loop: Loop, folder: Path) -> None:
    """A profiler around loss.backward() of one iteration."""
    prof = profile(activities=BOTH, record_shapes=True, with_stack=True)
    loop.around_backward.append(prof)  # type: ignore[attr-defined]
    loop(5, nothing)
    prof.export_chrome_trace(str(folder / "backward.json"))


def quantised(_cured: bool, _folder: Path) -> Loop:
    """Inference with weights of eight bits, made 16 bits again before each product; each request has a range."""
    width, depth = small(2048, 32), small(12, 2)
    weights = [torch.randint(-127, 128, (4 * width, width), device=DEVICE, dtype=torch.int8) for _ in range(depth)]
    backs = [torch.randint(-127, 128, (width, 4 * width), device=DEVICE, dtype=torch.int8) for _ in range(depth)]
    scale = torch.full((), 1e-4, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(small(8192, 8), width, device=DEVICE, dtype=torch.bfloat16)

    def loop(steps: int, after: Callable[[], None]) -> None:
        with torch.inference_mode():
            for number in range(steps):
                with record_function(f"request {number}"):
                    y = x
                    for up, down in zip(weights, backs, strict=True):
                        seen = functional.gelu(functional.linear(y, up.to(torch.bfloat16) * scale))
                        y = y + functional.linear(seen, down.to(torch.bfloat16) * scale)
                after()

    return loop


CASES = (
    Case("speech", speech, by_schedule(1, 1, 2, 2), ahead="sick"),
    Case("convnext", convnext, named_by_step, ahead="sick"),
    Case("contrastive_prints", contrastive, by_schedule(2, 1, 3, record_shapes=True), cure=True, ahead="cured"),
    Case("backward_only", tasks, only_backward, ahead="sick"),
    Case("quantised_requests", quantised, around(6, with_flops=True, record_shapes=True), ahead="sick"),
)  # fmt: skip
