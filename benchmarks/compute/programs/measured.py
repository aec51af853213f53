"""How a case is measured without a profiler, how it is recorded with one, and the truth that follows."""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from case import DEVICE, Case, Step, set_aside
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 3  # recorded
DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
_RECORDED: dict[str, dict[str, bool]] = {
    "shapes": {"record_shapes": True},
    "default": {},
    "bare": {},
    "modules": {"record_shapes": True, "with_modules": True},
    "stack": {"record_shapes": True, "with_stack": True, "with_modules": True},
    "memory": {"record_shapes": True, "profile_memory": True},
}


@dataclass(frozen=True)
class Measured:
    step_ms: float
    after_ms: float
    busy_ms: float
    kernels: float
    peak_gib: float


def synchronize() -> None:
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def reset() -> None:
    """torch's settings as they are at the start of a program, and its memory given back."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    gc.collect()
    if DEVICE != "cpu":
        torch.cuda.empty_cache()


def make(case: Case, sick: bool) -> Step:
    """The step of one program, warm. Models are made on the device where their library can do that: it is quicker."""
    reset()
    try:
        with torch.device(DEVICE):
            step = case.make(sick)
        step()
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reset()
        step = case.make(sick)
        step()
    step()
    synchronize()
    return step


def step_lengths(step: Step, times: int, queued: bool = False) -> list[float]:
    if DEVICE == "cpu":
        lengths = []
        for _ in range(times):
            began = time.perf_counter()
            step()
            lengths.append((time.perf_counter() - began) * 1e3)
        return lengths
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    if not queued:
        torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]


def milliseconds(step: Step) -> float:
    """The median of 10 steps, or of 24 short ones."""
    first = statistics.median(step_lengths(step, 3))
    return statistics.median(step_lengths(step, 11 if first > 8 else 24)[1:])


def queued_ms(step: Step) -> float:
    """How long the device takes for a step that is queued whole before it begins: no profiler, no waiting for the host.

    Too long where a step has more than a thousand kernels or waits for the device itself.
    """
    if DEVICE == "cpu":
        return step_lengths(step, 1)[0]
    lengths = []
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)  # cycles: a tenth of a second
        lengths += step_lengths(step, 1, queued=True)
    return min(lengths)


def record(step: Step, how: str, path: Path) -> None:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE != "cpu" else [])]
    if how == "bare":
        with profile(activities=activities) as recorder:
            for _ in range(STEPS):
                step()
            synchronize()
        recorder.export_chrome_trace(str(path))
        return
    with profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda ended: ended.export_chrome_trace(str(path)),
        **_RECORDED[how],
    ) as recorder:
        for i in range(STEPS + 2):
            step()
            if i == 1:
                synchronize()  # so that all device work in the trace is that of its steps
            recorder.step()
    synchronize()


def busy(path: Path, without: str = " ") -> tuple[float, float]:
    """Milliseconds per step in which the device works, and its kernels per step. without: how those left out begin."""
    with gzip.open(path, "rt") as file:
        events = [e for e in json.load(file)["traceEvents"] if not e.get("name", "").startswith(without)]
    spans = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events if e.get("cat") in DEVICE_CATEGORIES
    )
    kernels = sum(e.get("cat") == "kernel" for e in events)
    total, until = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total / 1e3 / STEPS, kernels / STEPS


def measure(case: Case, step: Step, path: Path) -> Measured:
    """Steps without a profiler, three with it into `path`, and steps without it again."""
    if DEVICE != "cpu":
        torch.cuda.reset_peak_memory_stats()
    before = milliseconds(step)
    path.parent.mkdir(parents=True, exist_ok=True)
    record(step, case.recorded, path)
    after = milliseconds(step)
    busy_ms, kernels = busy(path)
    peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE != "cpu" else 0.0
    return Measured(round(before, 3), round(after, 3), round(busy_ms, 3), round(kernels, 1), round(peak, 2))


def bound(measured: Measured) -> str:
    share = measured.busy_ms / min(measured.step_ms, measured.after_ms)
    return "device" if share >= 0.87 else "host" if share < 0.62 else "both"


def promises(sick: Measured, fixed: Measured) -> tuple[list[float], bool]:
    """The step that may be promised, and whether no shorter one may be: the fix does not shorten it."""
    was, becomes = (sick.step_ms, sick.after_ms), (fixed.step_ms, fixed.after_ms)
    none = max(becomes) >= 0.95 * min(was)
    if none:
        return [round(0.95 * min(was), 2), round(1.05 * max(*was, *becomes), 2)], True
    return [round(0.9 * min(becomes), 2), round(1.1 * max(becomes), 2)], False


def truth(case: Case, sick: Measured, fixed: Measured) -> dict[str, Any]:
    """A row of truth.jsonl: its fields are those of the pairs that came with the task."""
    promised, none = promises(sick, fixed)
    return {
        "name": case.name, "group": case.group, "cure": case.fix, "work": case.work,
        "bound": bound(sick), "bound_after_cure": bound(fixed), "labels_ok": list(case.labels),
        "sick_ms": sick.step_ms, "cured_ms": fixed.step_ms,
        "sick_after_ms": sick.after_ms, "cured_after_ms": fixed.after_ms,
        "busy_sick_ms": sick.busy_ms, "busy_cured_ms": fixed.busy_ms,
        "kernels_sick": sick.kernels, "kernels_cured": fixed.kernels, "peak_gib": [sick.peak_gib, fixed.peak_gib],
        "expert": case.expert, "promise_ok_ms": promised, "no_step_promise": none or case.clean,
        "device_after_ok_ms": [round(0.9 * fixed.busy_ms, 3), round(1.1 * fixed.busy_ms, 3)],
        "clean": case.clean, "recorded": case.recorded, "set_aside": set_aside(case.name),
    }  # fmt: skip
