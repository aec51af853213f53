"""Answers as `traceops show --json` and the MCP server's tools give them: the types that their schema is made of."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from traceops.answers.lines import (
    AnswerLine,
    AskedRun,
    CheckLine,
    CollectiveLine,
    FindingLine,
    FullFinding,
    HeadlineLine,
    KernelLine,
    LedgerLine,
    RunFacts,
    StepCost,
    StepFacts,
    StepLine,
)
from traceops.core.findings import Severity
from traceops.core.tool import Tool
from traceops.core.words import NoReplay
from traceops.hangs.json_types import RankStatus, RootJson, WaitJson
from traceops.report.cross_rows import RoleRow, WhatIfRow
from traceops.report.numbers import Count, Number
from traceops.report.rows import RankRow
from traceops.report.summary import HostsUnknown, LoadersUnknown

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
    first_screen: Annotated[
        tuple[AnswerLine, ...], Meta(description="Where, why, what to do, how sure, as the page opens.")
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
    """Ranks in the order of `ordered_by`, most first. Times in ms a step."""

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
    """Communication by what its groups are for, ms a step."""

    rows: tuple[RoleRow, ...]


class HangAnswer(AnswerBase, frozen=True, kw_only=True, tag="hang"):
    """A hang's diagnosis, as report.json and hang.json hold it; sentence is null without evidence of one."""

    level: Severity | None
    sentence: str | None
    roots: Annotated[tuple[RootJson, ...], Meta(description="Independent causes, most certain first.")]
    waits: tuple[WaitJson, ...]
    rows: Annotated[tuple[RankStatus, ...], Meta(description="A row a rank.")]


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
    | ChecksAnswer
)
