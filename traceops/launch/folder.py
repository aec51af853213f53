"""The run folder before and after the ranks write into it: free, writable, locked, cleared; with room for run.json."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from msgspec import Struct, field

from traceops.capture.environment import host
from traceops.capture.manifest import RankManifest
from traceops.capture.schedule import Schedule
from traceops.capture.settings import holds_traces
from traceops.core.errors import UsageError
from traceops.core.run_lock import LOCK, held, in_use
from traceops.core.settings_file import only, read_settings
from traceops.launch.display import reason
from traceops.words.catalogue import fill

STALLS = "stalls"  # what ranks did that seemed to hang and went on
_CAPTURE = re.compile(r"(base|head)_\d+")  # of a series, see against.py


class RunDefaults(Struct, frozen=True):
    """What [run] of traceops.toml says. folder: where runs go, each by its name. schedule: numbers of the schedule."""

    folder: Path = Path("profile")
    schedule: dict[str, int] = field(default_factory=dict)


def run_defaults() -> RunDefaults:
    """Of the settings for the working folder. Raises UsageError naming the file and the key that is wrong."""
    table, source = read_settings() or ({}, "")
    own, where = table.get("run", {}), f"{source}: run"
    if not isinstance(own, dict):
        raise UsageError(f"{where} must be a table")
    numbers = tuple(Schedule.__dataclass_fields__)
    only(own, ("folder", *numbers), where)
    folder = own.get("folder", "profile")
    if not isinstance(folder, str) or not folder:
        raise UsageError(f"{where}.folder must be a folder, in quotes")
    schedule = {name: value for name, value in own.items() if name in numbers}
    try:
        Schedule(**schedule)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return RunDefaults(Path(source).parent / folder if "folder" in own else Path(folder), schedule)


def free_folder(name: str, below: Path = Path("profile")) -> Path:
    """``below/<name>``, or the first of ``<name>-2``, ``<name>-3``, … that holds no run yet."""
    candidates = (below / (name if n == 1 else f"{name}-{n}") for n in count(1))
    return next(path for path in candidates if not holds_traces(path) and not in_use(path)).absolute()


def short_path(path: Path) -> str:
    """`path` as seen from here, if it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def refuse(out: Path, *, overwrite: bool) -> None:
    """Raise UsageError if `out` cannot take a run: another run goes on there, or lies there and may not go."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; choose another --out")
    if holds_traces(out) and not overwrite:
        raise UsageError(f"{out} holds the traces of another run; add --overwrite, or choose another --name")


def clear(out: Path) -> None:
    """Remove the run, or series of runs, that lies in `out`, if one does. Raises FolderInUse where one of the series
    still goes on."""
    if not holds_traces(out):
        return
    captures = [path for path in out.iterdir() if _CAPTURE.fullmatch(path.name) and holds_traces(path)]
    with ExitStack() as locks:
        for path in captures:
            locks.enter_context(held(path))
        for path in captures:
            _clear_run(path)
            (path / LOCK).unlink(missing_ok=True)
            if not any(path.iterdir()):
                path.rmdir()
        _clear_run(out)


def not_started(out: Path) -> None:
    """Remove what was written into `out` for a run that could not be started."""
    with suppress(OSError):
        for path in [out / "run.json", *out.glob(".reserve.*")]:
            path.unlink(missing_ok=True)
        (out / "evidence").rmdir()


def _clear_run(out: Path) -> None:
    # Only what a run writes: --out may be a folder with other things in it.
    for path in [*out.glob("rank_*"), out / "logs", out / "evidence", out / STALLS]:
        if path.is_dir():
            shutil.rmtree(path)
    for path in [out / "run.json", out / "pairs.json", *out.glob(".reserve.*"), *out.glob("machine.*.jsonl")]:
        path.unlink(missing_ok=True)


def remove_unfinished(out: Path, ranks: Sequence[RankManifest]) -> None:
    """Remove what these ranks, which have ended, left half-written: traces under hidden names."""
    for rank in ranks:
        for path in (out / f"rank_{rank.rank}").glob(".*.part*"):
            path.unlink(missing_ok=True)


def collect_logs(out: Path, made: Path, ranks: list[RankManifest], host: str) -> None:
    """Move ``<made>/run/attempt_0/<local rank>/stdout.log`` to ``logs/rank_<r>.stdout.log``; `made` is in `out`."""
    numbers = {rank.local_rank: rank.rank for rank in ranks if rank.host == host}
    for path in sorted(made.glob("*/attempt_*/*/*.log")):
        local = path.parent.name
        if not local.isdigit() or int(local) not in numbers:
            continue
        if path.stat().st_size:
            path.replace(out / "logs" / f"rank_{numbers[int(local)]}.{path.name}")
        else:
            path.unlink()
    for folder in sorted(made.glob("**/"), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


class NotWritable(UsageError):
    """Nothing was started, because the run folder cannot be written."""


@contextmanager
def writable(out: Path) -> Iterator[None]:
    """Before anything is started: refuse a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        raise NotWritable(fill("launch", "not_writable", "refused", out=out, why=reason(error))) from error


@contextmanager
def progress_folder() -> Iterator[str]:
    """A folder of this launcher's own for the ranks' records, gone at the end."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="traceops-", ignore_cleanup_errors=True)
    except OSError as error:
        where = tempfile.gettempdir()
        raise UsageError(fill("launch", "no_temporary", "refused", folder=where, why=reason(error))) from error
    with folder as path:
        yield path


_BYTES = 1 << 18  # run.json takes 2 kB and 2 kB a rank


class Reserve:
    """Takes the room when it is made; `release` gives it back. Raises OSError where there is none."""

    def __init__(self, out: Path) -> None:
        self._path = _place(out)
        self._path.write_bytes(os.urandom(_BYTES))  # written, and as some disks compress: not zeros

    def release(self) -> None:
        """Give the room back; does nothing where that cannot be done."""
        remove_reserve(self._path.parent)


def remove_reserve(out: Path) -> None:
    """What `release` does, of a launcher on this machine that is gone."""
    with suppress(OSError):
        _place(out).unlink(missing_ok=True)


def _place(out: Path) -> Path:
    return out / f".reserve.{host()}"


# Any other may be seen by several machines: NFS, Lustre, GPFS, BeeGFS, CephFS, WekaFS, whatever comes over FUSE.
_OF_ONE = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "f2fs"})
_MOUNTS = Path("/proc/self/mounts")


def of_this_machine(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """True where the file system is one that machines do not share; False where not known. It may yet be shared: the
    machine may be the one that exports it."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return False
    path, best, kind = os.path.realpath(folder), "", ""
    for line in lines:
        words = line.split()
        if len(words) < 3:
            continue
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), words[1])
        below = path == point or path.startswith(point.rstrip("/") + "/")
        if below and len(point) >= len(best):  # a later mount covers an earlier one
            best, kind = point, words[2]
    return kind in _OF_ONE
