"""Which files under a path may be traces or summaries, by their names, and how large they are."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from traceops.core.close_names import near_path
from traceops.core.errors import InputError
from traceops.traces.source import filesystem, is_remote, store_errors
from traceops.traces.summary_header import SUFFIX

PAIRS = "pairs.json"  # in the folder of a series that `traceops run --against` made
_ENDINGS = (".json", ".json.gz", SUFFIX)
# What lies beside traces without being one.
_NEVER = frozenset(
    {
        "run.json",
        "manifest.json",
        "report.json",
        "hang.json",
        "compare.json",
        "history.json",
        PAIRS,
        "runs.json",
        "scale.json",
        "sweep.json",
        "trials.json",
        "truth.json",
        "package.json",
        "settings.json",
        "timeline.json",
        "timeline.json.gz",
    }
)
SKIP_FOLDERS = frozenset({"evidence", "logs", "node_modules", "__pycache__"})


def list_files(path: str) -> tuple[str, dict[str, int]]:
    """The folder, or the file itself, and the paths below it with their bytes (0 where not known), in order.

    Raises InputError where there is no such path.
    """
    if is_remote(path):
        return path, _remote_files(path)
    try:
        root = Path(path).resolve()
        mode = root.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{path} does not exist{near_path(path)}") from None
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} cannot be opened ({error})") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path} is a pipe, a socket or a device: give a file or a folder")
    if not os.access(root, os.R_OK if stat.S_ISREG(mode) else os.R_OK | os.X_OK):
        raise InputError(f"{path} may not be read; ask the owner for permission")
    if stat.S_ISREG(mode):
        file = str(Path(path).absolute())  # a worker may have another working folder
        return file, {file: root.stat().st_size}
    return str(root), {file: _size(file) for file in _walk(root)}


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:  # a link to nothing: whoever opens it will say so
        return 0


def _remote_files(path: str) -> dict[str, int]:
    file_system, within = filesystem(path)
    try:
        # A page that lists a folder is a file too, as far as a web server knows: there the name decides.
        if path.endswith(_ENDINGS) or not file_system.isdir(within):
            if not file_system.isfile(within):
                raise InputError(f"{path} does not exist")
            return {path: int(file_system.info(within).get("size") or 0)}
        found: dict[str, dict[str, Any]] = file_system.find(within, detail=True)
    except (ValueError, *store_errors()) as error:  # type: ignore[misc] # a list that grows with what is loaded
        raise InputError(f"{path}: {error}") from error
    protocol = path.partition("://")[0]
    return {
        f"{protocol}://{file}" if "://" not in file else file: int(info.get("size") or 0)
        for file, info in sorted(found.items())
        if may_be_trace(file) and not SKIP_FOLDERS & set(PurePosixPath(file.removeprefix(within)).parts)
    }


def leads_out(path: str, root: str) -> bool:
    """Whether a path below the folder is a link to elsewhere: what lies there was not given."""
    return path != root and Path(path).is_symlink() and not Path(path).resolve().is_relative_to(root)


def _walk(root: Path) -> list[str]:
    """Files below a folder that may be traces; linked folders of it are entered, each folder once.

    Links out of it are among the files, for whoever opens them says so, and are not entered.
    """
    found: list[str] = []
    entered: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(f for f in folders if f not in SKIP_FOLDERS and not f.startswith("."))
        out = [f for f in folders if leads_out(str(Path(folder, f)), str(root))]
        found += [str(Path(folder, link)) for link in out]
        folders[:] = [f for f in folders if f not in out]
        found += [str(Path(folder, file)) for file in sorted(files) if may_be_trace(file)]
    return found


def may_be_trace(path: str) -> bool:
    """Whether a file of this name is looked into."""
    name = PurePosixPath(path).name
    return name.endswith(_ENDINGS) and name not in _NEVER and not name.startswith(".")
