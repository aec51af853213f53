"""Roots that no flight recorder shows: dead, stopped and silent ranks, stacks alone, and what logs say outright."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from traceops.core.findings import Confidence
from traceops.core.rank_text import who
from traceops.hangs import words
from traceops.hangs.crash_roots import Death
from traceops.hangs.crashes import Crash
from traceops.hangs.evidence import HangEvidence, LogEvent
from traceops.hangs.job import can_blame
from traceops.hangs.model import HOW_IT_ENDED, Root, RootFacts, RootKind, Wait
from traceops.hangs.positions import Positions
from traceops.hangs.readers.messages import DIFFERENT, ready_ranks, stalled_ranks
from traceops.hangs.roots import DIED, GPU, HOST, MISMATCH, NETWORK, START
from traceops.hangs.stack_activity import StackActivity
from traceops.hangs.waits import Waits

# What a rank's main thread is in while it waits for others, and what it may be in.
WAITING = ("collective", "init")
PERHAPS_WAITING = ("backward", "gpu_sync")
_SURE: Mapping[RootKind, Confidence] = {RootKind.STOPPED: "high", RootKind.UNRECORDED: "medium"}
_TOLD_BY_TORCH: tuple[tuple[Literal["missing", "mismatch"], str], ...] = (("missing", HOST), ("mismatch", MISMATCH))
_MOST = 8
_SIGNALS = 128  # exit codes above it are signals
_TOLD_BY_PYTHON = ("native_crash", "bus_error")  # faulthandler's word on a signal has the line
# What an exit code alone tells of why a process ended.
_BY_CODE: Mapping[int | None, str] = {
    _SIGNALS + signal.SIGKILL: "killed",
    _SIGNALS + signal.SIGTERM: "terminated",
    _SIGNALS + signal.SIGBUS: "bus_error",
    **{_SIGNALS + number: "native_crash" for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)},
}


def died(dead: Mapping[int, Death], waits: Waits, others: Sequence[int], crashes: Sequence[Crash] = ()) -> list[Root]:
    """Ranks whose process ended by itself; `others`, of whom something is known, wait for it or were ended with it.
    crashes: what the logs tell of; that of a rank says more than how its process ended."""
    failed = {rank for crash in crashes for rank in crash.ranks}
    roots = []
    for rank, death in dead.items():
        root = _died(death, _crash_of(rank, death, crashes), next((w for w in waits.edges if w.on == rank), None))
        waiting = waits.waiting_for([rank]) or tuple(one for one in others if one not in dead and one not in failed)
        roots.append(replace(root, waiting=waiting))
    return _alike(roots, failed)


def _died(death: Death, crash: Crash | None, first: Wait | None) -> Root:
    """first: a rank that waits for it, None without."""
    code = death.exit_code
    how = words.ending(code, gone=death.gone, detail=death.detail)
    proof = [(HOW_IT_ENDED, how)] + ([] if code is None else [("exit code", str(code))])
    end = words.ending(code, gone=death.gone, detail=None, part="short")
    if crash is not None:
        how, end = words.crash_clause(crash, "it"), words.crash_clause(crash, "it", part="short")
    left = code == 0 and crash is None and not death.detail
    by_code = None if death.detail or not death.sure else _BY_CODE.get(code)
    return Root(
        rule=DIED,
        kind=RootKind.LEFT if left else RootKind.DIED,
        ranks=(death.rank,),
        confidence="high" if death.sure and (code is not None or first is not None) else "medium",
        facts=RootFacts(how=how, end=end),
        cause=death.cause or ("ended_early" if left else by_code),
        group=first.group if first else None,
        op=first.op if first else None,
        sequence=first.sequence if first else None,
        evidence=tuple(proof),
    )


def _alike(roots: Sequence[Root], failed: Collection[int]) -> list[Root]:
    """Ranks that ended in one way, of which nothing else is known, as one cause: none is seen to be the first."""
    kinds: dict[tuple[object, ...], list[Root]] = {}
    for root in roots:
        alone = root.waiting or root.op is not None or set(root.ranks).intersection(failed)
        kinds.setdefault((root.ranks,) if alone else (root.evidence, root.confidence, root.cause), []).append(root)
    return [
        same[0]
        if len(same) == 1
        else replace(
            same[0],
            kind=RootKind.DIED_ALIKE,
            ranks=tuple(sorted(rank for root in same for rank in root.ranks)),
            facts=RootFacts(how=same[0].evidence[0][1].removeprefix("it "), end=same[0].facts.end.removeprefix("it ")),
        )
        for same in kinds.values()
    ]


def _crash_of(rank: int, death: Death, crashes: Sequence[Crash]) -> Crash | None:
    """What the rank's own log says it did; where a signal ended it, only what shows where that was."""
    if (crash := next((crash.of((rank,)) for crash in crashes if rank in crash.ranks), None)) is None:
        return None
    by_signal = death.exit_code is not None and death.exit_code > _SIGNALS
    return None if by_signal and (crash.kind not in _TOLD_BY_PYTHON or not crash.own_frame) else crash


