"""The evidence of a hang: records, logs, stacks and processes of its ranks."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traceops.fabric.fabric import Fabric
from traceops.traces.run_manifest import MOST_RANKS

State = Literal["scheduled", "started", "completed"]
LogKind = Literal[
    "timeout", "status", "mismatch", "missing", "error", "cuda", "nccl", "memory", "exit", "connection", "monitor",
    "trouble", "outlived", "passed", "ras", "inspector", "said", "idle",
]  # fmt: skip
FEW_RANKS = 512  # so many are gone through whatever is known of them
RANKS_A_KNOWN = 16  # and so many for each rank of which something is known


class Frame(Struct, frozen=True):
    """One line of a stack."""

    function: str
    file: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.function} ({self.file}{'' if self.line is None else f':{self.line}'})"

    @property
    def place(self) -> str:
        """'step (train.py:128)': the file without its folder."""
        return str(replace(self, file=self.file.replace("\\", "/").rpartition("/")[2]))


class Operation(msgspec.Struct, frozen=True, gc=False):  # made by the million: a dataclass takes seven times as long
    """A collective or point-to-point operation that a rank called. record: its place in the rank's program order.
    group: the group's name on this rank. op: 'all_reduce', '_all_gather_base', 'send', … without its backend. sequence:
    place in the group; point-to-point operations are counted apart. peer: the other end of a send or receive, a global
    rank; None if not known. Shapes are per tensor; None where the source does not tell. frames: innermost first."""

    record: int
    group: str
    op: str
    sequence: int
    is_p2p: bool = False
    peer: int | None = None
    sizes_in: tuple[tuple[int, ...], ...] | None = None
    sizes_out: tuple[tuple[int, ...], ...] | None = None
    dtypes_in: tuple[str, ...] | None = None
    dtypes_out: tuple[str, ...] | None = None
    state: State = "scheduled"
    created_ns: int | None = None
    frames: tuple[Frame, ...] = ()


class RecordedGroup(Struct, frozen=True):
    """A process group as one rank knows it; `ranks` are global and sorted, None where they are not told."""

    name: str
    description: str
    ranks: tuple[int, ...] | None

    @property
    def is_of_all(self) -> bool:
        """Whether this is the group of all ranks, which old torch and gloo list without members."""
        return self.description == "default_pg" or (self.name in ("0", "default_pg") and not self.description)


class GroupStatus(Struct, frozen=True):
    """How far a rank has come in a group: sequence numbers of collectives, None where not told. messages: the last send
    or receive it called. latest: the number of whatever it called last, where the source does not tell collectives from
    messages."""

    enqueued: int | None = None
    completed: int | None = None
    messages: int | None = None
    latest: int | None = None


class RankRecord(Struct, frozen=True):
    """What one rank's flight recorder, or what its log says of its collectives, holds. operations: in program order.
    status: by the group's name. whole: `operations` go back to the rank's first collective. active_only: completed
    operations were left out of the dump. timed: starts were recorded. source: 'flight recorder' or 'log'. backend:
    'nccl', 'gloo', …, None where not told. hides_messages: the rank has called sends or receives that are not recorded
    (gloo's never are)."""

    rank: int
    path: str
    groups: dict[str, RecordedGroup]
    operations: tuple[Operation, ...]
    status: dict[str, GroupStatus] = field(default_factory=dict)
    whole: bool = False
    active_only: bool = False
    timed: bool = False
    source: Literal["flight recorder", "log"] = "flight recorder"
    nccl_version: str | None = None
    backend: str | None = None
    hides_messages: bool = False


class Shards(Struct, frozen=True):
    """Parameters that FSDP gathers and reduces together, as the rank told when it hung. group: the process group's name
    on that rank. elements: of the whole, shard: of one rank's part, both padded. names: the first few of `count`."""

    group: str | None
    elements: int
    shard: int
    names: tuple[str, ...]
    count: int


class Trained(Struct, frozen=True):
    """The parameters of a model under DDP, in the model's order, as the rank told when it hung. group: as in `Shards`.
    cap_bytes: from which a bucket is full. parameters: (name, elements, bytes)."""

    group: str | None
    cap_bytes: int
    parameters: tuple[tuple[str, int, int], ...]


class LogEvent(Struct, frozen=True):
    """One thing a log says that bears on a hang; `rank` is who said it, None if that is not told. kind: 'timeout' a
    collective ran out of time; 'status' how far the rank has come (`enqueued`, `completed`); 'mismatch' different calls
    were detected; 'missing' ranks that did not come (`accused`); 'error' an exception ended the rank; 'cuda' a GPU
    error; 'nccl' an NCCL warning; 'memory' out of memory; 'exit' a process ended (`accused` with `exit_code`, negative
    for a signal; `root_cause` as torchrun says); 'connection' a peer is gone; 'monitor' the heartbeat monitor gave up;
    'trouble' a line that calls itself an error or says that it tries again, where a log tells of nothing else;
    'outlived' any of these after which the log shows steps, or the program's own end: it, or its next start, went on;
    'passed' a state that was over, as the log says; 'ras' ranks that NCCL's RAS report tells apart from the others by
    how many operations (`op`, `sequence`) they have launched; 'inspector' ranks on which NCCL Inspector wrote nothing
    more after that operation; 'said' the last line of a rank that says nothing else, where others ran out of time;
    'idle' steps that train nothing. line: in the file, from 1. op: as in `Operation`. frames: innermost first, of the
    failed collective or the exception. steps_behind: the furthest step that the log shows close behind it, if several
    are: printed before it and shown late, or made after it. was: the kind of what was outlived; 'trouble' where its
    logger goes on. cut_off: of a traceback, that its own end is missing: the exception is not told. after_end: its
    training had ended before. when: seconds by the clock of a launcher's host, of the end of a process. clock: the time
    of day in a line that was 'said'. before: lines that lead to it, by their number: the last overflows before a loss
    scaler gave up."""

    kind: LogKind
    rank: int | None
    path: str
    line: int
    text: str
    group: str | None = None
    group_description: str | None = None
    op: str | None = None
    sequence: int | None = None
    elements_in: int | None = None
    elements_out: int | None = None
    enqueued: int | None = None
    completed: int | None = None
    accused: tuple[int, ...] = ()
    exit_code: int | None = None
    root_cause: bool = False
    frames: tuple[Frame, ...] = ()
    steps_behind: int | None = None
    was: LogKind | None = None
    cut_off: bool = False
    after_end: bool = False
    before: tuple[tuple[int, str], ...] = ()
    when: int | None = None
    clock: str | None = None

    @property
    def named(self) -> set[int]:
        """The ranks that it names: whose it is, and whom it is about."""
        return {*self.accused, *(() if self.rank is None else (self.rank,))}

    @property
    def proof(self) -> tuple[str, str]:
        """Where it stands, and what it says."""
        return f"{self.path}:{self.line}", self.text[:300]


class ThreadStack(Struct, frozen=True):
    """One thread's stack, innermost frame first; `native` frames are of compiled code."""

    main: bool
    frames: tuple[Frame, ...]
    name: str | None = None
    native: bool = False


class RankStacks(Struct, frozen=True):
    """The stacks of one rank's process at one moment; of a process whose rank is not known, rank is None."""

    rank: int | None
    path: str
    threads: tuple[ThreadStack, ...]

    @property
    def main(self) -> ThreadStack | None:
        """The main thread's stack; None if it is not told apart."""
        return next((thread for thread in self.threads if thread.main), None)


class RankProcess(Struct, frozen=True):
    """What the launcher, or the rank's own manifest, knows of its process. state: as in /proc ('R', 'S', 'D', 'T'
    stopped, 'Z'), 'gone', or None. step: steps finished, phase: what the capture was doing. exit_code: as a shell has
    it, 128 + n for signal n; None while it runs."""

    rank: int
    host: str | None = None
    pid: int | None = None
    state: str | None = None
    step: int | None = None
    phase: str | None = None
    exit_code: int | None = None
    error: str | None = None


class Stall(Struct, frozen=True):
    """What the launcher saw: nothing moved for `stalled_s`; `kind` is 'init' before the first step."""

    kind: Literal["step", "init"]
    stalled_s: float
    limit_s: float
    noticed_ns: int
    host: str | None = None
    notes: tuple[str, ...] = ()


class LoggedProgress(Struct, frozen=True):
    """A log's steps, where they became slow. usual_s: seconds a step up to `step`. pace_s, until: seconds a step from
    there to the step `until`. shown: seconds a step that a progress bar shows at its end, after `elapsed_s`, though its
    steps took `usual_s` on average."""

    path: str
    rank: int | None
    step: int
    usual_s: float
    pace_s: float | None = None
    until: int | None = None
    shown: float | None = None
    elapsed_s: float | None = None


class LogEnd(Struct, frozen=True):
    """How one log ends. step: the last that it shows, of `of` steps, or the epoch. lines: how many it has. done: the
    program says that it came to its end. serving: a server says that it is up. interrupted, asked: (line, what it
    says). hangs: likewise, of somebody who writes that the job hangs. frames: where it stood when it was interrupted,
    innermost first."""

    path: str
    lines: int
    step: int | None = None
    of: int | None = None
    epoch: float | None = None
    done: bool = False
    serving: bool = False
    interrupted: tuple[int, str] | None = None
    asked: tuple[int, str] | None = None
    frames: tuple[Frame, ...] = ()
    hangs: tuple[int, str] | None = None


class Since(Struct, frozen=True):
    """Ranks have waited since a time of day, 'HH:MM:SS'. said: what the log has of that second, (line, text)."""

    ranks: tuple[int, ...]
    clock: str
    path: str
    said: tuple[tuple[int, str], ...]


def is_borne_out(world: int, known: int) -> bool:
    """Whether so many ranks are few, or something is known of enough of them: one number makes no million ranks."""
    return world <= max(FEW_RANKS, RANKS_A_KNOWN * known)


class HangEvidence(Struct, frozen=True):
    """All that was found of a hang, by rank; any part may be empty. world_size: None where nothing tells. problems:
    (file, what is wrong with it or why it was left out). failed_rank: the rank that failed first, as the launcher saw
    it. fabric: machines, links and NCCL's lines, if any. progress: of logs whose steps became slow. models: the
    parameters under DDP or FSDP of each rank. earlier: by start what a log tells of starts before the one that `log` is
    of. world_source: what tells the number of ranks, as in `job.World`. is_own_run: `traceops run` left it, so nothing
    of a rank is missing by chance. rank_files: ranks that have a log of their own. since: when waits began. lone:
    stacks of processes of unknown rank. ends: how logs end in which nothing failed; only where there is no other
    evidence. setting: as in `job.setting_of`. last_lines: the last sign of life of each rank whose lines a log tells
    apart."""

    root: str
    name: str
    world_size: int | None
    records: dict[int, RankRecord]
    stacks: dict[int, RankStacks]
    processes: dict[int, RankProcess]
    log: tuple[LogEvent, ...] = ()
    stall: Stall | None = None
    files: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    failed_rank: int | None = None
    fabric: Fabric | None = None
    progress: tuple[LoggedProgress, ...] = ()
    models: dict[int, tuple[Shards | Trained, ...]] = field(default_factory=dict)
    earlier: tuple[tuple[LogEvent, ...], ...] = ()
    world_source: str | None = None
    is_own_run: bool = False
    rank_files: frozenset[int] = frozenset()
    since: tuple[Since, ...] = ()
    lone: tuple[RankStacks, ...] = ()
    ends: tuple[LogEnd, ...] = ()
    setting: str | None = None
    last_lines: dict[int, LogEvent] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """How many ranks are gone through one by one, from 0: the world where the evidence bears it out, else 0."""
        size = self.world_size or 0
        known = len({*self.records, *self.stacks, *self.processes})
        return size if is_borne_out(size, known) else 0

    @property
    def everybody(self) -> list[int]:
        """All ranks of the job in order; of a world that the evidence does not bear out, those that it names."""
        known = {*self.records, *self.stacks, *self.processes}
        if not (counted := self.counted):
            known.update(*(event.named for event in self.log))
            for members in {g.ranks for record in self.records.values() for g in record.groups.values()}:
                known.update(rank for rank in members or () if 0 <= rank < MOST_RANKS)
        return sorted({*range(counted), *known})
