"""A hang and a crash in words: fills the templates of words/hangs.ini. Statements have no full stop."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from traceops.core.claims import first_phrase
from traceops.core.rank_text import who_first
from traceops.core.units import gib_text
from traceops.hangs.crash_kinds import DID
from traceops.hangs.crashes import QUOTED, Crash, MemoryMessage, find_crashes, ib_status_text, what_is_not_finite
from traceops.hangs.evidence import LogEvent, LoggedProgress, Since
from traceops.hangs.json_types import Carried
from traceops.hangs.model import Wait
from traceops.hangs.positions import Call, code_place, describe, shape_text
from traceops.hangs.stack_activity import CodeLine, StackActivity
from traceops.words.catalogue import texts

WAIT_REASONS = texts("hangs", "waits")  # by WaitReason
_ACTIVITIES = texts("hangs", "activities")  # by ActivityKind
_VERBS = texts("crashes", "several")  # verbs of crashes.json whose plural is another
_EXIT = re.compile(r"SystemExit: \d+")  # says no more than the exit code
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w{0,60}\.){0,8}([A-Za-z_]\w{0,80}: )")
_NCCL_SOURCE = re.compile(r"NCCL error in: [^\s,]{1,200}, ")
_NCCL_HINT = re.compile(r" \(run with NCCL_DEBUG=\w{1,9} for details\)")
# What its result means in general, where its last error says what it was.
_NCCL_RESULT = re.compile(r"(NCCL version [\d.]{1,20})[\s,]{0,8}nccl\w{1,40}: .{0,300}?Last error:\s{0,8}(?=\S)")
_MOST_HEADS, _MOST_SIDES, _MOST_STARTS = 6, 4, 3
_MOST_DETAIL = 300  # characters of what a program said
_LEAST_QUOTED, _MOST_QUOTED = 80, 240
_BRIEF = 60  # and in a headline


def _say(kind: str, part: str = "text", **facts: Any) -> str:
    """The first text of a part in words/hangs.ini whose facts are known."""
    return first_phrase("hangs", kind, part, **facts)


def activity_text(activity: StackActivity) -> str:
    """'waiting in all_gather, called from step (train.py:128)'."""
    caller = None if activity.called_from is None else line_text(activity.called_from)
    at = None if activity.at is None else line_text(activity.at)
    if activity.kind == "input" and at:
        return _say("activity", "input", at=at)
    if activity.kind in _ACTIVITIES:
        return _ACTIVITIES[activity.kind].format(activity.function) + _say("activity", "called", caller=caller)
    return _say("activity", "in", at=at, caller=caller)


def line_text(line: CodeLine) -> str:
    """'step (train.py:128)'."""
    number = "" if line.line is None else f":{line.line}"
    return f"{line.function} ({line.file}{number})" if line.file else line.function


def waited_operation(wait: Wait) -> str:
    """'all_reduce #64 of default_pg'."""
    return f"{wait.op} #{wait.sequence} of {wait.group}"


def heads_text(heads: Sequence[Call]) -> tuple[str, ...]:
    """What each rank is in: 'rank 0 is in all_reduce #64 of default_pg (1048576 Float, called in f (train.py:8))'."""
    texts = []
    for head in heads[:_MOST_HEADS]:
        op, shape, where = head.op, shape_text(head.op), code_place(head.op.frames)
        call = _say("call", op=op.op, sequence=op.sequence, group=head.group.label, shape=shape, where=where)
        texts.append(_say("call", "head", ranks=(head.rank,), call=call))
    return (*texts, *(["…"] if len(heads) > _MOST_HEADS else []))


def sides_text(sides: Sequence[Sequence[Call]]) -> tuple[str, ...]:
    """Who called what: 'rank 3 called broadcast of 4 Float in step (train.py:128)'."""
    texts = []
    for side in sides[:_MOST_SIDES]:
        ranks, op = [call.rank for call in side], side[0].op
        texts.append(_say("call", "side", ranks=ranks, call=describe(op), where=code_place(op.frames)))
    return tuple(texts)


def since_text(since: Since) -> str:
    """'Rank 7 has waited since 10:28:25, by the limit of the timeout. In that second the log has: “Saving …” (…).'"""
    name = since.path.replace("\\", "/").rpartition("/")[2]
    lines = tuple(f"“{said}” ({name}:{line})" for line, said in since.said)
    return _say("since", ranks=since.ranks, clock=since.clock, lines=lines)


def ending(exit_code: int | None, *, gone: bool, detail: str | None, part: str = "how") -> str:
    """How a process ended: 'it was killed by SIGKILL (exit code 137, …)'. gone: it was seen to be gone. exit_code: as a
    shell has it, 128 + n for signal n. detail: what the rank or others said of it."""
    number = (exit_code or 0) - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else None
    said = " ".join((detail or "")[:_MOST_DETAIL].split()).rstrip(". ")
    told = _say("ended", part, code=exit_code, signal=name, killed=name == "SIGKILL", gone=gone)
    return told if not said or said in told or _EXIT.fullmatch(said) else f"{told}: {said}"


def crash_clause(crash: Crash, subject: str, *, part: str = "clause") -> str:
    """'Rank 5 ran out of GPU memory, at train (train.py:5): it asked for 6.26 GiB, …'. part: 'short' for a headline.
    subject: who did it; '' is left out."""
    did = did_what(crash)
    if len(crash.ranks) > 1 and subject == who_first(crash.ranks):
        verb, _, rest = did.partition(" ")
        did = f"{_VERBS.get(verb, verb)} {rest}".rstrip()
    quoted = _quoted(crash.event.text) if crash.memory is None and crash.kind in QUOTED else ""
    return _say(
        "crash",
        part,
        who=f"{subject} {did}".lstrip(),
        place=own_line(crash),
        after_end=crash.event.after_end,
        more=quoted if crash.memory is None else memory_text(crash.memory),
        brief=quoted if len(quoted) <= _BRIEF else None,
        **({} if crash.memory is None else {"asked": crash.memory.asked, "free": crash.memory.free}),
    )


def did_what(crash: Crash) -> str:
    """'ran out of GPU memory': the clause without who did it."""
    if crash.kind == "nan_loss":
        what, value = what_is_not_finite(crash.event.text)
        return _say("crash", "stopped", what=_say("crash", what, value=value or _say("crash", "neither")))
    status = ib_status_text(crash.event.text)
    return DID[crash.kind] if status is None else _say("crash", "status", did=DID[crash.kind], status=status)


def own_line(crash: Crash) -> str | None:
    """The innermost line of the program's own code, as 'train (train.py:5)'."""
    return None if crash.own_frame is None else crash.own_frame.place


