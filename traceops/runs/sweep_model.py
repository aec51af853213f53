"""What a sweep has done and found: trials.json in its folder, and sweep.json beside its reports."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.core.tool import Tool
from traceops.report.numbers import Count, NotNegative, Number
from traceops.runs.model import RunRow

SWEEP_VERSION = 1
TRIALS = "trials.json"
TrialStatus = Literal["finished", "failed", "hung"]


class SweepTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One training of one combination."""

    point: Annotated[Count, Meta(description="Place of its combination among `points`.")]
    repeat: Annotated[Count, Meta(description="From 1.")]
    folder: Annotated[str, Meta(description="Its run folder, below the sweep's.")]
    status: TrialStatus
    seconds: NotNegative
    exit_code: int = 0
    reason: Annotated[str, Meta(description="Why it failed, in words.")] = ""
    step_ms: Annotated[NotNegative | None, Meta(description="Without the profiler.")] = None
    samples_per_s: NotNegative | None = None


class SweepState(msgspec.Struct, frozen=True, kw_only=True):
    """What trials.json holds: enough to go on where the sweep ended."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": SWEEP_VERSION})] = SWEEP_VERSION
    command: Annotated[tuple[str, ...], Meta(description="What all trainings share, in the words of the command.")]
    points: tuple[dict[str, str], ...]
    trials: tuple[SweepTrial, ...] = ()


class PointRow(msgspec.Struct, frozen=True, kw_only=True):
    """One combination and what came of it; null where it is not known."""

    label: str
    settings: dict[str, str]
    trained: Annotated[Count, Meta(description="Trainings that finished.")] = 0
    failed: Count = 0
    reason: Annotated[str, Meta(description="Why it failed, or why it was tried no further; empty otherwise.")] = ""
    samples_per_s: Annotated[NotNegative | None, Meta(description="Mean over its trainings.")] = None
    step_ms: Annotated[NotNegative | None, Meta(description="Likewise, without the profiler.")] = None
    spread_pct: Annotated[
        NotNegative | None, Meta(description="Standard deviation between its trainings; null for one.")
    ] = None
    behind_pct: Annotated[Number | None, Meta(description="How much less it gets done than the best.")] = None


class LedgerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of the step ledger of the best combination against another's, ms for as many samples."""

    bucket: str
    best_ms: float
    other_ms: float


class SweepDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What sweep.json holds."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": SWEEP_VERSION})] = SWEEP_VERSION
    tool: Tool = Tool()
    name: str
    command: tuple[str, ...]
    varied: tuple[str, ...]
    complete: Annotated[bool, Meta(description="Everything that was asked for was trained.")]
    by_samples: Annotated[
        bool, Meta(description="The best is by samples a second; else by the step, as no run tells its samples.")
    ]
    best: Annotated[str | None, Meta(description="Label; null where nothing finished.")] = None
    against: Annotated[str | None, Meta(description="The next best, which `why` compares with.")] = None
    told_apart: Annotated[
        bool | None,
        Meta(description="Whether best and next differ by more than their trainings do; null with one training each."),
    ] = None
    why: Annotated[tuple[LedgerDifference, ...], Meta(description="Largest first; positive where best has less.")] = ()
    points: tuple[PointRow, ...]
    trials: tuple[SweepTrial, ...]
    runs: Annotated[tuple[RunRow, ...], Meta(description="The reports of the trainings, as in runs.json.")] = ()
