"""Trains every strategy under the profiler, analyses it, and prints a row each: what the README's table comes from.

python benchmarks/strategies.py --nproc 4 --out /tmp/strategies -- --layers 4 --dim 512
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from traceops.train.strategies import NAMES

COLUMNS = ("compute", "comm_transfer", "comm_wait", "idle_host", "idle_input", "idle_sync", "idle_dependency")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("profile"))
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("options", nargs="*", help="passed on to traceops run")
    args = parser.parse_args()
    print(
        "| strategy | step ms | unprofiled ms | overlap % | "
        + " | ".join(COLUMNS)
        + " | matched % | findings |"
    )
    print("|---" * (len(COLUMNS) + 6) + "|")
    failed = []
    for strategy in args.only:
        folder = args.out / strategy
        command = [
            "run",
            "--strategy",
            strategy,
            "--nproc",
            str(args.nproc),
            "--out",
            str(folder),
            "--overwrite",
        ]
        report = folder / "report"
        code = _traceops([*command, *args.options]) or _traceops(
            ["analyze", str(folder), "-o", str(report), "--format", "json", "-q"]
        )
        if code:
            failed.append(strategy)
            print(f"| {strategy} | failed with {code} |", flush=True)
        else:
            print(_row(strategy, json.loads((report / "report.json").read_text())), flush=True)
    return int(bool(failed))


def _traceops(command: list[str]) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "traceops", *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
    return done.returncode


def _row(strategy: str, report: dict[str, Any]) -> str:
    summary = report["summary"]
    cells = [
        strategy,
        _number(summary["step_time_ms"]["median"]),
        _number(summary["unprofiled_step_time_ms"]),
        _number(summary["overlap_pct"]),
        *(_number(summary["ledger_ms"][column]) for column in COLUMNS),
        _number(summary["matching"]["matched_pct"]),
        ", ".join(f"{f['rule']} {f['severity']}" for f in report["findings"]) or "none",
    ]
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
