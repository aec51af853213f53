"""What Linux says of a process in /proc/<pid>/stat."""

from __future__ import annotations

from pathlib import Path


def stat_fields(pid: int) -> list[str]:
    """The fields behind the process's name, its state first; none where there is no such process, or no /proc."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return raw.rpartition(b")")[2].decode("ascii", "replace").split()  # the name may hold anything
