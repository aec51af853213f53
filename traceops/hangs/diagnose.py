"""Makes a diagnosis from evidence: where each rank is, which ranks wait for which, and the root causes."""

from __future__ import annotations

import gc
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.findings import CONFIDENCES
from traceops.hangs import crash_roots, without_record, words
from traceops.hangs.crashes import Crash, find_crashes
from traceops.hangs.discover import find_evidence
from traceops.hangs.evidence import HangEvidence, LogEvent, LogKind
from traceops.hangs.job import can_blame
from traceops.hangs.json_types import RankState, RankStatus
from traceops.hangs.model import Diagnosis, Root
from traceops.hangs.positions import Positions, code_place, message_bytes, rank_positions
from traceops.hangs.readers.messages import ready_ranks
from traceops.hangs.roots import (
    DIED,
    GPU,
    HOST,
    MISMATCH,
    NETWORK,
    START,
    circles,
    mismatches,
    not_called,
    noticed_mismatch,
    with_carried,
)
from traceops.hangs.stack_activity import StackActivity, in_data_parallel, stack_activity
from traceops.hangs.stuck import over_gloo, stuck_together, with_way
from traceops.hangs.waits import Waits, find_waits, with_roots
from traceops.hangs.words import earlier_starts_text, progress_text


def diagnose(path: str | os.PathLike[str], *, jobs: int | None = None, called: str | None = None) -> Diagnosis:
    """What the evidence under `path` says of a hang: a run folder, a folder of dumps and logs, an archive, one file.
    called: what messages call it, where that is not its path. jobs: processes to read many dumps with, one a core if
    None; 1 where this process has threads. Raises InputError where there is none."""
    was_on = gc.isenabled()
    gc.disable()  # millions of objects, none of them garbage: looking for cycles takes half the time of many ranks
    try:
        return diagnose_evidence(find_evidence(path, jobs, called))
    finally:
        if was_on:
            gc.enable()


class _Case(Struct, frozen=True):
    """What a diagnosis is made from: the evidence, each rank's position and activity, who died, and who waits."""

    evidence: HangEvidence
    ranks: Positions
    activities: Mapping[int, StackActivity]
    dead: Mapping[int, crash_roots.Death]
    waits: Waits

    @property
    def known(self) -> list[int]:
        """Ranks of which anything was read, and not that they failed too."""
        known = {*self.evidence.records, *self.evidence.stacks, *self.evidence.processes}
        known = known.union(*(event.named for event in self.evidence.log)) - crash_roots.ended_too(self.evidence)
        return [rank for rank in self.evidence.everybody if rank in known]

    @property
    def inside(self) -> set[int]:
        """Ranks whose stack shows them waiting for others."""
        return {rank for rank, seen in self.activities.items() if seen.kind in without_record.WAITING}

    @property
    def away(self) -> set[int]:
        """Ranks whose stack shows that they wait for nobody."""
        perhaps = (*without_record.WAITING, *without_record.PERHAPS_WAITING)
        return {rank for rank, seen in self.activities.items() if seen.kind not in perhaps}

    @property
    def waiting(self) -> set[int]:
        """Ranks that wait, by a message of another, their record or their stack."""
        missed = (event for event in self.evidence.log if event.kind == "missing")
        waiting = self.inside.union(*(ready_ranks(event.text) for event in missed))
        for rank, position in self.ranks.items():
            counted = any((position.enqueued.get(group) or 0) > done for group, done in position.counted.items())
            if position.head is not None or (counted and not position.record.operations):
                waiting.add(rank)  # or its log counts more calls than ended, and names none of them
        return waiting

    def explained(self, roots: Iterable[Root]) -> set[int]:
        """Ranks whose waiting has a root already, and those roots."""
        here = {rank for root in roots for rank in (*root.ranks, *root.waiting)}
        return here | set(self.waits.waiting_for(here))


def diagnose_evidence(evidence: HangEvidence) -> Diagnosis:
    """The diagnosis of evidence already read. Pure."""
    ranks = rank_positions(evidence)
    activities = {
        rank: stack_activity(stacks.main) for rank, stacks in evidence.stacks.items() if stacks.main is not None
    }
    dead = crash_roots.deaths(evidence)
    # Who waits was ended by a watchdog or launcher; where ranks timed out, so was who is only known to have aborted.
    timed_out = any(event.kind == "timeout" for event in evidence.log)
    echoes = {
        rank
        for rank, death in dead.items()
        if evidence.stall is None
        and ((timed_out and death.was_aborted) or (rank in ranks and ranks[rank].head is not None))
    }
    dead = {rank: death for rank, death in dead.items() if rank not in echoes}
    waits = find_waits(ranks, dead, can_blame(evidence) - {rank for rank in echoes if rank not in ranks})
    case = _Case(evidence, ranks, activities, dead, waits)
    roots = _roots(case)
    case = replace(case, waits=with_roots(waits, roots))
    certain_first = sorted(roots, key=lambda root: -CONFIDENCES.index(root.confidence))
    return Diagnosis(
        evidence=evidence,
        roots=tuple(replace(root, setting=evidence.setting) for root in certain_first),
        ranks=tuple(_rank_statuses(case, roots)),
        waits=case.waits.edges,
        not_evaluated=_not_evaluated(evidence, ranks),
        notes=(
            *crash_roots.aftermath(
                crash_roots.without_own_end(evidence), roots, waiting=any(p.head is not None for p in ranks.values())
            ),
            *filter(None, (earlier_starts_text(evidence.earlier) if roots else None,)),
            *(words.since_text(since) for since in evidence.since if roots or not since.said),
            *map(progress_text, evidence.progress),
            *_notes(evidence, ranks),
        ),
    )


