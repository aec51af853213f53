"""Reports of captures that recorded no step whole: they are of no time."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from traceops.measure.ledger import BUCKETS
from traceops.report.model import Report
from traceops.report.step_times import Ledger, StepTime

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
            no_replay=None,
        ),
        ranks=tuple(msgspec.structs.replace(row, steps=0, **dict.fromkeys(_OF_STEPS, None)) for row in report.ranks),
        hosts=UNSET,
        steps=(),
        what_if=(),
        inventory=None,
    )
