"""Scores what `traceops analyze` says of the recorded traces, against what is true of them.

    python -m benchmarks.gpu_traces.score FOLDER [--half worked|aside] [--only NAME,…] > table.md

FOLDER has traces/NAME/ and truths.jsonl. What was printed, and report.json, are kept in FOLDER/said/NAME. Exits 1 where
anything is wrong. Patterns check what is printed; each sentence was read by eye too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from benchmarks.field.score import LIMIT_S, verdict
from benchmarks.gpu_traces.truth import EXPECTED, Expected

Outcome = Literal["right", "abstains", "wrong"]


def said_of(name: str, folder: Path) -> str:
    """What is printed of one trace, or of the folder where a program wrote several."""
    files = sorted((folder / "traces" / name).glob("*.json*"))
    target = files[0] if len(files) == 1 else folder / "traces" / name
    out = folder / "said" / name
    done = subprocess.run(
        [sys.executable, "-m", "traceops", "analyze", str(target), "-o", str(out), "-v", "--format", "json"],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "TRACEOPS_CACHE": "off", "NO_COLOR": "1", "COLUMNS": "160"},
    )  # fmt: skip
    said = f"{done.stdout}\n{done.stderr}".replace(str(target.parent) + os.sep, "")
    out.mkdir(parents=True, exist_ok=True)
    (out / "said.txt").write_text(said)
    return said


def outcome(expected: Expected, said: str) -> tuple[Outcome, str]:
    """Right, abstaining, or wrong and why."""
    printed = " ".join(said.split())
    if "Traceback (most recent call last)" in said:
        return "wrong", "it fails"
    if (found := re.search(expected.never, printed)) is not None:
        return "wrong", f"it says {found[0]!r}"
    judged = verdict(said)
    if re.search(expected.abstains, judged.partition("where the ")[0]) is not None:
        return "abstains", ""
    if re.search(expected.right, judged) is not None:
        return "right", ""
    return "wrong", "it says something else"


def measured(truth: dict[str, Any]) -> str:
    """'12.3 ms, GPU 11.9 (97 %); cured 4.5': what was measured without a profiler."""
    step = truth.get("step_ms")
    if step is None:
        return "–"
    cured = truth.get("cured", {})
    gpu = truth.get("gpu_ms") or cured.get("gpu_ms")
    told = f"{step:.1f} ms"
    told += f", GPU {gpu:.1f}" if gpu else ""
    return told + (f"; cured {cured['step_ms']:.1f}" if cured else "")


def main() -> int:
    """The table, and how many of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("worked", "aside"))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    lines = (options.folder / "truths.jsonl").read_text().splitlines()
    truths = {told["name"]: told for told in map(json.loads, lines)}
    made = {path.name for path in (options.folder / "traces").iterdir() if path.is_dir()}
    outcomes: Counter[str] = Counter()
    print("| trace | true | measured without a profiler | said | |\n|---|---|---|---|---|")
    for expected in EXPECTED:
        name = expected.name
        chosen = options.half in (None, "aside" if expected.aside else "worked")
        if name not in made or not chosen or (options.only and name not in options.only.split(",")):
            continue
        said = said_of(name, options.folder)
        judged, why = outcome(expected, said)
        outcomes[judged] += 1
        mark = f"**wrong**: {why}" if judged == "wrong" else judged
        cells = (name, expected.truth, measured(truths.get(name, {})), verdict(said)[:150], mark)
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |", flush=True)
    print(f"\n{sum(outcomes.values())} traces: {dict(outcomes)}")
    return 1 if outcomes["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
