"""What this machine's GPU attains, by kind of operator, dtype and class of shape. Needs torch only.

python attainable.py [--seconds 60] prints {gpu, driver, torch, complete, rows}, each row with kind, dtype, shape, size
and tflops or tb_s (both where either may be the limit).
Speeds are work over the durations of kernels as torch.profiler records them, so that they compare with traces.
Work is the least there is: the operations of the result, and each input read and each output written once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from moves import MEGABYTE, MOVES, ONE_DTYPE, SLOW, Call, Move, normal
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function

SIZES = {"4-20MB": 12 * MEGABYTE, "20-100MB": 60 * MEGABYTE, ">100MB": 400 * MEGABYTE}
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


@dataclass(frozen=True)
class Trial:
    """Something to time.

    make: gives its calls, several with inputs of their own where a cache would hold them all, and the least bytes of
    one call, 0 where operations are the limit.
    """

    kind: str
    dtype: str
    shape: str
    size: str
    make: Callable[[], tuple[list[Call], float]]
    operations: float = 0.0


@dataclass(frozen=True)
class Row:
    kind: str
    dtype: str
    shape: str
    size: str
    tflops: float | None
    tb_s: float | None


# Products


def _product(dtype: str, m: int, n: int, k: int, batch: int, moved: float) -> Callable[[], tuple[list[Call], float]]:
    """Calls of x @ w.T, as a linear layer makes them."""

    def make() -> tuple[list[Call], float]:
        lead = (batch,) if batch else ()
        x, w = torch.randn((*lead, m, k), device="cuda"), torch.randn((*lead, n, k), device="cuda")
        if dtype == "fp8":
            one = torch.ones((), device="cuda")
            a, b = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).t()
            return [lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)], moved
        if dtype == "int8":
            left, right = (t.mul(30).clamp(-127, 127).to(torch.int8) for t in (x, w))
            return [lambda: torch._int_mm(left, right.t())], moved
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}.get(dtype, torch.float32)
        precision = "high" if dtype == "tf32" else "highest"
        first, second = x.to(kind), w.to(kind).transpose(-1, -2)

        def call() -> object:
            torch.set_float32_matmul_precision(precision)
            return first @ second

        return [call], moved

    return make


def products() -> Iterator[Trial]:
    bytes_per = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp64": 8}
    slow = {"fp32", "fp64"}
    for dtype in ("bf16", "fp16", "fp8", "int8", "tf32", "fp32", "fp64"):
        side = 4096 if dtype in slow else 8192
        shapes = [
            ("large", (side, side, side, 0)), ("large", (8192, 1024, 4096, 0)), ("medium", (2048, 2048, 2048, 0)),
            ("medium", (4096, 768, 768, 0)), ("small", (512, 1024, 1024, 0)), ("skinny", (32, 8192, 8192, 0)),
        ]  # fmt: skip
        if dtype not in ("fp8", "int8"):
            shapes += [
                ("skinny", (1, 8192, 8192, 0)), ("batched_large", (2048, 2048, 1024, 16)),
                ("batched_small", (128, 128, 64, 512)), ("batched_small", (1024, 1024, 64, 64)),
                ("misaligned", (4096, 4096, 4095, 0)), ("misaligned", (4096, 4095, 4096, 0)),
                ("misaligned", (8192, 50257, 768, 0)),
            ]  # fmt: skip
        for shape, (m, n, k, batch) in shapes:
            if dtype in slow and n == 50257:
                continue
            times = max(batch, 1)
            moved = times * (m * k + n * k + m * n) * bytes_per.get(dtype, 4)
            size = f"{m}x{n}x{k}" + (f" batch {batch}" if batch else "")
            make = _product(dtype, m, n, k, batch, moved if shape == "skinny" else 0)
            yield Trial("product", dtype, shape, size, make, 2.0 * times * m * n * k)


# Convolutions


def _convolution(
    dtype: str, last: bool, dims: tuple[int, ...], backward: bool, moved: float
) -> Callable[[], tuple[list[Call], float]]:
    batch, inputs, outputs, side, kernel, stride, groups = dims

    def make() -> tuple[list[Call], float]:
        kind = torch.bfloat16 if dtype == "bf16" else torch.float32
        form = torch.channels_last if last else torch.contiguous_format
        x = normal(batch, inputs, side, side, dtype=kind).contiguous(memory_format=form)
        w = normal(outputs, inputs // groups, kernel, kernel, dtype=kind).contiguous(memory_format=form)
        padding = kernel // 2
        y = F.conv2d(x, w, None, stride, padding, 1, groups)
        grad = torch.randn_like(y)

        def call() -> object:
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=dtype != "fp32"):
                if not backward:
                    return F.conv2d(x, w, None, stride, padding, 1, groups)
                return torch.ops.aten.convolution_backward(
                    grad, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, [True, True, False]
                )

        return [call], moved

    return make


def convolutions() -> Iterator[Trial]:
    forms = {
        "3x3": (64, 256, 256, 56, 3, 1, 1), "1x1": (64, 256, 1024, 28, 1, 1, 1), "stem": (64, 3, 64, 224, 7, 2, 1),
        "small": (8, 128, 128, 28, 3, 1, 1), "depthwise": (64, 256, 256, 56, 3, 1, 256),
        "depthwise_7x7": (64, 192, 192, 56, 7, 1, 192),
    }  # fmt: skip
    for dtype, last, (shape, dims), backward in itertools.product(
        ("bf16", "tf32", "fp32"), (True, False), forms.items(), (False, True)
    ):
        batch, inputs, outputs, side, kernel, stride, groups = dims
        if dtype == "fp32" and (not last or groups > 1):
            continue
        operations = 2.0 * batch * outputs * (side // stride) ** 2 * (inputs // groups) * kernel**2
        width = 2 if dtype == "bf16" else 4
        moved = width * batch * (inputs * side**2 + outputs * (side // stride) ** 2) * (1.5 if backward else 1)
        yield Trial(
            "convolution_backward" if backward else "convolution",
            dtype,
            f"{shape} {'nhwc' if last else 'nchw'}",
            f"{batch}x{inputs}x{side}x{side} to {outputs} k{kernel} s{stride} g{groups}",
            _convolution(dtype, last, dims, backward, moved if groups > 1 else 0),
            operations * (2 if backward else 1),
        )


# Attention


def _attention(
    backend: SDPBackend, length: int, head: int, causal: bool, backward: bool, dtype: torch.dtype
) -> Callable[[], tuple[list[Call], float]]:
    def make() -> tuple[list[Call], float]:
        heads = 2048 // head
        rows = max(1, 8192 // length)
        q, k, v = (normal(rows, heads, length, head, dtype=dtype).requires_grad_() for _ in range(3))

        def forward() -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        if not backward:
            return [forward], 0.0
        out = forward()
        grad = torch.randn_like(out)
        return [lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)], 0.0

    return make


def attention() -> Iterator[Trial]:
    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    for (name, backend), head, length, causal, backward in itertools.product(
        backends.items(), (64, 128), (256, 1024, 4096), (True, False), (False, True)
    ):
        rows, heads = max(1, 8192 // length), 2048 // head
        operations = 4.0 * rows * heads * length**2 * head * (0.5 if causal else 1) * (2.5 if backward else 1)
        yield Trial(
            "attention_backward" if backward else "attention", "bf16",
            f"{name} T{length} D{head} {'causal' if causal else 'full'}", f"{rows}x{heads}x{length}x{head}",
            _attention(backend, length, head, causal, backward, torch.bfloat16), operations,
        )  # fmt: skip


# What memory bandwidth bounds


def _apart(move: Move, total: float, dtype: torch.dtype, cache: float) -> Callable[[], tuple[list[Call], float]]:
    """Calls on inputs of their own, so many that the GPU's cache does not hold the next one's."""

    def make() -> tuple[list[Call], float]:
        made = [move(total, dtype) for _ in range(max(1, min(12, math.ceil(3 * cache / total))))]
        return [call for call, _ in made], made[0][1]

    return make


def bandwidth(cache: float) -> Iterator[Trial]:
    for move in MOVES:
        for dtype in (ONE_DTYPE[move],) if move in ONE_DTYPE else (torch.bfloat16, torch.float32):
            for shape, total in SIZES.items():
                if move in SLOW:
                    total = min(total, 150 * MEGABYTE)
                make = _apart(move, total, dtype, cache)
                yield Trial(move.__name__, NAMES[dtype], shape, f"{total / MEGABYTE:g} MB", make)


# Timing


def _count(call: Call) -> int:
    """As many repeats as fill 4 ms, from 4 to 24."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return int(min(24, max(4, 4 / max(start.elapsed_time(end), 1e-3))))


