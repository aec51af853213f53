"""The Report and its card: what every renderer draws from, and what report.json holds of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from traceops.core.documents import SCHEMA_VERSION, SchemaVersion, Tool
from traceops.core.findings import SEVERITIES, Check, Confidence, Finding
from traceops.fabric.json_types import FabricJson
from traceops.hangs.json_types import HangJson
from traceops.report.detail import Detail
from traceops.report.inventory import ComputeRows, Inventory
from traceops.report.memory import MemoryRows
from traceops.report.rows import (
    CollectiveRow,
    ExpertsRow,
    HostSummary,
    NotNegative,
    PassRow,
    PipelineRow,
    RankRow,
    ReferenceRow,
    RoleRow,
    StepRow,
    UnprofiledStep,
    WhatIfRow,
)
from traceops.report.run import Run
from traceops.report.step_times import UndisturbedRows, WholeRunRows
from traceops.report.summary import Summary
from traceops.report.tables import Tables

if TYPE_CHECKING:
    from traceops.fabric.fabric import Fabric
    from traceops.hangs.model import Diagnosis
    from traceops.measure.hta_tables import HtaAgreement


class ReportBase(msgspec.Struct, frozen=True, kw_only=True):
    """What a Report and its report.json both hold. Reports of an early traceops lack what has a default."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    tool: Tool = Tool()
    run: Run
    summary: Summary = Summary()
    ranks: tuple[RankRow, ...]
    hosts: Annotated[
        tuple[HostSummary, ...] | UnsetType,
        Meta(description="What each host's ranks do. Absent where there are not several, or they are not named."),
    ] = UNSET
    steps: tuple[StepRow, ...]
    unprofiled_steps: Annotated[
        tuple[UnprofiledStep, ...], Meta(description="Steps timed before the profiler started.")
    ] = ()
    whole_run: Annotated[
        WholeRunRows | UnsetType,
        Meta(description="Every step of the training, recorded or not. Absent where only recorded ones are known."),
    ] = UNSET
    undisturbed: Annotated[
        UndisturbedRows | UnsetType,
        Meta(description="Where a step goes that is not recorded. Absent without a light window."),
    ] = UNSET
    memory: Annotated[
        MemoryRows | UnsetType,
        Meta(description="What the ranks' GPUs held. Absent where no rank told more than its peaks."),
    ] = UNSET
    compute: Annotated[
        ComputeRows | UnsetType,
        Meta(description="What kernels take against what their work needs. Absent without a GPU, or without shapes."),
    ] = UNSET
    collectives: tuple[CollectiveRow, ...]
    inventory: Inventory | None = None
    what_if: tuple[WhatIfRow, ...] = ()
    pipelines: Annotated[
        tuple[PipelineRow, ...], Meta(description="Pipelines among the ranks, and what their stages wait.")
    ] = ()
    roles: Annotated[
        tuple[RoleRow, ...], Meta(description="Communication by what its groups are for, most exposed first.")
    ] = ()
    experts: Annotated[
        tuple[ExpertsRow, ...], Meta(description="Experts on different ranks, and what each gets to compute.")
    ] = ()
    passes: Annotated[tuple[PassRow, ...], Meta(description="Prefill and decode passes of an inference server.")] = ()
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...] = ()


class Report(ReportBase, frozen=True, kw_only=True):
    """Everything an analysis found: what every renderer draws from.

    `hang` is the diagnosis of a hang, None where the run folder holds no evidence of one.
    `flames` are flame graphs of hosts: file names and texts.
    `detail` is what a few ranks did in each step, as pages draw it, None where no summary holds it.
    `fabric` is the evidence of machines and NCCL, None likewise.
    """

    hang: Diagnosis | None = None
    fabric: Fabric | None = None
    tables: Tables = Tables()
    flames: tuple[tuple[str, str], ...] = ()
    detail: Detail | None = None

    @property
    def hta_agreement(self) -> HtaAgreement | None:
        """What came of asking HTA's own code, None without."""
        return None if isinstance(self.summary.hta_agreement, UnsetType) else self.summary.hta_agreement

    def __repr__(self) -> str:
        """One line: all of a report as text has hundreds of thousands of characters."""
        counts = Counter(finding.severity for finding in self.findings)
        found = ", ".join(f"{counts[one]} {one}" for one in reversed(SEVERITIES) if counts[one])
        step = self.summary.step_time_ms.typical
        took = "" if step is None else f", {step:.2f} ms per step"
        return f"<Report {self.run.name!r}: {len(self.ranks)} ranks{took}; findings: {found or 'none'}>"


class ReportDocument(ReportBase, frozen=True, kw_only=True):
    """What report.json holds."""

    hang: Annotated[
        HangJson | None,
        Meta(description="Null without evidence of a hang. Reports of earlier versions have no such key."),
    ] = None
    fabric: Annotated[FabricJson | None, Meta(description="Null where the run holds no evidence of its machines.")] = (
        None
    )
    reference: Annotated[
        tuple[ReferenceRow, ...], Meta(description="Collectives against what their links can do.")
    ] = ()


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
