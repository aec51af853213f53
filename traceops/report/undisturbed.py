"""What a report holds of the undisturbed step: the light window, brought to the time of a step without recording."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.measure.profiler_cost import SLOWED
from traceops.report.numbers import Count, NotNegative, Whole


class UndisturbedRankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's undisturbed step, ms; the parts add up to it, unless the device is busy for longer."""

    rank: Whole
    light_ms: Annotated[NotNegative, Meta(description="Its step in the light windows.")]
    compute_ms: NotNegative
    comm_transfer_ms: Annotated[NotNegative, Meta(description="Exposed communication, less waiting.")]
    comm_wait_ms: Annotated[NotNegative, Meta(description="Exposed, until a collective's last member came.")]
    comm_unmatched_ms: Annotated[NotNegative, Meta(description="Exposed, of which waiting cannot be told.")]
    memory_ms: NotNegative
    idle_ms: Annotated[NotNegative, Meta(description="Nothing ran on the device.")]
    unseen_ms: Annotated[
        NotNegative, Meta(description="Of a light window whose own steps are shorter: what of the step is not known.")
    ] = 0.0


class LightWindowRankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in one light window, ms a step, as recorded there."""

    rank: Whole
    comm_wait_ms: NotNegative
    idle_ms: NotNegative


class LightWindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the light windows that the undisturbed step is the mean of."""

    first: Annotated[Whole, Meta(description="Its first measured step.")]
    last: Whole
    ranks: tuple[LightWindowRankRow, ...]


class StepsBeforeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps before the recorded ones, which no profiler has touched yet."""

    count: Count
    least_ms: NotNegative
    most_ms: NotNegative


class CuptiStayedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks in which torch's profiler stayed behind the windows for one reason."""

    ranks: tuple[Whole, ...]
    why_not: Annotated[str | None, Meta(description="Why it was not ended; null where nobody asked for it.")]


class UndisturbedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step goes that is not recorded (docs/observe.md)."""

    source: Annotated[str, Meta(description="cupti, or torch: its profiler recording the device alone.")]
    step_ms: Annotated[NotNegative, Meta(description="Without recording.")]
    light_ms: Annotated[NotNegative, Meta(description="In the light windows, the median over ranks.")]
    recorded_ms: Annotated[NotNegative, Meta(description="In the full window: the typical step.")]
    light_steps: Annotated[Count, Meta(description="Typical steps of the light windows.")]
    ranks: tuple[UndisturbedRankRow, ...]
    behind_ms: Annotated[
        NotNegative | None, Meta(description="A step behind the windows, where it is longer than before them.")
    ] = None
    before: Annotated[
        StepsBeforeRow | None,
        Meta(description="The steps that step_ms is the mean of. Null: all of the run's without the profiler."),
    ] = None

    stayed: Annotated[
        tuple[CuptiStayedRow, ...],
        Meta(description="Where behind_ms is told: ranks whose profiler was not ended, by the reason."),
    ] = ()
    windows: Annotated[
        tuple[LightWindowRow, ...],
        Meta(description="The light windows, in order; of hosts alike another one may be late in each."),
    ] = ()

    @property
    def scaled(self) -> bool:
        """Whether idle time and waiting are an estimate, scaled down from a light window that cost much itself."""
        return self.light_ms >= SLOWED * self.step_ms
