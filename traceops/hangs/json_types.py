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


class CarriedJson(msgspec.Struct, frozen=True, kw_only=True):
    """What the operation carries, as the ranks told, or as its size suggests."""

    what: Annotated[
        Literal["gradients", "parameters", "likely"],
        Meta(description="likely: nobody told, and shape is what the size suggests."),
    ]
    elements: Annotated[int, Meta(description="Of one rank's input.")]
    names: Annotated[tuple[str, ...], Meta(description="The first parameters of it.")] = ()
    count: Annotated[int, Meta(description="How many parameters it has.")] = 0
    alike: Annotated[int, Meta(description="Other buckets of the same size, which it may be as well.")] = 0
    shape: tuple[int, int] | None = None
    model: Annotated[str | None, Meta(description="Published models with that vocabulary.")] = None


class RootJson(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that the others wait for, with the rule it is a case of and the proof."""

    rule: Annotated[str, Meta(pattern=r"^TO-[A-Z]\d{3}$")]
    ranks: Annotated[tuple[int, ...], Meta(description="Empty for a crash (TO-E…) whose rank no line tells.")]
    confidence: Confidence
    message: str
    waiting: Annotated[tuple[int, ...], Meta(description="Ranks that wait for these, directly or through others.")]
    cause: str | None
    group: str | None
    group_ranks: tuple[int, ...] | None
    op: str | None
    sequence: int | None
    bytes: int | None
    where: Annotated[str | None, Meta(description="Line of code of the operation.")]
    doing: Annotated[str | None, Meta(description="What the root ranks did instead.")]
    evidence: tuple[RootEvidence, ...]
    carries: CarriedJson | None = None


class SeenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log that tells of a failure, a timeout or an end, whether or not it is a cause."""

    file: str
    line: int
    rank: int | None
    kind: Annotated[str, Meta(description="As docs/formats.md lists them: timeout, error, memory, cuda, exit, …")]
    text: str


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank is. group to where: of its first operation that has not completed."""

    rank: int
    host: str | None = None
    state: RankState
    step: Annotated[int | None, Meta(description="Steps finished.")] = None
    group: str | None = None
    group_ranks: tuple[int, ...] | None = None
    op: str | None = None
    sequence: int | None = None
    op_state: str | None = None
    bytes: int | None = None
    where: Annotated[str | None, Meta(description="Line of code of the pending operation.")] = None
    doing: Annotated[str | None, Meta(description="The main thread's stack in short.")] = None
    waits_for: tuple[int, ...] = ()
    pending: Annotated[int | None, Meta(description="Operations not completed.")] = None
    exit_code: Annotated[int | None, Meta(description="As a shell has it: 128 + n for signal n.")] = None
    sources: tuple[str, ...] = ()
    last_line: Annotated[str | None, Meta(description="Time of day in the rank's last line in a log.")] = None


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
    not_evaluated: Annotated[dict[str, str], Meta(description="Rule: why it could not be judged.")]
    seen: Annotated[
        tuple[SeenLine, ...], Meta(description="What logs tell of failures: the first 200 lines, in their order.")
    ] = ()


class HangRun(msgspec.Struct, frozen=True, kw_only=True):
    """The job that hangs."""

    name: str
    world_size: Annotated[int, Meta(ge=1)] | None
    ranks_present: Annotated[tuple[int, ...], Meta(description="Ranks of which anything is known.")]
    ranks_missing: Annotated[tuple[int, ...], Meta(description="The first 4096 of them.")]
    ranks_missing_runs: Annotated[
        tuple[tuple[int, int], ...], Meta(description="All of them: first and last of each run.")
    ] = ()
    hosts: tuple[str, ...]


class HangDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What hang.json holds."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    tool: Tool = Tool()
    run: HangRun
    hang: HangJson
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
