"""Ranks that crashed or whose process is gone: when that is a cause, and what else failed next to the causes."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.errors import KILLED_BY
from traceops.core.findings import Confidence
from traceops.core.rank_text import who, who_first
from traceops.hangs.crash_kinds import RULE_OF, CrashKind
from traceops.hangs.crashes import FROM_OUTSIDE, LATER, OF_MACHINE, Crash, by_machine, find_crashes, kind_of
from traceops.hangs.evidence import Frame, HangEvidence, LogEvent, LogKind
from traceops.hangs.model import Root, RootFacts, RootKind
from traceops.hangs.positions import Call
from traceops.hangs.roots import DIED, HOST, NETWORK
from traceops.hangs.stack_activity import is_own
from traceops.hangs.words import crash_clause, own_line, place_text
from traceops.words.catalogue import texts

_MOST_TEXT = 420
_MOST_OUTLIVED = 2
_SAME = 60  # characters of a message by which it is known again
_SIGNALS = 128  # exit codes above it are signals
_WORDS = texts("hangs", "crash")
_ONLY_ERROR, _UNKNOWN_RANK = "only_error", "unknown_rank"


def with_crashes(roots: Sequence[Root], crashes: Sequence[Crash], stuck: Sequence[Call] = ()) -> list[Root]:
    """The causes, with the crash of each rank that died; the first crash is the cause where no other is known. A rank
    of which nothing is known but that it crashed, and that others wait for, is a crash too. stuck: what ranks are in,
    whoever they wait for."""
    if not crashes:
        return list(roots)
    if not roots:
        first = crash_root(crashes[0])
        waiting = tuple(sorted({call.rank for call in stuck} - set(first.ranks)))
        if not waiting or first.ranks:
            return [replace(first, waiting=waiting)]
        if crashes[0].kind in FROM_OUTSIDE:
            return []  # who ended the job ended ranks that waited: not why they did
        call = stuck[0]
        waits_in = replace(first, kind=RootKind.WAITING_IN, facts=RootFacts(), waiting=waiting, confidence="low")
        waits_in = replace(waits_in, group=call.group.label, op=call.op.op, sequence=call.op.sequence)
        return [_perhaps_of(waits_in, crashes[0], _UNKNOWN_RANK, proof=())]
    alone = len(roots) == len(crashes) == 1  # an error that names no rank is that of the one that died
    explained = [_explained(root, crashes, alone) for root in _first_to_die(roots, crashes[0])]
    # All ended as Python ends after an exception, of which nothing is known: the one that is known may be the same.
    unknown = (root.rule == DIED and root.crash is None and ("exit code", "1") in root.evidence for root in explained)
    if crashes[0].alone and crashes[0].ranks and all(unknown):
        return [crash_root(crashes[0]), *(replace(root, confidence="medium") for root in explained)]
    return explained


def with_outlived(root: Root, log: Sequence[LogEvent]) -> Root:
    """A rank that died for a reason that nothing tells, with what was outlived: it may have to do with that."""
    if root.rule != DIED or root.crash is not None:
        return root
    before = [one for one in log if one.kind == "outlived" and (one.rank is None or one.rank in root.ranks)]
    proof = [(f"{one.path}:{one.line}", _WORDS["outlived"].format(text=one.text[:_MOST_TEXT])) for one in before]
    return replace(root, evidence=(*root.evidence, *proof[-_MOST_OUTLIVED:]))


def _first_to_die(roots: Sequence[Root], first: Crash) -> Sequence[Root]:
    """Without those who died later, where no exit code but the log's order alone says who died."""
    by_log = [root for root in roots if root.rule == DIED and root.confidence != "high"]
    if len(by_log) < 2 or not first.alone or not any(set(root.ranks) & set(first.ranks) for root in by_log):
        return roots
    return [root for root in roots if root not in by_log or set(root.ranks) & set(first.ranks)]


