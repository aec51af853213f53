"""The run folder before and after the ranks write into it."""

from __future__ import annotations

import re
import shutil
from itertools import count
from pathlib import Path

from traceops.capture.manifest import RankManifest
from traceops.capture.settings import holds_traces
from traceops.core.errors import UsageError

_CAPTURE = re.compile(r"(base|head)_\d+")  # of a series, see against.py


def free_folder(name: str) -> Path:
    """``profile/<name>``, or the first of ``<name>-2``, ``<name>-3``, … that holds no run yet."""
    candidates = (Path("profile", name if n == 1 else f"{name}-{n}") for n in count(1))
    return next(path for path in candidates if not holds_traces(path)).absolute()


def short_path(path: Path) -> str:
    """`path` as seen from here, if it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def refuse_or_clear(out: Path, *, overwrite: bool, dry_run: bool) -> None:
    """Raise UsageError if `out` holds another run, or remove that run if `overwrite` says so."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; choose another --out")
    if not holds_traces(out):
        return
    if not overwrite:
        raise UsageError(f"{out} holds the traces of another run; add --overwrite, or choose another --name")
    if dry_run:
        return
    # Only what a run writes: --out may be a folder with other things in it.
    for path in [*out.glob("rank_*"), out / "logs", out / "evidence"]:
        if path.is_dir():
            shutil.rmtree(path)
    for path in [out / "run.json", out / "pairs.json", *out.glob(".reserve.*")]:
        path.unlink(missing_ok=True)
    for path in out.iterdir():
        if _CAPTURE.fullmatch(path.name) and holds_traces(path):
            refuse_or_clear(path, overwrite=True, dry_run=False)
            if not any(path.iterdir()):
                path.rmdir()


def collect_logs(out: Path, ranks: list[RankManifest], host: str) -> None:
    """Move torchrun's ``logs/<id>/attempt_0/<local rank>/stdout.log`` to ``logs/rank_<r>.stdout.log``."""
    numbers = {rank.local_rank: rank.rank for rank in ranks if rank.host == host}
    for path in sorted((out / "logs").glob("*/attempt_*/*/std*.log")):
        local = path.parent.name
        if not local.isdigit() or int(local) not in numbers:
            continue
        if path.stat().st_size:
            path.replace(out / "logs" / f"rank_{numbers[int(local)]}.{path.name}")
        else:
            path.unlink()
    for folder in sorted((out / "logs").glob("*/**/"), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
