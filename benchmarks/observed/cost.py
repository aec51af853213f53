"""What observing a run costs outside of recorded windows: with and without in turn, within one process.

python -m benchmarks.observed.cost [--pairs 200] [--steps 200] [--settle 30] [--dim 96] [--batch 8] [--layers 6]
    [--whole | --light]

Blocks of steps alternate (with, without, without, with, …), so that what else the machine does meets both alike.
Compared is the process's CPU time a block, which counts the observer's thread and not other programs; and the time that
passes, which on a shared machine says little. The interval is that of the median over pairs, by resampling them.

--whole: all that a rank does at the end of a step under `traceops run`, with its heartbeat for the launcher, not the
observer alone. --light: what recording the device alone costs, as in a light window; needs a GPU.
--dim 4096 --batch 8192: a step bound by its GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from traceops.capture.light.window import Cupti
from traceops.capture.observing.observer import Observer
from traceops.capture.progress import read_progress
from traceops.capture.schedule import Schedule
from traceops.capture.session import Capture
from traceops.capture.settings import CaptureSettings
from traceops.capture.steps import on_training_step

NEVER = Schedule(skip_first=1 << 30)  # no window: what is left is what every other step of a training meets


def step_of(dim: int, rows: int, device: torch.device, layers: int = 6) -> Callable[[], None]:
    """A training step of many operators: bound by its host where they are small."""
    return training(dim, rows, device, layers)[0]


def training(dim: int, rows: int, device: torch.device, layers: int) -> tuple[Callable[[], None], torch.nn.Module]:
    """Such a step, and the model that it trains."""
    kind = torch.float32 if rows < 1024 else torch.bfloat16
    model = torch.nn.Sequential(*(torch.nn.Linear(dim, dim) for _ in range(layers))).to(device, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(rows, dim, device=device, dtype=kind)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model


class Observing:
    """The observer alone, told of each step as a capture tells it."""

    def __init__(self, folder: Path) -> None:
        self._observer = Observer(folder, 0)

    def step(self) -> None:
        self._observer.step_ended(recorded=False)
        self._observer.step_begins(recorded=False)

    def close(self) -> None:
        self._observer.close()
        if self._observer.trouble is not None:  # it would cost nothing any more
            raise SystemExit(f"the observer ended early: {self._observer.trouble}")


def whole_capture(folder: Path, *, live: bool = False) -> Capture:
    """What a rank of `traceops run` has open; `hooked` is what calls its `step` there. live: of `traceops run --live`.

    Read once, as the launcher does: until then each heartbeat goes to its file too.
    """
    settings = CaptureSettings(
        out=str(folder / "run"), schedule=NEVER, overwrite=True, progress=str(folder), launched=True, live=live
    )
    capture = Capture(settings, automatic=True).__enter__()
    read_progress(folder)
    return capture


def hooked(capture: Capture) -> Callable[[], None]:
    """The end of a step by the hooks of an optimizer that does nothing: all that `traceops run` adds to a step."""
    boundary = on_training_step(capture.step, capture.guard, passed=capture.passed)
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    _, hook = hooks.popitem()  # the benchmark's own optimizer has none
    return partial(boundary.around(lambda optimizer: hook(optimizer, (), {})), object())


def block(
    step: Callable[[], None],
    steps: int,
    settle: int,
    watch: Callable[[], Observing | Capture] | None,
    light: Cupti | None = None,
) -> tuple[float, float]:
    """Seconds of CPU and seconds that passed for `steps` steps; watched by what `watch` makes.

    settle: steps before they are timed: the observer's first looks, and its idea of the usual step. light: records.
    """
    watched = None if watch is None else watch()
    step_ends = hooked(watched) if isinstance(watched, Capture) else None if watched is None else watched.step
    if light is not None and (refused := light.start()) is not None:
        raise SystemExit(f"no light window here: {refused}")
    began = (0.0, 0.0)
    for number in range(settle + steps):
        if number == settle:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            began = time.process_time(), time.perf_counter()
        step()
        if step_ends is not None:
            step_ends()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    ended = time.process_time(), time.perf_counter()
    if watched is not None:
        watched.close()
    if light is not None:
        light.stop()
    return ended[0] - began[0], ended[1] - began[1]


def interval(ratios: NDArray[np.float64]) -> tuple[float, float, float]:
    """The median, and its 95 % interval by resampling."""
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def told(name: str, ratios: NDArray[np.float64]) -> str:
    """'CPU time 1.0012 (95 %: 1.0003 to 1.0021)'."""
    middle, low, high = interval(ratios)
    return f"{name} {middle:.4f} (95 %: {low:.4f} to {high:.4f}, {len(ratios)} pairs)"


def paired(
    step: Callable[[], None], pairs: int, steps: int, settle: int, *, light: bool, whole: bool
) -> NDArray[np.float64]:
    """A row a pair of blocks: seconds of CPU and seconds with, and the same without."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(pairs):
            order = (True, False) if number % 2 else (False, True)
            watch, times = partial(whole_capture if whole else Observing, Path(name)), {}
            for on in order:
                watched, recorder = watch if on and not light else None, Cupti() if on and light else None
                times[on] = block(step, steps, settle, watched, recorder)
            found.append((*times[True], *times[False]))
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--settle", type=int, default=30)
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--whole", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    step = step_of(args.dim, args.batch, torch.device("cuda" if torch.cuda.is_available() else "cpu"), args.layers)
    for _ in range(max(200, args.settle)):
        step()
    cpu, passed, plain_cpu, plain = paired(
        step, args.pairs, args.steps, args.settle, light=args.light, whole=args.whole
    ).T
    print(f"step {1e3 * np.median(plain) / args.steps:.2f} ms, {1e3 * np.median(plain_cpu) / args.steps:.2f} of CPU")
    print(told("CPU time, with ÷ without:", cpu / plain_cpu))
    print(told("time, with ÷ without:", passed / plain))


if __name__ == "__main__":
    main()
