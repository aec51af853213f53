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
_STRANGER = "stranger:"
"""So many busy processes of another program, beside the ranks."""


def _command(case: Case, chosen: tuple[Trouble, ...], out: Path, *, alone: bool) -> list[str]:
    """What starts the program with the troubles, by itself or recorded in the case's way."""
    more = [option for trouble in chosen for option in trouble.options]
    script = [str(_HERE / "programs" / f"{case.program}.py"), "--steps", str(case.steps), *case.options, *more]
    traceops = [sys.executable, "-m", "traceops", "run", "--out", str(out / "profile")]
    if case.program.startswith("lit"):
        return [sys.executable, *script] if alone else [*traceops, "--launcher", "lightning", "--", *script]
    if case.way == Way.RUN and not alone:
        return [*traceops, "--nproc", str(case.ranks), "--", *script]
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={case.ranks}", f"--master-port={free_port()}"]
    own = [] if alone else ["--profile", str(out / "profile"), *(["--plain"] if case.way == Way.WINDOW else [])]
    return [sys.executable, *launch, *script, *own]


def run(case: Case, chosen: tuple[Trouble, ...], out: Path, *, alone: bool) -> int:
    """Exit code of the launcher; what it prints is in out.txt."""
    out.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, PAIRS_CLOCK=str(out / "clock"))
    if case.program.startswith("lit"):
        environment["PYTHONUNBUFFERED"] = "1"
    strangers = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for trouble in chosen
        if trouble.plant.startswith(_STRANGER)
        for _ in range(int(trouble.plant.split(":")[1]))
    ]
    with (out / "out.txt").open("w") as printed:
        started = subprocess.Popen(
            _command(case, chosen, out, alone=alone), cwd=out, env=environment,
            stdout=printed, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            code = started.wait(150)
        except subprocess.TimeoutExpired:
            started.terminate()
            code = started.wait()
    for stranger in strangers:
        stranger.kill()
        stranger.wait()
    return code


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
    run(replace(case, steps=20 * many), case.troubles, out, alone=True)
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
    parser.add_argument("--sample", type=int, default=4, choices=(4, 5))
    parser.add_argument("--phases", action="store_true", help="with --alone: all combinations in one process (third)")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    for case in CASES:
        if case.sample != given.sample or (given.names and case.name not in given.names):
            continue
        if not given.alone:
            out = given.work / "runs" / case.name
            print(case.name, run(case, case.troubles, out, alone=False), steps_of(out), flush=True)
            continue
        if given.phases:
            print(case.name, json.dumps(run_phases(case, given.work)), flush=True)
            continue
        for many in range(len(case.troubles) + 1):
            for chosen in combinations(case.troubles, many):
                tag = "+".join(str(case.troubles.index(one)) for one in chosen) or "none"
                out = given.work / "alone" / case.name / tag
                code = run(case, chosen, out, alone=True)
                print(case.name, tag, code, steps_of(out), flush=True)


if __name__ == "__main__":
    main()
