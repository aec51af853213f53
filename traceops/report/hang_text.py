"""A hang in words: the sentence a diagnosis opens with, its causes, and what was read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from traceops.core.findings import Severity
from traceops.core.rank_text import ranks_in, runs_of, runs_without, who, who_first, who_runs
from traceops.core.text import first_words
from traceops.core.units import size_range_text
from traceops.fabric.model import Machine
from traceops.hangs.evidence import LogEnd, LogEvent, ThreadStack
from traceops.hangs.model import Diagnosis, Root
from traceops.hangs.stack_activity import stack_activity
from traceops.hangs.words import activity_text, carried_text, since_text
from traceops.report.hang_rows import RankGroup
from traceops.report.hang_seen import is_harmless, most_telling, seen_events, seen_groups, timed_out, was_logged_only
from traceops.report.inspector_text import inspector_text
from traceops.rules.failures import advice_of

_MOST_CALLS = 3
_MOST_QUOTED = 240  # characters of a line


def hang_level(diagnosis: Diagnosis) -> Severity:
    """How bad it is: 'error' with a cause, 'warning' where something waits or stalled, else 'info'."""
    if diagnosis.roots:
        return "error"
    events = seen_events(diagnosis)
    seen = events and not _tells_of_fabric_only(diagnosis) and not all(map(was_logged_only, events))
    seen = seen or bool(diagnosis.evidence.lone)
    if any(finding.severity == "error" for finding in diagnosis.machine):
        return "error"
    seen = seen or bool(diagnosis.machine)
    trouble = _waiting(diagnosis) or diagnosis.evidence.stall is not None or seen
    return "warning" if trouble else "info"


def hang_sentence(diagnosis: Diagnosis) -> str:
    """Who hangs and why; without a cause, what was read and that it shows nobody waiting."""
    if diagnosis.roots:
        first, others = diagnosis.roots[0], len(diagnosis.roots) - 1
        more = f" {others} more independent cause{'s' if others > 1 else ''} below." if others else ""
        return f"{root_sentence(first)} {root_label(first)}{more}"
    stall = "" if diagnosis.evidence.stall is None else f"{stall_text(diagnosis)}. "
    waiting = _waiting(diagnosis)
    if waiting:
        since = "".join(f" {since_text(since)}" for since in diagnosis.evidence.since[:1] if since.said)
        return f"{stall}{_wait_text(diagnosis, waiting)} {_for_whom_text(diagnosis, len(waiting))}{since}"
    if (timed := timed_out(diagnosis)) is not None:
        ranks = sorted(
            {event.rank for event in diagnosis.evidence.log if event.kind == "timeout" and event.rank is not None}
        )
        late = who_first(ranks) if ranks else "A rank"
        what = operation_text(timed.op, timed.sequence)
        return f"{stall}{late}{_of_world(diagnosis)} timed out in {what}. {_for_whom_text(diagnosis, len(ranks) or 1)}"
    return stall + _nobody(diagnosis)


def _wait_text(diagnosis: Diagnosis, waiting: Sequence[int]) -> str:
    """'Ranks 5–6 of 8 wait in all_reduce #77.', by operation where they are in several."""
    calls: dict[tuple[str | None, int | None], list[int]] = {}
    for status in diagnosis.ranks:
        if status.rank in waiting and status.op is not None:
            calls.setdefault((status.op, status.sequence), []).append(status.rank)
    timed = timed_out(diagnosis)
    verb = "waits" if len(waiting) == 1 else "wait"
    said = f"{who_first(waiting)}{_of_world(diagnosis)} {verb}"
    if not calls:
        return f"{said} in {operation_text(timed.op, timed.sequence)}." if timed is not None else f"{said}."
    if len(calls) == 1:
        return f"{said} in {operation_text(*next(iter(calls)))}."
    each = [f"{who(ranks)} in {operation_text(*call)}" for call, ranks in list(calls.items())[:_MOST_CALLS]]
    more = "; …" if len(calls) > _MOST_CALLS else ""
    return f"{said}: {'; '.join(each)}{more}."


def _for_whom_text(diagnosis: Diagnosis, waiting: int) -> str:
    """What is missing to say which rank is the cause."""
    unknown = unknown_ranks(diagnosis)
    if unknown:
        return f"Nothing in these files comes from {who_runs(unknown)}."
    return f"The evidence does not show which rank {'it waits' if waiting == 1 else 'they wait'} for."


def _of_world(diagnosis: Diagnosis) -> str:
    """' of 8' where the job's number of ranks is told, and not only the highest of them."""
    evidence = diagnosis.evidence
    return "" if evidence.world_size is None or evidence.world_source == "seen" else f" of {evidence.world_size}"


