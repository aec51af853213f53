"""Ranks whose process is gone or stopped, from exit codes, the launcher's look at them, and logs."""

from __future__ import annotations

import signal

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.errors import KILLED_BY
from traceops.hangs.crash_table import FROM_OUTSIDE, LATER
from traceops.hangs.crashes import Crash, find_crashes, kind_of
from traceops.hangs.evidence import HangEvidence, LogEvent, RankProcess

# How ranks end that did nothing wrong: by themselves, or by the SIGTERM that follows another's failure.
_OBEYED = (None, 0, -signal.SIGTERM, 128 + signal.SIGTERM)
# What a rank says of a failure of its own, and what it says when another's reaches it.
_OWN = ("error", "memory", "cuda")
_OOM_KILLS = ("oom_kill", "oom-kill", "OOM Killed", "Killed process")
_SLURM_MEMORY = "Out Of Memory"
_SLURM = ("slurmstepd: ", "srun: ")
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_REACHED = ("connection", "timeout", "nccl", "monitor")


class Death(Struct, frozen=True):
    """How a rank's process ended; `cause` is 'memory', 'host_memory', 'gpu' or None.

    gone: the launcher saw that it was gone. detail: what the rank or its log said of it.
    sure: nothing says that this may be the echo of another's failure.
    """

    rank: int
    gone: bool = False
    exit_code: int | None = None
    detail: str | None = None
    cause: str | None = None
    sure: bool = True


def deaths(evidence: HangEvidence) -> dict[int, Death]:
    """Ranks that died by themselves, by rank: not those that a launcher ended because of them."""
    found = _gone(evidence) if evidence.stall is not None else _failed(evidence)
    return {rank: found[rank] for rank in sorted(found)}


def stopped(evidence: HangEvidence) -> list[int]:
    """Ranks whose process was stopped by a signal (SIGSTOP, a debugger)."""
    return sorted(rank for rank, process in evidence.processes.items() if process.state in ("T", "t"))


def ended_too(evidence: HangEvidence) -> set[int]:
    """Ranks that a launcher says ended with a failure, first or later, or were ended."""
    exits = [event for event in evidence.log if event.kind == "exit" and event.exit_code not in (None, 0)]
    return {rank for event in exits for rank in event.accused}


def _gone(evidence: HangEvidence) -> dict[int, Death]:
    """While the launcher watched, the job still ran: who was gone at that moment is dead."""
    found = {}
    for rank, process in evidence.processes.items():
        if process.state in ("gone", "Z"):
            found[rank] = _death(evidence, rank, process.exit_code, _own_words(process), gone=True)
    return found


def _own_words(process: RankProcess) -> str | None:
    """What the rank said of its error: not what our launcher noted for one that a signal ended."""
    return None if process.error is not None and process.error.startswith(KILLED_BY) else process.error


def _failed(evidence: HangEvidence) -> dict[int, Death]:
    exits = {rank: event for event in evidence.log if event.kind == "exit" for rank in event.accused}
    roots = [rank for event in evidence.log if event.kind == "exit" and event.root_cause for rank in event.accused]
    if evidence.failed_rank is not None:
        roots = [evidence.failed_rank]
    first_told = bool(roots)
    if not roots:  # no launcher says who was first: all that did not merely obey it
        ended = _ended_by_slurm(evidence)
        roots = [rank for rank, event in exits.items() if event.exit_code not in _OBEYED and event not in ended]
    if not roots:  # nor who ended at all, but peers of theirs do
        roots = [event.rank for event in evidence.log if event.kind == "connection" and event.rank is not None]
    found: dict[int, Death] = {}
    for rank in _first_causes(evidence, roots, exits, first_told):
        process, event = evidence.processes.get(rank), exits.get(rank)
        code = process.exit_code if process is not None else None
        if code is None and event is not None and event.exit_code is not None:
            code = event.exit_code if event.exit_code >= 0 else 128 - event.exit_code
        error = _own_words(process) if process is not None else None
        found[rank] = _death(evidence, rank, code, error, gone=False)
    if len(found) == 1 and len(told := find_crashes(evidence.log)) == 1 and not told[0].ranks:
        # One rank ended, and one error was raised that names none.
        found = {
            rank: _with_detail(death, told[0].event.text) if _may_end(told[0], exits.get(rank)) else death
            for rank, death in found.items()
        }
    return found


