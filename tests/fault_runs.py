"""Unpacks a run folder of tests/data/faults."""

import tarfile
from pathlib import Path

FAULTS = Path(__file__).parent / "data" / "faults"


def unpacked(name: str, folder: Path) -> Path:
    """The run `name`, in `folder`."""
    with tarfile.open(FAULTS / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name