def _explained(root: Root, crashes: Sequence[Crash], alone: bool) -> Root:
    if (crash := next((crash for crash in crashes if set(crash.ranks) & set(root.ranks)), None)) is None:
        return _of_unknown_rank(root, crashes[0]) if alone and not crashes[0].ranks else root
    if root.rule == DIED:
        return _died_of(root, crash)
    # Whether the crash of some of the ranks that do not come is why, whoever else of them is silent.
    explains = set(root.ranks) <= set(crash.ranks) or (crash.alone and crash.kind not in LATER)
    if root.rule == HOST and root.confidence == "low" and explains:
        waiting = tuple(rank for rank in root.waiting if rank not in crash.ranks)
        waits_in = {name: getattr(root, name) for name in ("group", "group_ranks", "op", "sequence")}
        return replace(crash_root(crash), waiting=waiting, **waits_in)
    return root


def _of_unknown_rank(root: Root, first: Crash) -> Root:
    """The root with the only failure, where that may be why though no line names its rank."""
    if root.rule == DIED and root.cause is None:  # who exited by itself did so for no failure from outside
        code = next((int(value) for name, value in root.evidence if name == "exit code"), _SIGNALS)
        is_known = first.event.text.rstrip(". ") in root.evidence[0][1]
        if first.kind not in FROM_OUTSIDE or code >= _SIGNALS or is_known:
            return _perhaps_of(root, first, _ONLY_ERROR)
    # All wait, for one or for the network, and the machine did something to some process.
    all_wait = root.rule in (HOST, NETWORK) and root.confidence == "low"
    if all_wait and first.kind in OF_MACHINE and by_machine(first.event, first.kind):
        return _perhaps_of(root, first, _UNKNOWN_RANK)
    return root


def _died_of(root: Root, crash: Crash) -> Root:
    """Ranks that a launcher saw die, with what they said, and with all that failed with the same words and line."""
    failures: dict[tuple[str, Frame | None], set[int]] = {}
    for event in crash.events:
        if event.rank is not None:
            own_frame = next((frame for frame in event.frames if is_own(frame)), None)
            failures.setdefault((event.text, own_frame), set()).add(event.rank)
    alike = [ranks for ranks in failures.values() if not ranks.isdisjoint(root.ranks)]
    # How they ended, without their own words, which the crash has.
    ended = tuple(one for one in root.evidence if one[0] == "exit code") or root.evidence
    if root.op is not None or len(alike) != 1 or not alike[0] > set(root.ranks):
        crash = crash.of(root.ranks)
        return replace(root, where=own_line(crash), crash=crash, evidence=(*ended, *_proof(crash)))
    crash = crash.of(tuple(alike[0]))
    return replace(
        root,
        kind=RootKind.DIED_ALIKE,
        ranks=crash.ranks,
        facts=RootFacts(how=crash_clause(crash, ""), end=crash_clause(crash, "", part="short")),
        waiting=tuple(rank for rank in root.waiting if rank not in crash.ranks),
        where=own_line(crash),
        crash=crash,
        evidence=((reason("hangs", "ended_first"), who(root.ranks)), *ended, *_proof(crash)),
    )


def _perhaps_of(root: Root, crash: Crash, process: str, proof: Sequence[tuple[str, str]] | None = None) -> Root:
    """The rank that died or does not come, with the only failure that a log has, whose rank no line names."""
    place, part = own_line(crash), "suspect"
    if crash.kind == "exception":  # its message alone says what it was, if that is not how the rank ended
        known = crash.event.text[:_SAME] in root.facts.how
        part = "clause" if not known else "suspect" if place else ""
    return replace(
        root, crash=crash, evidence=(*root.evidence, *(_proof(crash) if proof is None else proof))
    ).with_facts(suspect=crash_clause(crash, _WORDS[process], part=part) if part else "")


