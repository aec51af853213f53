"""A crash in words: what a rank did, with the arithmetic of memory, as a statement without its full stop."""

from __future__ import annotations

import re
from collections.abc import Mapping

from traceops.core.rank_text import who_first
from traceops.core.units import gib_text as size
from traceops.hangs.crash_table import DID, QUOTED, ib_status_text
from traceops.hangs.crashes import Crash
from traceops.hangs.memory_message import MemoryCause, MemoryMessage
from traceops.hangs.not_finite import what_is_not_finite

_MEMORY: Mapping[MemoryCause, str] = {
    "too_large": "all of that would not be enough, so the request is too large",
    "fragmented": "enough is reserved, but in pieces (fragmented)",
    "full": "enough is reserved, but in pieces, and nearly all else of the GPU is in use",
    "others": "other processes on this GPU hold the rest",
    "refused": "more is free than it asked for: a limit refused it, or others have freed that since",
    "outside": "other processes, or other libraries in this one, hold the other",
    "outside_own": "outside of torch's allocator this process holds another",
}
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
