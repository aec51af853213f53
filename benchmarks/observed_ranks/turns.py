"""Runs a program several times at once, step by step in turn: twice by itself and once or twice under `traceops run`.

    python -m benchmarks.observed_ranks.turns --work DIR --until S [NAME …]

Two runs one after the other differ by what the machine did meanwhile, and by up to 16 %. Here one job trains for some
steps while the others stand, then the next one (benchmarks/observed/site). What two jobs without traceops differ by is
then what processes differ by. DIR/NAME.JOB/ has what came of a job; `turns_table` reads them.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.observed_ranks.runs import end, start
from benchmarks.records import read_records

_LIMIT_S = 110.0
_ENDED = 255
_BEGUN = 16  # step behind which traceops's light window begins
_MEASURED = 12  # steps that CUPTI measures in a turn, or half of the turn


@dataclass(frozen=True)
class Turn:
    """A program. path: in benchmarks/, or in `source`, a folder with a program of others. seconds: about what all take.

    block: steps of a turn. traced: how many jobs run under traceops; as many as `alone` run without.
    steps: that it makes, where it takes no --steps; {steps} in `options` stands for those of all turns.
    """

    name: str
    path: str
    options: tuple[str, ...] = ()
    ranks: int = 2
    block: int = 24
    rounds: int = 4
    alone: int = 2
    traced: int = 2
    steps: int | None = None
    seconds: float = 50.0
    source: str = ""

    @property
    def total(self) -> int:
        """Steps of all turns, with the first one that all jobs make at once."""
        return 1 + self.block * self.rounds

    def script(self) -> list[str]:
        """The program and its options."""
        path = self.path if self.source else str(ROOT / "benchmarks" / self.path)
        own = [one.replace("{steps}", str(self.total)) for one in self.options]
        told = self.steps is not None or own != list(self.options)
        return [path, *own, *([] if told else ["--steps", str(self.total)])]

    def cupti(self, job: str) -> str:
        """OBSERVED_CUPTI: where later turns end; by itself also where traceops records, if that fits into a turn.

        The first job under traceops has none: its report is the one that is held to the truth.
        """
        if job.startswith("traced0"):
            return ""
        measured = min(_MEASURED, self.block // 2)
        early = [_BEGUN] if job.startswith("alone") and _BEGUN + measured < self.block else []
        late = [1 + self.block * at - measured - 3 for at in range(3, self.rounds + 1)]
        return f"{','.join(map(str, early + late))}:{measured}"

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names: 'alone0', 'traced0', …"""
        return tuple(
            f"{how}{at}"
            for at in range(max(self.alone, self.traced))
            for how, many in (("alone", self.alone), ("traced", self.traced))
            if at < many
        )


RANKS = read_records(Path(__file__).with_name("turns_of_ranks.jsonl"), Turn)
ONE_RANK = read_records(Path(__file__).with_name("turns_of_one.jsonl"), Turn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--until", type=float, default=1e9, metavar="S")
    parser.add_argument("--one-rank", action="store_true", help="the programs of one rank")
    parser.add_argument(
        "--job", action="append", help="alone0, traced0+VAR=VALUE+--option, …: these instead of a program's own"
    )
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    known = {turn.name: turn for turn in (ONE_RANK if args.one_rank else RANKS)}
    for turn in (known[name] for name in args.names) if args.names else known.values():
        left = args.until - (time.monotonic() - began)
        if left < 0.8 * turn.seconds:
            print(f"{turn.name}: no time left", flush=True)
            continue
        codes = in_turn(turn, tuple(args.job or turn.jobs), args.work.resolve(), min(_LIMIT_S, left))
        print(f"{time.monotonic() - began:5.0f} s  {turn.name}: {codes}", flush=True)


def folder_of(turn: Turn, job: str, work: Path) -> Path:
    """Where a job leaves what came of it."""
    return work / ".".join("".join(c if c.isalnum() else "_" for c in one) for one in (turn.name, job))


Started = list[subprocess.Popen[bytes]]
# A job's processes: of a program, in a folder, with more variables, and options of `traceops run` or without it.
Launch = Callable[[Turn, Path, dict[str, str], list[str] | None], Started]


def on_one_gpu(turn: Turn, folder: Path, more: dict[str, str], options: list[str] | None) -> Started:
    """A launcher of its own for each rank."""
    return start(turn.script(), turn.ranks, folder, more, options)


def in_turn(
    turn: Turn, jobs: tuple[str, ...], work: Path, limit_s: float, launch: Launch = on_one_gpu
) -> dict[str, list[int | None]]:
    """Exit codes of each job's ranks, or of their launchers; None where one had to be ended."""
    work.mkdir(parents=True, exist_ok=True)
    shared = folder_of(turn, "turns", work)
    shared.write_bytes(bytes(len(jobs) * turn.ranks))
    started = {}
    for at, job in enumerate(jobs):
        told = f"{shared}:{at}:{len(jobs)}:{turn.ranks}:{turn.block}:{turn.rounds}"
        more = {"OBSERVED_TURNS": told, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        asked = job.split("+")[1:]
        more |= dict(one.split("=", 1) for one in asked if not one.startswith("--"))
        more["OBSERVED_CUPTI"] = turn.cupti(job)
        options = [one for one in asked if one.startswith("--")] if job.startswith("traced") else None
        started[job] = launch(turn, folder_of(turn, job, work), more, options)
    until = time.monotonic() + limit_s
    try:
        while time.monotonic() < until and _running(started, shared, turn.ranks):
            time.sleep(0.2)
        return {job: [one.poll() for one in processes] for job, processes in started.items()}
    finally:
        for processes in started.values():
            for process in processes:
                end(process)


def _running(started: dict[str, Started], shared: Path, ranks: int) -> bool:
    """Whether any job runs; nobody waits any more for one that has ended."""
    left = False
    for at, processes in enumerate(started.values()):
        if all(one.poll() is not None for one in processes):
            with shared.open("r+b") as file:
                file.seek(at * ranks)
                file.write(bytes([_ENDED] * ranks))
        else:
            left = True
    return left


if __name__ == "__main__":
    main()