def crash_root(crash: Crash) -> Root:
    """The crash as a cause."""
    confidence: Confidence = "high"
    behind = crash.event.steps_behind
    subject = who_first(crash.ranks) if crash.ranks else _WORDS["program"]
    if not crash.alone or behind is not None or crash.kind in (*LATER, "exception", "write_failed"):
        confidence = "medium"
    return Root(
        rule=RULE_OF[crash.kind],
        kind=RootKind.CRASHED,
        ranks=crash.ranks,
        confidence=confidence,
        facts=RootFacts(how=crash_clause(crash, subject), end=crash_clause(crash, subject, part="short")),
        cause=crash.cause,
        where=own_line(crash),
        evidence=(*_proof(crash), *([] if behind is None else [("behind it", _WORDS["late"].format(step=behind))])),
        crash=crash,
    )


def _proof(crash: Crash) -> tuple[tuple[str, str], ...]:
    event = crash.event
    proof = [(f"{event.path}:{event.line}", event.text[:_MOST_TEXT])]
    if event.frames and event.frames[0] != crash.own_frame:
        proof.append(("raised in", str(event.frames[0])))
    return (*proof, *((f"{event.path}:{line}", text) for line, text in event.before))


_MOST = 4
_OF_SIGNALS: tuple[CrashKind, ...] = ("hangup", "terminated")


def without_own_end(evidence: HangEvidence) -> Sequence[LogEvent]:
    """What the logs tell, but for torchrun's words on the signal with which `traceops run` ended a job that hung."""
    if evidence.stall is None:
        return evidence.log
    return [event for event in evidence.log if kind_of(event) not in _OF_SIGNALS]


def aftermath(log: Sequence[LogEvent], roots: Sequence[Root], *, waiting: bool = False) -> tuple[str, ...]:
    """A sentence for each: 'After that the program was ended by Slurm at the job's time limit (train.log:52).' waiting:
    ranks wait in operations, whatever the cause."""
    if not roots and not waiting:
        return ()
    known = {root.crash.kind for root in roots if root.crash is not None}
    explained = {rank for root in roots for rank in (*root.ranks, *root.waiting)}
    others = [] if known else find_crashes(log)
    crashes = [
        crash
        for crash in others
        if crash.kind not in FROM_OUTSIDE and crash.alone and explained.isdisjoint(crash.ranks)
    ]
    for event in log:
        kind = kind_of(event)
        if kind in FROM_OUTSIDE and kind not in known:
            known.add(kind)
            crashes.append(Crash(kind, (), event))
    # By file, the first line that names a cause, or the waiting that it explains.
    first: dict[str, int] = {}
    for root in roots:
        if root.crash is not None:
            first.setdefault(root.crash.event.path, root.crash.event.line)
    for event in log:
        if event.kind == "timeout":
            first[event.path] = min(event.line, first.get(event.path, event.line))
    return tuple(_sentence(crash, first) for crash in crashes[:_MOST])


def _sentence(crash: Crash, first: dict[str, int]) -> str:
    event = crash.event
    after = event.line > first.get(event.path, event.line) and not by_machine(event, crash.kind)
    subject = who_first(crash.ranks) if crash.ranks else _WORDS["program"]
    if crash.kind in FROM_OUTSIDE:
        subject = f"{subject[:1].lower()}{subject[1:]}"
    return _WORDS["after" if after else "also"].format(clause=crash_clause(crash, subject), where=place_text(event))


# How ranks end that did nothing wrong: by themselves, or by the SIGTERM that follows another's failure.
_OBEYED = (None, 0, -signal.SIGTERM, 128 + signal.SIGTERM)
_ECHOES = (*_OBEYED, -signal.SIGABRT, 128 + signal.SIGABRT)  # torch aborts ranks whose peers gave up
_CLOCKS_S = 1  # between hosts, as launchers write whole seconds
# What a rank says of a failure of its own, and what it says when another's reaches it.
_OWN = ("error", "memory", "cuda")
_OOM_KILLS = ("oom_kill", "oom-kill", "OOM Killed", "Killed process")
_SLURM_MEMORY = "Out Of Memory"
_SLURM = ("slurmstepd: ", "srun: ")
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_REACHED = ("connection", "timeout", "nccl", "monitor")


