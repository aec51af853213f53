"""What several runs say in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.units import ms_text, number_text
from traceops.render.document import Headline
from traceops.runs.model import RunRow

_ALIKE = 1.02  # runs that differ by less have no order: one capture each says no more


def runs_verdict(rows: Sequence[RunRow]) -> Headline:
    """Which run gets most done, if one does, and how many could not be analysed."""
    usable = [row for row in rows if not row.problem]
    failed = len(rows) - len(usable)
    more = f" {failed} of {len(rows)} runs {'has' if failed == 1 else 'have'} no report." if failed else ""
    if not usable:
        return Headline("error", f"None of {len(rows)} runs can be analysed.")
    return Headline("warning" if failed else "info", f"{_fastest(usable)}{more}")


def _fastest(rows: Sequence[RunRow]) -> str:
    """Compared by what is known of all: samples a second, or the step where no run tells its samples."""
    rates = [row.samples_per_s for row in rows]
    if all(rate is not None for rate in rates) and len(rows) > 1:
        ordered = sorted(rows, key=lambda row: -(row.samples_per_s or 0.0))
        best, second = ordered[0], ordered[1]
        ratio = (best.samples_per_s or 0.0) / (second.samples_per_s or 1.0)
        said = f"{number_text(best.samples_per_s or 0.0)} samples/s"
        if ratio < _ALIKE:
            return f"{best.name} and {second.name} are equally fast within 2 %: {said}."
        return f"{best.name} is fastest with {said}, {100 * (ratio - 1):.0f} % more than {second.name}."
    steps = sorted((row for row in rows if row.step_ms), key=lambda row: row.step_ms or 0.0)
    if not steps:
        return f"{len(rows)} runs; of none is the time of a step known."
    first, last = steps[0], steps[-1]
    if first is last:
        return f"{first.name}: a step takes {ms_text(first.step_ms or 0.0)} ms."
    return (
        f"A step takes from {ms_text(first.step_ms or 0.0)} ms ({first.name}) to {ms_text(last.step_ms or 0.0)} ms "
        f"({last.name}); not every run tells its samples a step, so throughput is not compared."
    )
