"""A hang and a crash in words. Statements are sentences without their full stop."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from traceops.core.rank_text import who, who_first
from traceops.core.units import gib_text as size
from traceops.fabric.model import PathKind
from traceops.hangs.crash_kinds import DID
from traceops.hangs.crashes import QUOTED, Crash, MemoryMessage, find_crashes, ib_status_text, what_is_not_finite
from traceops.hangs.evidence import LogEvent, LoggedProgress, Since
from traceops.hangs.model import Carried, Wait
from traceops.hangs.positions import Call, ProcessGroup, code_place, describe, shape_text
from traceops.hangs.stack_activity import CodeLine, StackActivity
from traceops.words.catalogue import texts

WAIT_REASONS = texts("hangs", "waits")  # by WaitReason
_ACTIVITIES = texts("hangs", "activities")  # by ActivityKind
_REPORTS = {False: "torch or NCCL reports", True: "torch reports: "}
_MOST_HEADS = 6
_MOST_SIDES = 4
_MOST_DETAIL = 300  # characters of what a program said
_EXIT = re.compile(r"SystemExit: \d+")  # says no more than the exit code

# What is known of ranks without a record that others wait for.
WithoutRecord = Literal["stopped", "seen", "said", "unseen"]
Side: TypeAlias = Sequence[Call]


def activity_text(activity: StackActivity) -> str:
    """'waiting in all_gather, called from step (train.py:128)'."""
    caller = "" if activity.called_from is None else f", called from {line_text(activity.called_from)}"
    at = "" if activity.at is None else line_text(activity.at)
    if activity.kind == "input" and at:
        return f"loading data in {at}"
    if activity.kind in _ACTIVITIES:
        return _ACTIVITIES[activity.kind].format(activity.function) + caller
    return f"in {at}{caller}" if at else "no Python code on its stack"


def line_text(line: CodeLine) -> str:
    """'step (train.py:128)'."""
    number = "" if line.line is None else f":{line.line}"
    return f"{line.function} ({line.file}{number})" if line.file else line.function


def call_text(call: Call, by: str = "called") -> str:
    """'all_reduce #64 of default_pg (1048576 Float, called in step (train.py:128))'."""
    where = code_place(call.op.frames)
    details = [text for text in (shape_text(call.op), None if where is None else f"{by} in {where}") if text]
    number = f"{call.op.op} #{call.op.sequence} of {call.group.label}"
    return f"{number} ({', '.join(details)})" if details else number


def waited_operation(wait: Wait) -> str:
    """'all_reduce #64 of default_pg'."""
    return f"{wait.op} #{wait.sequence} of {wait.group}"


def never_called(
    members: Sequence[int], call: Call, waiting: Sequence[int], *, sure: bool, hidden: Sequence[int]
) -> str:
    """hidden: members that may be in a send or receive that gloo does not record."""
    told = (
        f"{who_first(members)} {'never' if sure else 'perhaps never'} called "
        f"{call_text(call, 'which the others call')}; {_they_wait(waiting)} for it"
    )
    if not hidden:
        return told
    return f"{told}. {who_first(hidden)} may wait in a send or receive: gloo records none"


def circle(members: Sequence[int], heads: Sequence[Call], culprits: Sequence[int]) -> str:
    """heads: what the ranks are in. culprits: who will not make the next call, nobody where that is not told."""
    told = "; ".join(f"rank {head.rank} is in {call_text(head)}" for head in heads[:_MOST_HEADS])
    why = (
        f"{who_first(culprits)} will not make the next call"
        if culprits
        else "They call these operations in different orders, or one of them leaves a call out"
    )
    return f"{who_first(members)} wait for each other: {told}{'; …' if len(heads) > _MOST_HEADS else ''}. {why}"


def gpu_behind(
    members: Sequence[int],
    call: Call,
    others: Sequence[int],
    did: Literal["finished", "started"],
    waiting: Sequence[int],
    counted: Sequence[int] = (),
) -> str:
    """The members' GPUs did not do with the call what the others' did.

    counted: others whose logs only count their calls: that number may be another operation there.
    """
    gpus = "its GPU" if len(members) == 1 else "their GPUs"
    never = "finished it, though" if did == "finished" else "got to it, while"
    or_else = f". Or #{call.op.sequence} is another operation on {who(counted)}: logs only count them"
    return (
        f"{who_first(members)} called {call_text(call)}, but {gpus} never {never} {who(others)} {did} it; "
        f"{_they_wait(waiting)}{or_else if counted else ''}"
    )


def gpu_alone(call: Call, waiting: Sequence[int]) -> str:
    return (
        f"Rank {call.rank} called {call_text(call)}, in which it is alone, and its GPU never finished it; "
        f"{_they_wait(waiting)}"
    )


def own_gpu(members: Sequence[int]) -> str:
    """The clause on ranks that wait for their own GPU."""
    hosts = "their hosts wait for their own GPUs" if len(members) > 1 else "its host waits for its own GPU"
    return f"{hosts}, which does not finish"


def nobody_finished(
    members: Sequence[int],
    call: Call,
    finished: Sequence[int],
    *,
    whole_group: bool,
    starts: Literal["started", "gloo", "not_started", "not_recorded"],
    members_known: bool,
) -> str:
    """finished: others that are through with it. starts: what the members' GPUs, if any, recorded of it.

    whole_group: the members are all of the group; members_known: the group's members are told.
    """
    called = f"{who_first(members)} called"
    if members_known and whole_group:
        called = (
            f"All members called, and {who(finished)} finished,"
            if finished
            else f"{'Both' if len(members) == 2 else f'All {len(members)}'} members called"
        )
    told = {
        "started": "both run it" if len(members) == 2 else "all run it",
        "gloo": "gloo does not show which of them it waits for",
        "not_started": "nor has any GPU started it: what is before it on their streams is not excluded",
        "not_recorded": "starts were not recorded, so a GPU that hangs is not excluded",
    }[starts]
    none = {1: "it never", 2: "neither"}.get(len(members), "none")
    if not members_known:
        told += ". Whether others are in the group is not known"
    return (
        f"{called} {call_text(call)}, and {none} finished it"
        f"{' on ' + who(members) if finished else ''}{':' if starts == 'started' else ';'} {told}"
    )


def by_p2p(statement: str, gpus: tuple[str, str], way: str, path: PathKind) -> str:
    """A collective that none finished, between GPUs that NCCL has talk to each other directly over PCIe."""
    one, other = gpus
    how = f"across sockets only ({path})" if path == "SYS" else f"over PCIe ({path})"
    return (
        f"{statement}. NCCL sends by {way} between {one} and {other}, which reach each other {how}: broken P2P "
        "that the driver promises hangs like this"
    )


def waiting_in(ranks: Sequence[int], call: Call) -> str:
    """'Ranks 0, 2 wait in all_reduce #3 of default_pg'."""
    return f"{who_first(ranks)} {_wait(ranks)} in {call.op.op} #{call.op.sequence} of {call.group.label}"


def since_text(since: Since) -> str:
    """'Rank 7 has waited since 10:28:25 (its limit before the timeout). In that second train.log has: “Saving …”.'"""
    have = "has" if len(since.ranks) == 1 else "have"
    told = f"{who_first(since.ranks)} {have} waited since {since.clock}, by the limit of the timeout"
    if not since.said:
        return f"{told}."
    name = since.path.replace("\\", "/").rpartition("/")[2]
    lines = "; ".join(f"“{said}” ({name}:{line})" for line, said in since.said)
    return f"{told}. In that second the log has: {lines}."


def died(rank: int, how: str, waiting: Sequence[int], wait: Wait | None) -> str:
    """wait: in what others wait for it, None where nobody is seen to."""
    meanwhile = "" if wait is None else f" while {_they_wait(waiting)} for it in {waited_operation(wait)}"
    return f"Rank {rank} died{meanwhile}: {how}"


def left(rank: int, waiting: Sequence[int], wait: Wait | None) -> str:
    """A rank whose process came to its end without an error, which the others did not."""
    needed = "the others still needed it"
    if wait is not None:
        needed = f"{_they_wait(waiting)} for it in {waited_operation(wait)}"
    return f"Rank {rank} came to its end (exit code 0) while {needed}"


def died_alike(ranks: Sequence[int], how: str) -> str:
    """Several ranks that ended in one way."""
    return f"{who_first(ranks)} died: each {how.removeprefix('it ')}"


def ending(exit_code: int | None, *, gone: bool, detail: str | None) -> str:
    """How a process ended. gone: it was seen to be gone. detail: what it or others said of it."""
    told = "its process was gone" if gone else "its process ended"
    if exit_code is not None:
        told = exit_text(exit_code)
    said = " ".join((detail or "")[:_MOST_DETAIL].split()).rstrip(". ")
    return told if not said or said in told or _EXIT.fullmatch(said) else f"{told}: {said}"


def exit_text(code: int) -> str:
    """'it was killed by SIGKILL (exit code 137, …)'. code: as a shell has it, 128 + n for signal n."""
    if code <= 128:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"it ended with exit code {code}"
    hint = ", often the kernel's out-of-memory killer" if name == "SIGKILL" else ""
    return f"it was killed by {name} (exit code {code}{hint})"


def without_record(
    members: Sequence[int], known: WithoutRecord, waiting: Sequence[int], wait: Wait, quiet: Sequence[int] = ()
) -> str:
    """quiet: those of whom there is no line either."""
    subject = who_first(members)
    but = f" (of {who(quiet)} not even that)" if quiet else ""
    why = {
        "stopped": f"{subject} {_is(members)} stopped by a signal (SIGSTOP or a debugger)",
        "seen": f"{subject} left no record of collectives and {_is(members)} elsewhere",
        "said": f"{subject} left no record of collectives, but messages in the log{but}",
        "unseen": f"Nothing in these files comes from {who(members)}",
    }[known]
    return f"{why}; {who(waiting)} {_wait(waiting)} in {waited_operation(wait)}"


def elsewhere(members: Sequence[int], others: Sequence[int], *, before_first_step: bool) -> str:
    """Told from stacks alone: the members are not where the others wait; all are where there are no others."""
    before = " before the first step" if before_first_step else ""
    if not others:
        stand = "stands" if len(members) == 1 else "stand"
        return f"{who_first(members)} {stand} still{before}, and no rank waits in a collective"
    where = f"{who(others)} waits{before}" if len(others) == 1 else f"the others wait{before}; {who(others)} wait"
    return f"{who_first(members)} {_is(members)} not where {where}"


def no_evidence(members: Sequence[int]) -> str:
    return f"Nothing in these files comes from {who(members)}; all others wait"


def waiting_apart(members: Sequence[int]) -> str:
    return f"All ranks wait for others, but in different places: {who(members)} not where most are"


def waiting_together(*, before_first_step: bool) -> str:
    why = " before the first step: they cannot reach each other, or are fewer than expected"
    return f"All ranks came to the same place and none goes on{why if before_first_step else ''}"


def reported(
    members: Sequence[int], kind: Literal["missing", "mismatch"], calls: str = "", by: Literal["Horovod"] | None = None
) -> str:
    """calls: what they called, as the message tells. by: who says so; None of torch or NCCL."""
    did = {"missing": "did not come", "mismatch": "called something else"}[kind]
    says = f"{by} reports" if by is not None else f"{_REPORTS[bool(calls)]}{calls}"
    return f"{who_first(members)} {did}, as {says}"


def called_differently(group: ProcessGroup, sequence: int, sides: Sequence[Side], *, decided: bool, stuck: int) -> str:
    """decided: which side is wrong is known. stuck: number of the call that the ranks are in."""
    told = "; ".join(
        f"{who([call.rank for call in side])} called {describe(side[0].op)}{_in_code(side[0])}"
        for side in sides[:_MOST_SIDES]
    )
    statement = f"As #{sequence} of {group.label}, {told}"
    if not decided:
        statement += "; as many on each side, so which call is wrong is unknown"
    if stuck > sequence:
        statement += f". From there on their calls did not belong together, until #{stuck} never ended"
    return statement


def ended_by_size(ended: Sequence[int], odd: Sequence[int], *, others_agree: bool) -> str:
    """odd: survivors whose call differs from the steps before."""
    told = f"{who_first(ended)} {'was' if len(ended) == 1 else 'were'} ended by a message of an unexpected size"
    if odd:
        return f"{told}; the call of {who(odd)} differs from the steps before"
    if others_agree and len(ended) == 1:
        return f"{told}; the calls of all others belong together, so it called something else"
    return f"{told}: ranks called different collectives or sizes. Whose call is wrong is unknown"


def _in_code(call: Call) -> str:
    where = code_place(call.op.frames)
    return "" if where is None else f" in {where}"


def _they_wait(waiting: Sequence[int]) -> str:
    """'ranks 0–2 wait'."""
    return f"{who(waiting)} {_wait(waiting)}" if waiting else "no other rank waits"


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


# A crash in words: what a rank did, with the arithmetic of memory, as a statement without its full stop.


_MEMORY = texts("crashes", "memory")  # by MemoryCause
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w{0,60}\.){0,8}([A-Za-z_]\w{0,80}: )")
_NCCL_SOURCE = re.compile(r"NCCL error in: [^\s,]{1,200}, ")
_NCCL_HINT = re.compile(r" \(run with NCCL_DEBUG=\w{1,9} for details\)")
# What its result means in general, where its last error says what it was.
_NCCL_RESULT = re.compile(r"(NCCL version [\d.]{1,20})[\s,]{0,8}nccl\w{1,40}: .{0,300}?Last error:\s{0,8}(?=\S)")
_LEAST, _MOST = 80, 240


def crash_statement(crash: Crash) -> str:
    """'Rank 5 ran out of GPU memory at train (train.py:5): it asked for 6.26 GiB, …'."""
    subject = who_first(crash.ranks) if crash.ranks else "The program"
    did = did_what(crash)
    if len(crash.ranks) > 1:
        did = _plural(did)
    return _statement(subject, did, crash)


def somebody_did(somebody: str, crash: Crash) -> str:
    """'a program crashed, at train (train.py:5): ValueError: …', of a failure whose rank no line names."""
    return _statement(somebody, did_what(crash), crash)


def it_did(crash: Crash) -> str:
    """'it ran out of GPU memory, at train (train.py:5): it asked for 6.26 GiB, …'."""
    return _statement("it", did_what(crash), crash)


def _statement(subject: str, did: str, crash: Crash) -> str:
    where = own_line(crash)
    told = f"{subject} {did}" + (" after its training had ended" if crash.event.after_end else "")
    told += f", at {where}" if where else ""
    if crash.memory is not None:
        numbers = memory_told(crash.memory)
        return f"{told}: {numbers}" if numbers else told
    if crash.kind in QUOTED:
        return f"{told}: {_quoted(crash.event.text)}"
    return told


def did_what(crash: Crash) -> str:
    """'ran out of GPU memory': the clause without who did it."""
    if crash.kind == "nan_loss":
        return f"stopped because {what_is_not_finite(crash.event.text)}"
    status = ib_status_text(crash.event.text)
    return DID[crash.kind] if status is None else f"{DID[crash.kind]} ({status})"


def own_line(crash: Crash) -> str | None:
    """The innermost line of the program's own code, as 'train (train.py:5)'."""
    frame = crash.own_frame
    if frame is None:
        return None
    name = frame.file.replace("\\", "/").rpartition("/")[2]
    at = name if frame.line is None else f"{name}:{frame.line}"
    return f"{frame.function} ({at})"


