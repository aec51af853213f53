"""One row a run: what runs.json, runs.csv and the table of several runs hold."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.core.findings import Severity
from traceops.core.tool import Tool
from traceops.report.numbers import Count, NotNegative, Number, Whole
from traceops.report.step_times import Ledger

RUNS_VERSION = 1


class FindingCount(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that fired in a run, at its worst severity."""

    rule: str
    severity: Severity
    count: Count


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a line; null where it is not known. Times are of a step, over all ranks as in the report's summary."""

    name: Annotated[str, Meta(description="Of the run among the others: its place below their common folder.")]
    path: str
    report: Annotated[
        str | None, Meta(description="Folder of its report, beside this file; null where there is none.")
    ] = None
    problem: Annotated[str, Meta(description="Why the run has no report, in words; empty where it has.")] = ""
    verdict: Annotated[str, Meta(description="The sentence that its report opens with.")] = ""
    started_ns: Whole | None = None
    commit: str | None = None
    strategy: str | None = None
    device: str | None = None
    ranks: Annotated[Count | None, Meta(description="Ranks of the job, traced or not.")] = None
    hosts: Count | None = None
    samples_per_step: Annotated[NotNegative | None, Meta(description="Of all ranks together.")] = None
    step_ms: Annotated[
        NotNegative | None,
        Meta(description="Without the profiler where such steps were timed, else the typical recorded step."),
    ] = None
    step_profiled: Annotated[bool, Meta(description="step_ms is of steps that were recorded.")] = False
    recorded_step_ms: Annotated[
        NotNegative | None, Meta(description="The typical recorded step, which the ledger adds up to.")
    ] = None
    samples_per_s: NotNegative | None = None
    tokens_per_s: NotNegative | None = None
    mfu_pct: Annotated[Number | None, Meta(description="Model FLOPs a second over the devices' dense peak.")] = None
    ledger_ms: Ledger = Ledger()
    overlap_pct: Number | None = None
    exposed_comm_ms: Number | None = None
    collective_bytes: Annotated[
        NotNegative | None, Meta(description="Bytes in collectives of the average rank, a step.")
    ] = None
    peak_memory_bytes: Annotated[Count | None, Meta(description="Of the rank that has most.")] = None
    findings: tuple[FindingCount, ...] = ()


class RunsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What runs.json holds: a row a run, in the order of their names."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": RUNS_VERSION})] = RUNS_VERSION
    tool: Tool = Tool()
    runs: tuple[RunRow, ...]
