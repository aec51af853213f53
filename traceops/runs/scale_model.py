"""How a training scales: what scale.json holds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.core.tool import Tool
from traceops.core.words import Role
from traceops.report.numbers import Count, NotNegative, Number
from traceops.runs.model import RunRow

SCALE_VERSION = 1
ScalingKind = Literal["weak", "strong", "mixed"]
PredictedBy = Literal["replay", "trend", "gradients"]


class LostPart(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step that a size takes more than its share of the smallest size's step, on the average rank."""

    bucket: str
    role: Annotated[Role | None, Meta(description="Of communication: what its groups are for.")] = None
    ms: Annotated[Number, Meta(description="Negative where it takes less.")]
    pct: Annotated[Number | None, Meta(description="Of all that is lost; all parts add up to 100.")] = None


class SizeRow(msgspec.Struct, frozen=True, kw_only=True):
    """All captures with as many ranks."""

    ranks: Count
    captures: Count
    hosts: Count | None = None
    samples_per_step: NotNegative
    samples_per_s: Annotated[NotNegative, Meta(description="Mean over captures.")]
    step_ms: NotNegative
    speedup: Annotated[NotNegative, Meta(description="Samples a second over those of the smallest size.")]
    efficiency_pct: Annotated[
        NotNegative, Meta(description="Samples a second and rank over those of the smallest size.")
    ]
    low_pct: Annotated[
        NotNegative | None,
        Meta(description="Of the efficiency's 95 % interval over captures; null where one size has one capture."),
    ] = None
    high_pct: NotNegative | None = None
    lost_ms: Annotated[
        Number | None, Meta(description="Of a recorded step, against its share of the smallest size's.")
    ] = None
    lost: Annotated[tuple[LostPart, ...], Meta(description="Largest first; they add up to lost_ms.")] = ()
    rank_hours_per_million: Annotated[NotNegative, Meta(description="Hours of ranks (GPUs) for a million samples.")]
    cost_per_million: NotNegative | None = None


class PredictionRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a size would get done, predicted from smaller ones: no measurement."""

    ranks: Count
    from_ranks: tuple[Count, ...]
    by: Annotated[
        PredictedBy,
        Meta(
            description="replay: the largest smaller size's steps, with collectives of larger groups on links like "
            "those measured. trend: samples a second and rank as a power of the ranks. gradients: one GPU's step, with "
            "its gradients over NVLink beside backward (DDP)."
        ),
    ]
    samples_per_s: NotNegative
    efficiency_pct: NotNegative
    error_pct: Annotated[
        Number | None, Meta(description="Against the measured size; null for one that was not measured.")
    ] = None
    leaves_host: Annotated[bool, Meta(description="Other links than measured come into it.")] = False


class ScaleDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What scale.json holds."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": SCALE_VERSION})] = SCALE_VERSION
    tool: Tool = Tool()
    name: str
    scaling: Annotated[
        ScalingKind,
        Meta(description="weak: the batch of a rank stays. strong: that of all ranks does. mixed: neither."),
    ]
    device: str | None = None
    price: Annotated[NotNegative | None, Meta(description="Of a rank (GPU) and hour, as it was given.")] = None
    best_value: Annotated[Count, Meta(description="Ranks of the size that takes least rank-hours a sample.")]
    fastest: Count
    sizes: tuple[SizeRow, ...]
    predictions: tuple[PredictionRow, ...] = ()
    runs: tuple[RunRow, ...] = ()
    notes: tuple[str, ...] = ()
