"""Answers as `traceops show --json` and the MCP server's tools give them: the types that their schema is made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from traceops.core.documents import Tool
from traceops.core.findings import Confidence, Evidence, Severity, Status
from traceops.core.words import NoReplay
from traceops.hangs.json_types import RankStatus, RootJson, WaitJson
from traceops.report.model import Card
from traceops.report.rows import Count, NotNegative, Number, RankRow, RoleName, RoleRow, WhatIfRow, Whole
from traceops.report.summary import HostsUnknown, LoadersUnknown

# The lines that answers are made of: the types that their schema is made of, beside the answers themselves.


class AskedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Which run an answer is of."""

    name: str | None
    path: str
    read_from: Literal["report", "traces", "live"]
    unit: Literal["step", "window"]


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of the step ledger; all buckets add up to the step of a rank."""

    bucket: str
    rank: Whole | None = None
    ms_per_step: Number | None
    pct_of_step: Number | None
    worst_rank: Whole | None = None
    worst_rank_ms: Number | None = None
    meaning: str = ""


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a rank; the buckets from compute_ms to idle_gap_ms add up to duration_ms."""

    rank: Whole
    step: Whole | None
    duration_ms: NotNegative
    compute_ms: NotNegative | None
    comm_transfer_ms: NotNegative | None
    comm_wait_ms: NotNegative | None
    comm_unmatched_ms: NotNegative | None
    memory_ms: NotNegative | None
    idle_input_ms: NotNegative | None
    idle_sync_ms: NotNegative | None
    idle_host_ms: NotNegative | None
    idle_dependency_ms: NotNegative | None
    idle_unknown_ms: NotNegative | None
    idle_gap_ms: NotNegative | None
    kernels: Count | None
    collectives: Count | None
    collective_bytes: Count | None
    blocking_calls: Count | None


class CollectiveLine(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one group, operation and size. Bandwidth in 1e9 bytes a second, by nccl-tests' rules."""

    group: str
    role: RoleName | None
    ranks: tuple[Whole, ...]
    op: str
    bytes: Count | None
    count: Count
    total_ms: NotNegative | None
    median_ms: Number | None
    median_wait_ms: Number | None
    busbw_gbs: Number | None
    spread_p50_ms: Number | None
    places: tuple[Count, ...]
    places_of: Count | None
    last_rank: Whole | None
    last_rank_pct: Number | None


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel (on a CPU an operator) over all ranks. Null where the report holds only its inventory."""

    name: str
    kind: str | None
    operators: tuple[str, ...]
    ms_per_step: Number
    count_per_step: Number | None
    share_pct: Number | None
    count: Count | None
    mean_us: Number | None
    min_us: Number | None
    max_us: Number | None
    ranks: Count | None
    worst_rank: Whole | None
    worst_rank_total_ms: Number | None
    least_rank_total_ms: Number | None
    grid: str
    flops: Number | None = None
    bytes: Number | None = None
    attainable_ms: Number | None = None
    efficiency_pct: Number | None = None
    cause: str | None = None


class FindingLine(msgspec.Struct, frozen=True, kw_only=True):
    """A finding without its evidence."""

    rule: str
    severity: Severity
    confidence: Confidence
    title: str
    message: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    impact_ms: Number | None
    cause: str | None
    advice: str


class FullFinding(FindingLine, frozen=True, kw_only=True):
    """A finding with its evidence."""

    evidence: tuple[Evidence, ...]


class CheckLine(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a rule could be judged, and how it came out."""

    rule: str
    title: str
    status: Status
    reason: str


class HeadlineLine(msgspec.Struct, frozen=True, kw_only=True):
    """The sentence that the report opens with."""

    level: Literal["error", "warning", "info", "clear"]
    sentence: str


class AnswerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the first screen: under `label` (Do, Confidence, Coverage) what is said."""

    label: str
    text: str


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes now, or once the cause is gone."""

    when: Literal["now", "then"]
    label: str
    ms: Number
    least_ms: Number | None = None


class StepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How long steps take, each the median over ranks."""

    typical_ms: Number | None
    p5_ms: Number | None
    p95_ms: Number | None
    count: Count
    found_by: str | None


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What ran; null where nothing tells."""

    world_size: Whole | None
    ranks_present: Count
    hosts: Count
    device: str | None
    backend: str | None
    strategy: str | None
    torch_version: str | None
    nccl_version: str | None


SHOW_VERSION = 1
ShowVersion = Annotated[int, Meta(extra_json_schema={"const": SHOW_VERSION})]


class AnswerBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="question"):
    """What every answer has. Null means not known, never zero."""

    schema_version: ShowVersion = SHOW_VERSION
    tool: Tool = Tool()
    run: AskedRun