def memory_told(memory: MemoryMessage) -> str:
    """'it asked for 6.26 GiB with 0.14 GiB free of 47.40 GiB; torch uses 46.76 GiB and holds 0.02 GiB more that …'."""
    if memory.asked is None:
        return ""
    text = f"it asked for {size(memory.asked)}"
    if memory.free is not None:
        text += f" with {size(memory.free)} free"
    if memory.total is not None:
        text += f" of {size(memory.total)}"
    if memory.allowed is not None:
        text += f"; it is allowed {size(memory.allowed)}"
    if memory.allocated is not None:
        text += f"; tensors take {size(memory.allocated)}"
    if memory.pools:
        text += f" ({size(memory.pools)} of it in pools of their own, as CUDA graphs have)"
    if memory.unallocated is not None:
        text += f", {size(memory.unallocated)} is reserved but unallocated"
    if memory.cause == "others":
        text += f", other processes hold {size(memory.others or 0)}"
    if memory.cause in ("outside", "outside_own"):
        return f"{text}: {_MEMORY[memory.cause]} {size(memory.outside or 0)}"
    return f"{text}: {_MEMORY[memory.cause]}" if memory.cause is not None else text


def _quoted(text: str) -> str:
    said = _NCCL_SOURCE.sub("NCCL error: ", _EXCEPTION.sub(r"\1", text.strip()))
    said = _NCCL_RESULT.sub(r"\1: ", _NCCL_HINT.sub("", " ".join(said.split()))).rstrip(". ")
    if len(said) <= _MOST:
        return said
    whole = said[:_MOST].rpartition(". ")[0]  # sentences that fit
    return f"{whole if len(whole) >= _LEAST else said[:_MOST]} …"


