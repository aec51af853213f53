"""Makes looks: words/looks.ini has what each is of, the rule that judges it, its level and its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from traceops.core.claims import Facts, filled
from traceops.core.rule import Bounds
from traceops.machine.look import Level, Look
from traceops.words.catalogue import sections


class MachineBounds(Bounds, frozen=True):
    """From where on a machine's settings and limits are named, as words/machine.ini says."""

    words = "machine"

    near_c: int = 3
    power: float = 0.9
    replays: int = 1000
    others_gib: float = 1.0
    others_share: float = 0.2
    busy_pct: int = 50
    interface: float = 4.0
    shm_mib: tuple[int, int] = (1024, 64)
    locked_gib: float = 1.0
    files: tuple[int, int] = (4096, 256)
    tasks: int = 1024
    memory_gib: float = 4.0


BOUNDS = MachineBounds()


def looked(
    host: str,
    about: str,
    key: str,
    numbers: Mapping[str, Any] | None = None,
    *,
    level: Level | None = None,
    **facts: Any,
) -> Look:
    """The look `key` of the section `about`, with its facts filled in. Raises KeyError for one that is not there.

    numbers: for the JSON. level: where the judge decides it, and not the file.
    """
    texts = sections("looks")[about]
    known = Facts(family="looks", kind=about, **facts)
    usual, _, found = texts[key].partition(":")

    def part(name: str) -> str:
        return _first(texts.get(f"{key}.{name}", texts.get(name, "")), known)

    return Look(
        host,
        part("area"),
        part("what"),
        _first(found.strip(), known),
        level or cast(Level, usual),
        part("why"),
        part("do"),
        dict(numbers or {}),
        part("rule"),
    )


def _first(text: str, known: Facts) -> str:
    """The first line of which every fact is known; empty where there is none."""
    lines = (line for line in text.split("\n") if line)
    return next((said for line in lines if (said := filled(line, known)) is not None), "")
