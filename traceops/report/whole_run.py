"""What a report holds of the whole run: every step, what the odd ones do, where hosts are, what the machine did."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.core.units import ms_text
from traceops.report.numbers import Count, NotNegative, Number, Whole


class OccasionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps unlike the others, for one reason (TO-W001's causes; unknown where nothing shows one)."""

    cause: str
    where: Annotated[str | None, Meta(description="Function and line of the program.")] = None
    times: Annotated[Count, Meta(description="How often such steps came; neighbours are one time.")]
    more_ms: Annotated[NotNegative, Meta(description="Beyond the typical step, each time.")]
    share_pct: Annotated[NotNegative, Meta(description="Of the whole run, from its second step on.")]
    ranks: tuple[Whole, ...] = ()
    steps: Annotated[tuple[Whole, ...], Meta(description="The first 256 of them.")] = ()


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the program's own in which a rank's host was seen outside of recorded steps."""

    rank: Whole
    function: str
    file: str
    line: Annotated[Count, Meta(description="On which most of that time goes.")]
    text: str | None = None
    ms: Annotated[NotNegative, Meta(description="A typical step, with the libraries that it calls.")]
    looks: Count
    waits: Annotated[bool, Meta(description="For other ranks or the device.")] = False


class StepsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a rank, one or, in long runs, neighbours together."""

    rank: Whole
    first: Whole
    last: Whole
    median_ms: NotNegative
    most_ms: NotNegative
    recorded: Annotated[bool, Meta(description="The profiler was at one of them.")] = False


class OwnProfilerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A profiler of the script's own, at work while ours was not."""

    first: Annotated[Whole, Meta(description="The first step of these.")]
    last: Whole
    steps: Count
    step_ms: Annotated[NotNegative | None, Meta(description="The median of these steps.")] = None
    where: Annotated[str | None, Meta(description="File and line of who began it.")] = None


class MachineRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine did for a rank; null where it does not tell."""

    rank: Whole
    host: str
    cpu_pct: Annotated[Number | None, Meta(description="Of one core.")] = None
    waited_pct: Annotated[
        Number | None, Meta(description="Of the time, in which its main thread wanted a core and had none.")
    ] = None
    faults: Annotated[Number | None, Meta(description="Major page faults.")] = None
    mhz: Annotated[Number | None, Meta(description="Of its GPU while busy, in the median.")] = None
    most_mhz: Number | None = None
    power_w: Number | None = None
    limit_w: Number | None = None
    celsius: Number | None = None
    lower_clock_pct: Annotated[
        dict[str, Number] | None, Meta(description="Of the looks, by the driver's reason for a lower clock.")
    ] = None
    others_on_gpu: Annotated[tuple[Count, ...], Meta(description="Processes that are not of the run.")] = ()


class EarlyWindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a step took just before the recorded ones, and takes behind them, where that is far from it."""

    before_ms: NotNegative
    later_ms: NotNegative
    settled: Annotated[Whole, Meta(description="The first step that is like the later ones.")]
    rank: Annotated[
        Whole | None, Meta(description="Whose host spends most of what those before take longer in one function.")
    ] = None
    where: Annotated[str | None, Meta(description="That function, with its line.")] = None
    where_ms: Annotated[NotNegative | None, Meta(description="A step, beyond later ones.")] = None

    @property
    def note(self) -> str:
        """What it means for the reader, and what records later steps."""
        spent = (
            ""
            if self.where is None or self.where_ms is None
            else f" (rank {self.rank} spends {ms_text(self.where_ms)} ms more of each in {self.where})"
        )
        return (
            f"the recorded steps may not be like later ones: just before them a step took {ms_text(self.before_ms)} "
            f"ms{spent}, later ones take {ms_text(self.later_ms)}; traceops run --skip-first {self.settled} records "
            "those"
        )


class EndedRow(msgspec.Struct, frozen=True, kw_only=True):
    """That ranks made different numbers of steps, as with uneven inputs."""

    least: Count
    most: Count
    first: Annotated[tuple[Count, ...], Meta(description="The ranks with the fewest, the first 64 of them.")]


class WholeRunRows(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run, as far as it was observed (docs/observe.md)."""

    steps: Annotated[Count, Meta(description="Timed without the profiler, from the second on.")]
    typical_steps: Count
    typical_ms: NotNegative
    before_ms: Annotated[
        NotNegative | None, Meta(description="Before the recorded steps, where those behind take longer.")
    ] = None
    behind_ms: Annotated[NotNegative | None, Meta(description="Behind them, there.")] = None
    recorded_steps: Count = 0
    start_steps: Annotated[Count, Meta(description="At the beginning, longer than the typical one.")] = 0
    skipped_steps: Annotated[Count, Meta(description="Whose optimizer a gradient scaler left out.")] = 0
    ended_after: Annotated[
        EndedRow | None, Meta(description="Null where all ranks that finished made as many steps, or nobody knows.")
    ] = None
    clock: Annotated[str, Meta(description="device: the GPU's own timeline; host.")] = "host"
    early_window: Annotated[
        EarlyWindowRow | None, Meta(description="Null where the recorded steps are like later ones.")
    ] = None
    looks: Annotated[Count, Meta(description="At the hosts, of all ranks.")] = 0
    input_by_turns: Annotated[
        bool, Meta(description="Input comes late in every few steps: typical_ms is the mean of these and the others.")
    ] = False
    own_profiler: Annotated[OwnProfilerRow | None, Meta(description="Null where no script profiled itself.")] = None
    occasions: tuple[OccasionRow, ...] = ()
    hosts: tuple[HostRow, ...] = ()
    machine: tuple[MachineRow, ...] = ()
    timeline: Annotated[
        tuple[StepsRow, ...], Meta(description="All steps of up to 64 ranks, in at most 1000 pieces each.")
    ] = ()
