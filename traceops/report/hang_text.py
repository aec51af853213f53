"""A diagnosis in words: ranks that are alike merged, its sentences, and the lines of logs that show trouble."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from traceops.core.claims import first_phrase, phrases, reason
from traceops.core.findings import Severity
from traceops.core.rank_text import ranks_in, ranks_text, runs_of, runs_without, who, who_runs
from traceops.core.text import first_words
from traceops.core.units import size_range_text
from traceops.fabric.nccl import Inspector
from traceops.hangs.evidence import LogEvent, ThreadStack
from traceops.hangs.job import how_to_bring
from traceops.hangs.json_types import RankState, RankStatus
from traceops.hangs.model import Diagnosis, Root, Wait, WaitReason
from traceops.hangs.readers.messages import OF_RAY
from traceops.hangs.stack_activity import in_data_parallel, stack_activity
from traceops.hangs.words import activity_text, carried_text, since_text
from traceops.rules.failures import advice_of
from traceops.words.catalogue import rows

# What ranks have to share to be one line, given up from the right as long as there are too many lines.
_ALIKE = ("state", "op", "exit_code", "sequence", "where", "doing", "op_state", "group", "step", "waits_for", "bytes")
_LEVELS = tuple(_ALIKE[:kept] for kept in (11, 10, 8, 7, 5, 3, 1))
_ORDER: tuple[RankState | None, ...] = ("root", "dead", "stopped", "idle", "waiting", "unclear", "absent", None)


class RankGroup(Struct, frozen=True):
    """Ranks that are in the same state. differ: field of RankStatus -> the several values, where they differ. root:
    which of the diagnosis' roots they belong to, counted from 0; None for ranks that only wait."""

    ranks: tuple[int, ...]
    first: RankStatus
    differ: Mapping[str, tuple[Any, ...]]
    root: int | None = None

    def shared(self, field: str) -> Any:
        """What the ranks have in common of a field of RankStatus; None where they differ or it is not known."""
        return None if field in self.differ else getattr(self.first, field)

    def values(self, field: str) -> tuple[Any, ...]:
        """The different values of a field of RankStatus."""
        return self.differ.get(field, (getattr(self.first, field),))

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The ranks that these wait for, each for some of them at least."""
        return tuple(sorted({rank for ranks in self.values("waits_for") for rank in ranks}))


class MergedWait(Struct, frozen=True):
    """Ranks that wait for the same ranks in the same operation."""

    ranks: tuple[int, ...]
    on: tuple[int, ...]
    reason: WaitReason
    group: str | None
    op: str | None
    sequence: int | None


def merged_ranks(diagnosis: Diagnosis, most: int) -> list[RankGroup]:
    """Rows of equal ranks, roots first; as many as `most` if merging what is nearly equal can do that."""
    # Rank -> the first of the roots it belongs to
    root_of = {rank: number for number, root in reversed(list(enumerate(diagnosis.roots))) for rank in root.ranks}
    groups: list[RankGroup] = []
    last = len(_LEVELS) - 1
    # Causes stay apart as long as those that wait can be merged further.
    for own, others in [(0, level) for level in range(last + 1)] + [(level, last) for level in range(1, last + 1)]:
        groups = _merge(diagnosis.ranks, root_of, _LEVELS[own], _LEVELS[others])
        if len(groups) <= most:
            break
    return groups


def shown_waits(diagnosis: Diagnosis) -> list[Wait]:
    """The graph's edges, and for ranks that only a root says are waiting an edge to that root."""
    waits = list(diagnosis.waits)
    known = {wait.rank for wait in waits}
    for root in diagnosis.roots:
        for rank in root.waiting:
            if rank not in known and rank not in root.ranks:
                waits += [Wait(rank, on, "cause", root.group, root.op, root.sequence) for on in root.ranks]
    return waits


def merged_waits(waits: Sequence[Wait]) -> list[MergedWait]:
    """Waits with equal operation and reason: those of several ranks for the same ones become one."""
    on: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for wait in waits:
        on[wait.rank, wait.reason, wait.group, wait.op, wait.sequence].append(wait.on)
    ranks: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for (rank, *what), targets in on.items():
        waited_for = (tuple(sorted(set(targets))), *what)
        ranks[waited_for].append(rank)
    return [MergedWait(tuple(sorted(own)), *key) for key, own in ranks.items()]


