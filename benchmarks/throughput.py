"""Throughput and winner of `traceops sweep` and `compare` against a stopwatch: ``python -m benchmarks.throughput``.

Twelve pairs of trainings on the CPU, six limited by input and six with bursts, each pair a sweep over one option and a
comparison of what it trained. The stopwatch runs in the training itself; which of a pair does more is by trainings
without traceops, two of each. `--lanes 4 --cores 0-7` takes four pairs at a time, each with cores of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from queue import SimpleQueue

import msgspec
from msgspec import Struct

from benchmarks import ROOT

_BATCH, _STEPS, _START = 16, 200, 30
_ALIKE_PCT = 5.0  # compare's own limit
_SECONDS = 110.0  # a pair takes about this long

# input limits: what both train with, and the option that differs
_INPUT = {
    "one worker or two": ("--load 20", "workers=1,2"),
    "two workers, queue of 2 or 16": ("--workers 2 --load 30", "prefetch=2,16"),
    "three workers or four": ("--load 60 --prefetch 4", "workers=3,4"),
    "no worker or one": ("--load 12", "workers=0,1"),
    "uneven samples, queue of 2 or 8": ("--workers 2 --load 24 --vary 0.8", "prefetch=2,8"),
    "three workers, 7 % more to load": ("--workers 3 --prefetch 4", "load=45,48"),
}
_BURSTS = {
    "every 10th batch, queue of 2 or 8": ("--workers 2 --load 2 --every 10 --burst 120", "prefetch=2,8"),
    "every 25th batch, one worker or two": ("--load 4 --every 25 --burst 300 --prefetch 4", "workers=1,2"),
    "every 8th batch, no worker or one": ("--load 2 --every 8 --burst 60", "workers=0,1"),
    "every 20th batch, 250 or 200 ms": ("--workers 1 --load 3 --every 20", "burst=250,200"),
    "every 16th batch, queue of 8 or 16": ("--workers 4 --load 20 --every 16 --burst 200", "prefetch=8,16"),
    "every 5th batch, 50 or 80 ms": ("--workers 1 --load 1 --every 5", "burst=50,80"),
}
_JOBS = dict(chain.from_iterable(zip(_INPUT.items(), _BURSTS.items(), strict=True)))


class Played(Struct):
    """A pair: samples/s by the stopwatch and by traceops, in the order of the option's values."""

    name: str
    values: list[str]
    plain: list[list[float]]
    stopwatch: list[list[float]] = []
    sweep: list[list[float]] = []
    winner: str = ""  # as sweep says; '' where it does not decide
    compare: list[float | None] = []
    verdict: str = ""
    problem: str = ""

    @property
    def change_pct(self) -> float:
        """How much more the second does than the first, without traceops."""
        first, second = (statistics.fmean(each) for each in self.plain)
        return 100 * (second / first - 1)

    @property
    def off_pct(self) -> dict[str, float]:
        """The largest distance from the stopwatch: of a training in the sweep, of a side of the comparison."""
        watch = [statistics.fmean(each) for each in self.stopwatch]
        pairs = {
            "sweep": list(zip(chain.from_iterable(self.sweep), chain.from_iterable(self.stopwatch), strict=True)),
            "compare": [(found, own) for found, own in zip(self.compare, watch, strict=False) if found],
        }
        off = {name: [found / own - 1 for found, own in each] for name, each in pairs.items()}
        return {name: 100 * max(each, key=abs, default=float("nan")) for name, each in off.items()}

    @property
    def judged(self) -> dict[str, str]:
        """Whether the winner that each names is one."""
        more = self.change_pct
        best = self.values[more > 0]
        says = {"improvement": more > _ALIKE_PCT, "regression": more < -_ALIKE_PCT, "no_regression": more > -_ALIKE_PCT}
        return {
            "sweep": "not decided" if not self.winner else "right" if self.winner == best else "WRONG",
            "compare": "right" if says.get(self.verdict) else "WRONG" if self.verdict in says else "not decided",
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


def _run(words: list[str], cores: list[int], codes: tuple[int, ...] = (0,)) -> str:
    """What a command prints. Raises RuntimeError with its end where it fails."""
    bound = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [*bound, sys.executable, "-m", *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    if ended.returncode not in codes:
        raise RuntimeError(f"{words[:2]} ended with {ended.returncode}: {(ended.stderr or ended.stdout)[-600:]}")
    return ended.stdout + ended.stderr


def play(name: str, cores: list[int]) -> Played:
    """The trainings of one pair: without traceops before and after, a sweep, a comparison."""
    fixed, axis = _JOBS[name]
    key, values = axis.split("=")[0], axis.split("=")[1].split(",")
    played = Played(name, values, [[], []])
    own = ["benchmarks.throughput", "--train", *fixed.split()]

    def plain(order: tuple[int, int]) -> None:
        for at in order:
            played.plain[at] += _stopwatch(_run([*own, f"--{key}", values[at]], cores))

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "profile", "sw")
        try:
            plain((0, 1))
            command = ["traceops", "sweep", "--nproc", "1", "--out", str(out), "--vary-arg", axis]
            said = _run([*command, "--", "-m", *own], cores)
            document = json.loads(next(Path(folder).rglob("sweep.json")).read_text())
            trials, watch = document["trials"], _stopwatch(said)
            for at in (0, 1):
                found = [(one, rate) for one, rate in zip(trials, watch, strict=True) if one["point"] == at]
                played.stopwatch.append([rate for _, rate in found])
                played.sweep.append([1e3 * _BATCH / one["step_ms"] for one, _ in found])
            best = document["best"].split("=")[1]
            played.winner = "" if document["told_apart"] is False else best
            sides = [[str(out / one["folder"]) for one in trials if one["point"] == at] for at in (0, 1)]
            command = ["traceops", "compare", "--format", "json", "-o", folder]
            _run([*command, "--base", *sides[0], "--head", *sides[1]], cores, (0, 1))
            document = json.loads(Path(folder, "compare.json").read_text())
            played.verdict = document["verdict"]
            step = next(one for one in document["metrics"] if one["metric"] == "step_time")
            played.compare = [1e3 * _BATCH / step[side] if step[side] else None for side in ("base", "head")]
            plain((1, 0))
        except (RuntimeError, OSError, StopIteration, ValueError) as error:
            played.problem = str(error)
    return played


def _stopwatch(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"stopwatch ([\d.]+)", text)]


