"""What the monitor's records cost the thread that trains: the end of a step with them and without, in turns.

    python -m benchmarks.live.cost --rounds 6

A process takes steps of a fixed amount of Python, and counts the CPU time of its training thread and of all its threads
per step. Nothing of the monitor runs on the training thread: what shows is the observer's thread, which takes turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_WORK = 4_000  # of a step, about 0.3 ms


def child(live: bool, seconds: float, out: str) -> None:
    """Take steps for so long, and print µs per step of the thread and of the process."""
    from traceops.capture import Schedule, capture

    with capture(out, schedule=Schedule(skip_first=10**9), live=live, light=False) as profile:
        for _ in range(500):
            sum(range(_WORK))
            profile.step()
        begin = time.thread_time_ns(), time.process_time_ns()
        until, steps = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            for _ in range(100):
                sum(range(_WORK))
                profile.step()
            steps += 100
        took = time.thread_time_ns() - begin[0], time.process_time_ns() - begin[1]
    print(json.dumps([took[0] / steps / 1e3, took[1] / steps / 1e3]))


def main() -> None:
    """The pairs, and the mean of their differences with its 95 % interval."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--child", choices=("with", "without"))
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    if args.child:
        child(args.child == "with", args.seconds, args.out)
        return
    found: dict[str, list[list[float]]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for name in ("with", "without") if number % 2 else ("without", "with"):
                words = [
                    "--child", name, "--seconds", str(args.seconds), "--out",
                    str(Path(folder) / f"{name}_{number}"),
                ]  # fmt: skip
                ran = subprocess.run(
                    [sys.executable, "-m", "benchmarks.live.cost", *words], capture_output=True, text=True, check=True
                )
                found[name].append(json.loads(ran.stdout.splitlines()[-1]))
    for at, what in enumerate(("training thread", "process")):
        without, with_live = ([one[at] for one in found[name]] for name in ("without", "with"))
        apart = [b - a for a, b in zip(without, with_live, strict=True)]
        half = 2.0 * statistics.stdev(apart) / len(apart) ** 0.5
        mean, base = statistics.fmean(apart), statistics.fmean(without)
        print(f"{what}: {base:.1f} µs per step without, {mean:+.2f} ± {half:.2f} µs with ({100 * mean / base:+.2f} %)")


if __name__ == "__main__":
    main()