class Death(Struct, frozen=True):
    """How a rank's process ended; `cause` is 'memory', 'host_memory', 'gpu' or None. gone: the launcher saw that it was
    gone. detail: what the rank or its log said of it. sure: nothing says that this may be the echo of another's
    failure."""

    rank: int
    gone: bool = False
    exit_code: int | None = None
    detail: str | None = None
    cause: str | None = None
    sure: bool = True

    @property
    def was_aborted(self) -> bool:
        """Whether all that is known is SIGABRT, as torch ends a rank that has waited for too long."""
        return self.exit_code == 128 + signal.SIGABRT and not self.detail


def deaths(evidence: HangEvidence) -> dict[int, Death]:
    """Ranks that died by themselves, by rank: not those that a launcher ended because of them."""
    if evidence.stall is None:
        return dict(sorted(_failed(evidence).items()))
    # While the launcher watched, the job still ran: who was gone at that moment is dead.
    gone = {rank: one for rank, one in sorted(evidence.processes.items()) if one.state in ("gone", "Z")}
    return {rank: _death(evidence, rank, process.exit_code, gone=True) for rank, process in gone.items()}


def stopped(evidence: HangEvidence) -> list[int]:
    """Ranks whose process was stopped by a signal (SIGSTOP, a debugger)."""
    return sorted(rank for rank, process in evidence.processes.items() if process.state in ("T", "t"))


def ended_too(evidence: HangEvidence) -> set[int]:
    """Ranks that a launcher says ended with a failure, first or later, or were ended."""
    exits = [event for event in evidence.log if event.kind == "exit" and event.exit_code not in (None, 0)]
    return {rank for event in exits for rank in event.accused}


def _failed(evidence: HangEvidence) -> dict[int, Death]:
    exits = {rank: event for event in evidence.log if event.kind == "exit" for rank in event.accused}
    roots, first_told = _ended_first(evidence, exits)
    found: dict[int, Death] = {}
    for rank in _first_causes(evidence, roots, exits, first_told):
        process, event = evidence.processes.get(rank), exits.get(rank)
        code = process.exit_code if process is not None else None
        if code is None and event is not None and event.exit_code is not None:
            code = event.exit_code if event.exit_code >= 0 else 128 - event.exit_code
        found[rank] = _death(evidence, rank, code, gone=False)
    if len(found) == 1 and len(crashes := find_crashes(evidence.log)) == 1 and not crashes[0].ranks:
        # One rank ended, and one error was raised that names none. What others did to the job is why only before that.
        (rank, death), raised = next(iter(found.items())), crashes[0].event
        ended = exits.get(rank)
        before = ended is None or (raised.path == ended.path and raised.line < ended.line)
        by_itself = death.exit_code is not None and death.exit_code < 128
        if death.detail is None and by_itself and (before or crashes[0].kind not in FROM_OUTSIDE):
            found[rank] = replace(death, detail=raised.text.rstrip(". "))
    return found


def _ended_first(evidence: HangEvidence, exits: dict[int, LogEvent]) -> tuple[list[int], bool]:
    """The ranks that a launcher saw end first, and True; else all that may have been first."""
    roots = [rank for event in evidence.log if event.kind == "exit" and event.root_cause for rank in event.accused]
    if evidence.failed_rank is not None:
        roots = [evidence.failed_rank]
    if roots:
        return roots, True
    ended = _ended_by_slurm(evidence)  # no launcher says who was first: all that did not merely obey it
    roots = [rank for rank, event in exits.items() if event.exit_code not in _OBEYED and event not in ended]
    if not roots:  # nor who ended at all, but other ranks do
        roots = [event.rank for event in evidence.log if event.kind == "connection" and event.rank is not None]
    return roots, False


def _ended_by_slurm(evidence: HangEvidence) -> set[LogEvent]:
    """Kills that srun tells of behind what Slurm ended the job for, or behind a task that failed: its own doing."""
    if any(event.kind == "memory" and _is_oom_kill(event) for event in evidence.log):
        return set()
    begun: dict[str, int] = {}
    for event in evidence.log:
        failed = _is_of_slurm(event) and event.exit_code not in (*_OBEYED, *_KILLED)
        if failed or (kind_of(event) in FROM_OUTSIDE and event.text.startswith(_SLURM)):
            begun[event.path] = min(event.line, begun.get(event.path, event.line))
    return {
        event
        for event in evidence.log
        if _is_of_slurm(event)
        and event.exit_code in _KILLED
        and _SLURM_MEMORY not in event.text
        and event.line > begun.get(event.path, event.line)
    }