def _roots(case: _Case) -> list[Root]:
    evidence, ranks, activities = case.evidence, case.ranks, case.activities
    crashes = find_crashes(crash_roots.without_own_end(evidence))
    reported = without_record.from_log(evidence.log)
    roots = _in_records(case, crashes, reported)
    stuck = [position.head for position in ranks.values() if position.head is not None]
    roots = [
        crash_roots.with_outlived(root, evidence.log)
        for root in crash_roots.with_crashes(roots or reported, crashes, stuck)
    ]
    if not roots and not crashes:
        late = find_crashes(crash_roots.without_own_end(evidence), late=True)
        roots = [replace(root, confidence="low") for root in crash_roots.with_crashes([], late, stuck)]
    roots = roots or without_record.from_stacks(evidence, activities)
    errors = without_record.gpu_errors(evidence.log)
    return [_completed(root, case, errors) for root in roots]


def _completed(root: Root, case: _Case, errors: Mapping[int, LogEvent]) -> Root:
    """The root with what its ranks do instead, what its operation carries, and how its ranks are connected."""
    evidence, ranks, activities = case.evidence, case.ranks, case.activities
    root = _with_gpu(root, activities, errors)
    if root.rule == HOST and evidence.stall is not None and evidence.stall.kind == "init":
        root = replace(root, rule=START)  # a rank that does not come while the job starts is a case of its own
    seen = dict.fromkeys(activities[rank] for rank in root.ranks if rank in activities)
    if seen and root.rule not in (NETWORK, DIED):
        doing = [words.activity_text(activity) for activity in seen]
        root = replace(root, doing="; ".join(doing[:3]) + ("; …" if len(doing) > 3 else ""))
    root = with_carried(root, evidence, ranks)
    on_gloo = any(rank in ranks and ranks[rank].record.backend == "gloo" for rank in root.ranks)
    return over_gloo(root) if on_gloo else with_way(root, evidence.fabric)


def _in_records(case: _Case, crashes: Sequence[Crash], reported: Sequence[Root]) -> list[Root]:
    """The causes that the ranks' records and their ends show, each for ranks whose waiting has none yet."""
    evidence, ranks, activities, waits = case.evidence, case.ranks, case.activities, case.waits
    steps = {rank: process.step for rank, process in evidence.processes.items() if process.step is not None}
    # A library that notices a mismatch ends the process, as does a rank that another did not join: echoes.
    noticed = {rank for rank in case.dead if _reports(evidence, rank, "mismatch")}
    missed = {rank for rank in case.dead if _reports(evidence, rank, "missing")}
    dead = {rank: death for rank, death in case.dead.items() if rank not in noticed | missed}
    by_rule = {root.rule: [root] for root in reported}  # one of a rule at most
    roots = mismatches(ranks, waits, steps) or by_rule.get(MISMATCH, [])
    roots = roots or noticed_mismatch(evidence, noticed, ranks, waits)
    if missed and not roots:
        roots = by_rule.get(HOST, [])
    roots += without_record.died(dead, waits, case.known, crashes)
    away = case.away
    ended = evidence.stall is None and bool(dead or noticed)  # by who died: others were on their way, not stuck
    if not ended:
        roots += not_called(ranks, waits, case.explained(roots), case.inside, away)
    roots += circles(ranks, waits, case.explained(roots), away)
    if not ended:
        explained = case.explained(roots) | noticed
        roots += without_record.silent(ranks, waits, activities, crash_roots.stopped(evidence), evidence.log, explained)
    unseen = set(evidence.everybody) - set(ranks)
    return roots + stuck_together(ranks, waits, case.explained(roots), unseen)


def _reports(evidence: HangEvidence, rank: int, kind: LogKind) -> bool:
    """Whether the rank itself reports a call that differs, or ranks that did not come."""
    reports = (event for event in evidence.log if event.rank == rank and event.kind == kind)
    return any(event.accused or kind == "mismatch" for event in reports)


