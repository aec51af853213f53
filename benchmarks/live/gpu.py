"""Jobs on one or two GPUs with NCCL under the monitor, most of 20 s of training; over gloo where there are none.

    python -m benchmarks.live.gpu --out live_gpu --budget 320

A fault begins at a random moment on a random rank, or there is none. While a job trains, the next one imports torch.
NCCL's RAS and NVML's counters are read during the first jobs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from benchmarks.live.jobs import Outcome, run_job, summary
from traceops.live.machines import Gpm, RasLook, ask

# With the seconds that each trains: what shows by what is missing alone takes longer.
JOBS = (
    ("power", 21), ("none", 20), ("stranger", 20), ("load", 31), ("leak", 21), ("host", 18), ("loader", 18),
    ("longer", 26), ("checkpoint", 18), ("recompile", 26), ("none", 20),
)  # fmt: skip
_FAULT_S = (8.0, 11.0)
_START_S, _BETWEEN_S = 12.0, 9.0  # until the first job trains, and between two
_END_S = 10.0
# Steps of about 30 ms on an H200, most of them the GPU's. With products there is more to do: no sleep.
_ON_GPU, _POWER = ("--base", "0.01", "--width", "8192"), ("--base", "0.001", "--width", "4096")


class _Counters:
    """Reads RAS and NVML's counters once per second while a job runs, and how long that takes."""

    def __init__(self) -> None:
        self.ras: RasLook | None = None
        self.ras_ms: list[float] = []
        self.activity: list[dict[int, dict[str, float]]] = []
        self.gpm_ms: list[float] = []
        self.trouble = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        gpm = None
        try:
            gpm = Gpm()
        except OSError as error:
            self.trouble = str(error)
        while not self._over.wait(1.0):
            begin = time.perf_counter()
            found = ask()
            if found is not None:
                most = 0 if self.ras is None else self.ras.communicators or 0
                self.ras = found if (found.communicators or 0) >= most else self.ras
                self.ras_ms.append(1000 * (time.perf_counter() - begin))
            if gpm is not None:
                begin = time.perf_counter()
                self.activity.append(gpm.look())
                self.gpm_ms.append(1000 * (time.perf_counter() - begin))

    def finish(self) -> None:
        """End, and print what was read."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join(3)
        print(f"RAS: {self.ras}; ms per look {_middle(self.ras_ms)}")
        busy = [one for one in self.activity if any(gpu.get("sm_active", 0) > 10 for gpu in one.values())]
        print(f"NVML's counters: {busy[-1:] or self.trouble}; ms per look {_middle(self.gpm_ms)}", flush=True)


def _middle(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def ranks_here() -> int:
    """One for each GPU that may be used, at most two; two where there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = len([one for one in visible.split(",") if one]) or len(list(Path("/dev").glob("nvidia[0-9]*")))
    return min(count, 2) or 2


def fitting(jobs: tuple[tuple[str, int], ...], budget: float) -> Iterator[tuple[str, int]]:
    """The jobs, one after the other, that end within the budget."""
    ends = _START_S
    for fault, seconds in jobs:
        if ends + seconds + _END_S > budget:
            print(f"{fault}: left out", flush=True)
            continue
        ends += seconds + _BETWEEN_S
        yield fault, seconds


def main() -> None:
    """Each job, with its messages; the counts after each one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=49)
    parser.add_argument("--only", default="", help="of the faults, with commas")
    parser.add_argument("--times", type=int, default=1, help="how often each, if the budget allows it")
    parser.add_argument("--budget", type=float, default=320.0, help="seconds in all; what does not fit is left out")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    random, began, ranks = Random(args.seed), time.monotonic(), ranks_here()
    on_gpu = Path("/dev/nvidia0").exists()
    chosen = tuple(job for job in JOBS if not args.only or job[0] in args.only.split(","))
    drawn = [
        (*job, random.randrange(ranks), random.uniform(*_FAULT_S)) for job in fitting(args.times * chosen, args.budget)
    ]
    jobs, drawing = iter(enumerate(drawn)), threading.Lock()
    outcomes: list[Outcome] = []
    counters = _Counters()

    def one(number: int, fault: str, seconds: int, rank: int, at: float) -> None:
        more = (_POWER if fault == "power" else _ON_GPU) if on_gpu else ()
        waits = max(args.budget - (time.monotonic() - began) - seconds, 1.0)
        out = args.out / f"gpu_{number}_{fault}"
        told = run_job(out, fault, rank, at, seconds, ranks, more, lock=args.out / "lock", waits=waits)
        with drawing:
            outcomes.append(told)
            print(f"{told.name} rank {rank}: seen {told.seen_s}, named {told.named_s}, right {told.right}, "
                  f"exit {told.exit_code}, at {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
            for message in told.messages:
                print(f"    {message}", flush=True)
            summary(outcomes, args.out)
            if len(outcomes) == 2:
                counters.finish()

    def lane() -> None:
        while True:
            with drawing:
                drawn = next(jobs, None)
            if drawn is None:
                return
            one(drawn[0], *drawn[1])

    lanes = [threading.Thread(target=lane) for _ in range(2)]
    for number, thread in enumerate(lanes):
        thread.start()
        time.sleep(1.0 if number == 0 else 0.0)  # the first job gets the lock first
    for thread in lanes:
        thread.join()
    counters.finish()


if __name__ == "__main__":
    main()