def _merge(
    rows: Sequence[RankStatus], root_of: Mapping[int, int], own: Sequence[str], others: Sequence[str]
) -> list[RankGroup]:
    same: dict[Hashable, list[RankStatus]] = defaultdict(list)
    for row in rows:
        root = root_of.get(row.rank)
        same[root, tuple(getattr(row, field) for field in (others if root is None else own))].append(row)
    groups = []
    for members in same.values():
        fields = [field for field in RankStatus.__struct_fields__ if field != "rank"]
        values = {field: tuple(dict.fromkeys(getattr(row, field) for row in members)) for field in fields}
        differ = {field: several for field, several in values.items() if len(several) > 1}
        ranks = tuple(sorted(row.rank for row in members))
        groups.append(RankGroup(ranks, members[0], differ, root_of.get(members[0].rank)))

    def place(group: RankGroup) -> tuple[bool, int, tuple[int, ...]]:
        order = _ORDER.index(group.shared("state")) if group.root is None else group.root
        return group.root is None, order, group.ranks

    return sorted(groups, key=place)


_MOST_LINES = 8
# Warnings of NCCL, RCCL and their plugins that healthy jobs print.
_HARMLESS = (
    "NET/OFI Only EFA provider is supported", "aws-ofi-nccl initialization failed", "Failed to open libibverbs.so",
    "NUMA auto balancing enabled", 'Missing "iommu=pt"', "Unable to open device mlx5", "MSCCL++: Cannot initialize",
)  # fmt: skip
# What a launcher says and does once something else has failed.
_AFTERWARDS = ("closing signal", "ChildFailedError")


def seen_events(diagnosis: Diagnosis) -> list[LogEvent]:
    """Lines that show trouble: all that were classified but how far ranks have come and what the causes quote."""
    crashes = [root.crash for root in diagnosis.roots if root.crash is not None]
    repeated = {
        event for crash in crashes for event in crash.events if _without_numbers(event) == _without_numbers(crash.event)
    }
    quoted = {what for root in diagnosis.roots for what, _ in root.evidence}
    return [
        event
        for event in diagnosis.evidence.log
        if event.kind not in ("status", "said")
        and event not in repeated
        and f"{event.path}:{event.line}" not in quoted
        and not any(_is_end_of(event, root) for root in diagnosis.roots)
    ]


def is_harmless(event: LogEvent) -> bool:
    """Whether it is NCCL's warning of what healthy jobs have too, or one after which the program went on."""
    known = any(words in event.text for words in _HARMLESS)
    return (event.kind == "nccl" and known) or (event.was == "nccl" and "NCCL WARN" in event.text)


def was_logged_only(event: LogEvent) -> bool:
    """Whether it is a line that calls itself an error, after which its logger goes on."""
    return event.kind == "outlived" and event.was == "trouble"


def _without_numbers(event: LogEvent) -> str:
    return "".join(char for char in event.text if not char.isdecimal())


def _is_end_of(event: LogEvent, root: Root) -> bool:
    """Whether a launcher's line on the end of ranks says what the cause says of them already."""
    code = str(event.exit_code)
    return bool(event.accused) and set(event.accused) <= set(root.ranks) and ("exit code", code) in root.evidence


def timed_out(diagnosis: Diagnosis) -> LogEvent | None:
    """The collective that timed out, where the logs tell of one only, whatever its number on each rank."""
    events = [event for event in diagnosis.evidence.log if event.kind == "timeout" and event.op is not None]
    calls = {(event.op, event.sequence) for event in events}
    return events[0] if len(calls) == 1 else None


def seen_groups(events: Sequence[LogEvent]) -> list[tuple[LogEvent, tuple[int, ...]]]:
    """The first event of each text, with the ranks that say the same, numbers in it aside."""
    groups: dict[tuple[str, str], list[LogEvent]] = {}
    for event in events:
        groups.setdefault((event.kind, _without_numbers(event)), []).append(event)
    return [
        (same[0], tuple(sorted({event.rank for event in same if event.rank is not None}))) for same in groups.values()
    ]


def seen_lines(diagnosis: Diagnosis) -> Iterator[tuple[LogEvent, tuple[int, ...]]]:
    """The lines to list, the first event of each message and the ranks that say it (none where no line tells). Beside
    hangs none: their causes tell what the lines mean."""
    if any(root.crash is None for root in diagnosis.roots):
        return
    yield from seen_groups(seen_events(diagnosis))[:_MOST_LINES]


def seen_left_out(diagnosis: Diagnosis) -> int:
    """How many kinds of messages `seen_lines` leaves to hang.json."""
    if any(root.crash is None for root in diagnosis.roots):
        return 0
    return max(len(seen_groups(seen_events(diagnosis))) - _MOST_LINES, 0)