def root_sentence(root: Root) -> str:
    """The message of a cause, with who waits and what the ranks do instead where it leaves that out."""
    said = root.statement
    if root.waiting and not root.tells_waiting:
        said += f"; {who(root.waiting)} wait{'s' if len(root.waiting) == 1 else ''} for it"
    if root.doing:
        said += f". {'It is' if len(root.ranks) == 1 else 'They are'} {root.doing}"
    if root.carried is not None and root.op is not None:
        said += f". {carried_text(root.carried, root.op)}"
    return said if said.endswith("…") else f"{said}."


def root_label(root: Root) -> str:
    """'[TO-H001, error, high confidence]'."""
    return f"[{root.rule}, error, {root.confidence} confidence]"


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
    text = operation_text(ranks.shared("op"), ranks.shared("sequence"), ranks.shared("group"))
    if not text:
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
    return "differs" if ranks.state is None else "cause" if ranks.state == "root" else ranks.state


def place_text(ranks: RankGroup) -> str:
    """The line of code of the pending operation, or what the rank does instead; its exit code if it died."""
    exit_code = ranks.shared("exit_code")
    if exit_code is not None:
        return f"exit code {exit_code}"
    doing, where = ranks.shared("doing") or "", ranks.shared("where") or ""
    return doing or where if ranks.root is not None or not ranks.shared("op") else where or doing


def _topology_text(machines: Sequence[Machine]) -> str:
    """'topology of 2 machines'; one that tells no host may be of one of those that do."""
    named = [machine for machine in machines if machine.host is not None]
    if not named or len(named) == len(machines):
        return f"topology of {_counted(len(machines), 'machine')}"
    more = _counted(len(machines) - len(named), "machine")
    return f"topology of {_counted(len(named), 'machine')}, and of {more} without a name"


def read_text(diagnosis: Diagnosis) -> str:
    """What the diagnosis rests on: 'dumps of ranks 0–3 (4 of 4), stacks of rank 3, 1 log; 6 files'."""
    evidence = diagnosis.evidence
    dumps = [rank for rank, record in evidence.records.items() if record.source == "flight recorder"]
    from_logs = [rank for rank, record in evidence.records.items() if record.source == "log"]
    world = "" if evidence.world_size is None else f" ({{}} of {evidence.world_size})"
    parts = []
    for what, ranks in (
        ("flight-recorder dumps", dumps),
        ("progress in a log", from_logs),
        ("stacks", list(evidence.stacks)),
        ("process state", list(evidence.processes)),
    ):
        if ranks:
            parts.append(f"{what} of {who(ranks)}{world.format(len(ranks))}")
    if evidence.fabric is not None and evidence.fabric.machines:
        parts.append(_topology_text(evidence.fabric.machines))
    if evidence.fabric is not None and evidence.fabric.log is not None:
        parts.append(f"NCCL's lines in {_counted(len(evidence.fabric.log.files), 'log')}")
    if evidence.fabric is not None and evidence.fabric.inspector is not None:
        parts.append(inspector_text(evidence.fabric.inspector))
    if evidence.lone:
        parts.append(f"stacks of {_counted(len(evidence.lone), 'process')} of unknown rank")
    logs = {event.path for event in evidence.log if event.kind != "inspector"}
    if logs:
        parts.append(f"{len(logs)} log{'s' if len(logs) > 1 else ''} with errors or progress")
    files = len(evidence.files)
    counted = f"{files} file{'' if files == 1 else 's'}"
    return f"{'; '.join(parts)}; {counted} in all" if parts else f"{counted}, none about a rank"


