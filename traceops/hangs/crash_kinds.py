"""The kinds of crashes, as crashes.json lists them: the rule of each, its words, and what to do about it.

Rules need no more of crashes than this where a run did not crash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct, field, json

CrashKind: TypeAlias = str  # 'gpu_memory', … as crashes.json lists them


class Says(Struct, frozen=True, forbid_unknown_fields=True):
    all: tuple[str, ...]
    but: tuple[str, ...] = ()
    by_kernel: bool = False


class Kind(Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    rule: str
    did: str
    flags: tuple[Literal["alone", "later", "anyway", "outside", "quoted"], ...] = field(default=(), name="is")
    says: tuple[str | Says, ...] = ()
    xids: tuple[int, ...] = ()
    ib_status: tuple[int, ...] = ()
    advice: str = ""
    advice_in: dict[str, str] = {}


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    kind: str  # LogKind
    has: str
    but: tuple[str, ...] = ()


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    kinds: tuple[Kind, ...]
    memory: dict[str, str]
    ib_status: dict[int, str]
    lines: tuple[Line, ...]


TABLE = json.decode(Path(__file__).with_name("crashes.json").read_bytes(), type=Table, strict=False)
RULE_OF = {kind.kind: kind.rule for kind in TABLE.kinds}
DID = {kind.kind: kind.did for kind in TABLE.kinds}
ADVICE = {**{kind.kind: kind.advice for kind in TABLE.kinds if kind.advice}, **TABLE.memory}
ADVICE_IN = {kind.kind: kind.advice_in for kind in TABLE.kinds if kind.advice_in}
MEMORY_CAUSES = tuple(TABLE.memory)
