"""The cost of a step's end outside windows, in a step bound by its host: single steps with the capture and without.

python -m benchmarks.two_gpus.step_end KIND:SECONDS…    KIND: resnet, llama, or the ms of a step of many small operators

Under torchrun two ranks train resnet or llama with DDP, and turn the capture on and off in the same steps.

A step's end is what `traceops run` makes of it, by the hooks of an optimizer. One capture stays open. By turns it is
told of the ends of two steps, and samples the host in them, and hears nothing of the next two. So what else the machine
does meets both alike, which it does not in longer stretches. Each call is timed by itself too. RAW names a folder for
the times of all steps, in ns. LOOKS=10: ten times as many looks at the host, to see what one of them costs.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from benchmarks.observed.cost import hooked, step_of, whole_capture
from traceops.capture import session as stepping
from traceops.capture.observing import observer as pace
from traceops.capture.observing import step_clock
from traceops.capture.progress import read_progress

Step = Callable[[], None]
CUDA = torch.cuda.is_available() and not os.environ.get("CPU")
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if CUDA else torch.device("cpu")


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def resnet() -> tuple[torch.nn.Module, Callable[[Any], torch.Tensor]]:
    from torchvision.models import resnet18, resnet50  # type: ignore[import-not-found, unused-ignore]

    model = (resnet50 if CUDA else resnet18)().to(DEVICE, memory_format=torch.channels_last)
    rows, side = (48, 224) if CUDA else (2, 32)
    images = torch.randn(rows, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.arange(rows, device=DEVICE)
    return model, lambda made: torch.nn.functional.cross_entropy(made(images), labels)


def llama() -> tuple[torch.nn.Module, Callable[[Any], torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    size, layers, length = (768, 12, 512) if CUDA else (32, 2, 16)
    shape = LlamaConfig(
        hidden_size=size, intermediate_size=2 * size, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=8000, max_position_embeddings=length,
    )  # fmt: skip
    tokens = torch.arange(2 * length, device=DEVICE).reshape(2, length) % 8000
    return LlamaForCausalLM(shape).to(DEVICE), lambda made: made(input_ids=tokens, labels=tokens).loss


def small() -> tuple[torch.nn.Module, Callable[[Any], torch.Tensor]]:
    model = torch.nn.Sequential(*(torch.nn.Linear(96, 96) for _ in range(24))).to(DEVICE)
    batch = torch.randn(8, 96, device=DEVICE)
    return model, lambda made: made(batch).square().mean()


KINDS = {"resnet": resnet, "llama": llama, "small": small}


def training(kind: str, *, ddp: bool = True) -> Step:
    model, loss_of = KINDS[kind]()
    made = model
    if ddp:
        made = torch.nn.parallel.DistributedDataParallel(model, device_ids=[DEVICE.index] if CUDA else None)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16) if kind != "small" else contextlib.nullcontext():
            loss = loss_of(made)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimizer.step()
        optimizer.zero_grad()

    return step


def until_takes(ms: float, make: Callable[[int], Step], layers: int) -> Step:
    """A program whose step takes about so long."""
    step = make(layers)
    for _ in range(4):
        for _ in range(15):
            step()
        sync()
        began = time.perf_counter()
        for _ in range(10):
            step()
        sync()
        took = (time.perf_counter() - began) * 100
        if abs(took / ms - 1) < 0.15:
            break
        layers = max(1, round(layers * ms / took))
        step = make(layers)
    return step


def host(layers: int) -> Step:
    return step_of(96, 8, DEVICE, layers)


def _agreed(count: int) -> int:
    """Rank 0's, on all ranks."""
    if not dist.is_initialized():
        return count
    told = torch.tensor([count], device=DEVICE)
    dist.broadcast(told, 0)
    return int(told.item())


def micro(folder: Path) -> dict[str, float]:
    """What the parts of a step's end take here by themselves, in µs."""
    number = os.open(folder / "one", os.O_CREAT | os.O_WRONLY)
    text = b" " * 256
    schedstat = Path("/proc/thread-self/schedstat")
    calls = {
        "pwrite": lambda: os.pwrite(number, text, 0), "fstat": lambda: os.fstat(number),
        "gettid": threading.get_native_id, "perf_counter": time.perf_counter_ns, "time": time.time_ns,
        "schedstat": lambda: schedstat.open("rb", buffering=0).close(), "getpid": os.getpid,
    }  # fmt: skip
    found = {}
    for name, call in calls.items():
        began = time.perf_counter()
        for _ in range(3000):
            call()
        found[name] = round((time.perf_counter() - began) / 3000 * 1e6, 3)
    os.close(number)
    return found


def slow_clocks() -> None:
    # The clock goes on in the steps without: what is due by it is to come as often as if it did not.
    step_clock._EVENTS_COST /= 2
    stepping._LONG_WAY_NS *= 2
    # And what is free at its start is no part of a long training.
    step_clock._FREE_NS = pace._FREE_NS = pace._SLOW_FREE_NS = 0
    pace._COST *= float(os.environ.get("LOOKS", "1"))


