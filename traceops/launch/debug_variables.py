"""The environment in which torch and NCCL keep a record of what they did: of hangs, and of the ways they took."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

_RECORDS = 2000  # collectives a rank; some 10 MB at most
_RENAMED_IN = (2, 9)
# What NCCL says of itself while it connects: interfaces and plugins, channels and their transports (INIT), what
# it makes of the machine and of its rings and trees (GRAPH), variables that were set (ENV). In NCCL 2.10 to 2.30
# none of them has a line for a collective, and warnings belong to all.
_NCCL_SUBSYSTEMS = "INIT,ENV,GRAPH"


def hang_variables(environ: Mapping[str, str], evidence: Path, progress: Path) -> dict[str, str]:
    """What to set so that a hang leaves evidence; whatever `environ` sets already stays as it is.

    evidence: where the records go. progress: the launcher's own folder, for the pipes that ask for them.
    """
    size, target = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    new_size, new_target = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    values = {
        # Not TORCH_NCCL_ENABLE_TIMING, which records when collectives start: steps took 2 to 3 % longer with it.
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(dump_pipe_stem(progress)),
    }
    renamed = torch_version() >= _RENAMED_IN  # newer ones warn about the old names
    if size not in environ and new_size not in environ:
        values[new_size if renamed else size] = str(_RECORDS)
    if target not in environ and new_target not in environ:
        values[new_target if renamed else target] = str(evidence / "flight_recorder_")
    return {name: value for name, value in values.items() if name not in environ}


def nccl_log_variables(environ: Mapping[str, str], evidence: Path) -> dict[str, str]:
    """What to set so that each rank's NCCL writes to `evidence` how it connected, and its warnings.

    Nothing where `environ` has NCCL write elsewhere or otherwise. Warnings only where it chooses subsystems: COLL,
    say, would be a line for every collective.
    """
    if "NCCL_DEBUG" in environ or "NCCL_DEBUG_FILE" in environ:
        return {}
    target = {"NCCL_DEBUG_FILE": str(evidence).replace("%", "%%") + "/nccl.%h.%p.log"}
    if "NCCL_DEBUG_SUBSYS" in environ:
        return {"NCCL_DEBUG": "WARN", **target}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": _NCCL_SUBSYSTEMS, **target}


def dump_pipe_stem(progress: Path) -> Path:
    """What torch's dump pipes are called, before the rank and ``.pipe``."""
    return progress / "nccl_dump_"


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch, without loading it; (0, 0) where it does not tell."""
    match = re.match(r"(\d+)\.(\d+)", metadata.version("torch"))
    return (int(match[1]), int(match[2])) if match else (0, 0)
