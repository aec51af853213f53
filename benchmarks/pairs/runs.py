"""Runs the programs of cases.py: `python -m benchmarks.pairs.runs --work DIR [--sample N] [NAME…]`.

Alone (`--alone`, without traceops), each runs with all its troubles, without each one of them, and with none, and
times itself (programs/site).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

from benchmarks.observed_ranks.runs import free_port
from benchmarks.pairs.cases import CASES, Case, Trouble, Way

_HERE = Path(__file__).resolve().parent
_ELSEWHERE = ("ddp_comm_hook", "multi_process_metrics")
"""huggingface/accelerate@16cb6eb:examples/by_feature, with a model, data and a metric of these names in DIR/data."""
_STRANGER = "stranger:"
"""So many busy processes of another program, beside the ranks."""


def _script(case: Case, chosen: tuple[Trouble, ...], work: Path, out: Path) -> list[str]:
    more = [option for trouble in chosen for option in trouble.options]
    if case.program in _ELSEWHERE:
        return [str(work / "ext" / f"{case.program}.py"), "--cpu", *case.options, *more]
    own = ["--out", str(out / "hf")] if case.program == "hf" else []
    given = ["--steps", str(case.steps), *own, *case.options, *more]
    return [str(_HERE / "programs" / f"{case.program}.py"), *given]


def _torchrun(ranks: int, script: list[str]) -> list[str]:
    port = str(free_port())
    return [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}",
        *script,
    ]  # fmt: skip


def _commands(case: Case, chosen: tuple[Trouble, ...], work: Path, out: Path, *, alone: bool) -> list[list[str]]:
    script, profile = _script(case, chosen, work, out), out / "profile"
    traceops = [sys.executable, "-m", "traceops", "run", "--out", str(profile)]
    if case.program.startswith("lit"):
        if alone:
            return [[sys.executable, *script]]
        if case.way == Way.OWN:
            return [[sys.executable, *script, "--profile", str(profile)]]
        return [[*traceops, "--launcher", "lightning", "--", *script]]
    if alone:
        return [_torchrun(case.ranks, script)]
    if case.way == Way.RESTART:
        meet = ["--max-restarts=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
        started = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={case.ranks}", *meet, *script]
        return [[*traceops, "--launcher", "none", "--", *started]]
    if case.way == Way.TWO_JOBS:
        tidy = _script(case, (), work, out)
        return [_torchrun(case.ranks, [*one, "--profile", str(profile)]) for one in (script, tidy)]
    if case.way in (Way.SCHEDULE, Way.WINDOW):
        own = ["--profile", str(profile), *(["--plain"] if case.way == Way.WINDOW else [])]
        return [_torchrun(case.ranks, [*script, *own])]
    if case.way == Way.TWO_NODES:
        meet = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        return [[*traceops, *meet, "--node-rank", str(n), "--nproc", "1", "--", *script] for n in range(2)]
    assert case.way == Way.RUN
    hang = ["--hang-timeout", "10"] if any("hang" in one.plant or "stuck" in one.plant for one in chosen) else []
    return [[*traceops, "--nproc", str(case.ranks), *hang, "--", *script]]


def run(case: Case, chosen: tuple[Trouble, ...], work: Path, out: Path, *, alone: bool) -> list[int]:
    """Exit codes of the launchers; what they print is in out.txt."""
    out.mkdir(parents=True, exist_ok=True)
    planted = [trouble.plant for trouble in chosen if trouble.plant]
    plants = ",".join(plant for plant in planted if not plant.startswith(_STRANGER))
    environment = dict(os.environ, PAIRS_CLOCK=str(out / "clock"), PAIRS_PLANT=plants)
    if case.program.startswith("lit"):
        environment["PYTHONUNBUFFERED"] = "1"
    folder = work / "data" if case.program in _ELSEWHERE else out
    codes = []
    strangers = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for plant in planted
        if plant.startswith(_STRANGER)
        for _ in range(int(plant.split(":")[1]))
    ]
    with (out / "out.txt").open("w") as told:
        commands = _commands(case, chosen, work, out, alone=alone)
        started = [
            subprocess.Popen(
                command, cwd=folder,
                env=dict(environment, PAIRS_PLANT="") if case.way == Way.TWO_JOBS and number else environment,
                stdout=told, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )
            for number, command in enumerate(commands)
        ]  # fmt: skip
        for one in started:
            try:
                codes.append(one.wait(150))
            except subprocess.TimeoutExpired:
                one.terminate()
                codes.append(one.wait())
    for stranger in strangers:
        stranger.kill()
        stranger.wait()
    return codes


def steps_of(out: Path) -> dict[str, tuple[int, float, float]]:
    """Of each rank: how many steps, their median and mean in ms from the fourth on."""
    told = {}
    for file in sorted((out / "clock").glob("[0-9]*.json")):
        ends = json.loads(file.read_text())["steps"][3:]
        lengths = [(b - a) * 1e3 for a, b in pairwise(ends)]
        if len(lengths) > 3:
            told[file.name.split(".")[0]] = (len(ends) + 3, statistics.median(lengths), statistics.fmean(lengths))
    return told


def _cured(case: Case, trouble: Trouble) -> str:
    option = trouble.options[0]
    value = case.options[case.options.index(option) + 1] if option in case.options else "0"
    return f"{option[2:].replace('-', '_')}={value}"


def run_phases(case: Case, work: Path) -> dict[str, tuple[float, float]]:
    """Median and mean step in ms of rank 0 with none, the first, the second trouble and both, in one process."""
    out, many = work / "phases" / case.name, 2 ** len(case.troubles)
    os.environ["PAIRS_PHASES"] = ";".join(_cured(case, trouble) for trouble in case.troubles)
    run(replace(case, steps=20 * many), case.troubles, work, out, alone=True)
    ends = json.loads((out / "clock" / "costs.0.json").read_text())["ends"]
    told = {}
    for phase, name in enumerate((*("none", "first", "second")[: many - 1], "all")):
        lengths = [(b - a) * 1e3 for a, b in pairwise(ends[20 * phase + 3 : 20 * phase + 20])]
        told[name] = (round(statistics.median(lengths), 1), round(statistics.fmean(lengths), 1))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--sample", type=int, default=1, choices=range(1, 6))
    parser.add_argument("--phases", action="store_true", help="with --alone: all combinations in one process (third)")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    for case in CASES:
        if case.sample != given.sample or (given.names and case.name not in given.names):
            continue
        if not given.alone:
            out = given.work / "runs" / case.name
            print(case.name, run(case, case.troubles, given.work, out, alone=False), steps_of(out), flush=True)
            continue
        if given.phases:
            print(case.name, json.dumps(run_phases(case, given.work)), flush=True)
            continue
        for many in range(len(case.troubles) + 1):
            for chosen in combinations(case.troubles, many):
                if any(one.ends for one in chosen):
                    continue
                tag = "+".join(str(case.troubles.index(one)) for one in chosen) or "none"
                out = given.work / "alone" / case.name / tag
                codes = run(case, chosen, given.work, out, alone=True)
                print(case.name, tag, codes, steps_of(out), flush=True)


if __name__ == "__main__":
    main()
