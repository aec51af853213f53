"""A look: one thing that was looked at on a host, what was found, and how bad that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, field

from traceops.machine.network import Interface, Rdma

Level = Literal["ok", "note", "warning", "error", "not_evaluated"]


class Look(Struct, frozen=True):
    """One thing looked at on one host: a line of the doctor's table.

    area: ``GPU``, ``driver``, ``NVLink``, ``PCIe``, ``NUMA``, ``memory``, ``limits``, ``network``, ``container``,
    ``environment``, ``software``. what: short (``/dev/shm``). found: as shown (``64 MB``). level: not ``ok`` wants
    `advice`. why: what the level rests on, or why it was not evaluated. facts: numbers behind it, for the JSON.
    rule: the id of the rule that judged it; empty where none did.
    """

    host: str
    area: str
    what: str
    found: str
    level: Level = "ok"
    why: str = ""
    advice: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    rule: str = ""


class LevelCounts(Struct, frozen=True):
    """How many looks have each level."""

    ok: int = 0
    note: int = 0
    warning: int = 0
    error: int = 0
    not_evaluated: int = 0


def count_levels(looks: Iterable[Look]) -> LevelCounts:
    """How the looks came out."""
    counts: Counter[str] = Counter(look.level for look in looks)
    return LevelCounts(**counts)


# The facts about a host that decide whether a setting makes sense there.


class HostContext(Struct, frozen=True):
    """What settings depend on; None for what is not known. gpus: how many there are. uuids: theirs. nccl and torch:
    versions in use (``2.28.9``, ``2.11.0+cu130``)."""

    interfaces: tuple[Interface, ...] | None = None
    rdma: tuple[Rdma, ...] | None = None
    gpus: int | None = None
    uuids: tuple[str, ...] = ()
    nccl: str | None = None
    torch: str | None = None
