"""The environment in which torch and NCCL keep a record of what they did, for the case of a hang."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

_RECORDS = 2000  # collectives a rank; some 10 MB at most
_RENAMED_IN = (2, 9)


def hang_variables(environ: Mapping[str, str], evidence: Path, progress: Path) -> dict[str, str]:
    """What to set so that a hang leaves evidence; whatever `environ` sets already stays as it is.

    evidence: where the records go. progress: the launcher's own folder, for the pipes that ask for them.
    """
    size, target = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    new_size, new_target = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    values = {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # Tells a GPU that never got to a collective from one that waits in it. Costs two events a collective.
        "TORCH_NCCL_ENABLE_TIMING": "1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(dump_pipe_stem(progress)),
    }
    renamed = torch_version() >= _RENAMED_IN  # newer ones warn about the old names
    if size not in environ and new_size not in environ:
        values[new_size if renamed else size] = str(_RECORDS)
    if target not in environ and new_target not in environ:
        values[new_target if renamed else target] = str(evidence / "flight_recorder_")
    if "NCCL_DEBUG" not in environ and "NCCL_DEBUG_FILE" not in environ:
        values |= {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": str(evidence / "nccl.%h.%p.log")}
    return {name: value for name, value in values.items() if name not in environ}


def dump_pipe_stem(progress: Path) -> Path:
    """What torch's dump pipes are called, before the rank and ``.pipe``."""
    return progress / "nccl_dump_"


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch, without loading it; (0, 0) where it does not tell."""
    match = re.match(r"(\d+)\.(\d+)", metadata.version("torch"))
    return (int(match[1]), int(match[2])) if match else (0, 0)