def what_would_decide(diagnosis: Diagnosis) -> str:
    """The evidence to bring where no cause is known, with the command that gets it; '' where there is one."""
    seen = seen_events(diagnosis)
    if (key := _what_decides(diagnosis, seen)) is None:
        return ""
    ranks = {event.rank for event in diagnosis.evidence.log if event.rank is not None}
    of_ray = any(words in event.text for event in seen for words in OF_RAY)
    how = how_to_bring("ray" if of_ray else diagnosis.evidence.setting)
    bring = how if key == "echoes" else "logs" if len(ranks) == 1 else "dumps"
    return first_phrase("hangs", "decide", key, bring=bring)


def _what_decides(diagnosis: Diagnosis, seen: Sequence[LogEvent]) -> str | None:
    """Which text of [decide] in words/hangs.ini: the first that applies."""
    kinds = {event.kind for event in seen}
    if "idle" in kinds:
        return "idle"
    if diagnosis.roots:
        return None
    # Of NCCL's warnings the rules of the fabric say what would tell more.
    nothing = all(is_harmless(event) or was_logged_only(event) for event in seen)
    more = [key for key, words in rows("seen.more") if any(words in event.text for event in seen)]
    cases = (
        (bool(diagnosis.evidence.lone), "lone"),
        (any(end.hangs is not None for end in diagnosis.evidence.ends), "hangs"),
        (nothing, None),
        ("ras" in kinds, "ras"),
        (kinds == {"outlived"}, "went_on"),
        (kinds <= {"inspector", "nccl"}, "inspector"),
        ("timeout" in kinds, "timeout"),
        (bool(more), next(iter(more), None)),
        (bool(kinds & {"connection", "monitor", "exit"}), "echoes"),
        (any(event.cut_off for event in seen), "cut_off"),
    )
    return next((key for applies, key in cases if applies), "other")


def inspector_text(inspector: Inspector) -> str:
    """'2 files of NCCL Inspector: 57 collectives of ranks 0–3, AllReduce of 268 MB at 341 GB/s (median)'."""
    communicators = {row.communicator: row.ranks for row in inspector.completed}
    whose = f"{len(communicators)} communicators"
    if len(communicators) == 1:
        ranks = sorted({row.rank for row in inspector.completed})
        of_all = next(iter(communicators.values()))
        whose = f"rank{'' if len(ranks) == 1 else 's'} {ranks_text(ranks)}"
        whose += f" (of {of_all})" if len(ranks) < of_all else ""
    facts: dict[str, Any] = {"collectives": inspector.collectives or None, "dropped": inspector.dropped or None}
    if (main := inspector.main) is not None:
        facts |= {"op": main.op, "sizes": (main.least, main.most), "busbw": main.busbw_gbs}
    return first_phrase("views", "report", "inspector", files=len(inspector.files), whose=whose, **facts)


_MOST_CALLS = 3
_MOST_QUOTED = 240  # characters of a line


def hang_level(diagnosis: Diagnosis) -> Severity:
    """How bad it is: 'error' with a cause, 'warning' where something waits or stalled, else 'info'."""
    evidence, events = diagnosis.evidence, seen_events(diagnosis)
    if diagnosis.roots or any(finding.severity == "error" for finding in diagnosis.machine):
        return "error"
    if _waiting(diagnosis) or evidence.stall is not None or evidence.lone or diagnosis.machine:
        return "warning"
    seen = events and not _is_of_fabric_only(diagnosis) and not all(map(was_logged_only, events))
    return "warning" if seen else "info"


def shows_trouble(diagnosis: Diagnosis) -> bool:
    """Whether the evidence shows more than a healthy job: a cause, a wait, Ctrl-C, or somebody's word that it hangs."""
    ends = diagnosis.evidence.ends
    return hang_level(diagnosis) != "info" or any(end.interrupted or end.hangs for end in ends)


