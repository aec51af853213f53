"""Ranks that make the others wait on one side only."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from traceops.compare.capture import ComparedCapture, findings_of_most
from traceops.compare.changes import moved_kernels
from traceops.compare.explanation_text import joined, kernel_text
from traceops.compare.ledger import LedgerChange
from traceops.compare.model import Change, Explanation
from traceops.core.cause_words import CAUSES
from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import ranks_text
from traceops.core.units import ms_change_text
from traceops.rules import stragglers

_FEW = 3  # kernels named, and numbers of evidence


def straggler_explanation(
    ledger: LedgerChange,
    left: dict[str, float],
    changes: Sequence[Change],
    base: Sequence[ComparedCapture],
    head: Sequence[ComparedCapture],
) -> Explanation | None:
    """Ranks that make the others wait on one side only, or on both and longer on one; None without."""
    before, now = _stragglers(base), _stragglers(head)
    new = [finding for key, finding in now.items() if key not in before]
    gone = [finding for key, finding in before.items() if key not in now]
    waiting = left.get("comm_wait", 0.0)
    found = new if new and (waiting > 0 or not gone) else gone
    if not found and abs(waiting) >= ledger.worth_ms:
        found = [finding for key, finding in now.items() if key in before]  # the same ranks, more or less
    if not found:
        return None
    causes = {finding.cause or "unknown" for finding in found}
    own = {"input": "idle_input", "host": "idle_host", "gpu_compute": "compute", "copy": "memory"}
    buckets = ("comm_wait", *sorted(own[cause] for cause in causes if cause in own))
    ms = sum(left.get(bucket, 0.0) for bucket in buckets)
    if abs(ms) < ledger.worth_ms or (found == new and ms < 0) or (found == gone and ms > 0):
        return None
    who = joined([_who_and_why(finding) for finding in found])
    many = len(found) > 1 or len(found[0].ranks) > 1
    makes = "make" if many else "makes"
    if found == new:
        others = f"; {joined([_who_and_why(f) for f in gone])} no longer" if gone else ""
        text = f"{who} {makes} the others wait: {ms_change_text(ms)} a step; base had no such straggler{others}"
    elif found == gone:
        text = f"{who} no longer {makes} the others wait: {ms_change_text(ms)} a step"
    else:
        longer = "longer" if ms > 0 else "less"
        text = f"{who} {makes} the others wait {longer} than before: {ms_change_text(ms)} a step"
    kernels = moved_kernels(changes, ms) if "gpu_compute" in causes else []
    if kernels:
        text += f". Over all ranks: {joined([kernel_text(c) for c in kernels[:_FEW]])}"
    evidence = tuple(Evidence(known.metric, known.value, known.unit) for known in found[0].evidence[:_FEW])
    return Explanation("straggler", text, ms, buckets, evidence, tuple(kernels))


def _who_and_why(finding: Finding) -> str:
    words = CAUSES.get(finding.cause or "unknown") or CAUSES["unknown"]
    why = words.changed_several if len(finding.ranks) > 1 else words.changed
    when = ", in some steps only" if finding.rule == stragglers.SOMETIMES_LATE.id else ""
    return f"rank{'s' if len(finding.ranks) > 1 else ''} {ranks_text(finding.ranks)} ({why}{when})"


def _stragglers(side: Sequence[ComparedCapture]) -> dict[Hashable, Finding]:
    """Straggler findings, warnings and errors, that most captures of a side have, by rank and cause."""
    return findings_of_most(side, lambda found: (found.ranks, found.cause), stragglers.IDS)
