"""Why a run needs more memory than another: by line where both kept snapshots, else by what it is."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from traceops.compare.capture import ComparedCapture
from traceops.compare.explanation_text import joined
from traceops.compare.model import Explanation
from traceops.core.findings import Evidence
from traceops.core.units import gib_text
from traceops.report.memory import MemoryRank, MemoryRows
from traceops.traces.snapshot_places import NO_STACK

_PLACE = re.compile(r"(?P<file>[^:]+):(?P<line>\d{1,9}) (?P<function>.+)")
_FEW = 3
_SHARE = 0.1  # of the change: less is not its reason


def memory_explanation(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> Explanation | None:
    """What grew or shrank at the peak of the rank that held most; None where that is not known on both sides."""
    before, after = _most(base), _most(head)
    if before is None or after is None or not before.peak_bytes or not after.peak_bytes:
        return None
    change = after.peak_bytes - before.peak_bytes
    parts = _by_line(before, after) or _by_kind(before, after)
    told = sorted((part for part in parts if part[1] * change > 0), key=lambda part: -abs(part[1]))
    told = [part for part in told if abs(part[1]) >= _SHARE * abs(change)][:_FEW]
    if not change or not told:
        return None
    more = "more" if change > 0 else "less"
    names = joined([f"{gib_text(abs(size))} {more} {what}" for what, size in told])
    evidence = tuple(Evidence(f"change: {what}", size, "B", rank=after.rank) for what, size in told)
    text = f"at its peak rank {after.rank} holds {gib_text(abs(change))} {more}: {names}"
    return Explanation("peak_memory", text, 0.0, (), evidence)


def _most(side: Sequence[ComparedCapture]) -> MemoryRank | None:
    """The rank that held most in any capture of a side."""
    rows = [capture.report.memory for capture in side]
    ranks = [rank for one in rows if isinstance(one, MemoryRows) for rank in one.ranks]
    return max(ranks, key=lambda rank: rank.peak_bytes or 0, default=None)


def _by_line(before: MemoryRank, after: MemoryRank) -> list[tuple[str, int]]:
    if not before.lines or not after.lines:
        return []
    old = {row.line: row.held_bytes for row in before.lines}
    new = {row.line: row.held_bytes for row in after.lines}
    moved = _moved(old, new)
    old = {moved.get(line, line): size for line, size in old.items()}
    return [(_made(line), new.get(line, 0) - old.get(line, 0)) for line in dict.fromkeys([*new, *old])]


def _made(line: str) -> str:
    return "made where no stack was recorded" if line == NO_STACK else f"made in {line}"


def _moved(old: Collection[str], new: Collection[str]) -> dict[str, str]:
    """Lines of `old` -> of `new`, of functions whose lines are as many and others: code above them came or went."""
    lines, own = _by_function(old), _by_function(new)
    return {
        before: after
        for function, of_old in lines.items()
        if len(of_old) == len(own.get(function, ())) and not {*of_old} & {*own[function]}
        for before, after in zip(of_old, own[function], strict=True)
    }


def _by_function(lines: Collection[str]) -> dict[tuple[str, str], list[str]]:
    """(file, function) -> its places `FILE:LINE FUNCTION`, in order of lines."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for line in lines:
        if (match := _PLACE.fullmatch(line)) is not None:
            file, number, function = match.group("file", "line", "function")
            found.setdefault((file, function), []).append((int(number), line))
    return {function: [line for _, line in sorted(of)] for function, of in found.items()}


def _by_kind(before: MemoryRank, after: MemoryRank) -> list[tuple[str, int]]:
    old, new = _kinds(before), _kinds(after)
    return [(name, new[name] - old[name]) for name in new if name in old]


def _kinds(row: MemoryRank) -> dict[str, int]:
    """What the peak consists of; empty where only the peak is known."""
    if row.between_steps_bytes is None or row.peak_bytes is None:
        return {}
    stored = {
        "parameters": row.parameters_bytes or 0,
        "gradients": row.gradients_bytes or 0,
        "optimizer state": row.optimizer_state_bytes or 0,
    }
    between = row.between_steps_bytes
    return {
        **stored,
        "buffers, inputs and what else stays between steps": between - sum(stored.values()),
        "activations and temporaries within the step": row.peak_bytes - between,
    }