def _is_oom_kill(event: LogEvent) -> bool:
    return any(words in event.text for words in _OOM_KILLS)


def _is_of_slurm(event: LogEvent) -> bool:
    return event.kind == "exit" and event.text.startswith(_SLURM)


def _first_causes(evidence: HangEvidence, roots: list[int], exits: dict[int, LogEvent], first_told: bool) -> list[int]:
    """The launcher names whose end it saw first; where that one only lost its peers, who failed by itself. first_told:
    it does; else `roots` are all that ended, and those that only lost a peer which failed are none."""
    own = {event.rank for event in evidence.log if event.rank is not None and _is_its_own(event)}
    reached = {event.rank for event in evidence.log if event.kind in _REACHED} - own
    if not first_told and own.intersection(roots):
        return [rank for rank in roots if rank not in reached]
    if not roots or not set(roots) <= reached:
        return _earliest(roots, exits, reached) if first_told else roots
    silent = {rank for rank, event in exits.items() if event.exit_code not in _ECHOES} - reached
    return sorted(own) or sorted(silent) or [rank for rank in roots if rank in exits or rank in evidence.processes]


def _earliest(roots: list[int], exits: dict[int, LogEvent], reached: Collection[int | None]) -> list[int]:
    """Of ranks that ended first on their nodes the earliest; all where a time is missing or they may be echoes."""
    own = [rank for rank in roots if rank not in reached]
    times = {rank: exits[rank].when for rank in own if rank in exits}
    known = {rank: when for rank, when in times.items() if when is not None}
    if len(known) < max(len(own), 2):
        return roots
    first = min(known.values())
    earliest = [rank for rank, when in known.items() if when - first <= _CLOCKS_S]
    return roots if any(exits[rank].exit_code in _ECHOES for rank in earliest) else earliest


def _is_its_own(event: LogEvent) -> bool:
    """A failure of the rank's own: one of NCCL only where no other rank's end brings it about."""
    kind = kind_of(event) if event.kind == "nccl" else None
    return event.kind in _OWN or (kind is not None and kind not in LATER)


def _out_of_memory(evidence: HangEvidence, rank: int, code: int | None) -> LogEvent | None:
    """What Slurm says of the end of this rank's task, and the kernel of a process, where that was for its memory."""
    ends = [event for event in evidence.log if rank in event.accused and _SLURM_MEMORY in event.text]
    if code == 128 + signal.SIGKILL:
        kills = (event for event in evidence.log if event.kind == "memory" and event.rank is None)
        ends += [kill for kill in kills if _is_oom_kill(kill) and (rank in kill.accused or not kill.accused)]
    return next(iter(ends), None)


def _death(evidence: HangEvidence, rank: int, code: int | None, *, gone: bool) -> Death:
    first: dict[LogKind, LogEvent] = {}  # of each kind
    for event in evidence.log:
        if event.rank == rank:
            first.setdefault(event.kind, event)
    memory = first.get("memory") or _out_of_memory(evidence, rank, code)
    gpu = first.get("cuda")
    cause = "memory" if memory is not None else "gpu" if gpu is not None else None
    if memory is not None and (_is_oom_kill(memory) or _SLURM_MEMORY in memory.text):
        cause = "host_memory"  # as the kernel or Slurm says
    # What the rank says of its error: not what our launcher noted for one that a signal ended.
    process = evidence.processes.get(rank)
    error = None if process is None or (process.error or "").startswith(KILLED_BY) else process.error
    said = first.get("error") or memory or gpu
    detail = error or (None if said is None else said.text)
    death = Death(rank, gone, code, detail, cause, sure=code is not None or evidence.stall is not None)
    return replace(death, sure=False) if death.was_aborted else death
