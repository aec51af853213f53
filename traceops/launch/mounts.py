"""Whether a folder lies on a disk of this machine alone, by its kind of file system."""

from __future__ import annotations

import os
import re
from pathlib import Path

# Any other may be seen by several machines: NFS, Lustre, GPFS, BeeGFS, CephFS, WekaFS, whatever comes over FUSE.
_OF_ONE = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "f2fs"})
_MOUNTS = Path("/proc/self/mounts")


def of_this_machine(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """True where the file system is one that machines do not share; False where not known.

    It may yet be shared: the machine may be the one that exports it.
    """
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
