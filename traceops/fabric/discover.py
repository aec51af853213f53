"""Finds the files that tell of the fabric: beside a run's traces, or where the user says.

Most folders of traces hold none, so that what reads them is imported where there are some.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from traceops.core.errors import InputError
from traceops.fabric.fabric import Fabric
from traceops.traces.source import is_remote

_TEXTS = (".txt", ".log", ".out", ".err", ".xml", ".json", "")
_BESIDE = (".txt", ".log", ".out", ".err", ".xml")  # of a folder with traces only these, not its JSON
_PACKED = tuple(  # traces are .json.gz
    f"{text}{packed}" for text in (".log", ".txt", ".out", ".err") for packed in (".gz", ".xz", ".bz2", ".zst", ".zip")
)
_MOST_FILES = 20_000
_OWN = ("run.json", "manifest.json", "report.json", "pairs.json")


def run_fabric(root: str, extra: Sequence[str | os.PathLike[str]] = ()) -> Fabric | None:
    """The fabric's evidence in a run folder or beside traces, and in files named besides; None where there is none. A
    run folder is searched in evidence/ and logs/, any other folder without its subfolders but these; remote paths are
    not searched. Raises InputError for a file of `extra` that cannot be used."""
    files = [] if is_remote(root) else list(_beside(Path(root)))
    if not files and not extra:
        return None
    from traceops.fabric.read import read_fabric

    fabric = read_fabric(files, [Path(path) for path in extra])
    return fabric if fabric.tells or fabric.problems else None


def named_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files that the user names, and those in folders that the user names."""
    given = [Path(path) for path in paths]
    return [file for path in given for file in (_walk(path, _PACKED) if path.is_dir() else (path,))]


def named_fabric(paths: Sequence[str | os.PathLike[str]], used: frozenset[Path] | None = None) -> Fabric:
    """The evidence in files and folders that the user names. used: files that tell of something else already. Raises
    InputError where a named file cannot be used, or nothing in them tells anything."""
    given, known = [Path(path) for path in paths], used or frozenset()
    inside = [file for path in given if path.is_dir() for file in _walk(path)]
    from traceops.fabric.read import read_fabric

    alone = [path for path in given if path in known]
    fabric = read_fabric([*inside, *alone], [path for path in given if not path.is_dir() and path not in known])
    if not fabric.tells and not known:
        listed = "".join(f"\n  {file}: {what}" for file, what in fabric.problems[:20])
        raise InputError(
            f"{', '.join(map(str, given))}: no file tells about GPUs and links; give the output of "
            "`nvidia-smi`, `nvidia-smi -q` or `nvidia-smi topo -m`, a log written with NCCL_DEBUG=INFO, an XML of "
            f"NCCL_TOPO_DUMP_FILE or a doctor.json{listed}"
        )
    return fabric


def _beside(root: Path) -> Iterator[Path]:
    if root.is_file():
        return
    if not (root / "run.json").is_file():
        yield from _listed(root, _BESIDE)
    for folder in (root / "evidence", root / "logs"):
        if folder.is_dir():
            yield from _walk(folder)


def _listed(folder: Path, suffixes: Sequence[str], packed: tuple[str, ...] = ()) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        wanted = Path(entry.name).suffix in suffixes or entry.name.endswith(packed)
        if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".") and wanted:
            yield Path(entry.path)


def _walk(folder: Path, packed: tuple[str, ...] = ()) -> Iterator[Path]:
    """packed: ends of names of files to be unpacked that belong to it too."""
    count = 0
    for parent, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in _listed(Path(parent), _TEXTS, packed):
            count += 1
            if count > _MOST_FILES:
                return
            if path.name not in _OWN and not path.name.endswith(".trace.json"):
                yield path