class SummaryAnswer(AnswerBase, frozen=True, kw_only=True, tag="summary"):
    """The run in short."""

    headline: HeadlineLine
    card: Card
    first_screen: tuple[AnswerLine, ...]
    costs: tuple[StepCost, ...]
    facts: RunFacts
    step: StepFacts
    ledger: tuple[LedgerLine, ...]
    findings: tuple[FindingLine, ...]
    what_if: tuple[WhatIfRow, ...]
    rules_not_evaluated: Count
    notes: tuple[str, ...]
    more: tuple[str, ...]


class FindingsAnswer(AnswerBase, frozen=True, kw_only=True, tag="findings"):
    """Findings, worst first."""

    rows: tuple[FindingLine, ...]


class FindingAnswer(AnswerBase, frozen=True, kw_only=True, tag="finding"):
    """What one rule says. `rows` is empty where it found nothing: `check` says why."""

    check: CheckLine
    fires: str
    rows: tuple[FullFinding, ...]


class LedgerAnswer(AnswerBase, frozen=True, kw_only=True, tag="ledger"):
    """Where a step goes."""

    rows: tuple[LedgerLine, ...]


class WhatIfAnswer(AnswerBase, frozen=True, kw_only=True, tag="what-if"):
    """What changes would save."""

    replay_error_pct: Number | None
    total: Count
    rows: tuple[WhatIfRow, ...]
    loaders_unknown: LoadersUnknown = ()
    hosts_unknown: HostsUnknown = ()
    no_replay: NoReplay | None = None


class RanksAnswer(AnswerBase, frozen=True, kw_only=True, tag="ranks"):
    """Ranks in the order of `ordered_by`, most first. Times in ms per step."""

    ordered_by: str
    total: Count
    rows: tuple[RankRow, ...]


class StepsAnswer(AnswerBase, frozen=True, kw_only=True, tag="steps"):
    """Steps of ranks."""

    ordered_by: str
    total: Count
    rows: tuple[StepLine, ...]


class CollectivesAnswer(AnswerBase, frozen=True, kw_only=True, tag="collectives"):
    """Collectives by group, operation and size."""

    ordered_by: str
    total: Count
    rows: tuple[CollectiveLine, ...]


class KernelsAnswer(AnswerBase, frozen=True, kw_only=True, tag="kernels"):
    """Kernels over all ranks."""

    ordered_by: str
    total: Count
    rows: tuple[KernelLine, ...]


class RolesAnswer(AnswerBase, frozen=True, kw_only=True, tag="roles"):
    """Communication by what its groups are for, ms per step."""

    rows: tuple[RoleRow, ...]


class HangAnswer(AnswerBase, frozen=True, kw_only=True, tag="hang"):
    """A hang's diagnosis, as report.json and hang.json hold it; sentence is null without evidence of one."""

    level: Severity | None
    sentence: str | None
    roots: tuple[RootJson, ...]
    waits: tuple[WaitJson, ...]
    rows: tuple[RankStatus, ...]


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One detection of the monitor."""

    kind: str
    page: bool
    since_ns: int
    seen_ns: int
    message: str
    facts: dict[str, Any]


class EventsAnswer(AnswerBase, frozen=True, kw_only=True, tag="events"):
    """What the monitor of a run found."""

    rows: tuple[EventLine, ...]


class ChecksAnswer(AnswerBase, frozen=True, kw_only=True, tag="checks"):
    """What each rule says."""

    rows: tuple[CheckLine, ...]


AnyAnswer: TypeAlias = (
    SummaryAnswer
    | FindingsAnswer
    | FindingAnswer
    | LedgerAnswer
    | WhatIfAnswer
    | RanksAnswer
    | StepsAnswer
    | CollectivesAnswer
    | KernelsAnswer
    | RolesAnswer
    | HangAnswer
    | EventsAnswer
    | ChecksAnswer
)