def stall_text(diagnosis: Diagnosis) -> str:
    """'No step ended for 42 s (limit 30 s) and nothing moved'; empty where nobody watched."""
    stall = diagnosis.evidence.stall
    if stall is None:
        return ""
    step = "first step" if stall.kind == "init" else "step"
    return f"No {step} ended for {stall.stalled_s:.0f} s (limit {stall.limit_s:g} s) and nothing moved"


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
    stopped = next((end for end in ends if end.interrupted is not None), None)
    if stopped is not None and stopped.interrupted is not None:
        line, said = stopped.interrupted
        at = f" at {_step_text(stopped)}" if _step_text(stopped) else ""
        if stopped.frames:
            doing = activity_text(stack_activity(ThreadStack(True, stopped.frames)))
            return f"Interrupted by Ctrl-C or a signal{at} while {doing} ({Path(stopped.path).name}:{line})."
        return f"Interrupted by Ctrl-C or a signal{at}: {Path(stopped.path).name}:{line} says “{said}”."
    asked = next((end for end in ends if end.asked is not None), None)
    if asked is not None and asked.asked is not None:
        line, said = asked.asked
        return f"The server was asked to stop: {Path(asked.path).name}:{line} says “{said}”."
    last = max(ends, key=lambda end: (end.step is not None, end.epoch is not None, end.step or 0))
    name = Path(last.path).name
    step = _step_text(last)
    if last.done:
        return f"No failure found: {name} shows the program's own end{f', at {step}' if step else ''}."
    if step:
        return f"No failure found: training was at {step} when {name} ends."
    if last.serving:
        return f"No failure found: the server was running when {name} ends."
    lines = sum(end.lines for end in ends)
    where = name if len(ends) == 1 else f"{len(ends)} logs"
    return f"No failure found in the {lines:,} line{'' if lines == 1 else 's'} of {where}; no training step is in them."


def _step_text(end: LogEnd) -> str:
    """'step 33 of 15,625'."""
    if end.step is not None:
        return f"step {end.step:,}{'' if end.of is None else f' of {end.of:,}'}"
    return "" if end.epoch is None else f"epoch {end.epoch:g}"


def lone_text(diagnosis: Diagnosis) -> str:
    """'One process, rank unknown: it is waiting for a batch of data, called from train (train.py:88).'"""
    lone = diagnosis.evidence.lone
    mains = [one.main or (one.threads[0] if len(one.threads) == 1 else None) for one in lone]
    doing = dict.fromkeys(activity_text(stack_activity(main)) for main in mains if main is not None)
    told = "; ".join(list(doing)[:_MOST_CALLS]) or "its main thread is not told apart"
    who_is = "One process, rank unknown: it is" if len(lone) == 1 else f"{len(lone)} processes, ranks unknown: they are"
    return f"{who_is} {told}."


def _nobody(diagnosis: Diagnosis) -> str:
    if diagnosis.machine:
        return f"{diagnosis.machine[0].message} traceops doctor --from shows all that this text tells of the machine."
    if diagnosis.evidence.ends:
        return end_text(diagnosis)
    if _tells_of_fabric_only(diagnosis):
        only = "No rank hangs or fails in these files: they are about machines and NCCL only"
        warned = seen_events(diagnosis)
        quoted = f". NCCL warns: {quoted_line(diagnosis, warned[0], ())}" if warned else ""
        return f"{only}{quoted}. Read: {read_text(diagnosis)}."
    if ras := [event for event in diagnosis.evidence.log if event.kind == "ras"]:
        more = f" (and {len(ras) - 1} more, below)" if len(ras) > 1 else ""
        return f"{ras[0].text}{more} (NCCL RAS). One report does not show whether that is a hang."
    seen = seen_events(diagnosis)
    idle = next((event for event in seen if event.kind == "idle"), None)
    if idle is not None:
        place = f"{Path(idle.path).name}:{idle.line}"
        return f"{idle.text}: the model is not trained ({place})."
    if diagnosis.evidence.lone and not any(event.kind not in ("monitor", "outlived", "passed") for event in seen):
        return lone_text(diagnosis)
    return _seen_text(diagnosis, seen) if seen else _unseen_text(diagnosis)


