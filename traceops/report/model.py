"""The Report and its card: what every renderer draws from, and what report.json holds of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from traceops.core.documents import SCHEMA_VERSION, SchemaVersion, Tool
from traceops.core.findings import SEVERITIES, Check, Confidence, Finding
from traceops.fabric.json_types import FabricJson
from traceops.hangs.json_types import HangJson
from traceops.report import rows
from traceops.report.detail import Detail
from traceops.report.inventory import ComputeRows, Inventory
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
    run: rows.Run
    summary: Summary = Summary()
    ranks: tuple[rows.RankRow, ...]
    hosts: tuple[rows.HostSummary, ...] | UnsetType = UNSET
    steps: tuple[rows.StepRow, ...]
    unprofiled_steps: tuple[rows.UnprofiledStep, ...] = ()
    whole_run: WholeRunRows | UnsetType = UNSET
    undisturbed: UndisturbedRows | UnsetType = UNSET
    memory: rows.MemoryRows | UnsetType = UNSET
    compute: ComputeRows | UnsetType = UNSET
    collectives: tuple[rows.CollectiveRow, ...]
    inventory: Inventory | None = None
    what_if: tuple[rows.WhatIfRow, ...] = ()
    pipelines: tuple[rows.PipelineRow, ...] = ()
    roles: tuple[rows.RoleRow, ...] = ()
    experts: tuple[rows.ExpertsRow, ...] = ()
    passes: tuple[rows.PassRow, ...] = ()
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

    hang: HangJson | None = None
    fabric: FabricJson | None = None
    reference: tuple[rows.ReferenceRow, ...] = ()


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The answer in seven lines; null where it is not known."""

    level: Literal["error", "warning", "info", "clear"]
    headline: str
    now_ms: rows.NotNegative | None = None
    fixed_ms: rows.NotNegative | None = None
    fixed_least_ms: rows.NotNegative | None = None
    saved_pct: rows.NotNegative | None = None
    confidence: Confidence | None = None
    reason: str = ""
    actions: tuple[str, ...] = ()
    judged_pct: rows.NotNegative | None = None
    not_checked: tuple[str, ...] = ()
    proof: str = ""
    rule: str | None = None
    without_profiler: bool | None = None
    caveat: Literal["first_steps", "unlike_run"] | None = None
    window: bool = False
