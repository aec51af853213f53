"""Which runs a folder, a pattern or several paths hold, and a name for each that no other has."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath

from msgspec import Struct

from traceops.core.errors import InputError
from traceops.traces.source import is_remote
from traceops.traces.windows import PAIRS, SKIP_FOLDERS, may_be_trace

_DIGITS = re.compile(r"(\d+)")


class FoundRun(Struct, frozen=True):
    """One run: where it lies, and its name among the others, which is also the place of its report below theirs."""

    path: str
    name: str


class FoundRuns(Struct, frozen=True):
    """Runs in the order of their names. `base` is the folder that their names count from, None for remote ones."""

    runs: tuple[FoundRun, ...]
    base: Path | None = None


def find_runs(paths: Sequence[str]) -> FoundRuns:
    """The runs behind the arguments of a command: a run, a folder of runs, patterns, remote paths. A folder with
    run.json is one run. In any other, each folder below it with run.json is one, and each direct subfolder with traces
    and no run.json anywhere, if any other run is there. Raises InputError for a pattern that matches nothing."""
    found: list[str] = []
    for path in paths:
        found += [run for one in _expanded(path) for run in _runs_in(one)]
    if len(found) == 1:
        return FoundRuns((FoundRun(found[0], PurePath(found[0]).name),))
    unique: dict[str, str] = {}
    for path in found:
        unique.setdefault(path if is_remote(path) else os.path.realpath(path), path)
    local = [real for real in unique if not is_remote(real)]
    base = os.path.commonpath([Path(real).parent for real in local]) if local else None
    runs: dict[str, FoundRun] = {}
    for real, path in unique.items():
        if is_remote(real):
            name = PurePosixPath(real.partition("://")[2]).name or "remote"
        else:
            name = os.path.relpath(real, base).replace(os.sep, "/")
        while name in runs:  # a remote run of the same name
            name += "~"
        runs[name] = FoundRun(path, name)
    ordered = tuple(runs[name] for name in sorted(runs, key=natural))
    return FoundRuns(ordered, None if base is None else Path(base))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts run_2 before run_10."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


def _expanded(path: str) -> list[str]:
    """The paths that a pattern matches, for shells that leave it as it is."""
    if is_remote(path) or os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    matched = sorted(glob.glob(path, recursive=True), key=natural)  # noqa: PTH207 Path.glob takes no absolute pattern
    if not matched:
        folder = os.path.dirname(path)  # noqa: PTH120 a pattern is no path
        meant = f"; did you mean {folder}?" if os.path.isdir(folder) else ""  # noqa: PTH112 the same
        raise InputError(f"{path} matches nothing{meant}")
    return [one for one in matched if Path(one).is_dir()] or matched


def _runs_in(path: str) -> list[str]:
    """The runs in one folder, or the path itself where it is one, or holds a single one."""
    root = Path(path)
    if is_remote(path) or not root.is_dir() or _is_run(root) or (root / PAIRS).is_file():
        return [path]
    runs = []
    for folder, folders, files in os.walk(root):  # links are not followed: what they lead to was not given
        if "run.json" in files and Path(folder) != root and _is_run(Path(folder)):
            runs.append(folder)
            folders.clear()
        folders[:] = sorted(name for name in folders if not _skipped(name))
    if not runs:
        return [path]
    children = {PurePath(run).relative_to(root).parts[0] for run in runs}
    others = [
        str(child) for child in sorted(root.iterdir())
        if child.is_dir() and child.name not in children and not _skipped(child.name) and _holds_traces(child)
    ]  # fmt: skip
    return [path] if len(runs) + len(others) == 1 else [*runs, *others]


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def _holds_traces(folder: Path) -> bool:
    return any(may_be_trace(file) for _, _, files in os.walk(folder) for file in files)


def _skipped(name: str) -> bool:
    return name in SKIP_FOLDERS or name.startswith(".")
