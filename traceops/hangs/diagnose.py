"""From evidence to a diagnosis: where each rank stands, who waits for whom, and the roots of it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from traceops.core.findings import CONFIDENCES
from traceops.core.rank_text import who, who_first
from traceops.hangs import roots as found_in_records
from traceops.hangs import without_record
from traceops.hangs.calls import message_bytes, place
from traceops.hangs.discover import find_evidence
from traceops.hangs.doing import Doing, doing
from traceops.hangs.mismatch import mismatches, noticed_mismatch
from traceops.hangs.model import Diagnosis, Evidence, Root
from traceops.hangs.processes import Death, deaths, stopped
from traceops.hangs.standing import Standing, standings
from traceops.hangs.stuck import stuck_together
from traceops.hangs.waits import Waits, find_waits, with_roots


def diagnose(path: str | os.PathLike[str], *, jobs: int | None = None) -> Diagnosis:
    """What the evidence under `path` says of a hang: a run folder, a folder of dumps and logs, or one file.

    jobs: processes to read many dumps with, one a core if None; 1 where this process has threads.
    Raises InputError where there is none.
    """
    with _no_collector():
        return diagnose_evidence(find_evidence(path, jobs))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of small objects, none of them garbage: looking for cycles takes half the time of many ranks."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def diagnose_evidence(evidence: Evidence) -> Diagnosis:
    """The diagnosis of evidence already read. Pure."""
    ranks = standings(evidence)
    doings = {rank: doing(stacks.main) for rank, stacks in evidence.stacks.items() if stacks.main is not None}
    # A rank that waits was ended by its watchdog or its launcher: its death is an echo.
    dead = {
        rank: death
        for rank, death in deaths(evidence).items()
        if evidence.stall is not None or rank not in ranks or ranks[rank].head is None
    }
    waits = find_waits(ranks, dead)
    roots = _roots(evidence, ranks, waits, dead, doings)
    waits = with_roots(waits, roots)
    return Diagnosis(
        evidence=evidence,
        roots=tuple(sorted(roots, key=lambda root: -CONFIDENCES.index(root.confidence))),
        ranks=tuple(_rank_rows(evidence, ranks, waits, dead, doings, roots)),
        waits=waits.edges,
        not_evaluated=_not_evaluated(evidence, ranks),
        notes=_notes(evidence, ranks),
    )


def _roots(
    evidence: Evidence,
    ranks: Mapping[int, Standing],
    waits: Waits,
    dead: Mapping[int, Death],
    doings: Mapping[int, Doing],
) -> list[Root]:
    steps = {rank: told.step for rank, told in evidence.processes.items() if told.step is not None}
    # A library that notices a mismatch ends the process: an echo of somebody's call.
    noticed = {
        event.rank for event in evidence.log if event.kind == "mismatch" and event.rank is not None
    } & set(dead)
    dead = {rank: death for rank, death in dead.items() if rank not in noticed}
    reported = without_record.from_log(evidence.log)
    told = [root for root in reported if root.rule == found_in_records.MISMATCH]
    roots = mismatches(ranks, waits, steps) or told or noticed_mismatch(evidence, noticed, ranks, waits)
    roots += without_record.died(dead, waits, everybody(evidence))
    perhaps = (*without_record.WAITING, *without_record.PERHAPS_WAITING)
    inside = {rank for rank, seen in doings.items() if seen.kind in without_record.WAITING}
    away = {rank for rank, seen in doings.items() if seen.kind not in perhaps}
    ended = evidence.stall is None and bool(
        dead or noticed
    )  # by who died: others were on their way, not stuck
    if not ended:
        roots += found_in_records.not_called(ranks, waits, _explained(roots, waits), inside, away)
    roots += found_in_records.circles(ranks, waits, _explained(roots, waits), away)
    if not ended:
        explained = _explained(roots, waits) | noticed
        roots += without_record.silent(ranks, waits, doings, stopped(evidence), evidence.log, explained)
    roots += stuck_together(ranks, waits, _explained(roots, waits))
    roots = roots or reported
    if not roots:
        roots = without_record.from_stacks(evidence, doings)
    errors = without_record.gpu_errors(evidence.log)
    init = evidence.stall is not None and evidence.stall.kind == "init"
    return [_with_doing(_before_first_step(_with_gpu(root, doings, errors), init), doings) for root in roots]


def _explained(roots: Iterable[Root], waits: Waits) -> set[int]:
    """Ranks whose waiting has a root already, and those roots."""
    here = {rank for root in roots for rank in (*root.ranks, *root.waiting)}
    return here | set(waits.waiting_for(here))


def _with_gpu(root: Root, doings: Mapping[int, Doing], errors: Mapping[int, Any]) -> Root:
    """A rank that never called the collective because it waits for its own GPU, or whose GPU reports an error."""
    if root.rule == found_in_records.HOST and all(
        rank in doings and doings[rank].kind == "gpu_sync" for rank in root.ranks
    ):
        said = (
            "their hosts wait for their own GPUs" if len(root.ranks) > 1 else "its host waits for its own GPU"
        )
        return replace(
            root,
            rule=found_in_records.GPU,
            cause="gpu",
            confidence="medium",
            message=f"{root.message.rstrip('.')}; {said}, which does not finish.",
        )
    broken = [rank for rank in root.ranks if rank in errors]
    if root.rule == found_in_records.NETWORK and broken and len(broken) < len(root.ranks):
        return replace(
            root,
            rule=found_in_records.GPU,
            ranks=tuple(broken),
            waiting=tuple(rank for rank in (*root.ranks, *root.waiting) if rank not in broken),
            cause="gpu",
            confidence="medium",
            evidence=(*root.evidence, *((f"rank {rank}", errors[rank].text[:300]) for rank in broken)),
        )
    return root


def _before_first_step(root: Root, init: bool) -> Root:
    """A rank that does not come while the job starts is a case of its own."""
    if init and root.rule == found_in_records.HOST:
        return replace(root, rule=found_in_records.START)
    return root


def _with_doing(root: Root, doings: Mapping[int, Doing]) -> Root:
    texts = list(dict.fromkeys(doings[rank].text for rank in root.ranks if rank in doings))
    if not texts or root.rule in (found_in_records.NETWORK, found_in_records.DIED):
        return root
    return replace(root, doing="; ".join(texts[:3]) + ("; …" if len(texts) > 3 else ""))


def everybody(evidence: Evidence) -> list[int]:
    """All ranks of the job, with or without evidence."""
    known = {*evidence.records, *evidence.stacks, *evidence.processes}
    return sorted({*range(evidence.world_size or 0), *known})


def _rank_rows(
    evidence: Evidence,
    ranks: Mapping[int, Standing],
    waits: Waits,
    dead: Mapping[int, Death],
    doings: Mapping[int, Doing],
    roots: Sequence[Root],
) -> list[dict[str, Any]]:
    to_blame = {rank for root in roots for rank in root.ranks}
    halted = stopped(evidence)
    rows = []
    for rank in everybody(evidence):
        standing, process = ranks.get(rank), evidence.processes.get(rank)
        head = standing.head if standing is not None else None
        if rank in dead:
            state = "dead"
        elif rank in halted:
            state = "stopped"
        elif rank in to_blame:
            state = "root"
        elif head is not None or (rank in doings and doings[rank].kind in without_record.WAITING):
            state = "waiting"
        elif standing is None and rank not in doings and (process is None or process.state is None):
            state = "absent"
        else:
            state = "idle"
        rows.append(
            {
                "rank": rank,
                "host": process.host if process is not None else None,
                "state": state,
                "step": process.step if process is not None else None,
                "group": head.group.label if head is not None else None,
                "group_ranks": list(head.group.ranks) if head is not None and head.group.ranks else None,
                "op": head.op.op if head is not None else None,
                "sequence": head.op.sequence if head is not None else None,
                "op_state": head.op.state if head is not None else None,
                "bytes": message_bytes(head.op) if head is not None else None,
                "where": place(head.op.frames) if head is not None else None,
                "doing": doings[rank].text if rank in doings else None,
                "waits_for": sorted(waits.by_rank.get(rank, ())),
                "pending": len(standing.pending) if standing is not None else None,
                "exit_code": process.exit_code if process is not None else None,
                "sources": _sources(evidence, rank),
            }
        )
    return rows


def _sources(evidence: Evidence, rank: int) -> list[str]:
    sources: list[str] = [evidence.records[rank].source] if rank in evidence.records else []
    if rank in evidence.stacks:
        sources.append("stacks")
    if rank in evidence.processes:
        sources.append("process")
    if "log" not in sources and any(event.rank == rank for event in evidence.log):
        sources.append("log")
    return sources


def _not_evaluated(evidence: Evidence, ranks: Mapping[int, Standing]) -> dict[str, str]:
    """Rules that this evidence cannot decide, with the reason."""
    reasons: dict[str, str] = {}
    recorded = [standing for standing in ranks.values() if standing.record.source == "flight recorder"]
    if not ranks:
        why = "no flight-recorder dump and no log tells which collectives the ranks are in"
        reasons |= dict.fromkeys(
            (found_in_records.MISMATCH, found_in_records.GPU, found_in_records.NETWORK), why
        )
        if not evidence.stacks:
            reasons[found_in_records.HOST] = why
    elif not any(standing.record.timed for standing in recorded) and not any(
        call.op.state == "completed" for standing in recorded for call in standing.calls.values()
    ):
        reasons[found_in_records.GPU] = (
            "the dumps hold no started or finished collective (TORCH_NCCL_ENABLE_TIMING=1)"
        )
    if not evidence.processes and not any(event.kind == "exit" for event in evidence.log):
        reasons[found_in_records.DIED] = (
            "nothing tells which processes were alive: no exit codes, no launcher's log"
        )
    if evidence.stall is None:
        failed = evidence.failed_rank is not None
        why = (
            "a rank failed, and no stall was seen" if failed else "nothing tells whether a step was finished"
        )
        reasons[found_in_records.START] = why
    return reasons


def _notes(evidence: Evidence, ranks: Mapping[int, Standing]) -> tuple[str, ...]:
    notes = [] if evidence.stall is None else list(evidence.stall.notes)
    missing = [rank for rank in everybody(evidence) if rank not in evidence.records]
    if missing and evidence.records:
        notes.append(f"{who_first(missing)} left no record of collectives.")
    wrapped = [
        rank for rank, standing in ranks.items()
        if standing.record.source == "flight recorder" and not standing.record.whole and not standing.record.active_only
    ]  # fmt: skip
    if wrapped:
        notes.append(
            f"The flight recorder of {who(wrapped)} no longer holds the first operations "
            "(TORCH_FR_BUFFER_SIZE sets how many it keeps); what was forgotten counts as finished."
        )
    return tuple(notes)
