"""The diagnosis of a hang."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from traceops.core.findings import Confidence, Finding
from traceops.hangs.crashes import Crash
from traceops.hangs.evidence import HangEvidence
from traceops.hangs.json_types import RankStatus

# not_called: the other has not called what the rank is in; not_recorded: it has not, as far as its record tells;
# earlier: it has, and is still in an earlier operation; batch: it has, in one batch with others that do not end;
# no_record: it left no record; cause: only a root explains the waiting.
WaitReason = Literal["not_called", "not_recorded", "earlier", "batch", "no_record", "cause"]

HOW_IT_ENDED = "how it ended"  # evidence of a process that did


class Wait(Struct, frozen=True):
    """Rank `rank` waits for rank `on`: in `group`, for the operation `op` number `sequence`, because of `reason`."""

    rank: int
    on: int
    reason: WaitReason
    group: str | None = None
    op: str | None = None
    sequence: int | None = None


class Carried(Struct, frozen=True):
    """What a collective carries: `what` 'gradients' or 'parameters' of `count` parameters, the first of them `names`.

    elements: of one rank's input. alike: other buckets of the same size, which it may be as well. what 'likely':
    nobody told; shape is what the size suggests, rows of a vocabulary of `model`.
    """

    what: Literal["gradients", "parameters", "likely"]
    elements: int
    names: tuple[str, ...] = ()
    count: int = 0
    alike: int = 0
    shape: tuple[int, int] | None = None
    model: str | None = None


class Root(Struct, frozen=True):
    """Ranks that the others wait for, with the rule it is a case of and the proof.

    statement: what they did, as a sentence without its full stop; tells_waiting: it says who waits for them.
    waiting: ranks that wait for these, directly or through others. group, op, sequence, bytes, where: the
    operation in question and its line of code. doing: what the root ranks were doing instead.
    evidence: (what, value). crash: how the ranks crashed, where the log tells; a root that only crashed (TO-E…) may
    have no ranks, where no line names one. carried: what the operation carries, where that is known or likely.
    setting: in which the job runs, as advice differs by it.
    """

    rule: str
    ranks: tuple[int, ...]
    confidence: Confidence
    statement: str
    tells_waiting: bool = False
    waiting: tuple[int, ...] = ()
    cause: str | None = None
    group: str | None = None
    group_ranks: tuple[int, ...] | None = None
    op: str | None = None
    sequence: int | None = None
    bytes: int | None = None
    where: str | None = None
    doing: str | None = None
    evidence: tuple[tuple[str, str], ...] = ()
    crash: Crash | None = None
    setting: str | None = None
    carried: Carried | None = None

    @property
    def message(self) -> str:
        """The statement as a sentence."""
        return self.statement if self.statement.endswith("…") else f"{self.statement}."


class Diagnosis(Struct, frozen=True):
    """Who hangs and why: `roots`, most certain first; `ranks`, by rank; `waits`, the edges of the graph.

    not_evaluated: rule -> why it could not be judged. machine: what the doctor finds wrong with machines in the
    same text.
    """

    evidence: HangEvidence
    roots: tuple[Root, ...]
    ranks: tuple[RankStatus, ...]
    waits: tuple[Wait, ...]
    not_evaluated: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine: tuple[Finding, ...] = ()