def _plural(did: str) -> str:
    verb, _, rest = did.partition(" ")
    verb = {"has": "have", "uses": "use", "runs": "run"}.get(verb, verb)
    return f"{verb} {rest}" if rest else verb


# What a collective carries, in words, as a sentence without its full stop.


def carried_text(carried: Carried, op: str) -> str:
    """'The all_reduce has the gradients of embed.weight and 3 more'."""
    if carried.shape is not None:
        rows, width = carried.shape
        told = f"{carried.elements:,} elements are likely {rows}×{width}, the embedding or head of a vocabulary of"
        return f"{told} {rows:,} ({carried.model})"
    more = carried.count - 1
    names = carried.names[0] + (f" and {more} more" if more > 0 else "")
    others = f", or of {_others(carried.alike)} of the same size" if carried.alike else ""
    return f"The {op} has the {carried.what} of {names}{others}"


def _others(count: int) -> str:
    return "another bucket" if count == 1 else f"one of {count} other buckets"


# How a log's steps went, in a sentence.


def progress_text(progress: LoggedProgress) -> str:
    """'3708 steps in 53 min are 0.86 s each: the 800 s a step that the bar shows are an average after a stall.'"""
    who_says = "" if progress.rank is None else f"rank {progress.rank}, "
    where = f"({who_says}{progress.path.rpartition('/')[2]})"
    if progress.shown is not None and progress.elapsed_s is not None:
        return (
            f"{progress.step} steps in {_duration(progress.elapsed_s)} are {progress.usual_s:.2g} s each: the "
            f"{progress.shown:.3g} s a step that the progress bar shows are an average after a stall {where}."
        )
    return (
        f"Steps took {progress.usual_s:.2g} s each up to step {progress.step}, and {progress.pace_s:.3g} s each from "
        f"there to step {progress.until}: the job was slow before it failed {where}."
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# What ended the starts of a program that come before the one which is judged, in the same log.


_MOST_STARTS = 3


def earlier_starts_text(earlier: Sequence[Sequence[LogEvent]]) -> str | None:
    """'Before it, in the same log, an earlier start ended: rank 1 ran out of GPU memory (train.log:60).'

    earlier: by start what its lines tell, in order. None where they tell of no failure.
    """
    ended = [crashes[0] for events in earlier if (crashes := find_crashes(events))]
    if not ended:
        return None
    told = [
        f"{who(crash.ranks) if crash.ranks else 'the program'} {did_what(crash)} "
        f"({Path(crash.event.path).name}:{crash.event.line})"
        for crash in ended[-_MOST_STARTS:]
    ]
    starts = "an earlier start" if len(ended) == 1 else f"{len(ended)} earlier starts"
    last = f", the last {_MOST_STARTS} so" if len(ended) > _MOST_STARTS else ""
    return f"Before it, in the same log, {starts} ended{last}: {'; '.join(told)}."
