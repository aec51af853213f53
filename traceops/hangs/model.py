"""The diagnosis of a hang."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.claims import phrases
from traceops.core.findings import Confidence, Finding
from traceops.hangs.crashes import Crash
from traceops.hangs.evidence import HangEvidence
from traceops.hangs.json_types import Carried, RankStatus

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


_OF_ROOT = ("ranks", "waiting", "group", "op", "sequence", "where", "doing")  # its fields that words show


class RootKind(Enum):
    """What a cause says; a section of words/hangs.ini has the words of each."""

    NEVER_CALLED = "never_called"
    CIRCLE = "circle"
    DIFFERENT = "called_differently"
    MESSAGE_SIZE = "message_size"
    REPORTED_MISSING = "reported_missing"
    REPORTED_MISMATCH = "reported_mismatch"
    GPU_UNFINISHED = "gpu_unfinished"
    GPU_UNSTARTED = "gpu_unstarted"
    GPU_ALONE = "gpu_alone"
    NONE_FINISHED = "none_finished"
    STOPPED = "stopped"
    UNRECORDED = "unrecorded"
    MENTIONED = "mentioned"
    UNSEEN = "unseen"
    ELSEWHERE = "elsewhere"
    STANDING = "standing"
    NO_EVIDENCE = "no_evidence"
    WAITING_APART = "waiting_apart"
    WAITING_TOGETHER = "waiting_together"
    WAITING_IN = "waiting_in"
    DIED = "died"
    LEFT = "left"
    DIED_ALIKE = "died_alike"
    CRASHED = "crashed"


class RootFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What else a cause says, beside the fields of `Root`; a fact that is not known has its default. how: how the ranks
    ended or crashed, in words, and end: the same in few. shape: of the operation's input. others: of the ranks that the
    sentence compares these with. here: those that wait in the operation itself."""

    how: str = ""
    end: str = ""
    shape: str = ""
    others: tuple[int, ...] = ()
    here: tuple[int, ...] = ()
    perhaps: bool = False  # it is not certain that these did not call it
    hidden: tuple[int, ...] = ()  # of these, who may be in messages that gloo does not record
    heads: tuple[str, ...] = ()  # what each rank of a circle is in
    culprits: tuple[int, ...] = ()  # of a circle, who will not make the next call
    counted: tuple[int, ...] = ()  # of others, whose logs only count their calls
    finished: tuple[int, ...] = ()  # members that are through with it
    several: Literal["one", "two", "many"] | None = None  # members, where they are the whole group
    starts: Literal["started", "gloo", "not_started", "not_recorded"] | None = None  # what the GPUs recorded of it
    unknown_members: bool = False
    way: str = ""  # by which NCCL sends between two of them
    between: tuple[str, str] | None = None  # those GPUs
    path: str = ""  # between them, as nvidia-smi calls it
    across: bool = False  # it crosses sockets
    quiet: tuple[int, ...] = ()  # whom no line of the log names either
    before_first: bool = False  # of all steps
    calls: str = ""  # what the ranks called, as torch reports it
    horovod: bool = False  # Horovod reports it, not torch or NCCL
    sides: tuple[str, ...] = ()  # who called what
    decided: bool = False  # which side is wrong is known
    stuck: int | None = None  # the number of the call that never ended, after the first different one
    agree: bool = False  # the calls of all others belong together
    own_gpu: bool = False  # the ranks' hosts wait for their own GPUs
    suspect: str = ""  # what may be why


class Root(Struct, frozen=True):
    """Ranks that the others wait for, with the rule it is a case of and the proof. kind and facts: what they did.
    waiting: ranks that wait for these, directly or through others. group, op, sequence, bytes, where: the operation in
    question and its line of code. doing: what the root ranks were doing instead. evidence: (what, value). crash: how
    the ranks crashed, where the log shows it; a root that only crashed (TO-E…) may have no ranks, where no line names
    one. carried: what the operation carries, where that is known or likely. setting: in which the job runs, as advice
    differs by it."""

    rule: str
    kind: RootKind
    ranks: tuple[int, ...]
    confidence: Confidence
    facts: RootFacts = RootFacts()
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

    def with_facts(self, **facts: Any) -> Root:
        """The same with these facts."""
        return replace(self, facts=replace(self.facts, **facts))

    def sentences(self, part: str, kind: str = "") -> list[str]:
        """The sentences of a part of its section, or of another, of which every fact is known."""
        known = {name: getattr(self.facts, name) for name in RootFacts.__struct_fields__}
        known |= {name: getattr(self, name) for name in _OF_ROOT}
        return phrases("hangs", kind or self.kind.value, part, **known)

    @property
    def headline(self) -> str:
        """It in one short sentence, without a full stop."""
        return self.sentences("headline")[0]

    @property
    def message(self) -> str:
        """The statement in full, and who waits."""
        first = next(iter(self.sentences("message")), f"{self.headline}.")
        said = " ".join([first, *self.sentences("why"), *self.sentences("why", "any_root")])
        return said.replace("….", "…")


class Diagnosis(Struct, frozen=True):
    """Who hangs and why: `roots`, most certain first; `ranks`, by rank; `waits`, the edges of the graph. not_evaluated:
    rule -> why it could not be judged. machine: what the doctor finds wrong with machines in the same text."""

    evidence: HangEvidence
    roots: tuple[Root, ...]
    ranks: tuple[RankStatus, ...]
    waits: tuple[Wait, ...]
    not_evaluated: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine: tuple[Finding, ...] = ()
