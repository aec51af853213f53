"""What the monitor costs a training: steps of ten programs with it and without, in turns within one process.

    python -m benchmarks.live.cost host_1 encoder_60 --seconds 38 --out cost.jsonl
    python -m benchmarks.live.cost --table cost.jsonl…

One capture stays open, as `traceops run` makes it, and observes all the time. What the monitor does comes twice a
second, and is over soon: the observer writes a pulse, and a process reads the run (once a second in truth). So blocks
of a tenth of a second, or four steps, are compared: one begins with a pulse and a look of the monitor, its neighbour
has neither. Which comes first is drawn, as other things happen at even intervals too. Of the neighbours' differences
over the step, the mean without the tenth on either side is taken, times the part of half a second that a block is, and
its 95 % interval by resampling.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from benchmarks.observed.cost import hooked, whole_capture
from benchmarks.two_gpus.step_end import CUDA, DEVICE, Step, host, sync, training
from traceops.capture.observing import observer as pace
from traceops.capture.observing.observer import Pulses
from traceops.core.live_pulses import EVERY_S

_BLOCK_S, _BLOCK_STEPS = 0.1, 4
_STARTED_S = 20.0
_SETTLE_S = 3.0  # before the first block: the first looks are more frequent


class _Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(1024)


def encoder(rows: int) -> Step:
    """A transformer in bf16, bound by its GPU; it reads its loss."""
    width, layers, length = (2048, 4, 512) if CUDA else (32, 2, 16)
    layer = torch.nn.TransformerEncoderLayer(
        width, max(width // 64, 2), 4 * width, 0.0, batch_first=True, norm_first=True
    )
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=CUDA)
    batch = torch.randn(rows, length, width, device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def loader(layers: int) -> Step:
    """Linear layers, fed by two workers."""
    width = 1024 if CUDA else 64
    model = torch.nn.Sequential(torch.nn.Linear(1024, width), *(torch.nn.Linear(width, width) for _ in range(layers)))
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = iter(torch.utils.data.DataLoader(_Samples(), batch_size=16, num_workers=2, pin_memory=CUDA))

    def step() -> None:
        loss = model(next(batches).to(DEVICE, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def optimizer_loop(layers: int) -> Step:
    """An optimizer that takes one parameter after the other."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(layers))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, foreach=False)
    batch = torch.randn(64, 256, device=DEVICE)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fitted(ms: float, make: Callable[[int], Step], size: int) -> Step:
    """A program of such a size that its step takes about so long."""
    step, count = make(size), 20 if ms < 20 else 4
    for _ in range(4):
        for _ in range(count):
            step()
        sync()
        began = time.perf_counter()
        for _ in range(count):
            step()
        sync()
        took = (time.perf_counter() - began) * 1000 / count
        if abs(took / ms - 1) < 0.15:
            break
        size = max(1, round(size * ms / took))
        del step
        step = make(size)
    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "host_1": lambda: fitted(1, host, 5),
    "host_3": lambda: fitted(3, host, 15),
    "host_10": lambda: fitted(10, host, 50),
    "optimizer_loop": lambda: fitted(20, optimizer_loop, 60),
    "loader": lambda: fitted(8, loader, 24),
    "resnet50": lambda: training("resnet", ddp=False),
    "llama": lambda: training("llama", ddp=False),
    "encoder_60": lambda: fitted(60, encoder, 34),
    "encoder_150": lambda: fitted(150, encoder, 85),
    "encoder_300": lambda: fitted(300, encoder, 170),
}


class TurnedPulses(Pulses):
    """Writes pulses at the times of a list alone."""

    due: list[int]

    @property
    def due_ns(self) -> int:
        at = bisect_right(self.due, self._after_ns)
        return self.due[at] if at < len(self.due) else 1 << 62

    @due_ns.setter
    def due_ns(self, wanted: int) -> None:  # set to half a second after each pulse
        self._after_ns = time.perf_counter_ns()


def timetable(
    begin_ns: int, seconds: float, block_s: float, random: Random
) -> tuple[list[tuple[int, bool]], list[int]]:
    """Where each block ends, and whether it is with the monitor; and when pulses are due."""
    blocks: list[tuple[int, bool]] = []
    due: list[int] = []
    for _ in range(max(int(seconds / block_s / 2), 2)):
        first = random.random() < 0.5
        for on in (first, not first):
            began = blocks[-1][0] if blocks else begin_ns
            blocks.append((began + int(block_s * 1e9), on))
            at = began + 1_000_000
            while on and at < blocks[-1][0]:
                due.append(at)
                at += int(EVERY_S * 1e9)
    return blocks, due


_MONITOR = """
import sys
from pathlib import Path
from traceops.live.monitor import Monitor
monitor = Monitor(Path(sys.argv[1]), lambda line: print(line, flush=True), windows=0)
for _ in sys.stdin:
    monitor.look()
monitor.close()
"""