def seconds_of_kernels(trials: list[Trial]) -> dict[int, tuple[float, float]]:
    """Per trial, by its place: seconds of kernels per call, and bytes. What the GPU or torch cannot run is left out."""
    counts: dict[int, tuple[int, float]] = {}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorder:
        for i, trial in enumerate(trials):
            calls: list[Call] = []
            try:
                calls, moved = trial.make()
                for call in calls[:2]:
                    call()
                torch.cuda.synchronize()
                times = _count(calls[0])
                with record_function(f"trial {i}"):
                    for call in itertools.islice(itertools.cycle(calls), times):
                        call()
                    torch.cuda.synchronize()
                counts[i] = times, moved
            except (RuntimeError, NotImplementedError) as error:
                print(f"{trial.kind} {trial.dtype} {trial.shape}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
    events = recorder.events() or []
    ranges = {e.name: e.time_range for e in events if e.name.startswith("trial ") and e.device_type.name == "CPU"}
    kernels = [
        (e.time_range.start, e.time_range.end - e.time_range.start)
        for e in events
        if e.device_type.name != "CPU" and not e.name.startswith("trial ")
    ]
    found = {}
    for i, (times, moved) in counts.items():
        span = ranges[f"trial {i}"]
        total = sum(length for start, length in kernels if span.start <= start <= span.end)
        if total > 0:
            found[i] = total / times / 1e6, moved
    return found


def rows_of(trials: list[Trial]) -> list[Row]:
    rows = []
    for i, (seconds, moved) in seconds_of_kernels(trials).items():
        t = trials[i]
        tflops = round(t.operations / seconds / 1e12, 2) if t.operations else None
        tb_s = round(moved / seconds / 1e12, 3) if moved else None
        rows.append(Row(t.kind, t.dtype, t.shape, t.size, tflops, tb_s))
    return rows


def in_groups(trials: Iterator[Trial], most: int) -> Iterator[list[Trial]]:
    while group := list(itertools.islice(trials, most)):
        yield group


def driver() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = subprocess.run(
        [tool, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip().splitlines()[0] if asked.stdout.strip() else None


def table(seconds: float) -> dict[str, Any]:
    """The table of the current device, as far as it gets in `seconds`."""
    until = time.monotonic() + seconds
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    cache = float(getattr(properties, "L2_cache_size", 50 * MEGABYTE))
    rows: list[Row] = []
    complete = True
    for group in in_groups(itertools.chain(products(), attention(), convolutions(), bandwidth(cache)), 40):
        if time.monotonic() > until:
            complete = False
            break
        rows += rows_of(group)
        torch.cuda.empty_cache()
    return {
        "gpu": properties.name,
        "driver": driver(),
        "torch": torch.__version__,
        "complete": complete,
        "rows": [{k: v for k, v in asdict(row).items() if v is not None} for row in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="the most it takes (60)")
    json.dump(table(parser.parse_args().seconds), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
