"""The run folder before and after the ranks write into it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

from traceops.capture.manifest import RankManifest
from traceops.capture.settings import holds_traces
from traceops.core.errors import UsageError
from traceops.core.run_lock import LOCK, held, in_use

STALLS = "stalls"  # what ranks did that seemed to hang and went on
_CAPTURE = re.compile(r"(base|head)_\d+")  # of a series, see against.py


def free_folder(name: str) -> Path:
    """``profile/<name>``, or the first of ``<name>-2``, ``<name>-3``, … that holds no run yet."""
    candidates = (Path("profile", name if n == 1 else f"{name}-{n}") for n in count(1))
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
    """Remove the run, or series of runs, that lies in `out`, if one does.

    Raises FolderInUse where one of the series still goes on.
    """
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
