"""What the parts of cost.sh share: where they run, a step to train, and one capture with a short window."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import traceops
from benchmarks.observed import cost as bench
from traceops.capture import Schedule

CUDA = torch.cuda.is_available() and not os.environ.get("CPU")
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if CUDA else torch.device("cpu")
WORK = Path(os.environ.get("WORK", "/tmp/cost-work"))
_BEGAN = time.monotonic()


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def say(**row: Any) -> None:
    """A row of the results."""
    print(json.dumps({"t": round(time.monotonic() - _BEGAN, 1), **row}), flush=True)


def beside(values: Sequence[float]) -> NDArray[np.float64]:
    """Every second value ÷ the mean of the two beside it, which are of the other sort."""
    return np.array([values[at] * 2 / (values[at - 1] + values[at + 1]) for at in range(1, len(values) - 1, 2)])


def program(kind: str, seed: int = 0) -> tuple[Callable[[], None], torch.nn.Module]:
    """A step, and its model. kind: host, of many small operators; device, of large products."""
    torch.manual_seed(seed)
    sizes = {"host": (96, 8, 12), "device": (4096, 8192, 4)}[kind]
    dim, rows, layers = sizes if CUDA else (32, 4, 4)
    return bench.training(dim, rows, DEVICE, layers)


def weights(model: torch.nn.Module) -> str:
    """Equal where every weight is, to the last bit."""
    digest = hashlib.sha256()
    for value in model.parameters():
        digest.update(value.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def window(
    step: Callable[[], None], name: str, *, detach: bool, light: bool, at: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """One capture with a short window, and the light window behind it; what became of both."""
    profiler = traceops.capture(
        WORK / f"{os.getpid()}-{name}",
        schedule=Schedule(skip_first=0, unprofiled=0, warmup=1, active=2),
        detach=detach, light=light, observe=False, overwrite=True,
    )  # fmt: skip
    began = time.perf_counter()
    with profiler:
        for number in range(14 if light else 4):
            if at is not None:
                at(number)
            step()
            profiler.step()
    sync()
    assert profiler._record is not None and profiler._windows.recorder is not None
    record, detaching = profiler._record.manifest, profiler._windows.recorder.detaching
    lit: Any = record.light or {}
    calls = lit.get("calls") or []
    return {
        "name": name, "took_s": round(time.perf_counter() - began, 3),
        "status": record.status, "note": record.note, "windows": len(record.windows),
        "failure": None if profiler.failure is None else str(profiler.failure)[:300],
        "why_not": None if detaching is None else detaching.why_not,
        "light": lit.get("source"), "light_why": lit.get("why"), "light_ms": lit.get("step_ms"),
        "light_end": calls[-4:], "light_bad": [call for call in calls if call[2] != 0],
        "teardown": os.environ.get("TEARDOWN_CUPTI"),
    }  # fmt: skip
