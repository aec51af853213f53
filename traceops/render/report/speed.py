"""How much a run gets done a second, in words."""

from __future__ import annotations

from traceops.core.units import number_text
from traceops.render.cells import Cell
from traceops.report.model import Report


def speed_text(report: Report) -> str:
    """'312 samples/s, 40 000 tokens/s'; empty where the run does not say how many samples a step has."""
    known = ((report.summary.samples_per_s, "samples/s"), (report.summary.tokens_per_s, "tokens/s"))
    return ", ".join(f"{number_text(value)} {unit}" for value, unit in known if value is not None)


def speed_facts(report: Report) -> list[tuple[str, Cell]]:
    """The same for the page's strip of facts."""
    known = (
        ("Samples a second", report.summary.samples_per_s),
        ("Tokens a second", report.summary.tokens_per_s),
    )
    return [(label, Cell(number_text(value), "of all ranks")) for label, value in known if value is not None]
