"""The diagnosis of a hang as a part of `analyze`, where the run folder holds evidence of one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from traceops.core.claims import reason
from traceops.core.errors import InputError
from traceops.core.files import open_regular
from traceops.traces.run_manifest import read_run_manifest
from traceops.traces.source import is_remote

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis

_OURS = ("hang.*.json", "flight_recorder_*", "stacks_*")
# As torch names its flight recorder's dumps by default, and as people call them.
_HEAD = 1 << 16
_MOST_LOOKED_AT = 200  # files, where no name tells
_DUMPS = (*_OURS, "nccl_trace_rank_*", "comm_lib_trace_rank_*", "fr_*")


def diagnosis_of_run(root: str) -> tuple[Diagnosis | None, str]:
    """The diagnosis of a run folder; None and why not where there is none."""
    if is_remote(root):
        return None, reason("hangs", "remote")
    # Whether a run folder holds evidence of a hang or of a rank that died; cheap, reads run.json at most.
    if not (_has_any(Path(root, "evidence"), _OURS) or _rank_failed(root, ("failed", "hung"))):
        return None, reason("hangs", "no_evidence")  # which is not the same as no hang
    from traceops.hangs.diagnose import diagnose  # half of what analyze imports, and most runs do not hang

    try:
        diagnosis = diagnose(root)
        return (None, reason("hangs", "no_evidence")) if diagnosis.evidence.ends else (diagnosis, "")
    except InputError as error:
        return None, reason("hangs", "unusable", error=error)


def evidence_hint(path: str) -> str:
    """What to say where `path` has no traces but evidence of a hang, or of a rank that failed; empty without."""
    if is_remote(path):
        key = ""
    elif _rank_failed(path):
        key = "rank_failed"
    elif _has_any(Path(path, "evidence"), _OURS) or _has_any(Path(path), _DUMPS):
        key = "has_evidence"
    else:
        key = "has_dump" if _has_dump(Path(path)) else ""
    return "\n" + reason("hangs", key, path=path) if key else ""


def _rank_failed(path: str, statuses: tuple[str, ...] = ("failed",)) -> bool:
    if not Path(path, "run.json").is_file():
        return False
    manifest, _ = read_run_manifest(path)
    return manifest.get("status") in statuses and manifest.get("failed_rank") is not None


def _has_dump(path: Path) -> bool:
    """Whether one of the first files under a path is a flight recorder's dump, by what stands in it, whatever its name:
    a trace names groups too, and a pickle may be of anything."""
    inside = (Path(parent, name) for parent, _, names in os.walk(path) for name in sorted(names))
    for file in [path] if path.is_file() else islice(inside, _MOST_LOOKED_AT):
        with suppress(OSError), open_regular(file) as opened:
            head = opened.read(_HEAD)
            is_trace = b"traceEvents" in head or b"distributedInfo" in head
            has_entries = b"entries" in head and (b"pg_config" in head or b"record_id" in head)
            if head.lstrip()[:1] in (b"{", b"\x80") and has_entries and not is_trace:
                return True
    return False


def _has_any(folder: Path, patterns: Sequence[str]) -> bool:
    return folder.is_dir() and any(next(folder.glob(pattern), None) is not None for pattern in patterns)
