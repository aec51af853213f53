"""Packs runs whose sentences sentences.md quotes: each into one small archive, without names of this machine.

python -m benchmarks.verdicts.pack FOLDER… --to tests/data/faults --rename /where/it/ran=/home/me/project
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from benchmarks import ROOT

sys.path.insert(0, str(ROOT / "tests" / "data"))
cut: Callable[[str], str] = import_module("cut").cut

_LEFT_OUT = re.compile(r"(^|/)(\.|__pycache__|nccl_log)|\.(html|csv|lock|pt)$")
_LARGEST = 200_000  # bytes of an archive


def pack(folder: Path, target: Path, renamed: dict[bytes, bytes]) -> None:
    """Write the run folder as a .tar.xz of at most 200 kB; traces are cut as those of tests/data are.

    renamed: paths by what stands for them, equally long (lengths are part of pickled dumps).
    Raises ValueError where it is too large, or lengths differ.
    """
    if any(len(old) != len(new) for old, new in renamed.items()):
        raise ValueError("a path and what stands for it must be equally long")
    written = io.BytesIO()
    with (
        lzma.open(written, "wb", preset=9 | lzma.PRESET_EXTREME) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for path, data in _members(folder):
            for old, new in renamed.items():
                data = data.replace(old, new)
            entry = tarfile.TarInfo(f"{folder.name}/{path}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    if written.tell() > _LARGEST:
        raise ValueError(f"{folder.name} takes {written.tell()} bytes")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(written.getvalue())


def _members(folder: Path) -> Iterator[tuple[str, bytes]]:
    """What diagnose and analyze read, in order: traces as plain text, which xz packs better than gzip's bytes."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if _LEFT_OUT.search(name):
            continue
        data = path.read_bytes()
        if ".trace.json" in name:
            text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
            try:
                data = cut(text).encode()
            except (AssertionError, ValueError, json.JSONDecodeError):  # what is damaged stays so
                data = text.encode()
            name = name.removesuffix(".gz")
        yield name, data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--rename", nargs="*", default=[], metavar="OLD=NEW")
    args = parser.parse_args()
    renamed = dict(tuple(pair.encode().split(b"=")) for pair in args.rename)
    for folder in args.folders:
        try:
            pack(folder, args.to / f"{folder.name}.tar.xz", renamed)
        except ValueError as error:
            print(f"{folder}: {error}")


if __name__ == "__main__":
    main()
