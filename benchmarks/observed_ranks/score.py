"""Holds what `traceops analyze` says of the runs of run.sh to what is true of them.

    python -m benchmarks.observed_ranks.score FOLDER [--aside | --all | --pairs] [--read]      # FOLDER has NAME.HOW/

A row of each: the step and its shares as CUPTI alone saw them and as they are said, what is said first, what is false
or missing. Sentences were read by eye too. --read: the reports are there. --pairs: the troubles of two_gpus.on_pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.observed.table import row
from benchmarks.observed.truth import read_truth
from benchmarks.observed_ranks.truth import RUNS, Run, aside
from benchmarks.two_gpus.on_pairs_registry import TROUBLES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--aside", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--read", action="store_true")
    args = parser.parse_args()
    later = aside()
    runs = [
        run
        for run in (TROUBLES if args.pairs else RUNS)
        if (args.all or args.pairs or (run.name in later) == args.aside)
        and (args.folder / f"{run.name}.traced/profile/run.json").exists()
    ]
    if not args.read:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda run: analyse(run, args.folder), runs))
    for run in runs:
        print(row(run.name, result(run, args.folder)))
    print()
    wrong = 0
    for run in runs:
        text = " ".join((args.folder / "said" / f"{run.name}.txt").read_text().split())
        found = text[match.start() :] if (match := re.search(r"[✖▲●✔]", text)) else text
        false = run.never and re.search(run.never, found)
        missed = [due for due in run.due if not re.search(due, found)]
        wrong += bool(false or missed)
        mark = f"**says {false[0]!r}**" if false else f"**misses {missed}**" if missed else "right"
        print(f"| {run.name} | {run.truth} | {cost(run, args.folder)} | {found[:160]} | {mark} |")
    print(f"{wrong} of {len(runs)} wrong by pattern")


def analyse(run: Run, folder: Path) -> None:
    said = folder / "said"
    said.mkdir(exist_ok=True)
    command = ["-m", "traceops", "analyze", str(folder / f"{run.name}.traced/profile"), "-o", str(said / run.name)]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False,
        env={**os.environ, "TRACEOPS_CACHE": "off", "NO_COLOR": "1", "COLUMNS": "160"},
    )  # fmt: skip
    (said / f"{run.name}.txt").write_text(done.stdout + done.stderr)


def result(run: Run, folder: Path) -> dict[str, Any]:
    """As benchmarks.observed.table wants it."""
    found: dict[str, Any] = {}
    for how, where in (("alone", run.plain or run.name), ("again", run.plain or run.name), ("traced", run.name)):
        truth = read_truth(folder / f"{where}.{how}" / "clock")
        found[how] = {"clock": truth.to_json() if truth else None}
    report = folder / "said" / run.name / "report.json"
    if report.exists():
        told = json.loads(report.read_text())
        found["traced"]["said"] = {
            "undisturbed": told.get("undisturbed"),
            "typical_ms": (told.get("whole_run") or {}).get("typical_ms"),
            "findings": [f"{one['rule']} {one['severity']}: {one['message']}" for one in told["findings"]],
        }
    return found


def cost(run: Run, folder: Path) -> str:
    """Mean steps without a recording: of the program without troubles by itself, and of this run."""
    told = [_steps(folder / f"{run.plain or run.name}.alone"), _steps(folder / f"{run.name}.traced")]
    return " → ".join(f"{statistics.median(one):.1f} (mean {statistics.mean(one):.1f})" if one else "?" for one in told)


def _steps(folder: Path) -> list[float]:
    """Of rank 0, by our clock: from the fourth on, without steps 8 to 27, in which something may record."""
    path = folder / "clock" / "rank_0.json"
    if not path.exists():
        return []
    told = json.loads(path.read_text())
    steps = told["device_ms"] or told["host_ms"]
    return [ms for at, ms in enumerate(steps, 2) if at >= 4 and not 8 <= at <= 27]


if __name__ == "__main__":
    main()
