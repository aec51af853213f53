"""What a name that is not there may have meant: the closest of those that are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_MOST_ENTRIES = 10_000
# What other tools call it.
_ALSO = {
    "diff": "compare", "profile": "run", "record": "run", "trace": "run", "launch": "run", "start": "run",
    "report": "analyze", "stats": "analyze", "timeline": "view", "export": "view", "ui": "open", "serve": "open",
    "debug": "diagnose", "hang": "diagnose", "check": "doctor", "add": "save", "push": "save", "ls": "list",
    "rm": "prune", "delete": "prune", "--gpus": "--nproc", "-n": "--nproc", "-np": "--nproc", "--np": "--nproc",
    "--nproc-per-node": "--nproc", "--nproc_per_node": "--nproc", "--ranks": "--nproc", "--world-size": "--nproc",
    "--steps": "--active", "--output": "--out", "-o": "--out", "--out": "--output",
}  # fmt: skip


def meant(word: str, there: Iterable[str]) -> str:
    """'; did you mean analyze?', or nothing where nothing is like it."""
    names = list(there)
    if (also := _ALSO.get(word)) in names:
        return f"; did you mean {also}?"
    close = _get_close_matches(word.casefold(), names, n=1, cutoff=0.6)
    close = close or sorted((name for name in names if len(word) > 2 and word.casefold() in name.casefold()), key=len)
    return f"; did you mean {close[0]}?" if close else ""


def _get_close_matches(word: str, there: list[str], n: int, cutoff: float) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(word, there, n, cutoff)


def near_path(path: str) -> str:
    """'; did you mean profile/ddp?' for the first part of a path that is not there, or nothing."""
    if "://" in path:
        return ""
    given = Path(path)
    whole = [*reversed(given.parents), given]
    at = next((at for at, part in enumerate(whole) if not part.exists()), None)
    if not at:
        return ""
    parent, wrong = whole[at].parent, whole[at].name
    try:
        names = [entry.name for _, entry in zip(range(_MOST_ENTRIES), parent.iterdir(), strict=False)]
    except OSError:
        return ""
    by_case = {name.casefold(): name for name in names}
    close = _get_close_matches(wrong.casefold(), list(by_case), n=1, cutoff=0.6)
    if not close:
        runs = [run for name in names if (run := parent / name / "run.json").is_file()]
        newest = max(runs, key=lambda run: run.stat().st_mtime, default=None)
        return "" if newest is None else f"; did you mean {newest.parent}, the newest run there?"
    found = parent / by_case[close[0]]
    rest = Path(*given.parts[len(found.parts) :]) if len(given.parts) > len(found.parts) else None
    if rest is not None and not (found / rest).exists():
        rest = None
    return f"; did you mean {found if rest is None else found / rest}?"
