"""Roots that no flight recorder shows: dead, stopped and silent ranks, stacks alone, and what logs say outright."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from traceops.core.rank_text import who, who_first
from traceops.hangs.doing import Doing
from traceops.hangs.model import Evidence, LogEvent, Root
from traceops.hangs.processes import Death
from traceops.hangs.roots import DIED, GPU, HOST, MISMATCH, NETWORK, START
from traceops.hangs.standing import Standing
from traceops.hangs.waits import NO_RECORD, Waits

# What a rank's main thread is in while it waits for others, and what it may be in.
WAITING = ("collective", "init")
PERHAPS_WAITING = ("backward", "gpu_sync")
_MOST = 8


def died(dead: Mapping[int, Death], waits: Waits, everybody: Sequence[int]) -> list[Root]:
    """Ranks whose process ended by itself; the others wait for it, or were ended with it."""
    roots = []
    for rank, death in dead.items():
        waiting = waits.waiting_for([rank])
        first = next((wait for wait in waits.edges if wait.on == rank), None)
        called = (
            f" while {who(waiting)} wait for it in {first.op} #{first.sequence} of {first.group}"
            if first
            else ""
        )
        proof = [("how it ended", death.reason)]
        if death.exit_code is not None:
            proof.append(("exit code", str(death.exit_code)))
        roots.append(
            Root(
                rule=DIED,
                ranks=(rank,),
                confidence="high"
                if death.sure and (death.exit_code is not None or first is not None)
                else "medium",
                message=f"Rank {rank} died{called}: {death.reason}.",
                waiting=waiting or tuple(other for other in everybody if other not in dead),
                cause=death.cause,
                group=first.group if first else None,
                op=first.op if first else None,
                sequence=first.sequence if first else None,
                evidence=tuple(proof),
            )
        )
    return roots


def silent(
    ranks: Mapping[int, Standing],
    waits: Waits,
    doings: Mapping[int, Doing],
    halted: Collection[int],
    log: Sequence[LogEvent],
    explained: Collection[int],
) -> list[Root]:
    """Ranks without a record that others wait for: stopped, seen elsewhere by their stack, or not seen at all."""
    absent = {wait.on: wait for wait in waits.edges if wait.why == NO_RECORD and wait.on not in explained}
    inside = {
        rank
        for rank in absent
        if rank in doings and doings[rank].kind in (*WAITING, *PERHAPS_WAITING) and rank not in halted
    }
    kinds: dict[str, list[int]] = defaultdict(list)
    for rank in absent:
        if rank in halted:
            kinds["stopped"].append(rank)
        elif rank in doings and rank not in inside:
            kinds["seen"].append(rank)
        elif rank not in inside:
            kinds["unseen"].append(rank)
    if len(kinds) > 1:  # who was seen elsewhere explains the waiting; of the others nothing is known
        kinds.pop("unseen", None)
    roots = []
    for kind, members in kinds.items():
        wait = absent[members[0]]
        waiting = tuple(rank for rank in waits.waiting_for(members) if rank not in members)
        operation = f"{wait.op} #{wait.sequence} of {wait.group}"
        head = ranks[wait.rank].head
        said = [event for event in log if event.rank in members] if kind == "unseen" else []
        if kind == "stopped":
            why = f"{who_first(members)} {_is(members)} stopped by a signal (SIGSTOP or a debugger)"
        elif kind == "seen":
            why = f"{who_first(members)} left no record of collectives and {_is(members)} elsewhere"
        elif said:
            why = f"{who_first(members)} left no record of collectives, but messages in the log"
        else:
            why = f"{who_first(members)} left no evidence at all: dead, on another host, or not collected"
        roots.append(
            Root(
                rule=HOST,
                ranks=tuple(sorted(members)),
                confidence={"stopped": "high", "seen": "medium"}.get(kind, "low"),  # type: ignore[arg-type]
                message=f"{why}; {who(waiting)} {_wait(waiting)} in {operation}.",
                waiting=waiting,
                cause="host" if kind != "unseen" else None,
                group=wait.group,
                group_ranks=head.group.ranks if head is not None else None,
                op=wait.op,
                sequence=wait.sequence,
                evidence=(
                    (f"waits of {who(waiting)}", operation),
                    ("record", "none"),
                    *((f"{event.path}:{event.line}", event.text[:300]) for event in said[:4]),
                ),
            )
        )
    return roots


def from_stacks(evidence: Evidence, doings: Mapping[int, Doing]) -> list[Root]:
    """The ranks whose main thread is not where the others wait; all of them if none waits for others."""
    if not doings:
        return []
    waiting = sorted(rank for rank, doing in doings.items() if doing.kind in WAITING)
    elsewhere = sorted(rank for rank in doings if rank not in waiting)
    certain = [rank for rank in elsewhere if doings[rank].kind not in PERHAPS_WAITING]
    elsewhere = certain or elsewhere  # backward and the GPU may well wait for those that are on their host
    init = evidence.stall is not None and evidence.stall.kind == "init"
    if elsewhere:
        on_gpu = all(doings[rank].kind == "gpu_sync" for rank in elsewhere)
        if not certain and not waiting:
            return []  # all wait for their GPUs: for which of them is not to be seen from here
        others = sorted(set(doings) - set(elsewhere))
        rule = START if init else GPU if on_gpu else HOST
        before = " before the first step" if init else ""
        if others:
            told = f"{_is(elsewhere)} not where the others wait{before}; {who(others)} {_wait(others)}."
        else:
            told = f"{_stand(elsewhere)} still{before}, and no rank waits in a collective."
        return [
            Root(
                rule=rule,
                ranks=tuple(elsewhere),
                confidence="medium" if certain else "low",
                message=f"{who_first(elsewhere)} {told}",
                waiting=tuple(others),
                cause="gpu" if rule == GPU else "host",
                evidence=tuple((f"rank {rank}", doings[rank].text) for rank in [*elsewhere, *others][:_MOST]),
            )
        ]
    return [_all_waiting(evidence, doings, waiting, init)]


def _all_waiting(evidence: Evidence, doings: Mapping[int, Doing], waiting: Sequence[int], init: bool) -> Root:
    """Every rank with a stack waits for others: in different places, or in the same one."""
    places: dict[str, list[int]] = defaultdict(list)
    for rank in waiting:
        places[doings[rank].text].append(rank)
    proof = tuple((who(ranks), text) for text, ranks in places.items())[:_MOST]
    unseen = [rank for rank in range(evidence.world_size or 0) if rank not in doings]
    if unseen:
        return Root(
            rule=START if init else HOST, ranks=tuple(unseen), confidence="low",
            message=f"{who_first(unseen)} left no evidence; all others wait.", waiting=tuple(waiting), evidence=proof,
        )  # fmt: skip
    if len(places) > 1 and not init:
        odd = sorted(rank for ranks in sorted(places.values(), key=len)[:-1] for rank in ranks)
        return Root(
            rule=MISMATCH, ranks=tuple(odd), confidence="low",
            message=f"All ranks wait for others, but in different places: {who(odd)} not where most are.",
            waiting=tuple(rank for rank in waiting if rank not in odd), evidence=proof,
        )  # fmt: skip
    return Root(
        rule=START if init else NETWORK, ranks=tuple(waiting), confidence="low",
        message="All ranks came to the same place and none gets on"
        + (" before the first step: they cannot reach each other, or are fewer than expected." if init else "."),
        evidence=proof,
    )  # fmt: skip


def from_log(log: Sequence[LogEvent]) -> list[Root]:
    """What torch itself detected: ranks missing at a monitored barrier, different calls, GPU errors."""
    roots = []
    for kind, rule, words in (
        ("missing", HOST, "did not come"),
        ("mismatch", MISMATCH, "called something else"),
    ):
        events = [event for event in log if event.kind == kind and event.accused]
        if events:
            ranks = _most_accused(events)
            roots.append(
                Root(
                    rule=rule,
                    ranks=ranks,
                    confidence="medium",
                    message=f"{who_first(ranks)} {words}, as torch reports.",
                    cause="host" if rule == HOST else None,
                    evidence=tuple((f"{event.path}:{event.line}", event.text[:300]) for event in events[:4]),
                )
            )
    return roots


def _most_accused(events: Sequence[LogEvent]) -> tuple[int, ...]:
    """Who is named most often: in a mismatch every rank names itself and the one it compares with."""
    counts = Counter(rank for event in events for rank in event.accused)
    if all(event.kind == "missing" for event in events):
        return tuple(sorted(counts))
    return tuple(sorted(rank for rank, count in counts.items() if count == max(counts.values())))


def gpu_errors(log: Sequence[LogEvent]) -> dict[int, LogEvent]:
    """The first GPU error that each rank reports."""
    found: dict[int, LogEvent] = {}
    for event in log:
        if event.kind == "cuda" and event.rank is not None:
            found.setdefault(event.rank, event)
    return found


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _stand(ranks: Sequence[int]) -> str:
    return "stands" if len(ranks) == 1 else "stand"
