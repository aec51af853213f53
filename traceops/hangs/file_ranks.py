"""The rank that the name of a file tells, or of its folder."""

from __future__ import annotations

import re
from pathlib import Path

_RANK = re.compile(r"rank[_\-.]?(\d{1,7})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w*)*$")


def rank_in_name(path: Path) -> int | None:
    """The rank a file's name tells (rank_3, _dump_9, fr_0.json), or its folder's (rank_3/dump)."""
    for name in (path.name, path.parent.name):
        if (match := _RANK.search(name)) is not None:
            return int(match[1])
    match = _LAST_NUMBER.search(path.name)
    return None if match is None else int(match[1])


def rank_of_text(path: Path, one_node: bool) -> int | None:
    """Of a log only a name with 'rank' in it says whose it is: numbers in it may be anything.

    Torchrun's own folders, attempt_0/<local rank>/stderr.log, tell it where there is one node only.
    """
    if one_node and path.parent.parent.name.startswith("attempt_") and path.parent.name.isdecimal():
        return int(path.parent.name)
    if path.name.startswith(("stacks", "py-spy", "pyspy", "stack")):
        return rank_in_name(path)
    match = _RANK.search(path.name)
    return int(match[1]) if match else None
