"""The nearest traceops.toml, or [tool.traceops] in pyproject.toml, as a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceops.core.errors import UsageError
from traceops.core.files import read_regular

FILE = "traceops.toml"
TABLES = ("analyze", "compare", "baselines", "run")
_MOST_BYTES = 1 << 24


def read_settings(start: Path | None = None, file: str | None = None) -> tuple[dict[str, Any], str] | None:
    """The settings for a folder and the file they are from: `file`, else the nearest one above `start`. None where
    there is none. Raises UsageError naming the file, and a table in it that is not known."""
    if file is not None:
        path = Path(file)
        return _known(_own_table(_read(path), path), str(path))
    folder = (start or Path()).resolve()
    for parent in (folder, *folder.parents):
        if (parent / FILE).is_file():
            return _known(_read(parent / FILE), str(parent / FILE))
        project = parent / "pyproject.toml"
        if project.is_file() and (own := _own_table(_read(project), project)):
            return _known(own, str(project))
        if (parent / ".git").exists():
            break
    return None


def only(table: dict[str, Any], allowed: Sequence[str], where: str) -> None:
    """Raises UsageError naming a key that is not allowed, and the one that may have been meant."""
    for key in table:
        if key not in allowed:
            raise UsageError(f"{where}: {key} is not known; {nearest(key, allowed)}")


def nearest(word: str, allowed: Sequence[str]) -> str:
    """'did you mean X?', or what there is."""
    from traceops.core.text import closest

    close = closest(word, allowed)
    return f"did you mean {close}?" if close else f"there are {', '.join(allowed)}"


def _known(table: dict[str, Any], source: str) -> tuple[dict[str, Any], str]:
    only(table, TABLES, source)
    return table, source


def _own_table(table: dict[str, Any], path: Path) -> dict[str, Any]:
    if path.name != "pyproject.toml":
        return table
    tool = table.get("tool")
    own = tool.get("traceops") if isinstance(tool, dict) else None
    return own if isinstance(own, dict) else {}


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, _MOST_BYTES)
        if path.name == "pyproject.toml" and b"traceops" not in text:
            return {}  # most projects' own, which need no parser here
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        table: dict[str, Any] = tomllib.loads(text.decode())
        return table
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # a number of too many digits is no TOMLDecodeError
        raise UsageError(f"{path} is not valid TOML: {error}") from error