def _seen_text(diagnosis: Diagnosis, seen: Sequence[LogEvent]) -> str:
    """What logs show of failures where none of them is a cause."""
    if all(event.kind == "inspector" for event in seen):
        more = f" (and {len(seen) - 1} more, below)" if len(seen) > 1 else ""
        return f"{seen[0].text}{more}. That alone does not say whether the job hangs. Read: {read_text(diagnosis)}."
    if all(map(was_logged_only, seen)):
        several = len(seen) > 1
        lines = f"{len(seen)} line{'s' if several else ''}"
        first = f"{'the first: ' if several else ''}{quoted_line(diagnosis, seen[0], ())}"
        return f"{lines} with an error, after which its logger goes on: {first}. Read: {read_text(diagnosis)}."
    if all(event.kind == "outlived" for event in seen):
        lines = f"{len(seen)} message{'s' if len(seen) > 1 else ''}"
        went_on = "of trouble, after which the log goes on with steps, in a later start or to the program's own end"
        last = quoted_line(diagnosis, max(seen, key=lambda event: event.line), ())
        ended = (
            "they ended an earlier start at most; the last:" if len(seen) > 1 else "it ended an earlier start at most;"
        )
        return f"{lines} {went_on}: {ended} {last}. See below. Read: {read_text(diagnosis)}."
    if all(event.kind in ("outlived", "passed") for event in seen):
        lines = f"{len(seen)} message{'s' if len(seen) > 1 else ''}"
        return f"{lines} of trouble that passed, as the log shows. See below. Read: {read_text(diagnosis)}."
    groups = seen_groups(seen)
    below = ("", "; the other is below", "; the others are below")[min(len(groups), 3) - 1]
    quoted = quoted_line(diagnosis, *most_telling(groups))
    lines = "1 error message; its cause is" if len(groups) == 1 else f"{len(groups)} error messages; their cause is"
    return f"{lines} not in this log: {quoted}{below}. Read: {read_text(diagnosis)}."


def _unseen_text(diagnosis: Diagnosis) -> str:
    """That nothing was seen, and what is missing to see more."""
    unknown = unknown_ranks(diagnosis)
    text = f"No rank waits for another one. Read: {read_text(diagnosis)}."
    if not any(record.source == "flight recorder" for record in diagnosis.evidence.records.values()):
        text += " There is no flight-recorder dump, so what ranks wait in cannot be seen."
    if unknown:
        which = "it" if ranks_in(unknown) == 1 else "one of them"
        text += f" Nothing is known of {who_runs(unknown)}: {which} may be what the others wait for."
    return text


def quoted_line(diagnosis: Diagnosis, event: LogEvent, said_by: Sequence[int]) -> str:
    """'train.log:52 says “Invocation of collective_rpc method failed” (rank 3)'. said_by: all ranks that do."""
    path = shown_path(diagnosis, event.path)
    where = Path(path).name if len(diagnosis.evidence.files) == 1 else path
    of = f" ({who(said_by)})" if said_by else ""
    return f"{where}:{event.line} says “{first_words(event.text, _MOST_QUOTED)}”{of}"


def _tells_of_fabric_only(diagnosis: Diagnosis) -> bool:
    """Whether no rank is told of, and the logs hold nothing but NCCL's warnings."""
    evidence = diagnosis.evidence
    ranks = evidence.records or evidence.stacks or evidence.processes or evidence.stall
    warnings = all(is_harmless(event) for event in evidence.log)
    return evidence.fabric is not None and not ranks and evidence.failed_rank is None and warnings


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"
