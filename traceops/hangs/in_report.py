"""The diagnosis of a hang as a part of `analyze`, where the run folder holds evidence of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traceops.core.errors import InputError
from traceops.traces.run_manifest import read_run_manifest
from traceops.traces.source import is_remote

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis

_OURS = ("hang.*.json", "flight_recorder_*", "stacks_*")
# As torch names its flight recorder's dumps by default, and as people call them.
_DUMPS = (*_OURS, "nccl_trace_rank_*", "comm_lib_trace_rank_*", "fr_*")


def diagnosis_of_run(root: str) -> tuple[Diagnosis | None, str]:
    """The diagnosis of a run folder; None and why not where there is none."""
    if is_remote(root):
        return None, "evidence of a hang is read from local folders only"
    if not _has_evidence(root):
        return None, "the run folder holds no evidence of a hang"  # which is not the same as no hang
    from traceops.hangs.diagnose import diagnose  # half of what analyze imports, and most runs do not hang

    try:
        return diagnose(root), ""
    except InputError as error:
        return None, f"the evidence of a hang could not be used: {error}"


def evidence_hint(path: str) -> str:
    """What to say where `path` has no traces but evidence of a hang, or of a rank that failed; empty without."""
    if is_remote(path):
        return ""
    if _has_any(Path(path, "evidence"), _OURS) or _has_any(Path(path), _DUMPS):
        return f"\nIt holds evidence of a hang, though: traceops diagnose {path}"
    if _has_evidence(path):
        return f"\nA rank failed before anything was recorded: traceops diagnose {path} says which and why"
    return ""


def _has_evidence(path: str) -> bool:
    """Whether a run folder holds evidence of a hang or of a rank that died; cheap, reads run.json at most."""
    if _has_any(Path(path, "evidence"), _OURS):
        return True
    if not Path(path, "run.json").is_file():
        return False
    manifest, _ = read_run_manifest(path)
    return manifest.get("status") in ("failed", "hung") and manifest.get("failed_rank") is not None


def _has_any(folder: Path, patterns: Sequence[str]) -> bool:
    return folder.is_dir() and any(next(folder.glob(pattern), None) is not None for pattern in patterns)
