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
    path: Annotated[str, Meta(description="As it was given.")]
    read_from: Annotated[
        Literal["report", "traces", "live"],
        Meta(description="A report.json, traces that were analysed for the answer, or what a monitor found."),
    ]
    unit: Annotated[
        Literal["step", "window"],
        Meta(description="window: no steps were found, and what is said of a step is of the whole recorded window."),
    ]


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of the step ledger; all buckets add up to the step of a rank."""

    bucket: str
    rank: Annotated[Whole | None, Meta(description="Null: the median over all ranks.")] = None
    ms_per_step: Number | None
    pct_of_step: Number | None
    worst_rank: Annotated[Whole | None, Meta(description="The rank that spends most on it.")] = None
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
    role: Annotated[RoleName | None, Meta(description="What the group is for.")]
    ranks: tuple[Whole, ...]
    op: str
    bytes: Annotated[Count | None, Meta(description="Of one call, null where its size is not known.")]
    count: Annotated[Count, Meta(description="In the whole recorded window.")]
    total_ms: Annotated[NotNegative | None, Meta(description="Transfer of all of them, all members there.")]
    median_ms: Annotated[Number | None, Meta(description="Transfer of one.")]
    median_wait_ms: Annotated[Number | None, Meta(description="Of the member that waits longest.")]
    busbw_gbs: Number | None
    spread_p50_ms: Annotated[Number | None, Meta(description="From the first member's arrival to the last's.")]
    places: Annotated[
        tuple[Count, ...],
        Meta(description="Which of the group's collectives in a step they are, counted from 1; the first 64."),
    ]
    places_of: Annotated[Count | None, Meta(description="How many the group has in a step.")]
    last_rank: Annotated[Whole | None, Meta(description="The rank that comes last most often.")]
    last_rank_pct: Annotated[Number | None, Meta(description="How often it does.")]


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel (on a CPU an operator) over all ranks. Null where the report holds only its inventory."""

    name: str
    kind: str | None
    operators: Annotated[tuple[str, ...], Meta(description="What launches it, most time first.")]
    ms_per_step: Annotated[Number, Meta(description="Of the average rank.")]
    count_per_step: Annotated[Number | None, Meta(description="Of the average rank; null for communication.")]
    share_pct: Annotated[Number | None, Meta(description="Of the time of all kernels.")]
    count: Annotated[Count | None, Meta(description="On all ranks, in the whole recorded window.")]
    mean_us: Number | None
    min_us: Number | None
    max_us: Number | None
    ranks: Annotated[Count | None, Meta(description="How many ranks run it.")]
    worst_rank: Annotated[Whole | None, Meta(description="The rank that spends most on it.")]
    worst_rank_total_ms: Annotated[Number | None, Meta(description="In the whole recorded window.")]
    least_rank_total_ms: Annotated[
        Number | None, Meta(description="Of the rank that spends least on it, 0 where one does not run it.")
    ]
    grid: Annotated[str, Meta(description="Of its longest launch; on a CPU the input shapes of its longest call.")]
    flops: Annotated[Number | None, Meta(description="Per step on one rank; null where shapes do not tell.")] = None
    bytes: Annotated[Number | None, Meta(description="The least that it moves, per step.")] = None
    attainable_ms: Annotated[Number | None, Meta(description="What its work takes at attainable speed, per step.")] = (
        None
    )
    efficiency_pct: Annotated[Number | None, Meta(description="attainable_ms in percent of its time.")] = None
    cause: Annotated[str | None, Meta(description="Why it takes longer than its work needs.")] = None


class FindingLine(msgspec.Struct, frozen=True, kw_only=True):
    """A finding without its evidence."""

    rule: str
    severity: Severity
    confidence: Confidence
    title: str
    message: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    impact_ms: Annotated[Number | None, Meta(description="Up to this much of each step.")]
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

    when: Annotated[Literal["now", "then"], Meta(description="then: once what the headline says is cured.")]
    label: str
    ms: Number
    least_ms: Annotated[Number | None, Meta(description="Where it may be anything from there to ms.")] = None


class StepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How long steps take, each the median over ranks."""

    typical_ms: Annotated[Number | None, Meta(description="Mean over typical steps; shares are of this step.")]
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
    first_screen: Annotated[
        tuple[AnswerLine, ...], Meta(description="What to do, how sure, and what was checked, as the page opens.")
    ]
    costs: tuple[StepCost, ...]
    facts: RunFacts
    step: StepFacts
    ledger: tuple[LedgerLine, ...]
    findings: tuple[FindingLine, ...]
    what_if: Annotated[tuple[WhatIfRow, ...], Meta(description="The three changes that save most.")]
    rules_not_evaluated: Annotated[Count, Meta(description="`checks` says why.")]
    notes: tuple[str, ...]
    more: Annotated[tuple[str, ...], Meta(description="What else can be asked.")]


class FindingsAnswer(AnswerBase, frozen=True, kw_only=True, tag="findings"):
    """Findings, worst first."""

    rows: tuple[FindingLine, ...]


class FindingAnswer(AnswerBase, frozen=True, kw_only=True, tag="finding"):
    """What one rule says. `rows` is empty where it found nothing: `check` says why."""

    check: CheckLine
    fires: Annotated[str, Meta(description="When the rule fires.")]
    rows: tuple[FullFinding, ...]


class LedgerAnswer(AnswerBase, frozen=True, kw_only=True, tag="ledger"):
    """Where a step goes."""

    rows: tuple[LedgerLine, ...]


class WhatIfAnswer(AnswerBase, frozen=True, kw_only=True, tag="what-if"):
    """What changes would save."""

    replay_error_pct: Annotated[
        Number | None, Meta(description="How far the replay of the unchanged steps is from the measured ones.")
    ]
    total: Count
    rows: tuple[WhatIfRow, ...]
    loaders_unknown: LoadersUnknown = ()
    hosts_unknown: HostsUnknown = ()
    no_replay: Annotated[NoReplay | None, Meta(description="As in report.json.")] = None


class RanksAnswer(AnswerBase, frozen=True, kw_only=True, tag="ranks"):
    """Ranks in the order of `ordered_by`, most first. Times in ms per step."""

    ordered_by: str
    total: Annotated[Count, Meta(description="Rows before `top` cut them.")]
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
    roots: Annotated[tuple[RootJson, ...], Meta(description="Independent causes, most certain first.")]
    waits: tuple[WaitJson, ...]
    rows: Annotated[tuple[RankStatus, ...], Meta(description="A row a rank.")]


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One detection of the monitor."""

    kind: str
    page: Annotated[bool, Meta(description="Whether somebody should look; others are remarks.")]
    since_ns: Annotated[int, Meta(description="Unix time at which it began.")]
    seen_ns: Annotated[int, Meta(description="Unix time at which it was found.")]
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