def _may_end(crash: Crash, ended: LogEvent | None) -> bool:
    """Whether a failure may be why a rank exited: what others did to the job only if it was told before that."""
    if crash.kind not in FROM_OUTSIDE or ended is None:
        return True
    return crash.event.path == ended.path and crash.event.line < ended.line


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


def _with_detail(death: Death, text: str) -> Death:
    by_itself = death.exit_code is not None and death.exit_code < 128
    return replace(death, detail=text.rstrip(". ")) if death.detail is None and by_itself else death


def _first_causes(evidence: HangEvidence, roots: list[int], exits: dict[int, LogEvent], first_told: bool) -> list[int]:
    """The launcher names whose end it saw first; where that one only lost its peers, who failed by itself.

    first_told: it does; else `roots` are all that ended, and those that only lost a peer which failed are none.
    """
    said: dict[int | None, set[str]] = {}
    for event in evidence.log:
        said.setdefault(event.rank, set()).add(event.kind)
    own = {rank for rank, kinds in said.items() if rank is not None and kinds & set(_OWN)}
    own |= {event.rank for event in evidence.log if event.rank is not None and _is_its_own(event)}
    reached = {rank for rank, kinds in said.items() if kinds & set(_REACHED)} - own
    if not first_told and own.intersection(roots):
        return [rank for rank in roots if rank not in reached]
    if not roots or not set(roots) <= reached:
        return roots
    echoes = (*_OBEYED, -signal.SIGABRT, 128 + signal.SIGABRT)  # torch aborts ranks whose peers gave up
    silent = {rank for rank, event in exits.items() if event.exit_code not in echoes} - reached
    return sorted(own) or sorted(silent) or [rank for rank in roots if rank in exits or rank in evidence.processes]


def _is_its_own(event: LogEvent) -> bool:
    """An error of NCCL that no other rank's end brings about."""
    kind = kind_of(event) if event.kind == "nccl" else None
    return kind is not None and kind not in LATER


def _death(evidence: HangEvidence, rank: int, code: int | None, error: str | None, *, gone: bool) -> Death:
    own = [event for event in evidence.log if event.rank == rank]
    memory = next((event for event in own if event.kind == "memory"), None)
    if memory is None and code == 128 + signal.SIGKILL:
        memory = _oom_kill(evidence, rank)
    cuda = next((event for event in own if event.kind == "cuda"), None)
    said = error or _first_text(own, "error")
    if memory is None:
        memory = next(iter(_ended_for_memory(evidence, rank)), None)
    cause = "memory" if memory is not None else "gpu" if cuda is not None else None
    if memory is not None and (_is_oom_kill(memory) or _SLURM_MEMORY in memory.text):
        cause = "host_memory"  # as the kernel or Slurm says
    detail = said or (memory or cuda).text if (said or memory or cuda) else None  # type: ignore[union-attr]
    # Torch's watchdog aborts a rank that has waited for too long.
    aborted = code == 128 + signal.SIGABRT and not detail
    return Death(rank, gone, code, detail, cause, sure=(code is not None or evidence.stall is not None) and not aborted)


def _oom_kill(evidence: HangEvidence, rank: int) -> LogEvent | None:
    """Who killed the rank, where Slurm or the kernel says that it was for its memory."""
    killed = [event for event in evidence.log if event.kind == "memory" and event.rank is None and _is_oom_kill(event)]
    his = [event for event in killed if rank in event.accused or not event.accused]
    return next(iter((*_ended_for_memory(evidence, rank), *his)), None)


def _ended_for_memory(evidence: HangEvidence, rank: int) -> list[LogEvent]:
    """What Slurm says of the end of this rank's task, where that was for its memory."""
    return [event for event in evidence.log if rank in event.accused and _SLURM_MEMORY in event.text]


def _first_text(events: list[LogEvent], kind: str) -> str | None:
    return next((event.text for event in events if event.kind == kind), None)
