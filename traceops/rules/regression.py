"""TO-R001: a metric that a comparison finds worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import Check, Evidence, Finding
from traceops.core.rule import Bounds, JudgedBy, described
from traceops.core.units import stored

REGRESSED = described("regression", "TO-R001", JudgedBy.COMPARE)
RULES = (REGRESSED,)


class Regressed(Claim, frozen=True, kw_only=True):
    """A metric is worse. values: both sides'. because: what explains it best, where anything does."""

    family = "regression"
    kind = "regressed"
    label: str
    values: str
    because: str = ""


class RegressionBounds(Bounds, frozen=True):
    """From where on a change is certain. By how much a metric may be worse, the configuration of a comparison says."""

    words = "regression"

    sure_p: float = 0.01


BOUNDS = RegressionBounds()


class ComparedMetric(Protocol):
    """What the rule reads of a metric that was compared [traceops.compare.model.MetricChange]."""

    @property
    def metric(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def base(self) -> float | None: ...
    @property
    def head(self) -> float | None: ...
    @property
    def change(self) -> float | None: ...
    @property
    def change_pct(self) -> float | None: ...
    @property
    def low_pct(self) -> float | None: ...
    @property
    def p(self) -> float | None: ...
    @property
    def threshold_pct(self) -> float | None: ...


def regression(row: ComparedMetric, values: str, because: str) -> Finding:
    """TO-R001 for one metric. values: both sides' in words; because: what explains it best, empty if nothing does."""
    pct = row.change_pct
    sure = row.p is None or (row.p < BOUNDS.sure_p and row.low_pct is not None)
    value = None if pct is None or not math.isfinite(pct) else stored(pct)
    return REGRESSED.finding(
        "error",
        "high" if sure else "medium",
        Regressed(label=row.label, values=values, because=because),
        [
            Evidence(Fact.METRIC_CHANGE, value, "%", row.threshold_pct, subject=row.metric),
            Evidence(Fact.METRIC, row.head, row.unit, peers=row.base, subject=row.metric),
            *([Evidence(Fact.P_VALUE, round(row.p, 6), "")] if row.p is not None else []),
        ],
        impact_ms=row.change if row.unit == "ms" else None,
    )


def check_regressions(regressed: Sequence[ComparedMetric], undecided: str | None) -> Check:
    """Whether TO-R001 fired. undecided: why the comparison could not tell, None where it could."""
    if regressed:
        return Check(REGRESSED.id, "fired", ", ".join(row.label for row in regressed))
    if undecided is not None:
        return Check(REGRESSED.id, "not_evaluated", reason("regression", "undecided", why=undecided))
    return Check(REGRESSED.id, "clear", reason("regression", "none_worse"))