def silent(
    ranks: Positions,
    waits: Waits,
    activities: Mapping[int, StackActivity],
    halted: Collection[int],
    log: Sequence[LogEvent],
    explained: Collection[int],
) -> list[Root]:
    """Ranks without a record that others wait for: stopped, seen elsewhere by their stack, or not seen at all."""
    absent = {wait.on: wait for wait in waits.edges if wait.reason == "no_record" and wait.on not in explained}
    kinds: dict[RootKind, list[int]] = defaultdict(list)
    for rank in absent:
        if rank in halted:
            kinds[RootKind.STOPPED].append(rank)
        elif rank not in activities:
            kinds[RootKind.UNSEEN].append(rank)
        elif activities[rank].kind not in (*WAITING, *PERHAPS_WAITING):
            kinds[RootKind.UNRECORDED].append(rank)
    if len(kinds) > 1:  # who was seen elsewhere explains the waiting; of the others nothing is known
        kinds.pop(RootKind.UNSEEN, None)
    return [_silent(kind, members, absent[members[0]], ranks, waits, log) for kind, members in kinds.items()]


def _silent(
    kind: RootKind, members: Sequence[int], wait: Wait, ranks: Positions, waits: Waits, log: Sequence[LogEvent]
) -> Root:
    waiting = tuple(rank for rank in waits.waiting_for(members) if rank not in members)
    head = ranks[wait.rank].head
    heads = {rank: ranks[rank].head for rank in waiting if rank in ranks}
    here = tuple(rank for rank, own in heads.items() if head and own and own.key == head.key) or waiting
    unseen = kind is RootKind.UNSEEN
    said = [event for event in log if unseen and not event.named.isdisjoint(members)]
    quiet = set(members).difference(*(event.named for event in said))
    return Root(
        rule=HOST,
        kind=RootKind.MENTIONED if said else kind,
        ranks=tuple(sorted(members)),
        confidence=_SURE.get(kind, "low"),
        facts=RootFacts(here=here, quiet=tuple(sorted(quiet)) if said else ()),
        waiting=waiting,
        cause=None if unseen else "host",
        group=wait.group,
        group_ranks=head.group.ranks if head is not None else None,
        op=wait.op,
        sequence=wait.sequence,
        evidence=(
            (f"waits of {who(here)}", words.waited_operation(wait)),
            ("record", "none"),
            *(event.proof for event in said[:4]),
        ),
    )


def from_stacks(evidence: HangEvidence, activities: Mapping[int, StackActivity]) -> list[Root]:
    """The ranks whose main thread is not where the others wait; all of them if none waits for others."""
    if not activities:
        return []
    waiting = sorted(rank for rank, activity in activities.items() if activity.kind in WAITING)
    elsewhere = sorted(rank for rank in activities if rank not in waiting)
    certain = [rank for rank in elsewhere if activities[rank].kind not in PERHAPS_WAITING]
    elsewhere = certain or elsewhere  # backward and the GPU may well wait for those that are on their host
    init = evidence.stall is not None and evidence.stall.kind == "init"
    if elsewhere:
        on_gpu = all(activities[rank].kind == "gpu_sync" for rank in elsewhere)
        if not certain and not waiting:
            return []  # all wait for their GPUs: for which of them is not to be seen from here
        others = sorted(set(activities) - set(elsewhere))
        rule = START if init else GPU if on_gpu else HOST
        return [
            Root(
                rule=rule,
                kind=RootKind.ELSEWHERE if others else RootKind.STANDING,
                ranks=tuple(elsewhere),
                confidence="medium" if certain else "low",
                facts=RootFacts(others=tuple(others), before_first=init),
                waiting=tuple(others),
                cause="gpu" if rule == GPU else "host",
                evidence=tuple(
                    (f"rank {rank}", words.activity_text(activities[rank])) for rank in [*elsewhere, *others][:_MOST]
                ),
            )
        ]
    return _all_waiting(evidence, activities, waiting, init)


