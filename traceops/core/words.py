"""Words for what every report speaks of: how steps were found, what memory, groups and schedules are. Literal maps.

Reports, rules and comparisons take their words from here, so a thing is called the same wherever it is named. Causes
and the buckets of a step have theirs in words/causes.ini.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar, get_args

from msgspec import Struct

from traceops.words.catalogue import sections

# What said where the steps of a trace begin: the profiler's own marks, others that were found, or nothing, so that
# the numbers are of the whole window. cut_off: a capture of ours ended before a step was whole.
StepsBy = Literal[
    "profiler", "annotation", "optimizer", "zero_grad", "loader", "backward", "repetition", "window", "cut_off"
]

# Why the steps of a run are not replayed.
NoReplay = Literal["one_rank", "other_ranks_missing", "no_collectives", "nothing_matched", "no_common_step"]

NO_STACK = "no stack: made before the recording began, or without stacks"  # in place of an allocation's line

# What is known of an allocation in a recorded window, by the phases in which it was made and freed.
MemoryKind = Literal[
    "before", "for_backward", "past_backward", "backward_kept", "optimizer_kept",
    "forward_temporary", "backward_temporary", "optimizer_temporary", "unknown",
]  # fmt: skip
KINDS_OF_MEMORY: tuple[MemoryKind, ...] = get_args(MemoryKind)
MEMORY_KINDS: Mapping[MemoryKind, str] = {
    "before": "held from before the recording",
    "for_backward": "made before backward, freed while it ran",
    "past_backward": "made before backward, held after it",
    "backward_kept": "made in backward, held after it",
    "optimizer_kept": "made in the optimizer's step, held after it",
    "forward_temporary": "made outside backward and the optimizer's step, freed before a backward",
    "backward_temporary": "made and freed in one backward",
    "optimizer_temporary": "made and freed in one step of the optimizer",
    "unknown": "made with no backward after it, not freed in the recording",
}


# What times are of: a step, a window without steps, or nothing that could be judged.
Unit = Literal["step", "window", "none"]

# How steps were found, behind '20 steps'; {mark} is the mark's name.
STEPS_FOUND: Mapping[StepsBy, str] = {
    "profiler": "marked by the profiler",
    "annotation": "found by the annotation '{mark}'",
    "optimizer": "found by {mark}",
    "zero_grad": "found by {mark}",
    "loader": "found by {mark}",
    "backward": "found by their backward passes",
    "repetition": "found by what repeats (one may be a single pass)",
}


def steps_found_text(count: int, by: StepsBy, mark: str | None) -> str:
    """'20 steps found by Optimizer.step'."""
    return f"{count} step{'' if count == 1 else 's'} {STEPS_FOUND[by].format(mark=mark)}"


# Schedules of pipelines. The keys are those of traceops.across.pipelines.Schedule.
SCHEDULES: Mapping[str, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "looped_bfs": "a breadth-first loop",
    "zero_bubble": "a zero-bubble schedule",
    "forward_only": "forward only",
    "other": "an unknown schedule",
}

# What a process group is for. context: parts of a sequence, by ring attention or all-to-alls.
Role = Literal["data", "shard", "tensor", "context", "pipeline", "expert", "unknown"]

# Communication by what its group is for, as in 'tensor parallel: 9.1 ms exposed'.
ROLES: Mapping[Role, str] = {
    "data": "data parallel",
    "shard": "sharded data parallel",
    "tensor": "tensor parallel",
    "context": "context parallel",
    "pipeline": "pipeline parallel",
    "expert": "expert parallel",
    "unknown": "unknown role",
}

# What told the role of a group.
RoleTold = Literal["description", "operations", "messages", "kernels", "nothing"]
ROLE_TOLD: Mapping[RoleTold, str] = {
    "description": "by its name",
    "operations": "by what it does in which pass",
    "messages": "by who sends to whom",
    "kernels": "by its kernels' library",
    "nothing": "not told",
}


class StepWords(Struct, frozen=True):
    """Words for what times are of. Whoever makes a sentence is given them; none is changed afterwards. a: 'a step would
    take'. each: 'of each step'. per: 'per step', behind an amount. rate: '/step', behind a unit."""

    noun: str
    a: str
    each: str
    per: str
    rate: str

    @property
    def the(self) -> str:
        """'the step'."""
        return f"the {self.noun}"

    @property
    def heading(self) -> str:
        """'Step ms', over a column."""
        return f"{self.noun.capitalize()} ms"

    @property
    def typical(self) -> str:
        """'typical step'; there is one window only."""
        return self.choose("typical step", "window")

    def unit(self, unit: str) -> str:
        """'ms/step'."""
        return f"{unit}{self.rate}"

    def choose(self, of_step: str, of_window: str) -> str:
        """Which of two phrases, where they differ in more than a word."""
        return of_window if self is WINDOW else of_step


STEP = StepWords(noun="step", a="a step", each="each step", per="per step", rate="/step")
WINDOW = StepWords(noun="window", a="the window", each="the window", per="in the window", rate="")


def step_words(unit: Unit) -> StepWords:
    """The words for a unit; of a run without a whole step those of steps."""
    return WINDOW if unit == "window" else STEP


class CauseWords(Struct, frozen=True):
    """One cause of a rank's lateness. label: its name in a table. clause: what the rank does. changed: the same of a
    rank that was not late before; changed_several: of several ranks. What is said of a late rank itself lies in
    words/late.ini."""

    label: str
    clause: str
    changed: str
    changed_several: str = ""


class BucketWords(Struct, frozen=True):
    """One bucket of the step ledger.

    label: in a table or legend. metric: as a metric of a comparison, inside a sentence. definition: one line.
    longer, shorter: what more and less of it means; {device} stands for CPU or GPU. of_rank, of_several: on the
    critical path, behind "rank 3's" and before "on ranks 2, 3"; empty where that time is no rank's own.
    """

    label: str
    metric: str
    definition: str
    longer: str
    shorter: str
    of_rank: str = ""
    of_several: str = ""


W = TypeVar("W", CauseWords, BucketWords)


def _read(kind: str, words: type[W]) -> Mapping[str, W]:
    known = sections("causes").items()
    return {name.removeprefix(kind): words(**own) for name, own in known if name.startswith(kind)}


CAUSES = _read("cause.", CauseWords)
BUCKETS = _read("bucket.", BucketWords)