def memory_text(memory: MemoryMessage) -> str:
    """'it asked for 6.26 GiB with 0.14 GiB free of 47.40 GiB; tensors take 46.76 GiB, …: enough is reserved, but …'."""
    outside, others = memory.cause in ("outside", "outside_own"), memory.cause == "others"
    return first_phrase(
        "crashes",
        "memory",
        "numbers",
        **structs.asdict(memory),
        why=memory.cause,
        others=gib_text(memory.others or 0) if others else None,
        outside=gib_text(memory.outside or 0) if outside else None,
    )


def _quoted(text: str) -> str:
    said = _NCCL_SOURCE.sub("NCCL error: ", _EXCEPTION.sub(r"\1", text.strip()))
    said = _NCCL_RESULT.sub(r"\1: ", _NCCL_HINT.sub("", " ".join(said.split()))).rstrip(". ")
    if len(said) <= _MOST_QUOTED:
        return said
    whole = said[:_MOST_QUOTED].rpartition(". ")[0]  # sentences that fit
    return f"{whole if len(whole) >= _LEAST_QUOTED else said[:_MOST_QUOTED]} …"


def carried_text(carried: Carried, op: str) -> str:
    """What a collective carries: 'The all_reduce has the gradients of embed.weight and 3 more.'"""
    rows, width = carried.shape or (None, None)
    return _say(
        "carried",
        **structs.asdict(carried),
        op=op,
        rows=rows,
        width=width,
        first=carried.names[0] if carried.names else None,
        more=carried.count - 1 if carried.count > 1 else None,
        others=carried.alike if carried.alike > 1 else None,
        other=carried.alike == 1,
    )


def progress_text(progress: LoggedProgress) -> str:
    """How a log's steps went: '3708 steps in 53 min are 0.86 s each: the 800 s per step that …'."""
    name = progress.path.rpartition("/")[2]
    place = name if progress.rank is None else f"rank {progress.rank}, {name}"
    elapsed = None if progress.elapsed_s is None else _duration(progress.elapsed_s)
    usual = f"{progress.usual_s:.2g}"
    shown: dict[str, Any] = {"pace": progress.pace_s, "until": progress.until, "shown": progress.shown}
    return _say("progress", step=progress.step, usual=usual, elapsed=elapsed, place=place, **shown)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def place_text(event: LogEvent) -> str:
    """'train.log:60'."""
    return f"{Path(event.path).name}:{event.line}"


def earlier_starts_text(earlier: Sequence[Sequence[LogEvent]]) -> str | None:
    """'Before it, in the same log, an earlier start ended: rank 1 ran out of GPU memory (train.log:60).' earlier: by
    start what its lines report, in order. None where they show no failure."""
    ended = [crashes[0] for events in earlier if (crashes := find_crashes(events))]
    if not ended:
        return None
    ends = [
        _say("earlier", "end", ranks=crash.ranks, did=did_what(crash), place=place_text(crash.event))
        for crash in ended[-_MOST_STARTS:]
    ]
    most = _MOST_STARTS if len(ended) > _MOST_STARTS else None
    return _say("earlier", ends=ends, count=len(ended) if len(ended) > 1 else None, most=most)
