"""What else failed or ended beside the causes: what a scheduler did then, and crashes that no cause tells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceops.hangs.crash_table import FROM_OUTSIDE, CrashKind
from traceops.hangs.crash_words import crash_statement
from traceops.hangs.crashes import Crash, by_machine, find_crashes, kind_of
from traceops.hangs.evidence import HangEvidence, LogEvent
from traceops.hangs.model import Root

_MOST = 4
_OF_SIGNALS: tuple[CrashKind, ...] = ("hangup", "terminated")


def without_own_end(evidence: HangEvidence) -> Sequence[LogEvent]:
    """What the logs tell, but for torchrun's words on the signal with which `traceops run` ended a job that hung."""
    if evidence.stall is None:
        return evidence.log
    return [event for event in evidence.log if kind_of(event) not in _OF_SIGNALS]


def aftermath(log: Sequence[LogEvent], roots: Sequence[Root], *, waiting: bool = False) -> tuple[str, ...]:
    """A sentence for each: 'After that the program was ended by Slurm at the job's time limit (train.log:52).'

    waiting: ranks wait in operations, whatever the cause.
    """
    told = {root.crash.kind for root in roots if root.crash is not None}
    if not roots and not waiting:
        return ()
    others = [] if any(root.crash is not None for root in roots) else find_crashes(log)
    crashes = [crash for crash in others if crash.kind not in FROM_OUTSIDE and _is_apart(crash, roots)]
    for event in log:
        kind = kind_of(event)
        if kind in FROM_OUTSIDE and kind not in told:
            told.add(kind)
            crashes.append(Crash(kind, (), event))
    first = _first_lines(log, roots)
    return tuple(_sentence(crash, first) for crash in crashes[:_MOST])


def _is_apart(crash: Crash, roots: Sequence[Root]) -> bool:
    """Whether no cause is about its ranks."""
    return crash.alone and not any(set(crash.ranks) & {*root.ranks, *root.waiting} for root in roots)


def _first_lines(log: Sequence[LogEvent], roots: Sequence[Root]) -> dict[str, int]:
    """By file the first line that tells of a cause, or of the waiting that it explains."""
    lines: dict[str, int] = {}
    for root in roots:
        if root.crash is not None:
            lines.setdefault(root.crash.event.path, root.crash.event.line)
    for event in log:
        if event.kind == "timeout":
            lines[event.path] = min(event.line, lines.get(event.path, event.line))
    return lines


def _sentence(crash: Crash, first: dict[str, int]) -> str:
    event = crash.event
    after = event.line > first.get(event.path, event.line) and not by_machine(event, crash.kind)
    said = crash_statement(crash)
    if crash.kind in FROM_OUTSIDE and not crash.ranks:
        said = said.replace("The program", "the program", 1)
    when = "After that " if after else "Also: "
    return f"{when}{said} ({Path(event.path).name}:{event.line})."