def row(played: Played) -> str:
    """A line of the table."""
    if played.problem or not played.verdict:
        return f"| {played.name} | {played.problem or 'not ended'} |"
    off, judged = played.off_pct, played.judged
    plain = " and ".join(f"{statistics.fmean(each):.0f}" for each in played.plain)
    named = played.winner or "none"
    return (
        f"| {played.name} | {plain} ({played.change_pct:+.1f} %) | {off['sweep']:+.1f} % | {named}: {judged['sweep']} "
        f"| {off['compare']:+.1f} % | {played.verdict}: {judged['compare']} |"
    )


def main() -> None:
    """A row per pair, the counts, and with --out all figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true")
    for name in ("workers", "every"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=2)
    for name in ("load", "burst", "vary"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--cores", default="", help="0-7,16-23: dealt to the lanes; all where not given")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds: no pair begins that might not end")
    parser.add_argument("--jobs", default="", help="words of names of pairs, with commas")
    parser.add_argument("--out", default="", help="a JSON file")
    args = parser.parse_args()
    if args.train:
        train(args)
        return
    began = time.monotonic()
    rows: list[Played] = []
    ranges = [part.split("-") for part in args.cores.split(",") if part]
    cores = [core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)]
    free: SimpleQueue[list[int]] = SimpleQueue()
    for lane in range(args.lanes):
        free.put(cores[lane :: args.lanes])

    def one(name: str) -> None:
        if time.monotonic() - began + _SECONDS > args.budget:
            print(f"left out, the budget ends: {name}", flush=True)
            return
        lane = free.get()
        try:
            played = play(name, lane)
        finally:
            free.put(lane)
        rows.append(played)
        if args.out:
            Path(args.out).write_bytes(msgspec.json.encode(rows))
        print(f"{time.monotonic() - began:4.0f} s {row(played)}", flush=True)

    chosen = [name for name in _JOBS if not args.jobs or any(word in name for word in args.jobs.split(","))]
    with ThreadPoolExecutor(args.lanes) as pool:
        list(pool.map(one, chosen))
    rows.sort(key=lambda found: chosen.index(found.name))
    ended = [found for found in rows if not found.problem]
    print(
        "| pair | samples/s without traceops | sweep off | winner | compare off | verdict |\n|---|---|--:|---|--:|---|"
    )
    print("\n".join(map(row, rows)))
    for by in ("sweep", "compare"):
        near = sum(abs(found.off_pct[by]) <= 5 for found in ended)
        right = [found.judged[by] for found in ended]
        counts = ", ".join(f"{right.count(each)} {each}" for each in ("right", "not decided", "WRONG"))
        print(f"{by}: {near} of {len(ended)} within 5 % of the stopwatch; winner: {counts}")
    print(f"{len(chosen)} pairs, {len(ended)} ended, {len(rows) - len(ended)} failed, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
