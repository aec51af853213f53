"""The throughput that `traceops sweep` compares, against a stopwatch: ``python -m benchmarks.throughput``.

Twelve trainings on the CPU, half of them limited by input, half with bursts, each once under `traceops run`. "First
steps" is what the eight steps before the window would say, which a full prefetch queue serves.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import ROOT
from traceops.pipeline.observed_run import mean_step_ms

_BATCH, _STEPS, _START = 16, 200, 30
_JOBS = {
    "one worker": "--workers 1 --load 20",
    "two workers": "--workers 2 --load 30 --prefetch 8",
    "four workers, long queue": "--workers 4 --load 60 --prefetch 16",
    "no worker": "--workers 0 --load 12",
    "uneven samples": "--workers 2 --load 24 --vary 0.8",
    "three workers": "--workers 3 --load 45 --prefetch 4",
    "every 10th batch": "--workers 2 --load 2 --every 10 --burst 120",
    "every 25th batch": "--workers 2 --load 4 --every 25 --burst 300 --prefetch 4",
    "every 8th batch, no worker": "--workers 0 --load 2 --every 8 --burst 60",
    "every 20th batch": "--workers 1 --load 3 --every 20 --burst 250",
    "every 16th batch, long queue": "--workers 4 --load 20 --every 16 --burst 200 --prefetch 8",
    "every 5th batch": "--workers 1 --load 1 --every 5 --burst 50",
}


def train(args: argparse.Namespace) -> None:
    """A training that prints its samples per second."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset[object]):
        def __len__(self) -> int:
            return _BATCH * _STEPS

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            late = args.every and index // _BATCH % args.every == args.every - 1
            ms = args.load * (1 + args.vary * (index * 7919 % 97 / 48.5 - 1)) + (args.burst if late else 0)
            time.sleep(ms / 1e3 / _BATCH)
            return torch.zeros(64), 0

    torch.set_num_threads(1)
    net = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    queue = args.prefetch if args.workers else None
    ends = []
    for batch, labels in DataLoader(Data(), batch_size=_BATCH, num_workers=args.workers, prefetch_factor=queue):
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(net(batch), labels))
        time.sleep(0.005)
        optimizer.step()
        ends.append(time.perf_counter())
    print(f"stopwatch {_BATCH * (_STEPS - _START) / (ends[-1] - ends[_START - 1]):.1f}", flush=True)


def main() -> None:
    """A row per training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true")
    for name in ("workers", "every"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=2)
    for name in ("load", "burst", "vary"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    args = parser.parse_args()
    if args.train:
        train(args)
        return
    print("| training | stopwatch, samples/s | whole run | | first steps | |\n|---|--:|--:|--:|--:|--:|")
    for name, words in _JOBS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "run")
            own = [sys.executable, "-m", "benchmarks.throughput", "--train", *words.split()]
            command = [sys.executable, "-m", "traceops", "run", "--out", str(out), "--", *own]
            ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
            found = re.search(r"stopwatch ([\d.]+)", ended.stdout + ended.stderr)
            assert found is not None
            rate, manifest = float(found[1]), json.loads((out / "run.json").read_text())
            steps = (mean_step_ms(out, manifest), manifest["unprofiled_step_ms"])
        rates = [1e3 * _BATCH / ms for ms in steps if ms]
        cells = " | ".join(f"{one:.0f} | {100 * (one / rate - 1):+.1f} %" for one in rates)
        print(f"| {name} | {rate:.0f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