@contextlib.contextmanager
def monitor(out: Path) -> Iterator[Callable[[], int]]:
    """What `traceops live` runs, which looks when it is asked to."""
    command = [sys.executable, "-c", _MONITOR, str(out)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdin is not None
    asks = process.stdin.fileno()
    try:
        yield lambda: os.write(asks, b"\n")
    finally:
        code = process.poll()
        raw, _ = process.communicate(timeout=10)
        said = raw.decode(errors="replace")
        print(
            f"the monitor {'ran to the end' if code is None else f'ended with {code}'}: {said.strip()[-500:]}",
            flush=True,
        )


def measure(name: str, seconds: float, folder: Path) -> dict[str, Any]:
    """A program's blocks, ms per step."""
    began = time.monotonic()
    step = PROGRAMS[name]()
    capture = whole_capture(folder, live=True)
    assert capture._watchers is not None and capture._watchers.observer is not None
    observer = capture._watchers.observer
    step_ends = hooked(capture)
    random = Random(name)
    means: list[list[float]] = [[], []]  # without, with
    with monitor(folder / "run") as look:
        look()
        began_s, count, reads = time.monotonic(), 0, folder / "run" / "live.json"
        latest: deque[float] = deque(maxlen=8)  # the first steps are no measure of a block
        while count < 5 or not reads.exists() or time.monotonic() - began_s < _SETTLE_S:
            if time.monotonic() - began_s > _STARTED_S:
                raise TimeoutError("the monitor does not start")
            step()
            step_ends()
            latest.append(time.monotonic())
            count += 1
        sync()
        block_s = max(_BLOCK_S, _BLOCK_STEPS * (latest[-1] - latest[0]) / (len(latest) - 1))
        blocks, due = timetable(time.perf_counter_ns(), seconds - (time.monotonic() - began), block_s, random)
        pulses = observer._pulses
        assert pulses is not None
        before = pulses._count
        pulses.__class__ = TurnedPulses
        pulses.due, pulses._after_ns = due, time.perf_counter_ns()  # type: ignore[attr-defined]
        for end, on in blocks:
            start, steps = time.perf_counter_ns(), 0
            if on:
                look()
            while not steps or time.perf_counter_ns() < end:
                step()
                step_ends()
                steps += 1
            sync()
            means[on].append((time.perf_counter_ns() - start) / steps / 1e6)
    wrote = pulses._count - before
    row = {
        "name": name, "step_ms": float(np.median(means[0])), "block_s": block_s, "pulses": wrote, "due": len(due),
        "trouble": observer.trouble, "short": type(capture._way).__name__, "means": means,
    }  # fmt: skip
    capture.__exit__(None, None, None)
    return row


def more_pct(means: list[list[float]], block_s: float) -> tuple[float, float, float]:
    """By how many percent steps with the monitor take longer, and the 95 % interval of that."""
    without, with_it = np.array(means)
    apart = 100 * (with_it - without) / float(np.median(without)) * min(block_s / EVERY_S, 1.0)
    drawn = np.random.default_rng(0)
    found = [_middle(drawn.choice(apart, len(apart))) for _ in range(4000)]
    low, high = np.quantile(found, (0.025, 0.975))
    return _middle(apart), float(low), float(high)


def _middle(values: Any) -> float:
    cut = len(values) // 10
    return float(np.sort(values)[cut : len(values) - cut].mean())


def table(rows: list[dict[str, Any]]) -> None:
    """One line per program, and their mean."""
    print("| program | step, ms | pairs | longer with the monitor, % | 95 % |\n|---|--:|--:|--:|---|")
    found = []
    for row in sorted(rows, key=lambda row: row["step_ms"]):
        middle, low, high = more_pct(row["means"], row["block_s"])
        found.append(middle)
        pairs, ms = len(row["means"][0]), row["step_ms"]
        print(f"| {row['name']} | {ms:.2f} | {pairs} | {middle:+.2f} | {low:+.2f} to {high:+.2f} |")
    if found:
        print(f"mean of {len(found)}: {np.mean(found):+.3f} %", flush=True)


def main() -> None:
    """Measure each program by itself, or print the table of those that were measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=38.0, help="of a program, with its start")
    parser.add_argument(
        "--budget", type=float, default=1e9, help="seconds in all; a program that does not fit is left out"
    )
    parser.add_argument("--out", type=Path, default=Path("cost.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+")
    args = parser.parse_args()
    if args.table:
        table([json.loads(line) for path in args.table for line in path.read_text().splitlines()])
        return
    torch.set_num_threads(1)
    pace._FREE_NS = pace._SLOW_FREE_NS = 0  # the looks that are free at its start are no part of a long training
    began = time.monotonic()
    for number, name in enumerate(args.names):
        # What is left is divided among the programs that are left.
        left = (args.budget - (time.monotonic() - began)) / (len(args.names) - number) - 1.0
        try:
            with tempfile.TemporaryDirectory() as folder:
                row = measure(name, min(args.seconds, left), Path(folder))
        except Exception as error:
            print(f"{name}: {error!r}", flush=True)
            continue
        finally:
            gc.collect()
            if CUDA:
                torch.cuda.empty_cache()
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        found = [round(value, 3) for value in more_pct(row["means"], row["block_s"])]
        print(
            json.dumps({**row, "means": None, "more_pct": found, "s": round(time.monotonic() - began, 1)}), flush=True
        )


if __name__ == "__main__":
    main()