def hang_sentence(diagnosis: Diagnosis) -> str:
    """Who hangs and why; without a cause, what was read and that it shows no rank waiting."""
    if diagnosis.roots:
        first, others = diagnosis.roots[0], len(diagnosis.roots) - 1
        return " ".join([root_sentence(first), *_said("more", others=others or None)])
    stall = "" if diagnosis.evidence.stall is None else f"{stall_text(diagnosis)}. "
    if waiting := _waiting(diagnosis):
        since = [since_text(since) for since in diagnosis.evidence.since[:1] if since.said]
        said = [_wait_text(diagnosis, waiting), _for_whom_text(diagnosis, len(waiting)), *since]
    elif (timed := timed_out(diagnosis)) is not None:
        ranks = sorted({e.rank for e in diagnosis.evidence.log if e.kind == "timeout" and e.rank is not None})
        operation = operation_text(timed.op, timed.sequence)
        late = _said("timed_out", ranks=ranks, operation=operation, world=_given_world(diagnosis))[0]
        said = [late, _for_whom_text(diagnosis, len(ranks) or 1)]
    else:
        said = _without_waiting(diagnosis)
        if in_data := in_data_parallel(diagnosis.evidence):
            said = [f"{reason('hangs', 'data_parallel', ranks=in_data)}.", *said]
    return stall + " ".join(said)


def _said(part: str, **facts: Any) -> list[str]:
    return phrases("hangs", "diagnosis", part, **facts)


def _wait_text(diagnosis: Diagnosis, waiting: Sequence[int]) -> str:
    """'Ranks 5–6 of 8 wait in all_reduce #77.', by operation where they are in several."""
    calls: dict[str, list[int]] = {}
    for status in diagnosis.ranks:
        if status.rank in waiting and status.op is not None:
            calls.setdefault(operation_text(status.op, status.sequence), []).append(status.rank)
    if not calls and (timed := timed_out(diagnosis)) is not None:
        calls[operation_text(timed.op, timed.sequence)] = []
    each = [_said("call", ranks=ranks, operation=call)[0] for call, ranks in calls.items() if len(calls) > 1]
    return _said(
        "waiting",
        ranks=waiting,
        world=_given_world(diagnosis),
        operation=next(iter(calls)) if len(calls) == 1 else None,
        calls=[*each[:_MOST_CALLS], *["…"][: len(each) > _MOST_CALLS]],
    )[0]


def _for_whom_text(diagnosis: Diagnosis, waiting: int) -> str:
    """What is missing to say which rank is the cause."""
    unknown = unknown_ranks(diagnosis)
    return _said("for", unknown=who_runs(unknown) if unknown else None, waiting=waiting)[0]


def _given_world(diagnosis: Diagnosis) -> int | None:
    """The job's number of ranks where it is given, and not only the highest of them seen."""
    return None if diagnosis.evidence.world_source == "seen" else diagnosis.evidence.world_size


def root_sentence(root: Root) -> str:
    """The message of a cause, with who waits and what the ranks do instead where it leaves that out."""
    carries = [] if root.carried is None or root.op is None else [carried_text(root.carried, root.op)]
    return " ".join([root.message, *root.sentences("doing", "any_root"), *carries])


def root_advice(root: Root) -> str:
    """What to do about a cause."""
    return advice_of(root)


def operation_text(op: str | None, sequence: int | None, group: str | None = None) -> str:
    """'all_reduce #64 of default_pg'; empty without an operation."""
    if op is None:
        return ""
    number = "" if sequence is None else f" #{sequence}"
    return f"{op}{number}" if group is None else f"{op}{number} of {group}"


def operations_text(ranks: RankGroup) -> str:
    """'all_reduce #64 of default_pg, 4.2 MB'; how many there are where they differ."""
    if "op" in ranks.differ:
        return f"{len(ranks.values('op'))} operations"
    if not (text := operation_text(ranks.shared("op"), ranks.shared("sequence"), ranks.shared("group"))):
        return ""
    if "group" in ranks.differ:
        text += f" in {len(ranks.values('group'))} groups"
    nbytes = bytes_text(ranks)
    return f"{text}, {nbytes}" if nbytes else text


def bytes_text(ranks: RankGroup) -> str:
    """'4.2 MB', or '21.0–22.5 MB' of merged ranks; empty where it is not known."""
    known = [int(value) for value in ranks.values("bytes") if value is not None]
    return size_range_text(min(known), max(known)) if known else ""


def state_text(ranks: RankGroup) -> str:
    """The state that the ranks share; 'cause' for a root."""
    state = ranks.shared("state")
    return "differs" if state is None else "cause" if state == "root" else str(state)


def place_text(ranks: RankGroup) -> str:
    """The line of code of the pending operation, or what the rank does instead; its exit code if it died."""
    if (exit_code := ranks.shared("exit_code")) is not None:
        return f"exit code {exit_code}"
    doing, where = ranks.shared("doing") or "", ranks.shared("where") or ""
    return doing or where if ranks.root is not None or not ranks.shared("op") else where or doing


