"""What a window of ours does to the rest of a program.

python -m benchmarks.two_gpus.cupti_safety CASE none|today|detach

Each case in a process of its own. Its last line has the facts, which are the same in all three ways; a crash is a
result too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.two_gpus.cupti_common import CUDA, DEVICE, program, say, sync, weights, window

Step = Callable[[], None]


class Case:
    """One program: its step, and what is found on the way."""

    def __init__(self, name: str, variant: str) -> None:
        self.name, self.variant = name, variant
        self.step, self.model = program("host")
        self.facts: dict[str, Any] = {}
        self.told: list[dict[str, Any]] = []

    def ours(self, count: int = 1, at: Callable[[int], None] | None = None) -> None:
        """Our windows, each with its light window; without us the same steps."""
        for _ in range(count):
            if self.variant != "none":
                detach = self.variant == "detach"
                name = f"{self.name}{len(self.told)}"
                self.told.append(window(self.step, name, detach=detach, light=True, at=at))
                continue
            for inner in range(14):
                if at is not None:
                    at(inner)
                self.step()
            sync()

    def profiled(self, number: int, steps: int = 4) -> None:
        """The script's own profiler, and how many kernels it sees."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if CUDA:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profiler:
            for _ in range(steps):
                self.step()
            sync()
        inner: Any = profiler.profiler
        events = inner.kineto_results.events()
        kernels = ["CUDA" in str(event.device_type()) and not event.is_user_annotation() for event in events]
        launches = [event.name().startswith(("cudaLaunch", "cuLaunch")) for event in events]
        self.facts[f"kernels_{number}"], self.facts[f"launches_{number}"] = sum(kernels), sum(launches)


def later(case: Case) -> None:
    """A later profiler of the script's own."""
    case.ours()
    case.profiled(1)
    case.profiled(2)
    case.ours()
    case.profiled(3)


def quick(case: Case) -> None:
    """One that begins in the very next step."""
    case.ours()
    for number in range(5):
        case.profiled(number, 1)
    case.ours(2)
    case.profiled(9, 1)


def windows(case: Case) -> None:
    """Twenty windows in a row."""
    case.ours(20)
    case.profiled(1)


def graph_of(value: torch.Tensor, factor: float) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            value.mul_(factor).add_(1e-3)
    return graph


def graphs(case: Case) -> None:
    """CUDA graphs captured before a window, after it, both, or replayed in it."""
    values = [torch.ones(4096, device=DEVICE) for _ in range(3)]
    made = [] if case.name == "graph_after" else [graph_of(values[0], 0.999)]
    for graph in made * 3:
        graph.replay()  # type: ignore[no-untyped-call, unused-ignore]
    for number in range(3):
        case.ours(at=(lambda _: made[0].replay()) if case.name == "graph_in" else None)
        if case.name in ("graph_after", "graph_both") and number < 2:
            made.append(graph_of(values[number + 1], 0.998))
        for graph in made * 5:
            graph.replay()  # type: ignore[no-untyped-call, unused-ignore]
        case.step()
        sync()
    case.profiled(1)
    for graph in made:
        graph.replay()  # type: ignore[no-untyped-call, unused-ignore]
    sync()
    case.facts["values"] = [float(value.double().sum()) for value in values]


def compiled(case: Case) -> None:
    """torch.compile with CUDA graphs, across windows."""
    torch.use_deterministic_algorithms(False)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).to(DEVICE)
    fast, batch = torch.compile(net, mode="reduce-overhead"), torch.randn(32, 64, device=DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call, unused-ignore]
        fast(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    case.step, case.model = step, net
    for _ in range(6):
        step()
    case.ours(3)
    for _ in range(20):
        step()
    case.profiled(1)
    case.ours()


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((96,), float(index % 7))


def threads(case: Case) -> None:
    """A loader that pins, and threads that never stop calling CUDA."""
    stop, hammered = threading.Event(), [0]

    def hammer() -> None:
        mine = torch.ones(1024, device=DEVICE)
        stream: Any = torch.cuda.Stream() if CUDA else None  # type: ignore[no-untyped-call, unused-ignore]
        while not stop.is_set():
            if stream is not None:
                with torch.cuda.stream(stream):
                    mine.mul_(1.0)
                    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
                    event.record()
                event.query()
                torch.cuda.mem_get_info()
            hammered[0] += 1

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=CUDA)
    feed, inner = iter(loader), case.step

    def step() -> None:
        next(feed).to(DEVICE, non_blocking=True).sum()
        inner()

    running = [threading.Thread(target=hammer, daemon=True) for _ in range(3)]
    for thread in running:
        thread.start()
    case.step = step
    case.ours(8)
    stop.set()
    for thread in running:
        thread.join()
    case.step = inner
    case.profiled(1)


CASES: dict[str, Callable[[Case], None]] = {
    "later": later, "quick": quick, "windows": windows, "compile": compiled, "threads": threads,
    "graph_before": graphs, "graph_after": graphs, "graph_both": graphs, "graph_in": graphs,
}  # fmt: skip


def main() -> None:
    name, variant = sys.argv[1:]
    torch.use_deterministic_algorithms(True)
    case = Case(name, variant)
    for _ in range(5):
        case.step()
    CASES[name](case)
    for _ in range(20):
        case.step()
    sync()
    case.facts["weights"] = weights(case.model)
    told = [{key: one[key] for key in ("why_not", "light", "light_bad", "failure", "status")} for one in case.told]
    say(part="safety", case=name, variant=variant, facts=case.facts, told=told)


if __name__ == "__main__":
    main()
