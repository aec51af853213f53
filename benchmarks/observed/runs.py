"""Ordinary programs by themselves and under `traceops run`: is what the report says of them true? (docs/observe.md)

``python -m benchmarks.observed.runs --work DIR --sources DIR [NAME…]`` runs each program three times: by itself
with our clock and CUPTI alone, under traceops with defaults, and by itself once more. Then it analyses all of them and
prints the table. ``--read`` makes the table anew from what DIR holds.

sources: the folders of `registry.PROGRAMS`. until: seconds after which nothing is begun. ``--one-gpu`` takes
`registry.ONE_GPU` instead: by themselves without a launcher, also without their troubles. NAME:RUN+RUN
leaves out a program's other runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.observed.registry import ON_CPU, ONE_GPU, PROGRAMS, Program, make_data
from benchmarks.observed.table import one_gpu_table, table
from benchmarks.observed.truth import own_words, read_truth
from traceops.launch.supervise import descendants

_HERE = Path(__file__).resolve().parent
_SECOND = 31  # the step from which CUPTI records in the second run by itself
_CORES = 4  # for each of those that run at the same time
_LIMIT_S = 90.0
_ANALYSIS_S = 40.0  # kept for the analyses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--site", help="folder with packages that a program needs and this Python lacks")
    parser.add_argument("--until", type=float, default=1e9, metavar="S")
    parser.add_argument("--cpu", action="store_true", help="two small programs, to try this out")
    parser.add_argument("--ranks", type=int, default=2, help="1 where there is one GPU")
    parser.add_argument("--one-gpu", action="store_true", help="the programs of one rank")
    parser.add_argument("--later", action="store_true", help="no analyses: traces are brought home first")
    parser.add_argument("--read", action="store_true", help="run nothing")
    parser.add_argument("names", nargs="*", metavar="NAME[:RUN+RUN]")
    args = parser.parse_args()
    only = {name: tuple(runs.split("+")) for name, _, runs in (one.partition(":") for one in args.names)}
    args.names = list(only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known = ONE_GPU if args.one_gpu else ON_CPU if args.cpu else PROGRAMS
    chosen = [one for one in known if one.needs <= args.ranks and (not args.names or one.name in args.names)]
    chosen.sort(key=lambda one: args.names.index(one.name) if args.names else 0)
    until = args.until + (_ANALYSIS_S - 5 if args.later else 0)
    runs = Runs(args.work.resolve(), args.site, until, args.ranks)
    runs.only = {name: chosen for name, chosen in only.items() if chosen != ("",)}
    if not args.read:
        if args.sources:
            shutil.copytree(args.sources, runs.work / "sources", dirs_exist_ok=True)
        runs.all(chosen)
        if not args.later:
            runs.analyses(chosen)
    results = {one.name: runs.result(one) for one in chosen}
    (args.work / "results.json").write_text(json.dumps(results, indent=1))
    print(one_gpu_table(results) if args.one_gpu else table(results))


class Runs:
    """All runs of one call, in folders below `work`."""

    def __init__(self, work: Path, site: str | None, until: float, ranks: int) -> None:
        self.work, self.site, self.ranks = work, site, ranks
        self._began, self._until = time.monotonic(), until
        self._took, self._guessed = 0.0, 0.0
        self.only: dict[str, tuple[str, ...]] = {}  # the runs of a program, where not all are wanted

    def folder(self, program: Program) -> Path:
        return self.work / "runs" / re.sub(r"\W+", "_", program.name)

    def all(self, programs: list[Program]) -> None:
        """Each program's three runs one after the other; the third is left out where others would not fit."""
        again = [one for one in programs if one.twice and "again" in self.only.get(one.name, ("again",))]
        for at, program in enumerate(programs):
            self._one(program, programs[at + 1 :])
            if again and program is again[-1]:
                self.results_again(again)

    def _one(self, program: Program, following: list[Program]) -> None:
        later = sum(_needed(one) for one in following)
        if program.data:
            make_data(program.data, self.work / "sources" / program.folder)
        if program.planted or program.name in self.only:
            for name in self.only.get(program.name, ("traced",)):
                self.run(program, name, cupti=program.cupti if name == "alone" else 0)
            return
        if not self.run(program, "alone", cupti=program.cupti):
            return  # a program that does not run by itself tells nothing
        self.run(program, "traced")
        if program.tidy:
            self.run(program, "tidy")
        elif self._fits(later + program.seconds) and program not in ONE_GPU:
            self.run(program, "again", cupti=_SECOND)

    def results_again(self, programs: list[Program]) -> None:
        """Once more by themselves, several at a time on cores of their own: for their results, not for their times."""
        cores = sorted(os.sched_getaffinity(0))
        many = max(len(cores) // _CORES, 1)
        with ThreadPoolExecutor(many) as pool:
            free = [cores[at * _CORES : (at + 1) * _CORES] for at in range(many)]

            def one(program: Program) -> None:
                own = free.pop()
                self.run(program, "again", cores=own)
                free.append(own)

            list(pool.map(one, programs))

    def _left(self) -> float:
        return self._until - (time.monotonic() - self._began) - _ANALYSIS_S

    def _fits(self, seconds: float) -> bool:
        return seconds * (self._took / self._guessed if self._guessed else 1.0) < self._left()

    def run(self, program: Program, name: str, cupti: int = 0, cores: list[int] | None = None) -> bool:
        """One run, under traceops where its name is "traced"; whether it ended well."""
        if not self._fits(program.seconds):
            print(f"{program.name}, {name}: no time left", flush=True)
            return False
        folder = self.folder(program) / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        start = self._start(program, name, folder)
        start = ["taskset", "-c", ",".join(map(str, cores)), *start] if cores else start
        caches = {f"{of}_CACHE_DIR": str(self.work / f"cache_{of}") for of in ("TORCHINDUCTOR", "TRITON")}
        path = [str(_HERE / "site"), os.environ.get("PYTHONPATH", ""), str(ROOT)]
        path += [self.site] if self.site and program.packages else []
        variables = {
            **os.environ, **caches, "PYTHONPATH": os.pathsep.join(part for part in path if part),
            "OBSERVED_CLOCK": str(folder / "clock"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            **({"OBSERVED_CUPTI": str(cupti)} if cupti else {}),
            **({"OBSERVED_ONE": "1"} if program.launcher == "none" else {}),
            **(_one_rank() if name != "traced" and program in ONE_GPU and program.launcher != "none" else {}),
        }  # fmt: skip
        where = self.work / "sources" / program.folder
        where.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with (folder / "out.txt").open("wb") as out:
            code = _watched(start, where, variables, out, min(_LIMIT_S, self._left() + _ANALYSIS_S / 2))
        took = time.monotonic() - began
        if not cores:
            self._took += took
            self._guessed += program.seconds
        (folder / "exit").write_text(str(code))
        truth = read_truth(folder / "clock")
        step = f"{truth.step_ms:.2f} ms a step, CUPTI {truth.cupti_ms} {truth.why}" if truth else "no clock"
        since = time.monotonic() - self._began
        print(f"{since:5.0f} s  {program.name}, {name}: exit {code} after {took:.1f} s, {step}", flush=True)
        return code == 0

    def _start(self, program: Program, name: str, folder: Path) -> list[str]:
        """The command of one run. Programs of one rank start by themselves without a launcher, as their users do."""
        small, one_gpu = str(ROOT / "benchmarks" / "programs" / "small"), str(_HERE / "programs")
        own = [word.replace("{small}", small).replace("{one_gpu}", one_gpu) for word in program.command]
        own += ["--tidy"] if name == "tidy" else []
        if name == "traced":
            out = ["--out", str(folder / "profile"), "--overwrite", *program.options]
            if program.launcher == "none":
                how = ["--launcher", "none", *out, "--", sys.executable]
            else:
                how = ["--nproc", str(self.ranks), *out, "--"]
            return [sys.executable, "-m", "traceops", "run", *how, *own]
        if program in ONE_GPU:
            return [sys.executable, *own]
        alone = ["torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        return [sys.executable, "-m", *alone, *own]

    def analyses(self, programs: list[Program]) -> None:
        """Reports of the runs under traceops, several at a time: nothing is measured any more."""
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(self._analyse, programs))

    def _analyse(self, program: Program) -> None:
        folder = self.folder(program) / "traced"
        if not (folder / "profile" / "run.json").exists():
            return
        command = [sys.executable, "-m", "traceops", "analyze", str(folder / "profile"), "-o", str(folder / "report")]
        path = [os.environ.get("PYTHONPATH", ""), str(ROOT)]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p), "COLUMNS": "140"}
        with (folder / "analyze.txt").open("wb") as out:
            _watched([*command, "--format", "json"], self.work, variables, out, _ANALYSIS_S - 5)

    def result(self, program: Program) -> dict[str, Any]:
        """What the runs of one program show."""
        folder = self.folder(program)
        found: dict[str, Any] = {}
        for one in sorted(folder.glob("*/exit")):
            truth = read_truth(one.parent / "clock")
            beside_others = program.twice and one.parent.name == "again"
            found[one.parent.name] = {
                "exit": int(one.read_text()),
                "clock": None if truth is None or beside_others else truth.to_json(),
                "own": own_words((one.parent / "out.txt").read_text(errors="replace")),
            }
        report = folder / "traced" / "report" / "report.json"
        if report.exists():
            told = json.loads(report.read_text())
            found["traced"]["said"] = {
                "undisturbed": told.get("undisturbed"),
                "typical_ms": (told.get("whole_run") or {}).get("typical_ms"),
                "counted": json.loads((folder / "traced" / "profile" / "run.json").read_text())["steps"],
                "findings": [f"{one['rule']} {one['severity']}: {one['message']}" for one in told["findings"]],
            }
        return found


def _needed(program: Program) -> float:
    """Seconds of a program's first run and the one under traceops."""
    return program.seconds * (1.3 if program.planted else 3.4 if program.tidy else 2.4)


def _one_rank() -> dict[str, str]:
    """What torchrun gives the only rank of a job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    return {**{key: str(value) for key, value in own.items()}, "MASTER_ADDR": "127.0.0.1"}


def _watched(command: list[str], folder: Path, variables: dict[str, str], out: Any, limit_s: float) -> int:
    """Run it; its exit code, 124 where it took too long. Whatever it started ends with it."""
    with subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
    ) as process:
        try:
            return process.wait(max(limit_s, 1.0))
        except subprocess.TimeoutExpired:
            return 124
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    below = descendants({process.pid})
    process.terminate()  # torchrun and traceops end their ranks
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    for pid in descendants(below) & below:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