def read_text(diagnosis: Diagnosis) -> str:
    """What the diagnosis rests on: 'flight-recorder dumps of ranks 0–3 (4 of 4); 1 log with errors; 6 files in all'."""
    evidence = diagnosis.evidence
    fabric, records = evidence.fabric, evidence.records
    inspected = None if fabric is None or fabric.inspector is None else inspector_text(fabric.inspector)
    # Machines whose topology was read; one without a host's name may be one of those that have it.
    machines = () if fabric is None else fabric.machines
    named = sum(machine.host is not None for machine in machines)
    mixed = 0 < named < len(machines)
    nameless = len(machines) - named if mixed else None
    read: list[tuple[str, Mapping[str, Any]]] = [
        ("dumps", {"ranks": [rank for rank, record in records.items() if record.source == "flight recorder"]}),
        ("progress", {"ranks": [rank for rank, record in records.items() if record.source == "log"]}),
        ("stacks", {"ranks": list(evidence.stacks)}),
        ("processes", {"ranks": list(evidence.processes)}),
        ("machines", {"named": named if mixed else None, "nameless": nameless, "count": len(machines) or None}),
        ("nccl", {"count": None if fabric is None or fabric.log is None else len(fabric.log.files)}),
        ("inspector", {"text": inspected}),
        ("lone", {"count": len(evidence.lone) or None}),
        ("logs", {"count": len({event.path for event in evidence.log if event.kind != "inspector"}) or None}),
    ]
    world = evidence.world_size
    parts = [text for part, facts in read for text in phrases("hangs", "read", part, world=world, **facts)[:1]]
    return first_phrase("hangs", "read", "all", parts=parts, files=len(evidence.files))


def stall_text(diagnosis: Diagnosis) -> str:
    """'No step ended for 42 s (limit 30 s) and nothing moved'; empty where nobody watched."""
    if (stall := diagnosis.evidence.stall) is None:
        return ""
    return _said("stall", first=stall.kind == "init", stalled=stall.stalled_s, limit=stall.limit_s)[0]


def shown_path(diagnosis: Diagnosis, path: str) -> str:
    """A file's path from the folder that was read, where it lies in it."""
    root = diagnosis.evidence.root
    inside = path.removeprefix(root.rstrip("/\\") + os.sep)
    return inside if inside != path else path


def known_ranks(diagnosis: Diagnosis) -> list[int]:
    """Ranks of which anything was found, in order."""
    log = diagnosis.evidence.log
    told = {rank for event in log if event.kind in ("mismatch", "exit") for rank in event.accused}
    return [
        rank.rank
        for rank in diagnosis.ranks
        if rank.sources or rank.state in ("dead", "stopped", "waiting") or rank.rank in told
    ]


def unknown_ranks(diagnosis: Diagnosis) -> tuple[tuple[int, int], ...]:
    """Runs of ranks of which nothing was found, even if the others wait for them."""
    known, world = set(known_ranks(diagnosis)), diagnosis.evidence.world_size
    if world is None:
        return runs_of(rank.rank for rank in diagnosis.ranks if rank.rank not in known)
    return runs_without(world, known)


def _waiting(diagnosis: Diagnosis) -> list[int]:
    waiting = {status.rank for status in diagnosis.ranks if status.state == "waiting"}
    return sorted(waiting | {wait.rank for wait in diagnosis.waits})


def end_text(diagnosis: Diagnosis) -> str:
    """How logs end in which nothing failed: 'training was at step 33 of 15,625 when train.log ends'."""
    ends = diagnosis.evidence.ends
    by = next((name for name in ("interrupted", "asked", "hangs") if any(getattr(end, name) for end in ends)), None)
    if by is not None:
        shown = next(end for end in ends if getattr(end, by))
    else:
        shown = max(ends, key=lambda end: (end.step is not None, end.epoch is not None, end.step or 0))
    line, said = (0, "") if by is None else getattr(shown, by)
    frames = shown.frames if by == "interrupted" else ()
    return first_phrase(
        "hangs", "end", "text", place=f"{Path(shown.path).name}:{line}", said=said, interrupted=by == "interrupted",
        asked=by == "asked", hangs=by == "hangs", name=Path(shown.path).name, done=shown.done, serving=shown.serving,
        doing=activity_text(stack_activity(ThreadStack(True, frames))) if frames else None,
        step=first_phrase("hangs", "end", "step", step=shown.step, of=shown.of, epoch=shown.epoch),
        lines=sum(end.lines for end in ends), logs=len(ends) if len(ends) > 1 else None,
    )  # fmt: skip


