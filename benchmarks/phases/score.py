"""Run the programs with phases under traceops, and score what it says of their rounds against their own clocks.

python -m benchmarks.phases.score run cpu|gpu OUT [--budget SECONDS] [CASE ...]
python -m benchmarks.phases.score read OUT [CASE ...]

`run` leaves one file, OUT/phases.tar.xz; unpack it for `read`. It starts no case that the budget has no time for, and
stops those that run when it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ROOT
from benchmarks.phases.cases import LEAST_PCT, PART, POINTS, PROGRAMS, cases, rounds_of, set_aside

_MOST_AT_ONCE = 3
_PROCESSES = {"cpu": 2, "gpu": 1}
_SECONDS = {"cpu": "20", "gpu": "17"}
_ALONE = "curriculum"  # what others do meanwhile would end its stages, and begin others
_LIMIT_S = 120
_LEAST_S = 45  # a case that has less time left does not start
_STOPPING_S = 6
_PACKING_S = 12
_PACKED_BYTES = 13_500_000
_PATH = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep)
RULE = "TO-W004"


def run_case(case: str, out: Path, ends: float) -> None:
    """The program under `traceops run`, its folder in OUT/<case>, with its own clock's file beside."""
    program, device = case.rsplit(".", 1)
    environ = {**os.environ, "PYTHONPATH": _PATH, "OMP_NUM_THREADS": "1", "PHASES_TRUTH": str(out / f"{case}.truth")}
    environ.setdefault("PHASES_SECONDS", _SECONDS[device])
    if device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    command = [
        sys.executable, "-m", "traceops", "run", "--name", case, "--out", str(out / case), "--nproc",
        str(_PROCESSES[device]), "--", str(PROGRAMS / f"{program}.py"),
    ]  # fmt: skip
    began = time.monotonic()
    if ends - began < _LEAST_S:
        print(f"{case}: no time left", flush=True)
        return
    with (out / f"{case}.log").open("w") as log:
        job = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        try:
            end = f"exit code {job.wait(min(_LIMIT_S, ends - began))}"
        except subprocess.TimeoutExpired:
            end = "stopped: out of time"
            for ask in (job.terminate, job.kill):  # terminated, the launcher ends its workers too
                ask()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(_STOPPING_S)
                    break
    print(f"{case}: {time.monotonic() - began:.1f} s, {end}", flush=True)


def run_cases(names: list[str], out: Path, ends: float, at_once: int) -> None:
    """Run these and pack what they wrote; the largest files stay out where all of it would be too much."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        alone = [case for case in names if case.startswith(_ALONE)]
        for own, most in (alone, 1), ([case for case in names if case not in alone], at_once):
            with ThreadPoolExecutor(most) as pool:
                list(pool.map(lambda case: run_case(case, folder, ends - _PACKING_S - _STOPPING_S), own))
        out.mkdir(parents=True, exist_ok=True)
        left = _PACKED_BYTES
        with tarfile.open(out / "phases.tar.xz", "w:xz", preset=1) as packed:
            files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
            for path in sorted(files, key=lambda one: one.stat().st_size):
                left -= path.stat().st_size
                if left < 0:
                    print(f"left out: {path.relative_to(folder)}, {path.stat().st_size / 1e6:.1f} MB", flush=True)
                    continue
                packed.add(path, str(path.relative_to(folder)))
    print(f"{out / 'phases.tar.xz'}: {(out / 'phases.tar.xz').stat().st_size / 1e6:.2f} MB", flush=True)


def by_turns() -> list[str]:
    """All cases, one set aside and one worked on in turn, so that a budget that ends early leaves some of both."""
    every = cases()
    half = len(every) // 2
    return [case for pair in zip(every[:half], every[half:], strict=True) for case in pair]


def analyze(case: str, out: Path) -> dict[str, Any]:
    folder = out / f"{case}.report"
    command = [sys.executable, "-m", "traceops", "analyze", str(out / case), "-o", str(folder)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": _PATH}, capture_output=True, cwd=ROOT)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def wrong(case: str, report: dict[str, Any], truths: list[dict[str, Any]]) -> list[str]:
    """What is missing or false of a case; nothing where it is right. truths: of its ranks, whose shares may differ."""
    claims = [finding["facts"] for finding in report["findings"] if finding["rule"] == RULE]
    if not claims:
        return [f"no {RULE}"]
    claim = claims[0]
    found = []
    if claim["round_steps"] not in rounds_of(case):
        found.append(f"a round of {claim['round_steps']} steps, not {sorted(rounds_of(case))}")
    stages = [one["pct"] for one in claim.get("stages") or ()]
    of_ranks = [true_shares(truth) for truth in truths]
    for number, name in enumerate(truths[0]["lines"]):
        least, most = (choose(own[name] for own in of_ranks) for choose in (min, max))
        if least < LEAST_PCT:
            continue
        if name.startswith("stage "):
            said = stages[number : number + 1]
        else:
            said = [one["pct"] for one in claim.get("phases") or () if _inside(one, truths[0]["lines"][name])]
        if not said:
            found.append(f"{name} ({least:.0f} to {most:.0f} %) is not named")
        elif not least - max(POINTS, PART * least) <= sum(said) <= most + max(POINTS, PART * most):
            found.append(f"{name}: {sum(said):.0f} %, not {least:.0f} to {most:.0f} %")
    return found


def true_shares(truth: dict[str, Any]) -> dict[str, float]:
    """Percent of the time that each phase takes: of the median round, or of all of them where stages follow each other.

    The first rounds warm up, and those in which the profiler is at work take longer: the median leaves both out.
    """
    names = list(truth["lines"])
    if names[0].startswith("stage "):
        own = {name: [spent[name] for spent in truth["phases_s"] if name in spent] for name in names}
        whole = {name: median(times) * len(times) for name, times in own.items()}
        return {name: 100 * took / sum(whole.values()) for name, took in whole.items()}
    rows = list(zip(truth["phases_s"], truth["rounds_s"], strict=True))
    return {name: 100 * median(spent.get(name, 0.0) / took for spent, took in rows) for name in names}


def _inside(phase: dict[str, Any], lines: list[list[Any]]) -> bool:
    return any(
        Path(phase["place"]["file"]).name == file and first <= phase["place"]["line"] <= last
        for file, first, last in lines
    )


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "read"))
    parser.add_argument("rest", nargs="+", metavar="[cpu|gpu] OUT [CASE ...]")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="230 on a GPU, 3,600 on the CPU")
    args = parser.parse_intermixed_args()
    if args.action == "run":
        device, out, *names = args.rest
        chosen = [case for case in by_turns() if case.endswith(f".{device}") and (not names or case in names)]
        ends = began + (args.budget or {"cpu": 3600.0, "gpu": 230.0}[device])
        at_once = min(_MOST_AT_ONCE, len(os.sched_getaffinity(0)) // _PROCESSES[device])
        run_cases(chosen, Path(out).resolve(), ends, max(at_once, 1))
        return
    out, *names = args.rest
    folder, right, read = Path(out).resolve(), 0, 0
    for case in cases():
        truths = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{case}.truth.*.json"))]
        if not truths or (names and case not in names):
            continue
        reasons = wrong(case, analyze(case, folder), truths)
        read, right = read + 1, right + (not reasons)
        print(f"{case:18} {'set aside' if case in set_aside() else '':10} {'; '.join(reasons) or 'right'}")
    print(f"{right} of {read} right")


if __name__ == "__main__":
    main()
