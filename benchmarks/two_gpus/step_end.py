"""The cost of a step's end outside windows, in a step bound by its host: short stretches with the capture and without.

python step_end.py KIND:SECONDS…    KIND: resnet, llama, or the ms of a step of many small operators

A step's end is what `traceops run` makes of it, by the hooks of an optimizer. One capture stays open. In every second
stretch of steps it is told of each step's end, in the others it hears nothing and takes no samples. So what else the
machine does meets both alike, which it does not in blocks of a second. Beside that, each call is timed by itself.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from behind_models import KINDS, training
from cupti_common import CUDA, beside, say, sync
from observe_cost import hooked, interval, whole_capture
from observe_pairs import host, until_takes

from traceops.capture.progress import read_progress


def micro(folder: Path) -> dict[str, float]:
    """What the parts of a step's end take here by themselves, in µs."""
    import os

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


def measure(kind: str, seconds: float, folder: Path) -> None:
    ms = 30.0 if kind in KINDS else float(kind)
    step = training(kind, ddp=False) if kind in KINDS else until_takes(ms, host, max(1, round(5 * ms)))
    for _ in range(20):
        step()
    capture = whole_capture(folder)
    assert capture._watchers is not None and capture._watchers.observer is not None
    observer = capture._watchers.observer
    step_ends = hooked(capture)
    seen = read_progress(folder)  # as the launcher does: from then on the heartbeat goes to memory
    count = max(8, round(60 / ms))
    calls: list[float] = []
    stretches: list[float] = []
    cpu: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(stretches) % 2 == 0:
        on = len(stretches) % 2 == 1
        if on:
            capture._way.rest()
            observer.step_ended(recorded=True)
            observer.step_begins(recorded=False)
            step()
            step_ends()
        else:
            step()
        sync()
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(count):
            step()
            if on:
                called = time.perf_counter_ns()
                step_ends()
                calls.append((time.perf_counter_ns() - called) / 1e3)
        sync()
        stretches.append((time.perf_counter() - began) / count)
        cpu.append((time.process_time() - cpu_began) / count)
        if on:
            capture._way.rest()
            observer.step_ended(recorded=False)
            observer.step_begins(recorded=True)
    told = {}
    for name, values in (("wall", stretches), ("cpu", cpu)):
        told[name] = [round(value, 5) for value in interval(beside(values))]
    say(
        part="step_end", kind=kind, step_ms=round(1e3 * float(np.median(stretches[::2])), 4),
        pairs=len(stretches) // 2, steps=count, **told,
        call_us=[round(float(one), 2) for one in np.quantile(calls, (0.05, 0.5, 0.95, 0.99))],
        call_mean_us=round(float(np.mean(calls)), 2), samples=observer.samples, trouble=observer.trouble,
        taken=[one.memory for one in seen], failure=str(capture.failure), short=type(capture._way).__name__,
    )  # fmt: skip
    capture.__exit__(None, None, None)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        say(part="micro", cuda=CUDA, **micro(Path(name)))
    for one in sys.argv[1:]:
        kind, seconds = one.split(":")
        with tempfile.TemporaryDirectory() as name:
            measure(kind, float(seconds), Path(name))


if __name__ == "__main__":
    main()
