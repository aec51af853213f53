"""Ordinary programs on pairs of GPUs, in turn by themselves and under `traceops run`, and planted troubles.

    python -m benchmarks.two_gpus.on_pairs --work DIR --sources DIR --until S [NAME[@JOB JOB …] …]

Each pair of GPUs has cores of its own, and takes the next program when it is free. How the jobs of PROGRAMS take turns,
and what a JOB is, says benchmarks/observed_ranks/turns.py. TROUBLES and FIELD run under traceops alone; what is true of
each was written before any ran. sources: folders with programs of others, as README.md says; lit_train.py and pp.py
there make 153 steps. DIR/NAME.JOB/ has what came of a job.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.observed.registry import make_data
from benchmarks.observed_ranks.runs import end, variables_of
from benchmarks.observed_ranks.truth import Run
from benchmarks.observed_ranks.turns import Started, Turn, in_turn
from benchmarks.two_gpus.on_pairs_registry import BESIDE, FIELD, PROGRAMS, TROUBLES, Beside, Field

_LIMIT_S = 130.0
_TROUBLE_STEPS, _TROUBLE_S = 160, 50.0
_HOGS = 8
_BOUND = 4  # cores a rank has where it is bound
_HOW = {"--launcher", "--nproc"}
Program = Turn | Run | Field


@dataclass(frozen=True)
class Pair:
    """Two GPUs and the cores beside them. gpus: as CUDA_VISIBLE_DEVICES has them; empty without GPUs."""

    gpus: tuple[int, ...]
    cores: tuple[int, ...]

    def bound(self, command: list[str]) -> list[str]:
        return ["taskset", "-c", ",".join(map(str, self.cores)), *command]

    @property
    def variables(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))} if self.gpus else {"GLOO_SOCKET_IFNAME": "lo"}


def pairs(gpus: int) -> list[Pair]:
    """As many as there are, each with its part of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    many = max(gpus // 2, 1)
    each = len(cores) // many
    return [Pair((2 * at, 2 * at + 1) if gpus else (), tuple(cores[at * each : (at + 1) * each])) for at in range(many)]


class Visit:
    """Programs and troubles, on all pairs."""

    def __init__(self, work: Path, sources: Path | None, site: str | None, until: float) -> None:
        self.work, self.sources, self.site = work.resolve(), sources, site
        self._began, self._until = time.monotonic(), until

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def all(self, chosen: list[tuple[Program, list[str]]], on: list[Pair]) -> None:
        """Each pair takes the next one of them, with its jobs; what would not end in time is left out."""
        waiting: queue.SimpleQueue[tuple[Program, list[str]]] = queue.SimpleQueue()
        for one in chosen:
            waiting.put(one)

        def take(pair: Pair) -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    one, jobs = waiting.get_nowait()
                    left, seconds = (self._until - self.now, _TROUBLE_S if isinstance(one, Run) else one.seconds)
                    if left < 0.8 * seconds:
                        print(f"{one.name}: no time left", flush=True)
                        continue
                    began = self.now
                    codes = self._one(one, jobs, pair, min(max(_LIMIT_S, 1.3 * seconds), left))
                    print(f"{self.now:5.0f} s  {one.name}: {codes} after {self.now - began:.0f} s", flush=True)

        threads = [threading.Thread(target=take, args=(pair,)) for pair in on]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, one: Program, jobs: list[str], pair: Pair, limit_s: float) -> object:
        try:
            if isinstance(one, Turn):
                chosen = tuple(jobs) or one.jobs
                return in_turn(one, chosen, self.work, limit_s, lambda *job: self._job(pair, *job))
            return self._field(one, pair, limit_s) if isinstance(one, Field) else self._trouble(one, pair, limit_s)
        except Exception as error:
            return repr(error)

    def _job(self, pair: Pair, turn: Turn, folder: Path, more: dict[str, str], options: list[str] | None) -> Started:
        return [self._started(pair, turn.script(), turn.source, folder, more, options)]

    def _field(self, one: Field, pair: Pair, limit_s: float) -> int:
        folder = self.work / f"{one.name}.{'alone' if one.alone else 'traced'}"
        how = ["--launcher", "none"] if one.own else ["--nproc", str(one.ranks)]
        command = [word.replace("{root}", str(ROOT)) for word in one.command]
        script = [sys.executable, *command] if one.own else command
        more = {"SLOW": "0.05"} if one.slow else {}
        return _wait(self._started(pair, script, "field", folder, more, None if one.alone else how), limit_s)

    def _started(
        self, pair: Pair, script: list[str], source: str, folder: Path, more: dict[str, str],
        options: list[str] | None,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """As its users start it: torchrun, or `traceops run`, with two ranks."""
        shutil.rmtree(folder, ignore_errors=True)
        where = folder / "src"
        if source and self.sources:
            shutil.copytree(self.sources / source, where)
        where.mkdir(parents=True, exist_ok=True)
        variables = dict(os.environ) | variables_of(folder) | pair.variables | more
        variables["PYTHONPATH"] += os.pathsep + self.site if self.site else ""
        variables["OMP_NUM_THREADS"] = "2"
        if options is None:
            command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", *script]
        else:
            how = options if _HOW & set(options) else ["--nproc", "2", *options]
            command = ["traceops", "run", "--out", str(folder / "profile"), *how, "--", *script]
        with (folder / "out.txt").open("wb") as out:
            return subprocess.Popen(
                pair.bound([sys.executable, "-m", *command]), cwd=where, env=variables,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _trouble(self, run: Run, pair: Pair, limit_s: float) -> object:
        beside = BESIDE.get(run.name, Beside())
        others = []
        if beside.cores:
            own = ",".join(map(str, pair.cores[_BOUND : 2 * _BOUND] or pair.cores))
            spin = [sys.executable, "-c", "while True: sum(range(1000))"]
            others += [["taskset", "-c", own, *spin]] * _HOGS
        if beside.gpu:
            others.append([sys.executable, "-m", "benchmarks.two_gpus.hog", "1" if pair.gpus else "0", str(limit_s)])
        hogs = [subprocess.Popen(one, env={**os.environ, **pair.variables}) for one in others]
        script = Path(__file__).resolve().parents[1] / "observed_ranks/programs/troubled.py"
        folder = self.work / f"{run.name}.traced"
        process = self._started(pair, [str(script), "--steps", str(_TROUBLE_STEPS), *run.options], "", folder, {}, [])
        try:
            return _wait(process, limit_s)
        finally:
            for hog in hogs:
                hog.kill()


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Its exit code, 124 where it took too long."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        end(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--site", help="folder with packages that a program needs and this Python lacks")
    parser.add_argument("--until", type=float, default=1e9, metavar="S")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    every: tuple[Program, ...] = (*PROGRAMS, *TROUBLES, *FIELD)
    known = {one.name: one for one in every}
    asked = [name.partition("@") for name in args.names or known]
    chosen = [(known[name], jobs.split()) for name, _, jobs in asked]
    args.work.mkdir(parents=True, exist_ok=True)
    if args.sources:
        for name, kind in (("nanoGPT", "nanogpt"), ("minGPT-ddp", "mingpt")):
            if (args.sources / name).is_dir():
                make_data(kind, args.sources / name)
    import torch

    Visit(args.work, args.sources, args.site, args.until).all(chosen, pairs(torch.cuda.device_count()))
    for copy in args.work.glob("*/src"):
        shutil.rmtree(copy, ignore_errors=True)


if __name__ == "__main__":
    main()
