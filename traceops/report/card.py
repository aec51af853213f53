"""The card: what a run's answer is, the same wherever it is shown."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.core.findings import Confidence
from traceops.report.rows import NotNegative


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The answer in seven lines; null where it is not known."""

    level: Literal["error", "warning", "info", "clear"]
    headline: Annotated[str, Meta(description="One sentence of at most 90 characters, without a full stop.")]
    now_ms: Annotated[NotNegative | None, Meta(description="What a step (or the window) takes.")] = None
    fixed_ms: Annotated[NotNegative | None, Meta(description="What it takes at most once the cause is fixed.")] = None
    fixed_least_ms: Annotated[NotNegative | None, Meta(description="At least, where fixed_ms is a bound.")] = None
    saved_pct: Annotated[NotNegative | None, Meta(description="Of now_ms; at most, where fixed_ms is a bound.")] = None
    confidence: Confidence | None = None
    reason: Annotated[str, Meta(description="What the confidence rests on, in a few words.")] = ""
    actions: Annotated[tuple[str, ...], Meta(description="What to do, at most two.")] = ()
    judged_pct: Annotated[NotNegative | None, Meta(description="Of the step, what could be judged.")] = None
    not_checked: Annotated[tuple[str, ...], Meta(description="Groups of checks that this run lacks data for.")] = ()
    proof: Annotated[str, Meta(description="The measurement that shows it.")] = ""
    rule: str | None = None
    without_profiler: Annotated[
        bool | None,
        Meta(description="Whether times are of steps without the profiler; null where it makes no difference."),
    ] = None
    caveat: Annotated[
        Literal["first_steps", "unlike_run"] | None,
        Meta(description="Recorded steps are the program's first, or take another time than the run's others."),
    ] = None
    window: Annotated[bool, Meta(description="Times are of the recorded window: no steps are marked.")] = False
