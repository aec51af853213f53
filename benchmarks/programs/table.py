"""The table of RESULTS.md from the results of runs.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.programs.registry import CUDA_PROGRAMS, PROGRAMS, Program

_HEAD = (
    "| program | from | steps: its own, ours | matched | result | first finding | planted | told first |\n"
    "|---|---|---|---:|---|---|---|---|\n"
)


def write_table(results: Mapping[str, Any], *, cuda: bool = False) -> str:
    """Markdown: the programs that were looked at while the faults were mended, then those that were set aside."""
    programs = CUDA_PROGRAMS if cuda else PROGRAMS
    parts = []
    for aside in (False, True):
        rows = [_row(p, results[p.name]["now"]) for p in programs if p.aside == aside and p.name in results]
        if rows:
            parts.append(("Set aside:\n\n" if aside else "") + _HEAD + "".join(rows))
    return "\n".join(parts)


def right(program: Program, row: Mapping[str, Any]) -> bool:
    """Whether steps are exact on all ranks, all are traced and matched, and the result is unchanged."""
    steps = row.get("steps") or []
    exact = bool(steps) and all(own == row.get("steps_own") for own in steps)
    whole = len(steps) == program.ranks == row.get("traced")
    matched = not program.groups or (row.get("matched") or 0) >= 99
    return exact and whole and matched and row.get("same", True) and row.get("exit") == 0


def named(program: Program, row: Mapping[str, Any]) -> bool:
    """Whether the first finding is that the planted rank is late, or that its stage computes longer."""
    found = (row.get("planted") or {}).get("findings") or [""]
    rank = program.plant.split(":")[1]
    return f"Rank {rank} is late" in found[0] or f"of the pipeline (rank {rank}) computes" in found[0]


def _row(program: Program, row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"| {program.name} | {_origin(program)} | {row['failed']} | | | | | |\n"
    steps = ", ".join(map(str, row.get("steps") or ["none"]))
    matched = "no group" if not program.groups else "-" if row.get("matched") is None else f"{row['matched']:g} %"
    same = {True: "equal", False: "**differs**", None: "prints none"}[row.get("same")]
    first = _finding(row.get("findings"))
    plant = row.get("planted", {})
    planted = plant.get("plant", program.plant).replace(":", " ") if plant else ""
    told = _finding(plant.get("findings")) if plant.get("acted", bool(plant)) else ""
    planted += " (first run)" if plant.get("earlier") else " (did not act)" if not plant.get("acted", True) else ""
    return (
        f"| {program.name} | {_origin(program)} | {row.get('steps_own')}: {steps} | {matched} | {same} | {first} "
        f"| {planted} | {told} |\n"
    )


def _finding(found: list[str] | None) -> str:
    if not found:
        return "none"
    rule, _, message = found[0].partition(": ")
    sentences = message.split(". ")
    return f"{rule}: {sentences[0].rstrip('.')}"


def _origin(program: Program) -> str:
    name, at, rest = program.origin.partition("@")
    return f"{name}@{rest[:7]}:{rest.partition(':')[2]}" if at else name
