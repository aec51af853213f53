"""What is said of processes that trained as a rank and were not recorded (`not_recorded` in run.json)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from traceops.core.rank_text import who

_MOST_SHOWN = 4


def unrecorded_sentences(entries: Iterable[Any]) -> list[str]:
    """One about ranks that were started again, one about processes that trained beside a recorded one."""
    known = [
        one
        for one in entries
        if isinstance(one, Mapping) and isinstance(one.get("rank"), int) and isinstance(one.get("pid"), int)
    ]
    again = sorted({one["rank"] for one in known if one.get("restarted")})
    beside = [one for one in known if not one.get("restarted")]
    said = []
    if again:
        were = "was" if len(again) == 1 else "were"
        said.append(
            f"{who(again)} {were} started again after the recorded process had ended: no step since then is recorded"
        )
    if beside:
        ranks = sorted({one["rank"] for one in beside})
        pids = ", ".join(str(one["pid"]) for one in beside[:_MOST_SHOWN])
        more = "" if len(beside) <= _MOST_SHOWN else f" and {len(beside) - _MOST_SHOWN} more"
        other = "another process" if len(beside) == 1 else f"{len(beside)} other processes"
        is_not = "is not" if len(beside) == 1 else "are not"
        said.append(f"{other} (pid {pids}{more}) trained as {who(ranks)} too and {is_not} recorded")
    return said
