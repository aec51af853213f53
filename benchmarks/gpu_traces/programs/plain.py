"""Programs of make.py in plain torch that the GPU bounds, with nothing planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from case import BOTH, CUDA, DEVICE, Case, Loop, around, by_schedule, looped, nothing, small
from models import GPT, convolutions, tokens
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

_KINDS_CUDA = [ProfilerActivity.CUDA] if CUDA else [ProfilerActivity.CPU]


def gpt_training(ranges: bool = False, micro: int = 1, **sizes: object) -> Callable[[bool, Path], Loop]:
    """A GPT in bf16. ranges: named by record_function. micro: batches to one step of the optimizer, marked each."""

    def make(_cured: bool, _folder: Path) -> Loop:
        model = GPT(**sizes).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = tokens(64 // micro if micro > 1 else 32)

        def train_step(number: int) -> None:
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(ids) / micro
            loss.backward()
            if (number + 1) % micro == 0:
                optimizer.step()
                optimizer.zero_grad()

        def step(number: int) -> None:
            if ranges:
                with record_function("train_step"):
                    train_step(number)
            else:
                train_step(number)

        return looped(step)

    return make


def from_the_middle(loop: Loop, folder: Path) -> None:
    """prof.start() between a forward and a backward pass, within a range of the user's; later prof.stop()."""
    prof = profile(activities=BOTH)
    loop.middle.append(prof.start)  # type: ignore[attr-defined]
    loop(4, nothing)
    prof.stop()
    prof.export_chrome_trace(str(folder / "middle.json"))


def middle(_cured: bool, _folder: Path) -> Loop:
    """A GPT, and what to call once between its forward and its backward pass."""
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = tokens()
    called: list[Callable[[], None]] = []

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with record_function("train_step"):
                with torch.autocast(DEVICE.type, torch.bfloat16):
                    loss = model(ids)
                while called:
                    called.pop()()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            after()

    loop.middle = called  # type: ignore[attr-defined]
    return loop


def conv_scaler(_cured: bool, _folder: Path) -> Loop:
    """Convolutions in fp16, channels last, with a GradScaler and clipping."""
    model = convolutions(256, 8).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(DEVICE.type)
    x = torch.randn(small(128, 2), 3, small(160, 16), small(160, 16), device=DEVICE)
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (small(128, 2),), device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        torch.backends.cudnn.benchmark = True
        for _ in range(steps):
            optimizer.zero_grad()
            with record_function("forward"), torch.autocast(DEVICE.type, torch.float16 if CUDA else torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            with record_function("backward"):
                scaler.scale(loss).backward()
            with record_function("optimizer"):
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            after()
        torch.backends.cudnn.benchmark = False

    return loop


def eight_bits(_cured: bool, _folder: Path) -> Loop:
    """Products of matrices in fp8 and in bf16, one after the other: a benchmark, no training."""
    side = small(4096, 64)
    a, b = (torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    one = torch.ones((), device=DEVICE)
    if CUDA:
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()

    def step(_: int) -> None:
        for _ in range(10):
            if CUDA:
                torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16)
            torch.mm(a, b)

    return looped(step)


def two_streams(_cured: bool, _folder: Path) -> Loop:
    """A teacher on a stream of its own beside the student."""
    student, teacher = GPT(6, 1024).to(DEVICE), GPT(6, 512, 8).to(DEVICE).eval()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    ids = tokens(24)
    side = torch.cuda.Stream() if CUDA else None

    def step(_: int) -> None:
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
            aim = teacher(ids)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = student(ids)
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        (loss - aim).square().backward()
        optimizer.step()
        optimizer.zero_grad()

    return looped(step)


def tables(cured: bool, _folder: Path) -> Loop:
    """A recommender: an Adam over whole embedding tables; cured: sparse gradients."""
    rows = small(1_000_000, 100)
    bags = [torch.nn.EmbeddingBag(rows, 64, sparse=cured, device=DEVICE) for _ in range(8)]
    top = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).to(DEVICE)
    kind = torch.optim.SparseAdam if cured else torch.optim.Adam
    optimizers = [kind([p for bag in bags for p in bag.parameters()]), torch.optim.Adam(top.parameters())]
    many = small(4096, 8)
    ids = torch.randint(0, rows, (8, many, 20), device=DEVICE)

    def step(_: int) -> None:
        seen = torch.cat([bag(one) for bag, one in zip(bags, ids, strict=True)], 1)
        loss = functional.binary_cross_entropy_with_logits(top(seen), torch.ones(many, 1, device=DEVICE))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return looped(step)


CASES = (
    Case(
        "tutorial_all_options",
        gpt_training(layers=6),
        by_schedule(1, 1, 3, 1, record_shapes=True, profile_memory=True, with_stack=True),
        ahead="sick",
    ),
    Case("tutorial_repeat", gpt_training(layers=4), by_schedule(1, 1, 2, 2), ahead="sick"),
    Case("loop_no_marks", gpt_training(), around(5), ahead="sick"),
    Case("one_iteration", gpt_training(), around(1, "one.json.gz", record_shapes=True), ahead="sick"),
    Case("user_ranges", gpt_training(ranges=True, layers=6), around(5), ahead="sick"),
    Case("micro_steps", gpt_training(micro=4), by_schedule(1, 1, 8), ahead="sick", steps=16, warm=8),
    Case(
        "checkpointing",
        gpt_training(again=True, layers=5),
        by_schedule(0, 1, 2, with_stack=True, with_modules=True),
        ahead="sick",
    ),
    Case("conv_scaler", conv_scaler, by_schedule(1, 2, 3)),
    Case("fp8_products", eight_bits, around(5), ahead="sick"),
    Case("two_streams", two_streams, by_schedule(1, 1, 3), ahead="sick"),
    Case("embedding_tables", tables, by_schedule(1, 1, 4), cure=True, ahead="sick"),
)
MIDDLE = (Case("middle", middle, from_the_middle, ahead="sick"),)
