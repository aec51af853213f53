"""Reads data that is text: the words of findings, one file for each family, and the patterns of lines of logs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


def texts(name: str, section: str = "labels") -> Mapping[str, str]:
    """The templates of one section of a file, by key."""
    return sections(name).get(section, {})


def fill(name: str, key: str, section: str = "labels", /, **facts: object) -> str:
    """A text with its facts, for what runs in the user's process: read when it is needed, and nothing else loaded."""
    return texts(name, section)[key].format(**facts)


@cache
def sections(name: str) -> Mapping[str, Mapping[str, str]]:
    """The sections of `words/<name>.ini`: 'key = text', '#' begins a remark, lines that begin with a space go on. Of
    these '- text' begins a new sentence, which is kept apart by a line break."""
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


def grammar(room: str) -> Mapping[str, str]:
    """The patterns of one reader of logs, by name: the sections of hangs/grammar.ini, a line for each alternative."""
    return {
        name.partition(".")[2]: "|".join(lines) for name, lines in _grammar().items() if name.startswith(f"{room}.")
    }


def rows(section: str) -> tuple[list[str], ...]:
    """The lines of one section of hangs/grammar.ini, each in the parts that ' :: ' divides."""
    return tuple(line.split(" :: ") for line in _grammar()[section])


@cache
def _grammar() -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    own: list[str] = []
    for line in (_FOLDER.parent / "hangs" / "grammar.ini").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]") and line[1:-1].replace(".", "").isidentifier():
            own = found.setdefault(line[1:-1], [])
        elif line and not line.startswith("# "):
            own.append(line)
    return found
