"""What a message of a program that crashed is a case of: the wordings in crashes.json, and prefilters made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from traceops.hangs.crash_messages import says_not_finite
from traceops.hangs.evidence import LogKind

CrashKind: TypeAlias = str  # 'gpu_memory', … as crashes.json lists them

# What stands before the kernel's words: a time, a tag, a key of JSON.
_BY_KERNEL = ("] ", "kernel: ", "> ", '": "', '":"', "Z ", *(f"{digit} " for digit in range(10)))
_RECOVERED = ("Nonfatal", "Non-fatal", "nonfatal", "non-fatal")  # of an Xid: the link goes on


class _Says(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    all: tuple[str, ...]
    but: tuple[str, ...] = ()
    by_kernel: bool = False


class _Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    rule: str
    did: str
    flags: tuple[Literal["alone", "later", "anyway", "outside", "quoted"], ...] = msgspec.field(default=(), name="is")
    says: tuple[str | _Says, ...] = ()
    xids: tuple[int, ...] = ()
    ib_status: tuple[int, ...] = ()
    advice: str = ""
    advice_in: dict[str, str] = {}


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: LogKind
    has: str
    but: tuple[str, ...] = ()


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    kinds: tuple[_Kind, ...]
    memory: dict[str, str]
    ib_status: dict[int, str]
    lines: tuple[_Line, ...]


class Wording(Struct, frozen=True):
    """A message that holds all of `words` is a case of `kind`, unless it holds one of `but`.

    by_kernel: only as the kernel's own line: another that quotes it is none.
    """

    kind: CrashKind
    words: tuple[str, ...]
    but: tuple[str, ...] = ()
    by_kernel: bool = False

    def is_in(self, text: str) -> bool:
        if not all(word in text for word in self.words) or any(word in text for word in self.but):
            return False
        before = text[: text.index(self.words[0])]
        return not self.by_kernel or not before.strip() or before.endswith(_BY_KERNEL)


def _wordings(kinds: Iterable[_Kind]) -> Iterator[Wording]:
    for kind in kinds:
        for says in kind.says:
            told = _Says((says,)) if isinstance(says, str) else says
            yield Wording(kind.kind, told.all, told.but, told.by_kernel)
        for xid in kind.xids:
            yield Wording(kind.kind, ("Xid (", f"): {xid},"), _RECOVERED)
            yield Wording(kind.kind, ("caused by previous Xid", f" {xid}"), _RECOVERED)
        for status in kind.ib_status:
            yield Wording(kind.kind, ("Got completion", f"status={status} "))
            yield Wording(kind.kind, ("Got completion", f"error {status},"))


_TABLE = msgspec.json.decode(Path(__file__).with_name("crashes.json").read_bytes(), type=_Table, strict=False)
# In this order: the first that fits says what a message is.
WORDINGS: tuple[Wording, ...] = tuple(_wordings(_TABLE.kinds))
RULE_OF = {kind.kind: kind.rule for kind in _TABLE.kinds}
DID = {kind.kind: kind.did for kind in _TABLE.kinds}
ADVICE = {**{kind.kind: kind.advice for kind in _TABLE.kinds if kind.advice}, **_TABLE.memory}
ADVICE_IN = {kind.kind: kind.advice_in for kind in _TABLE.kinds if kind.advice_in}
MEMORY_CAUSES = tuple(_TABLE.memory)
# One-line messages that the log's other rules do not know, and that are a crash without a traceback too.
ALONE = frozenset(kind.kind for kind in _TABLE.kinds if "alone" in kind.flags)
# What follows from another's failure as often as it is one: told only where nothing else failed.
LATER = frozenset(kind.kind for kind in _TABLE.kinds if "later" in kind.flags)
# Findings though their words are those of echoes.
ANYWAY = frozenset(kind.kind for kind in _TABLE.kinds if "anyway" in kind.flags)
# What no program says of itself: whoever ended it.
FROM_OUTSIDE = frozenset(kind.kind for kind in _TABLE.kinds if "outside" in kind.flags)
# The kinds whose message is the news.
QUOTED = frozenset(kind.kind for kind in _TABLE.kinds if "quoted" in kind.flags)
# Lines of logs: kind, text, what it must not hold.
LINES: tuple[tuple[LogKind, str, tuple[str, ...]], ...] = tuple(
    (line.kind, line.has, line.but) for line in _TABLE.lines
)

# What the name of the exception that ended a program says, where its message is of no kind above.
_BY_EXCEPTION: tuple[tuple[CrashKind, tuple[str, ...]], ...] = (
    ("import_error", ("ImportError", "ModuleNotFoundError")),
    ("assertion", ("AssertionError",)),
    ("host_memory", ("MemoryError", "_ArrayMemoryError")),
)
# More workers at the store than there are ranks: those of an attempt before count too.
_WORKERS = re.compile(r"world_size=(\d{1,7}), worker_count=(\d{1,7})\b")
_IB_STATUS = re.compile(r"Got completion .{0,200}?(?:status=|error )(\d{1,2})\b")
_CODE = ("raise ", "warnings.warn", "#")  # a line of a traceback, or of the program's own text
# What has not happened: 'if you see CUDA out of memory', 'to avoid NCCL errors', '--retry  on CUDA out of memory'.
_ONLY_SAID = re.compile(r"\b(?i:if|unless|avoid(?:s|ing)?|prevent(?:s|ing)?|in case of)\b[^.;:!?()\[\]]{0,60}$")
_OPTION = re.compile(r"\s{0,80}--?[A-Za-z][\w-]{0,60}[ ,=]")


def crash_kind(text: str, *, raised: bool = True) -> CrashKind | None:
    """What a message is a case of; None where it is no known crash. raised: it is the end of a traceback."""
    for wording in WORDINGS:
        if wording.is_in(text):
            return "store_reused" if wording.kind == "rendezvous" and _too_many(text) else wording.kind
    if not raised:
        return None
    if says_not_finite(text):
        return "nan_loss"
    name = text.partition(":")[0].rpartition(".")[2].strip()
    return next((kind for kind, names in _BY_EXCEPTION if name in names), "exception")


def ib_status_text(text: str) -> str | None:
    """'status 12: retries exceeded', of a completion that InfiniBand verbs gave back; None without one."""
    told = _IB_STATUS.search(text)
    meaning = None if told is None else _TABLE.ib_status.get(int(told[1]))
    return None if told is None or meaning is None else f"status {told[1]}: {meaning}"


def _too_many(text: str) -> bool:
    counts = _WORKERS.search(text)
    return counts is not None and int(counts[2]) > int(counts[1])


def only_said(text: str, words: str) -> bool:
    """Whether a line speaks of what `words` name, and not that it happened: advice, or the help of an option."""
    before = text[: text.index(words)]
    return _ONLY_SAID.search(before[-100:]) is not None or _OPTION.match(before) is not None


def told_alone(text: str) -> bool:
    """Whether a line by itself tells of a crash."""
    words = [word for word in _ALONE_BY_WORD if word in text]
    if not words or text.lstrip().startswith(_CODE):
        return False
    told = [word for word in words if any(wording.is_in(text) for wording in _ALONE_BY_WORD[word])]
    return any(not only_said(text, word) for word in told)


# Of `ALONE` by their first word: most lines hold none of these, and there are many lines.
_ALONE_BY_WORD = {
    word: tuple(wording for wording in WORDINGS if wording.kind in ALONE and wording.words[0] == word)
    for word in dict.fromkeys(wording.words[0] for wording in WORDINGS if wording.kind in ALONE)
}
# A block of a log without any of these tells of no crash: a word of each message of `ALONE`, and of each line.
NEEDLES: tuple[bytes, ...] = tuple(dict.fromkeys(word.encode() for word in (*_ALONE_BY_WORD, *(x[1] for x in LINES))))
