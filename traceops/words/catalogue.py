"""Reads the words that findings are told in: text files in traceops/words, one for each family."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


def texts(name: str, section: str = "labels") -> Mapping[str, str]:
    """The templates of one section of a file, by key."""
    return sections(name).get(section, {})


@cache
def sections(name: str) -> Mapping[str, Mapping[str, str]]:
    """The sections of `words/<name>.ini`: 'key = text', '#' begins a remark, lines that begin with a space go on.

    Of these '- text' begins a new sentence, which is kept apart by a line break.
    """
    found: dict[str, dict[str, str]] = {}
    own, key = found.setdefault("", {}), ""
    for line in (_FOLDER / f"{name}.ini").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith(" "):
            more = line.strip()
            own[key] += f"\n{more[2:]}" if more.startswith("- ") else f" {more}"
        elif line.startswith("["):
            own = found.setdefault(line.strip("[] "), {})
        else:
            key, _, text = line.partition("=")
            key = key.strip()
            own[key] = text.strip()
    return found