def lone_text(diagnosis: Diagnosis) -> str:
    """'One process, rank unknown: it is waiting for a batch of data, called from train (train.py:88).'"""
    lone = diagnosis.evidence.lone
    mains = [one.main or (one.threads[0] if len(one.threads) == 1 else None) for one in lone]
    doing = dict.fromkeys(activity_text(stack_activity(main)) for main in mains if main is not None)
    return _said("lone", one=len(lone) == 1, count=len(lone), doing=list(doing)[:_MOST_CALLS])[0]


def _without_waiting(diagnosis: Diagnosis) -> list[str]:
    """What there is to say where no rank waits: of the machine, logs that end, the fabric, or failures."""
    log, lone, seen = diagnosis.evidence.log, diagnosis.evidence.lone, seen_events(diagnosis)
    ras = [event for event in log if event.kind == "ras"]
    idle = next((event for event in seen if event.kind == "idle"), None)
    if diagnosis.machine:
        return _said("machine", text=diagnosis.machine[0].message)
    if diagnosis.evidence.ends:
        return [end_text(diagnosis)]
    if _is_of_fabric_only(diagnosis):
        quoted = quoted_line(diagnosis, seen[0], ()) if seen else None
        return _said("fabric", quoted=quoted, read=read_text(diagnosis))
    if ras:
        return _said("ras", text=ras[0].text, more=len(ras) - 1 or None)
    if idle is not None:
        return _said("idle", text=idle.text, place=f"{Path(idle.path).name}:{idle.line}")
    if lone and not any(event.kind not in ("monitor", "outlived", "passed") for event in seen):
        return [lone_text(diagnosis)]
    if seen:
        return _seen_text(diagnosis, seen)
    unknown = unknown_ranks(diagnosis)
    return _said(
        "nothing", read=read_text(diagnosis), unknown=who_runs(unknown) if unknown else None,
        no_dump=all(record.source != "flight recorder" for record in diagnosis.evidence.records.values()),
        unknown_ranks=ranks_in(unknown),
    )  # fmt: skip


def _seen_text(diagnosis: Diagnosis, seen: Sequence[LogEvent]) -> list[str]:
    """What logs show of failures where none of them is a cause."""
    groups = seen_groups(seen)
    quoted: tuple[LogEvent, tuple[int, ...]] = seen[0], ()
    if all(event.kind == "inspector" for event in seen):
        part = "inspector"
    elif all(map(was_logged_only, seen)):
        part = "logged"
    elif all(event.kind == "outlived" for event in seen):
        part, quoted = "outlived", (max(seen, key=lambda event: event.line), ())
    elif all(event.kind in ("outlived", "passed") for event in seen):
        part = "passed"
    else:
        # The first line that is not the echo of another process's end, else the first line, and who wrote it.
        part = "messages"
        own = [
            group
            for group in groups
            if group[0].kind not in ("connection", "monitor", "exit")
            and not any(words in group[0].text for words in _AFTERWARDS)
        ]
        quoted = next(iter(own), groups[0])
    return _said(
        part, text=seen[0].text, count=len(seen), more=len(seen) - 1 or None, kinds=len(groups),
        more_kinds=len(groups) > 1, many=len(groups) > 2, quoted=quoted_line(diagnosis, *quoted),
        read=read_text(diagnosis),
    )[:1]  # fmt: skip


def quoted_line(diagnosis: Diagnosis, event: LogEvent, said_by: Sequence[int]) -> str:
    """'train.log:52 says “Invocation of collective_rpc method failed” (rank 3)'. said_by: all ranks that do."""
    path = shown_path(diagnosis, event.path)
    where = Path(path).name if len(diagnosis.evidence.files) == 1 else path
    of = f" ({who(said_by)})" if said_by else ""
    return f"{where}:{event.line} says “{first_words(event.text, _MOST_QUOTED)}”{of}"


def _is_of_fabric_only(diagnosis: Diagnosis) -> bool:
    """Whether nothing is known of any rank, and the logs hold nothing but NCCL's warnings."""
    evidence = diagnosis.evidence
    ranks = evidence.records or evidence.stacks or evidence.processes or evidence.stall
    warnings = all(is_harmless(event) for event in evidence.log)
    return evidence.fabric is not None and not ranks and evidence.failed_rank is None and warnings
