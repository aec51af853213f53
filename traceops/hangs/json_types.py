"""A hang as hang.json and report.json hold it: the types that their schemas are made from."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.core.documents import SCHEMA_VERSION, FileProblem, SchemaVersion, Tool
from traceops.core.findings import Check, Confidence, Finding, Severity
from traceops.hangs.evidence import Stall

RankState = Literal["waiting", "root", "idle", "dead", "stopped", "unclear", "absent"]
SomeRanks = Annotated[tuple[int, ...], Meta(min_length=1)]


class RootEvidence(msgspec.Struct, frozen=True):
    """One proof of a root."""

    what: str
    value: str


class Carried(msgspec.Struct, frozen=True):
    """What an operation carries: gradients or parameters, as the ranks recorded, or what its size makes likely. shape:
    rows of a vocabulary of `model`."""

    what: Literal["gradients", "parameters", "likely"]
    elements: int
    names: tuple[str, ...] = ()
    count: int = 0
    alike: int = 0
    shape: tuple[int, int] | None = None
    model: str | None = None


class RootJson(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that the others wait for, with the rule it is a case of and the proof."""

    rule: Annotated[str, Meta(pattern=r"^TO-[A-Z]\d{3}$")]
    ranks: tuple[int, ...]
    confidence: Confidence
    message: str
    waiting: tuple[int, ...]
    cause: str | None
    group: str | None
    group_ranks: tuple[int, ...] | None
    op: str | None
    sequence: int | None
    bytes: int | None
    where: str | None
    doing: str | None
    evidence: tuple[RootEvidence, ...]
    carries: Carried | None = None


class SeenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log that tells of a failure, a timeout or an end, whether or not it is a cause."""

    file: str
    line: int
    rank: int | None
    kind: str
    text: str


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank is. group to where: of its first operation that has not completed."""

    rank: int
    host: str | None = None
    state: RankState
    step: int | None = None
    group: str | None = None
    group_ranks: tuple[int, ...] | None = None
    op: str | None = None
    sequence: int | None = None
    op_state: str | None = None
    bytes: int | None = None
    where: str | None = None
    doing: str | None = None
    waits_for: tuple[int, ...] = ()
    pending: int | None = None
    exit_code: int | None = None
    sources: tuple[str, ...] = ()
    last_line: str | None = None


class WaitJson(msgspec.Struct, frozen=True, kw_only=True):
    """Each of `ranks` waits for each of `on`."""

    ranks: SomeRanks
    on: SomeRanks
    why: str
    group: str | None
    op: str | None
    sequence: int | None


class HangJson(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits for whom, and for which cause."""

    level: Severity
    sentence: str
    roots: tuple[RootJson, ...]
    ranks: tuple[RankStatus, ...]
    waits: tuple[WaitJson, ...]
    waits_left_out: int
    stall: Stall | None
    files: tuple[str, ...]
    problems: tuple[FileProblem, ...]
    notes: tuple[str, ...]
    not_evaluated: dict[str, str]
    seen: tuple[SeenLine, ...] = ()


class HangRun(msgspec.Struct, frozen=True, kw_only=True):
    """The job that hangs."""

    name: str
    world_size: Annotated[int, Meta(ge=1)] | None
    ranks_present: tuple[int, ...]
    ranks_missing: tuple[int, ...]
    ranks_missing_runs: tuple[tuple[int, int], ...] = ()
    hosts: tuple[str, ...]


class HangDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What hang.json holds."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    tool: Tool = Tool()
    run: HangRun
    hang: HangJson
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
