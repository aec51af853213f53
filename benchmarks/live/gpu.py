"""What only GPUs can show of the monitor, in less than 400 s on two of them; tried with gloo where there are none.

    python -m benchmarks.live.gpu --out live_gpu

Short jobs, half of them healthy, with a stranger on a rank's GPU, load on it, a slow loader and a slow host line from a
random moment on; NCCL's RAS and NVML's counters read meanwhile; and the cost of the monitor, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import threading
import time
from pathlib import Path
from random import Random

from benchmarks.live.jobs import Outcome, run_job, summary
from traceops.core.rank_files import RECORD, split_log
from traceops.live.machines import Gpm, RasLook, ask

_JOBS = ("stranger", "none", "loader", "evaluation", "host", "none", "load", "longer")
_SECONDS, _COST_S = 24.0, 10.0
_AROUND_S = 16.0  # of a job: starting and ending it
# Steps of about 30 ms on an H200, most of them the GPU's.
_ON_GPU = ("--base", "0.01", "--width", "8192")


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
        self._over.set()
        self._thread.join(3)
        print(f"RAS: {self.ras}; ms per look {_middle(self.ras_ms)}")
        print(f"NVML's counters: {self.activity[-1:] or self.trouble}; ms per look {_middle(self.gpm_ms)}", flush=True)


def _middle(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def step_us(out: Path, skipped: int = 40) -> list[int]:
    """Of rank 0, without the first steps and recorded ones."""
    _, raw = split_log((out / "rank_0" / "steps.bin").read_bytes())
    try:
        steps = list(RECORD.iter_unpack(raw))
    except struct.error:
        return []
    return [step[0] for step in steps[skipped:] if not step[-1] & 1]


def cost(out: Path, rounds: int, until: float) -> dict[str, list[float]]:
    """Mean µs of a step with the monitor and without, in turns."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        if time.monotonic() + 2 * (_COST_S + _AROUND_S) > until:
            break
        for name in ("with", "without") if number % 2 else ("without", "with"):
            folder = out / f"cost_{number}_{name}"
            # --base 0.002: short steps, in which a fixed cost shows most.
            run_job(folder, "none", 0, 1e9, _COST_S, 2, ("--base", "0.002"), live=name == "with")
            steps = sorted(step_us(folder))
            kept = steps[: int(0.98 * len(steps))]
            found[name].append(statistics.fmean(kept) if kept else float("nan"))
        print(
            f"cost, round {number}: {found['without'][-1]:.1f} µs without, {found['with'][-1]:.1f} µs with", flush=True
        )
    return found


def main() -> None:
    """Everything, with one line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=len(_JOBS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only-cost", action="store_true", help="one job with load on a GPU, then the cost")
    parser.add_argument("--budget", type=float, default=385.0, help="seconds in all; what does not fit is left out")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    random = Random(args.seed)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    until = began + args.budget
    more = _ON_GPU if Path("/dev/nvidia0").exists() else ()
    jobs = ("load",) if args.only_cost else _JOBS[: args.jobs]
    for number, fault in enumerate(jobs):
        if time.monotonic() + _SECONDS + _AROUND_S > until - (0 if args.only_cost else 2 * (_COST_S + _AROUND_S)):
            break
        rank, at = random.randrange(2), random.uniform(11, 14)
        counters = _Counters() if number < 2 else None
        told = run_job(args.out / f"gpu_{number}_{fault}", fault, rank, at, _SECONDS, 2, more)
        if counters is not None:
            counters.finish()
        outcomes.append(told)
        print(f"{told.name} rank {rank}: seen {told.seen_s}, named {told.named_s}, right {told.right}, "
              f"exit {told.exit_code}, at {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        for message in told.messages:
            print(f"    {message}", flush=True)
        summary(outcomes, args.out)
    found = cost(args.out, args.rounds, until)
    (args.out / "cost.json").write_text(json.dumps(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