def _all_waiting(
    evidence: HangEvidence, activities: Mapping[int, StackActivity], waiting: Sequence[int], init: bool
) -> list[Root]:
    """Every rank with a stack waits for others: in different places, or in the same one."""
    places: dict[StackActivity, list[int]] = defaultdict(list)
    for rank in waiting:
        places[activities[rank]].append(rank)
    proof = tuple((who(ranks), words.activity_text(place)) for place, ranks in places.items())[:_MOST]
    unseen = [rank for rank in evidence.everybody if rank not in activities]
    if unseen and set(unseen) - can_blame(evidence):
        return []
    if unseen:
        return [Root(
            rule=START if init else HOST, kind=RootKind.NO_EVIDENCE, ranks=tuple(unseen), confidence="low",
            waiting=tuple(waiting), evidence=proof,
        )]  # fmt: skip
    if len(places) > 1 and not init:
        odd = sorted(rank for ranks in sorted(places.values(), key=len)[:-1] for rank in ranks)
        return [Root(
            rule=MISMATCH, kind=RootKind.WAITING_APART, ranks=tuple(odd), confidence="low",
            waiting=tuple(rank for rank in waiting if rank not in odd), evidence=proof,
        )]  # fmt: skip
    return [Root(
        rule=START if init else NETWORK, kind=RootKind.WAITING_TOGETHER, ranks=tuple(waiting), confidence="low",
        facts=RootFacts(before_first=init), evidence=proof,
    )]  # fmt: skip


def from_log(log: Sequence[LogEvent]) -> list[Root]:
    """What torch or Horovod itself detected: ranks that did not come, different calls."""
    roots = []
    for kind, rule in _TOLD_BY_TORCH:
        events = [event for event in log if event.kind == kind and event.accused]
        by_horovod = [event for event in events if stalled_ranks(event.text) is not None]
        # The ranks that all stalled operations miss; none where they miss different ones: then calls differ.
        missed = [set(event.accused) for event in by_horovod]
        ranks = set.intersection(*missed) if missed else _most_accused(events)
        if not ranks:
            continue
        events = by_horovod or events
        calls = events[0].text.removeprefix(DIFFERENT) if events[0].text.startswith(DIFFERENT) else ""
        ready = set[int]().union(*(ready_ranks(event.text) for event in by_horovod))
        root = Root(
            rule=rule,
            kind=RootKind.REPORTED_MISSING if kind == "missing" else RootKind.REPORTED_MISMATCH,
            ranks=tuple(sorted(ranks)),
            confidence="medium",
            facts=RootFacts(calls=calls, horovod=bool(by_horovod)),
            waiting=tuple(sorted(ready - ranks)),
            cause="host" if rule == HOST else None,
            evidence=tuple(event.proof for event in events[:4]),
        )
        roots.append(root)
    return roots


def _most_accused(events: Sequence[LogEvent]) -> set[int]:
    """Who is named most often: in a mismatch every rank names itself and the one it compares with."""
    counts = Counter(rank for event in events for rank in event.accused)
    return {rank for rank, count in counts.items() if events[0].kind == "missing" or count == max(counts.values())}


def gpu_errors(log: Sequence[LogEvent]) -> dict[int, LogEvent]:
    """The first GPU error that each rank reports."""
    found: dict[int, LogEvent] = {}
    for event in log:
        if event.kind == "cuda" and event.rank is not None:
            found.setdefault(event.rank, event)
    return found
