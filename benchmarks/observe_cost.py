"""What observing a run costs outside of recorded windows: with and without in turn, within one process.

python benchmarks/observe_cost.py [--pairs 200] [--steps 200] [--dim 96]

Blocks of steps alternate (with, without, without, with, …), so that what else the machine does meets both alike.
Compared is the process's CPU time a block, which counts the observer's thread and not other programs; on a GPU the
time that passes as well. The interval is that of the median over pairs, by resampling them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from traceops.capture.observing.observer import Observer

_SETTLE = 30  # steps of a block before it is timed: the observer's first looks, the step's usual length


def step_of(dim: int, device: torch.device) -> Callable[[], None]:
    """A training step bound by its host: many small operators."""
    model = torch.nn.Sequential(*(torch.nn.Linear(dim, dim) for _ in range(6))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(8, dim, device=device)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def block(step: Callable[[], None], steps: int, folder: Path | None) -> tuple[float, float]:
    """Seconds of CPU and seconds that passed for `steps` steps; observed where there is a folder for that."""
    observer = None if folder is None else Observer(folder, 0)
    if observer is not None:
        observer.step_begins(recorded=False)
    began = (0.0, 0.0)
    for number in range(_SETTLE + steps):
        if number == _SETTLE:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            began = time.process_time(), time.perf_counter()
        step()
        if observer is not None:
            observer.step_ended(recorded=False)
            observer.step_begins(recorded=False)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    ended = time.process_time(), time.perf_counter()
    if observer is not None:
        observer.close()
    return ended[0] - began[0], ended[1] - began[1]


def told(name: str, ratios: NDArray[np.float64]) -> str:
    """'CPU time 1.0012 (95 %: 1.0003 to 1.0021)'."""
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return f"{name} {np.median(ratios):.4f} (95 %: {low:.4f} to {high:.4f}, {len(ratios)} pairs)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dim", type=int, default=96)
    args = parser.parse_args()
    torch.set_num_threads(1)
    step = step_of(args.dim, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    for _ in range(200):
        step()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.pairs):
            order = (True, False) if number % 2 else (False, True)
            times = {on: block(step, args.steps, Path(folder) if on else None) for on in order}
            pairs.append((*times[True], *times[False]))
    cpu, passed, plain_cpu, plain = np.array(pairs).T
    print(
        f"step {1e3 * np.median(plain) / args.steps:.2f} ms, {1e3 * np.median(plain_cpu) / args.steps:.2f} of CPU"
    )
    print(told("CPU time, with ÷ without:", cpu / plain_cpu))
    print(told("time, with ÷ without:", passed / plain))


if __name__ == "__main__":
    main()
