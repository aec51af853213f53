"""Scores what traceops says of public inputs (inputs.py): right, abstaining or wrong.

    python -m benchmarks.field.score FOLDER [--fetch] [--only NAME,…] [--wave N] [--pandas] > table.md

FOLDER/NAME/ has the files of each input. --fetch brings those of repositories that are missing from
raw.githubusercontent.com; the text of an issue is saved by hand. --pandas also compares the steps of each trace with
pandas_ledger.py. Exits 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.field.inputs import INPUTS, Input

Outcome = Literal["right", "abstains", "wrong", "not at hand"]
LIMIT_S = 120
_RAW = "https://raw.githubusercontent.com"
_MARKS = "✖▲●✔"
_SHOWN = 150


@dataclass(frozen=True)
class Scored:
    """What was said of one input. said: the verdict in short; why: what makes it wrong; named: whether the first
    sentence names the root, None where that is not judged."""

    input: Input
    outcome: Outcome
    said: str = ""
    why: str = ""
    named: bool | None = None


def score(one: Input, output: str) -> Scored:
    """Judge what a command printed, output and errors together."""
    text = " ".join(output.split())
    said = verdict(output)
    judged = text if one.command in ("doctor", "memory") else said
    if "Traceback (most recent call last)" in output and "this is a mistake in traceops" in output:
        return Scored(one, "wrong", said, "it fails")
    if one.never and (found := re.search(one.never, text)) is not None:
        return Scored(one, "wrong", said, f"it says {found[0]!r}")
    if one.right and re.search(one.right, judged) is not None:
        return Scored(one, "right", said)
    if one.abstains and re.search(one.abstains, judged) is not None:
        return Scored(one, "abstains", said)
    return Scored(one, "wrong", said, "it says something else")


def verdict(output: str) -> str:
    """The findings of a report from its first mark on; of one that was refused, the error."""
    lines = output.splitlines()
    first = next((i for i, line in enumerate(lines) if line[:1] and line[:1] in _MARKS), 0)
    return " ".join(" ".join(lines[first:]).split())


def first_sentence(said: str) -> str:
    """The verdict without what stands behind its first finding, or behind its line on what cannot be told."""
    return re.split(r"\[TO-|Read:|Not evaluated:|→", said, maxsplit=1)[0]


def files_of(one: Input, folder: Path, fetch: bool) -> list[Path] | None:
    """Its files by name; None where some are missing, or are not those that were judged."""
    paths = [folder / one.name / Path(path).name for path in one.paths]
    if fetch and "#" not in one.origin:
        repo, _, commit = one.origin.partition("@")
        for path, name in zip(paths, one.paths, strict=True):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with urllib.request.urlopen(f"{_RAW}/{repo}/{commit}/{name}", timeout=LIMIT_S) as answer:
                    path.write_bytes(answer.read())
    paths.sort()
    if not all(path.is_file() for path in paths):
        return None
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
    return paths if digest == one.sha256 else None


def run(one: Input, files: Sequence[Path], reports: Path) -> str:
    """What the command prints, as a user has it."""
    target = files[0] if len(files) == 1 else files[0].parent
    command = ["doctor", "--from"] if one.command == "doctor" else [one.command]
    report = [] if one.command == "memory" else ["-o", str(reports / one.name), "--format", "json"]
    arguments = [*command, str(target), *report, *(["-v"] if one.command == "analyze" else [])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "traceops", *arguments],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env={**os.environ, "TRACEOPS_CACHE": "off", "NO_COLOR": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it took more than {LIMIT_S} s"
    return f"{done.stdout}\n{done.stderr}".replace(str(files[0].parent) + os.sep, "")


def markdown(scored: Iterable[Scored]) -> str:
    """The table, and how many of each outcome by kind."""
    rows = list(scored)
    lines = ["| kind | input | true | said | |", "|---|---|---|---|---|"]
    for row in rows:
        where = f"{row.input.name}: {row.input.origin.partition('@')[0]}"
        outcome = f"**wrong**: {row.why}" if row.outcome == "wrong" else row.outcome
        outcome += " (root not named)" if row.named is False else ""
        cells = [row.input.kind, where, row.input.truth, _short(row.said), outcome]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", *totals(rows)])


def totals(rows: Sequence[Scored]) -> list[str]:
    """'161 inputs of 18 kinds: …', of all, of the halves that were set aside, and of those found later."""
    told = []
    waves = sorted({row.input.wave for row in rows})
    parts_of = [("All", rows), ("Set aside", [row for row in rows if row.input.held])]
    parts_of += [(f"Wave {wave}", [row for row in rows if row.input.wave == wave]) for wave in waves]
    for name, some in parts_of:
        count = Counter(row.outcome for row in some)
        parts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
        told.append(f"{name}: {len(some)} inputs of {len({row.input.kind for row in some})} kinds: {parts}.")
    judged = [row for row in rows if row.named is not None]
    if judged:
        told.append(f"The first sentence names the root: {sum(map(_named, judged))} of {len(judged)}.")
    return told


def _named(row: Scored) -> bool:
    return row.named is True


def _short(said: str) -> str:
    said = re.sub(r"\s*(→|Not evaluated:|Read:|Report:|where a step goes).*", "", said)
    said = re.sub(r"(?<=\s)/\S*/", "", said)  # folders of whoever runs this
    return said if len(said) <= _SHOWN else said[:_SHOWN].rstrip() + " …"


def differences(one: Input, files: Sequence[Path], reports: Path) -> tuple[int, int]:
    """(Steps compared with pandas, steps that differ by a microsecond or more) of a trace with GPU activity."""
    from benchmarks.field.pandas_ledger import differing_steps

    report = reports / one.name / "report.json"
    if one.command != "analyze" or not report.is_file():
        return 0, 0
    return differing_steps(json.loads(report.read_bytes()), files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--wave", type=int, default=0, help="only the inputs of that wave")
    parser.add_argument("--pandas", action="store_true")
    args = parser.parse_args()
    wanted = [one for one in INPUTS if not args.only or one.name in args.only.split(",")]
    wanted = [one for one in wanted if args.wave in (0, one.wave)]
    scored: list[Scored] = []
    compared = differing = traces = 0
    with tempfile.TemporaryDirectory() as reports:
        for one in wanted:
            files = files_of(one, args.folder, args.fetch)
            if files is None:
                scored.append(Scored(one, "not at hand"))
                continue
            output = run(one, files, Path(reports))
            named = re.search(one.root, first_sentence(verdict(output))) is not None if one.root else None
            scored.append(replace(score(one, output), named=named))
            if args.pandas:
                steps, unlike = differences(one, files, Path(reports))
                traces, compared, differing = traces + (steps > 0), compared + steps, differing + unlike
    print(markdown(scored))
    if args.pandas:
        print(f"\nSteps held against pandas: {compared} of {traces} inputs; {differing} differ by a microsecond.")
    return 1 if any(row.outcome == "wrong" for row in scored) or differing else 0


if __name__ == "__main__":
    sys.exit(main())