def _with_gpu(root: Root, activities: Mapping[int, StackActivity], errors: Mapping[int, LogEvent]) -> Root:
    """A rank that never called the collective because it waits for its own GPU, or whose GPU reports an error."""
    if root.rule == HOST and all(rank in activities and activities[rank].kind == "gpu_sync" for rank in root.ranks):
        return replace(root, rule=GPU, cause="gpu", confidence="medium").with_facts(own_gpu=True)
    broken = [rank for rank in root.ranks if rank in errors]
    if root.rule == NETWORK and broken and len(broken) < len(root.ranks):
        return replace(
            root,
            rule=GPU,
            ranks=tuple(broken),
            waiting=tuple(rank for rank in (*root.ranks, *root.waiting) if rank not in broken),
            cause="gpu",
            confidence="medium",
            evidence=(*root.evidence, *((f"rank {rank}", errors[rank].text[:300]) for rank in broken)),
        )
    return root


def _rank_statuses(case: _Case, roots: Sequence[Root]) -> list[RankStatus]:
    evidence, ranks, log, processes = case.evidence, case.ranks, case.evidence.log, case.evidence.processes
    over = all(event.kind in ("outlived", "passed") for event in log) and bool(log)
    if over and not (evidence.records or evidence.stacks or processes):
        return []  # of the ranks that went on nothing is known
    with_state = {rank for rank, process in processes.items() if process.state is not None}
    # The first that applies.
    tiers: tuple[tuple[RankState, Container[int]], ...] = (
        ("dead", {*case.dead, *(rank for root in roots if root.rule == DIED for rank in root.ranks)}),
        ("stopped", crash_roots.stopped(evidence)),
        ("root", {rank for root in roots for rank in root.ranks}),
        ("waiting", case.waiting),
        ("dead", crash_roots.ended_too(evidence)),
        ("idle", {*ranks, *case.activities, *with_state}),
        ("unclear", {event.rank for event in log if event.rank is not None}),
    )
    return [
        _status(case, rank, next((state for state, those in tiers if rank in those), "absent"))
        for rank in evidence.everybody
    ]


def _status(case: _Case, rank: int, state: RankState) -> RankStatus:
    evidence, position = case.evidence, case.ranks.get(rank)
    sources: list[str] = [evidence.records[rank].source] if rank in evidence.records else []
    sources += ["stacks"] if rank in evidence.stacks else []
    sources += ["process"] if rank in evidence.processes else []
    if "log" not in sources and any(event.rank == rank for event in evidence.log):
        sources.append("log")
    more: dict[str, Any] = {}
    if (process := evidence.processes.get(rank)) is not None:
        more |= {"host": process.host, "step": process.step, "exit_code": process.exit_code}
    if position is not None and (head := position.head) is not None:
        more |= {"group": head.group.label, "group_ranks": head.group.ranks or None}
        more |= {"op": head.op.op, "sequence": head.op.sequence, "op_state": head.op.state}
        more |= {"bytes": message_bytes(head.op), "where": code_place(head.op.frames)}
    return RankStatus(
        rank=rank,
        state=state,
        doing=words.activity_text(case.activities[rank]) if rank in case.activities else None,
        waits_for=tuple(sorted(case.waits.by_rank.get(rank, ()))),
        pending=len(position.pending) if position is not None else None,
        sources=tuple(sources),
        last_line=evidence.last_lines[rank].clock if rank in evidence.last_lines else None,
        **more,
    )


def _not_evaluated(evidence: HangEvidence, ranks: Positions) -> dict[str, str]:
    """Rules that this evidence cannot decide, with the reason."""
    reasons: dict[str, str] = {}
    recorded = [position for position in ranks.values() if position.record.source == "flight recorder"]
    ended = any(call.op.state == "completed" for position in recorded for call in position.calls.values())
    if not ranks:
        undecided = [MISMATCH, GPU, NETWORK, *([] if evidence.stacks else [HOST])]
        reasons |= dict.fromkeys(undecided, reason("hangs", "no_collectives"))
    elif not ended and not any(position.record.timed for position in recorded):
        reasons[GPU] = reason("hangs", "no_starts")
    if not evidence.processes and not any(event.kind == "exit" for event in evidence.log):
        reasons[DIED] = reason("hangs", "no_exits")
    if evidence.stall is None:
        failed = evidence.failed_rank is not None
        reasons[START] = reason("hangs", "no_stall" if failed else "steps_unknown")
    return reasons


def _notes(evidence: HangEvidence, ranks: Positions) -> tuple[str, ...]:
    missing = [rank for rank in evidence.everybody if rank not in evidence.records] if evidence.records else []
    wrapped = [
        rank for rank, position in ranks.items()
        if position.record.source == "flight recorder" and not position.record.whole and not position.record.active_only
    ]  # fmt: skip
    told = (("data_parallel", in_data_parallel(evidence)), ("without_record", missing), ("wrapped", wrapped))
    notes = () if evidence.stall is None else evidence.stall.notes
    return (*notes, *(f"{reason('hangs', key, ranks=those)}." for key, those in told if those))
