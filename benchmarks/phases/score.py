"""Run the programs with phases under traceops, and score what it says of their rounds against their own clocks.

python -m benchmarks.phases.score run cpu|gpu OUT [CASE ...]
python -m benchmarks.phases.score read OUT [CASE ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ROOT
from benchmarks.phases.cases import LEAST_PCT, PART, POINTS, PROGRAMS, cases, rounds_of, set_aside

_AT_ONCE = {"cpu": 1, "gpu": 3}
_PROCESSES = {"cpu": 2, "gpu": 1}
_LIMIT_S = 120
RULE = "TO-W004"


def run_case(case: str, out: Path) -> None:
    """The program under `traceops run`, its folder in OUT/<case>, with its own clock's file beside."""
    program, device = case.rsplit(".", 1)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PHASES_TRUTH": str(out / f"{case}.truth"),
    }
    if device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    command = [
        sys.executable, "-m", "traceops", "run", "--name", case, "--out", str(out / case), "--nproc",
        str(_PROCESSES[device]), "--", str(PROGRAMS / f"{program}.py"),
    ]  # fmt: skip
    began = time.monotonic()
    with (out / f"{case}.log").open("w") as log:
        try:
            subprocess.run(command, env=environ, stdout=log, stderr=subprocess.STDOUT, timeout=_LIMIT_S, cwd=ROOT)
        except subprocess.TimeoutExpired:
            log.write("\ntimeout\n")
    print(f"{case}: {time.monotonic() - began:.1f} s", flush=True)


def analyze(case: str, out: Path) -> dict[str, Any]:
    folder = out / f"{case}.report"
    command = [sys.executable, "-m", "traceops", "analyze", str(out / case), "-o", str(folder)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, cwd=ROOT)
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
            said = [one["pct"] for one in claim["phases"] if _inside(one, truths[0]["lines"][name])]
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
    action, *rest = sys.argv[1:]
    if action == "run":
        device, out, *names = rest
        folder = Path(out).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        chosen = [case for case in cases() if case.endswith(f".{device}") and (not names or case in names)]
        with ThreadPoolExecutor(_AT_ONCE[device]) as pool:
            list(pool.map(lambda case: run_case(case, folder), chosen))
        return
    out, *names = rest
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
