"""How long steps take, and where their time goes: medians over ranks."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.report.numbers import NotNegative, Number, Whole


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long steps take, each the median over ranks, ms."""

    median: Number | None = None
    p5: Number | None = None
    p95: Number | None = None
    n: int = 0
    typical: Annotated[
        Number | None,
        Meta(description="The typical step: mean over steps neither `unlike` nor `unshared`. Shares are of this step."),
    ] = None
    unlike: Annotated[
        tuple[Whole, ...],
        Meta(description="Steps that take far longer than most (TO-T001); no mean and no what-if counts them."),
    ] = ()
    unshared: Annotated[
        tuple[Whole, ...],
        Meta(description="Steps that only some ranks recorded (TO-V003); no mean counts them where others are left."),
    ] = ()

    @property
    def left_out(self) -> frozenset[int]:
        """Numbers of the recorded steps that no mean counts."""
        return frozenset((*self.unlike, *self.unshared))


class UnjudgedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step that no rule could judge, on the rank that has most of such time."""

    bucket: str
    rank: Whole
    pct: Annotated[Number, Meta(description="Of the rank's typical step.")]
    why: Annotated[
        Literal["unmatched", "no_launch", "no_device", "not_evaluated", "no_rule"],
        Meta(
            description="unmatched: communication without its partners on other ranks. no_launch: idle time before "
            "kernels whose launch the trace does not hold. no_device: operators of the host in a trace that names a "
            "GPU and holds nothing of it. not_evaluated: its rule lacked what it needs, see `checks`. no_rule: no "
            "rule judges this bucket."
        ),
    ]
    rule: Annotated[str | None, Meta(description="The rule that would judge it.")] = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """A number for each bucket of the step ledger, null where it is not known."""

    compute: Number | None = None
    comm_transfer: Number | None = None
    comm_wait: Number | None = None
    comm_unmatched: Number | None = None
    memory: Number | None = None
    idle_input: Number | None = None
    idle_sync: Number | None = None
    idle_host: Number | None = None
    idle_dependency: Number | None = None
    idle_unknown: Number | None = 0.0  # older reports count it as idle_dependency
    idle_gap: Number | None = None

    def of(self, bucket: str) -> float | None:
        """The number of one of `ledger.BUCKETS`."""
        value: float | None = getattr(self, bucket)
        return value


class BubbleTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages of pipelines wait for each other, ms a step: of comm_wait, and the parts that it is made of.

    Each is the median over all ranks, as the ledger's buckets.
    """

    bubble: NotNegative
    fill: NotNegative
    drain: NotNegative
    imbalance: NotNegative
    late: NotNegative


class WorstRank(msgspec.Struct, frozen=True):
    """The rank that spends most on a bucket, and how much, ms a step."""

    rank: int
    ms: float


class StepKindsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of two kinds, as a WGAN has: no step is a whole round of the training."""

    ends: Annotated[tuple[str, ...], Meta(description="What ended the steps, such as Adam.step.")]
    another: Annotated[str, Meta(description="What is within some of them only, perhaps of the same name.")]
    count: Annotated[int, Meta(gt=0, description="How many of the run's steps have it.")]
    steps: Annotated[int, Meta(gt=0, description="Of how many.")]
    round_ms: Annotated[
        NotNegative | None,
        Meta(description="A round by the mean step of the whole run, ms. Null where that was not timed."),
    ] = None
