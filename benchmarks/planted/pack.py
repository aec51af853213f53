"""Packs captured cases into a few tar files of limited size to be carried off, and unpacks them again."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_GZ, _XZ = ".json.gz", ".json.xz"


def pack(cases: Sequence[Path], out: Path, *, tars: int, tar_mb: float, total_mb: float) -> list[str]:
    """Write `cases` (folders, most wanted first) whole into at most `tars` files; returns what was left out.

    What an earlier call wrote to `out` is removed. Traces travel as .xz, two thirds of their size as .gz.
    The truth of a case that does not fit is packed all the same. Sizes in MB of 10⁶ bytes.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("planted_*.tar"):
        old.unlink()
    files = {case: [f for f in sorted(case.rglob("*")) if _wanted(f)] for case in cases}
    traces = [f for members in files.values() for f in members if f.name.endswith(_GZ)]
    scratch = out / ".xz"
    packed = {trace: scratch / f"{number}.xz" for number, trace in enumerate(traces)}
    scratch.mkdir(exist_ok=True)
    try:
        with ProcessPoolExecutor(min(os.cpu_count() or 1, len(traces) or 1)) as pool:
            list(pool.map(_to_xz, packed, packed.values()))
        sizes = {
            case: sum(_in_tar(packed.get(f, f).stat().st_size) for f in members) for case, members in files.items()
        }
        truths = sum(_in_tar((case / "truth.json").stat().st_size) for case in cases)
        bins, left_out = share_out(sizes, tars, tar_mb * 1e6 - truths, total_mb * 1e6 - truths)
        for number, members in enumerate(bins):
            with tarfile.open(out / f"planted_{number}.tar", "w") as tar:
                for case in members:
                    for file in files[case]:
                        tar.add(packed.get(file, file), _name(case, file))
                if number == 0:
                    for case in left_out:
                        tar.add(case / "truth.json", _name(case, case / "truth.json"))
    finally:
        shutil.rmtree(scratch)
    for path in sorted(out.glob("planted_*.tar")):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    for case in left_out:
        print(f"left out for lack of room: {case.name} ({sizes[case] / 1e6:.1f} MB)")
    return [case.name for case in left_out]


def share_out(
    sizes: dict[Path, int], bins: int, bin_bytes: float, total_bytes: float
) -> tuple[list[list[Path]], list[Path]]:
    """Put each case, in order, into the first bin with room; the bins in use, and the cases with no room."""
    used: list[list[Path]] = []
    left_out: list[Path] = []
    for case, size in sizes.items():
        total = sum(sizes[other] for members in used for other in members)
        room = next((b for b in used if sum(sizes[other] for other in b) + size <= bin_bytes), None)
        if size > bin_bytes or total + size > total_bytes or (room is None and len(used) == bins):
            left_out.append(case)
        elif room is None:
            used.append([case])
        else:
            room.append(case)
    return used, left_out


def unpack(archives: Iterable[Path], out: Path) -> None:
    """Put the cases of `archives` back as they were, under `out`."""
    for archive in archives:
        with tarfile.open(archive) as tar:
            tar.extractall(out, filter="data")
    for packed in sorted(out.rglob(f"*{_XZ}")):
        plain = packed.with_name(packed.name.removesuffix(_XZ) + _GZ)
        with lzma.open(packed) as reader, gzip.open(plain, "wb", compresslevel=1) as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
        packed.unlink()


def _wanted(file: Path) -> bool:
    hidden = file.name.startswith(".")
    return file.is_file() and not hidden and not {"evidence", "logs"} & set(file.parts)


def _name(case: Path, file: Path) -> str:
    name = f"{case.name}/{file.relative_to(case)}"
    return name.removesuffix(_GZ) + _XZ if name.endswith(_GZ) else name


def _in_tar(size: int) -> int:
    return 2048 + size  # header and padding


def _to_xz(trace: Path, target: Path) -> None:
    with gzip.open(trace) as reader, lzma.open(target, "wb", preset=6) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