def measure(kind: str, seconds: float, folder: Path) -> None:
    ms = 30.0 if kind in KINDS else float(kind)
    ddp = dist.is_initialized()
    step = training(kind, ddp=ddp) if kind in KINDS else until_takes(ms, host, max(1, round(5 * ms)))
    for _ in range(20):
        step()
    sync()
    began_s = time.perf_counter()
    for _ in range(20):
        step()
    sync()
    fours = _agreed(int(seconds / (time.perf_counter() - began_s) * 5))
    capture = whole_capture(folder)
    assert capture._watchers is not None and capture._watchers.observer is not None
    observer = capture._watchers.observer
    step_ends = hooked(capture)
    seen = read_progress(folder)  # as the launcher does: from then on the heartbeat goes to memory
    calls: list[float] = []
    looks: list[int] = []  # so far, at the end of each step
    wall: list[float] = []
    cpu: list[float] = []
    sync()
    for _ in range(fours):
        capture._way.begun_ns = time.perf_counter_ns()
        for on in (True, True, False, False):
            observer._looking = on
            began, cpu_began = time.perf_counter_ns(), time.process_time_ns()
            step()
            if on:
                called = time.perf_counter_ns()
                step_ends()
                calls.append((time.perf_counter_ns() - called) / 1e3)
            wall.append(time.perf_counter_ns() - began)
            cpu.append(time.process_time_ns() - cpu_began)
            looks.append(observer.samples)
    told = {name: [round(value, 5) for value in _on_by_off(values)] for name, values in (("wall", wall), ("cpu", cpu))}
    if "RAW" in os.environ:
        np.save(Path(os.environ["RAW"]) / f"{kind}.npy", np.array([wall, cpu, looks]))
    row = dict(
        part="step_end", kind=kind, step_ms=round(float(np.median(wall)) / 1e6, 4), fours=len(wall) // 4, **told,
        call_us=[round(float(one), 2) for one in np.quantile(calls, (0.05, 0.5, 0.95, 0.99))],
        call_mean_us=round(float(np.mean(calls)), 2), samples=observer.samples, look_us=_of_a_look(wall, looks),
        trouble=observer.trouble,
        taken=[one.memory for one in seen], failure=str(capture.failure), short=type(capture._way).__name__,
    )  # fmt: skip
    print(json.dumps(row), flush=True)
    capture.__exit__(None, None, None)


def _on_by_off(took: list[float]) -> tuple[float, float, float]:
    """Of two steps with and two without in turn: with ÷ without, and its 95 % interval by resampling.

    Each two with are held to the mean of the two before and the two behind. Of the differences, over the median step,
    it is the mean without the tenth on either side. What a step's end takes is far less than what that cuts off.
    """
    twos = np.array(took[: len(took) // 4 * 4]).reshape(-1, 2).mean(axis=1)
    on, off = twos[2::2], (twos[1:-1:2] + twos[3::2]) / 2
    more = (on - off) / float(np.median(took))
    drawn = np.random.default_rng(0)
    means = [_middle(drawn.choice(more, len(more))) for _ in range(1000)]
    low, high = np.quantile(means, (0.025, 0.975))
    return 1 + _middle(more), 1 + float(low), 1 + float(high)


def _of_a_look(took: list[float], looks: list[int]) -> list[float]:
    """What a look costs its step, in µs: median, 2.5 % and 97.5 % by resampling, and of how many steps.

    A step with one look is held to the step before or behind it that is also with the capture and had none.
    """
    had = np.diff(looks, prepend=0).reshape(-1, 2)[::2]
    with_capture = np.array(took[: len(had) * 4]).reshape(-1, 2)[::2]
    one = had.sum(axis=1) == 1
    more = np.where(had[:, 0] == 1, 1, -1)[one] * (with_capture[:, 0] - with_capture[:, 1])[one] / 1e3
    if len(more) < 10:
        return []
    drawn = np.random.default_rng(0)
    medians = [float(np.median(drawn.choice(more, len(more)))) for _ in range(1000)]
    low, high = np.quantile(medians, (0.025, 0.975))
    return [round(float(np.median(more)), 1), round(float(low), 1), round(float(high), 1), len(more)]


def _middle(values: NDArray[np.float64]) -> float:
    cut = len(values) // 10
    return float(np.sort(values)[cut : len(values) - cut].mean())


def main() -> None:
    slow_clocks()
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        if CUDA:
            torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl" if CUDA else "gloo")
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps({"part": "micro", "cuda": CUDA, **micro(Path(name))}), flush=True)
    for one in sys.argv[1:]:
        kind, seconds = one.split(":")
        with tempfile.TemporaryDirectory() as name:
            measure(kind, float(seconds), Path(name))


if __name__ == "__main__":
    main()
