"""The numbers behind a finding, as a table."""

from __future__ import annotations

from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import who
from traceops.core.units import as_measured
from traceops.render.cells import Cell, Column, Table, build_table, name, number

_NAMES = ("pid",)  # numbers that are pasted elsewhere: 28 593 names no process


def evidence_table(finding: Finding) -> Table:
    """The numbers behind a finding, without lines it quotes; columns that none of them fills are left out."""
    numbers = [e for e in finding.evidence if e.file is None]
    columns = [
        Column("metric", "Metric", number=False, make=lambda e: name(e.metric, 90)),
        Column("value", "Value", make=_evidence_value),
    ]
    if any(e.threshold is not None for e in numbers):
        columns.append(Column("threshold", "Fires from", make=lambda e: _beside(e, e.threshold)))
    if any(e.peers is not None for e in numbers):
        columns.append(Column("peers", "Its peers", make=lambda e: _beside(e, e.peers)))
    if any(e.rank is not None for e in numbers):
        columns.append(Column("rank", "Rank", make=lambda e: _number_or_blank(e.rank)))
    if any(e.step is not None for e in numbers):
        columns.append(Column("step", "Step", make=lambda e: _number_or_blank(e.step)))
    whose = f", {who(finding.ranks)}" if finding.ranks else ""
    return build_table(f"Evidence for {finding.rule}{whose}", columns, numbers)


def _evidence_value(evidence: Evidence) -> Cell:
    unit = f" {evidence.unit}" if evidence.unit else ""
    if isinstance(evidence.value, str):
        cell = name(evidence.value, 110) if len(evidence.value) > 110 else Cell(evidence.value, css="word")
    elif evidence.metric in _NAMES:
        cell = Cell(f"{evidence.value:.0f}")
    else:
        cell = _as_measured(evidence.value)
    return Cell(cell.text + (unit if cell.css != "unknown" else ""), cell.title, cell.css, cell.full)


def _number_or_blank(value: int | None) -> Cell:
    return Cell("") if value is None else number(value, 0)


def _as_measured(value: float | None) -> Cell:
    """Evidence has the digits that it is worth: none are added."""
    known = number(value)
    if known.css or value is None:
        return known
    shown = as_measured(value) if isinstance(value, float) else value
    return Cell(f"{shown:,}".replace(",", "\u202f"))


def _beside(evidence: Evidence, value: float | None) -> Cell:
    """The threshold or the peers' value, in the evidence's unit; empty where there is none."""
    return Cell("" if value is None else f"{as_measured(value):g}{' ' + evidence.unit if evidence.unit else ''}")
