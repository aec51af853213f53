"""Reports of traces without steps: of the whole window, or of no time where a capture recorded no step whole."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UNSET

from traceops.core.findings import Check, Finding
from traceops.core.window_words import words_of_window
from traceops.measure.ledger import BUCKETS
from traceops.report.model import Report
from traceops.report.run import Ledger, StepTime
from traceops.rules.registry import FAMILIES

T = TypeVar("T", Finding, Check)
_OF_STEPS = (
    "step_time_ms",
    "exposed_comm_ms",
    "wait_ms",
    "transfer_ms",
    "caused_wait_ms",
    "late_share",
    "input_ms",
    *(f"{bucket}_ms" for bucket in BUCKETS),
)


def without_time(report: Report) -> Report:
    """The same without times of a step: what was recorded is of none."""
    return msgspec.structs.replace(
        report,
        summary=msgspec.structs.replace(
            report.summary,
            step_time_ms=StepTime(),
            ledger_ms=Ledger(),
            ledger_pct=Ledger(),
            ledger_worst_rank={},
            exposed_comm_ms=None,
            unjudged=(),
            replay=None,
        ),
        ranks=tuple(
            msgspec.structs.replace(row, steps=0, **dict.fromkeys(_OF_STEPS, None)) for row in report.ranks
        ),
        hosts=UNSET,
        steps=(),
        what_if=(),
        inventory=None,
    )


def in_words_of_window(report: Report) -> Report:
    """The same with what is found about time said of the window."""
    of_time = tuple(family.prefix for family in FAMILIES if family.of_steps)

    def said(own: T) -> T:
        return words_of_window(own) if own.rule.startswith(of_time) else own

    return msgspec.structs.replace(
        report, findings=tuple(map(said, report.findings)), checks=tuple(map(said, report.checks))
    )
