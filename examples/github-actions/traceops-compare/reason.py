#!/usr/bin/env python3
"""reason.py FOLDER [LOG]: why nothing was measured, as a code block of Markdown; nothing where that is not known.

FOLDER holds the run folders of `traceops run`, or is one: the last training that failed there is quoted, with the end
of its traceback. LOG has what traceops printed: its own last lines are quoted. Both were written by the training as
well, and end up in a comment: so they are short, without control characters, and indented, which leaves Markdown
nothing to read in them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MOST_LETTERS = 200  # of a line
MOST_LINES = 4  # of a log
MOST_BYTES = 1 << 26  # of a run.json


def main(folder: str, log: str | None = None) -> None:
    lines = [*of_the_training(Path(folder)), *of_traceops(log)]
    for line in dict.fromkeys(lines):  # the log says once more what the run folder does
        clean = "".join(letter if letter.isprintable() else " " for letter in line.expandtabs(4)).rstrip()
        cut = clean if len(clean) <= MOST_LETTERS else clean[: MOST_LETTERS - 2] + " …"
        sys.stdout.buffer.write(f"    {cut}\n".encode(errors="replace"))


def of_the_training(folder: Path) -> list[str]:
    """Which training failed, and what the rank that failed first raised."""
    failed = []
    for file in [folder / "run.json", *sorted(folder.glob("*/run.json"))]:
        run = manifest(file)
        if run.get("status") in ("failed", "hung"):
            started = run.get("started_ns")
            failed.append((started if isinstance(started, int) else 0, str(file.parent), run))
    if not failed:
        return []
    _, place, run = max(failed, key=lambda item: item[:2])
    where = Path(place)
    if run["status"] == "hung":
        return [f"{where.name} hung"]
    rank = run.get("failed_rank")
    if not isinstance(rank, int):
        logs = sorted(where.glob("logs/torchrun.*.log"))
        return [f"{where.name} failed:", *(end_of(read(logs[-1])) if logs else [])]
    error = error_of(run.get("ranks"), rank)
    said = end_of(read(where / "logs" / f"rank_{rank}.stderr.log"))
    known = any(error[:MOST_LETTERS] in line for line in said)
    return [f"{where.name}, rank {rank}:", *said, *([] if known else error.splitlines()[:MOST_LINES])]


def manifest(file: Path) -> dict[str, Any]:
    """A run.json; empty where there is none, or none that is whole."""
    if not file.is_file() or file.stat().st_size > MOST_BYTES:
        return {}
    try:
        run = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return run if isinstance(run, dict) else {}


def error_of(ranks: Any, rank: int) -> str:
    """What run.json says that this rank raised."""
    for own in ranks if isinstance(ranks, list) else ():
        if isinstance(own, dict) and own.get("rank") == rank and isinstance(own.get("error"), str):
            return own["error"]
    return ""


def end_of(text: str) -> list[str]:
    """The end of the last traceback in a log, or of the log."""
    lines = [line for line in text.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if starts:  # warnings of a process that goes down may follow
        after = range(starts[-1] + 1, len(lines))
        end = next((number for number in after if not lines[number].startswith(" ")), len(lines) - 1)
        lines = lines[starts[-1] : end + 1]
    return lines[-MOST_LINES:]


def of_traceops(log: str | None) -> list[str]:
    """Its last lines, and what it found out about a hang; without any, how a program's log ends that broke off."""
    lines = read(Path(log)).splitlines() if log else []
    own = [number for number, line in enumerate(lines) if line.startswith(("traceops: ", "traceops "))]
    found = [number for number, line in enumerate(lines) if line.startswith("✖ ")]
    if not own and not found:
        return end_of("\n".join(lines))
    diagnosis = [lines[number] for first in found[-1:] for number in range(first, min(first + 3, len(lines)))]
    return [*diagnosis, *(lines[number] for number in own[-3:])]


def read(path: Path) -> str:
    """The end of a text file, at most 64 KiB; empty where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 65536, 0))
        return file.read(65536).decode(errors="replace")


if __name__ == "__main__":
    main(*sys.argv[1:])
