"""Analyses run folders and packs them small, several at once; then chooses what fits.

python bring.py pack ROOT --to PACKED --jobs N     each run folder below ROOT: report, traces cut and whole
python bring.py choose PACKED --mb 13 --first a,b  writes PACKED/chosen.txt: what to bring, names from PACKED
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from pathlib import Path

from traceops.core.errors import TraceopsError
from traceops.pipeline.analyze import analyze
from traceops.report.document import render_json

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "data"))
cut: Callable[[str], str] = import_module("cut").cut

_LEFT_OUT = (".html", ".csv", ".lock", ".svg")
_LARGEST = 60e6  # bytes of a file that is packed
_TRACE = ".trace.json"
_ON_CPU = ("runs", "cpu8")  # cutting keeps all that is read of a GPU's trace alone
_ROOTS = ("planted", "runs", "g8", "mesh", "g2", "hog", "cpu8")  # what is most wanted comes first
_OF_FIRST = 3e6  # bytes for the whole traces of what is asked for first


def _pack_folder(folder: Path, target: Path, *, whole: bool) -> int:
    """Write the run folder as a .tar.xz; its size in bytes."""
    packed = io.BytesIO()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 96 << 20}]
    with (
        lzma.open(packed, "wb", filters=filters) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
            name = path.relative_to(folder).as_posix()
            if name.endswith(_LEFT_OUT) or "__pycache__" in name or path.stat().st_size > _LARGEST:
                continue
            data = path.read_bytes()
            if _TRACE in name and name.endswith(".gz"):
                data, name = gzip.decompress(data), name[:-3]
            if _TRACE in name and not whole:
                try:
                    data = cut(data.decode()).encode()
                except (AssertionError, ValueError, KeyError):  # a damaged trace stays as it is
                    name += ".uncut"
            entry = tarfile.TarInfo(f"{folder.name}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    target.write_bytes(packed.getvalue())
    return packed.tell()


def _write_report(folder: Path, to: Path, name: str) -> str:
    try:
        text = render_json(analyze(folder))
    except TraceopsError as error:
        (to / f"{name}.failed.txt").write_text(repr(error))
        return f"no report, {error!r}"
    (to / f"{name}.report.json").write_text(text)
    reports = folder.parent / "reports"
    reports.mkdir(exist_ok=True)
    (reports / f"{folder.name}.json").write_text(text)
    told = [f"{f['rule']} {f['severity']} {f['ranks']} {f['cause']}" for f in json.loads(text)["findings"]]
    return "; ".join(told[:5])


def _one(folder: Path, to: Path, what: str) -> str:
    begun = time.monotonic()
    name = f"{folder.parent.name}.{folder.name}"
    if what == "report":
        said = _write_report(folder, to, name)
    else:
        size = _pack_folder(folder, to / f"{name}.{what}.tar.xz", whole=what == "whole")
        said = f"{size / 1e3:.0f} kB"
    return f"{name} {what}: {said}, {time.monotonic() - begun:.1f} s"


def pack(root: Path, to: Path, jobs: int, *, whole: bool) -> None:
    to.mkdir(parents=True, exist_ok=True)
    if not root.is_dir():  # its part was left out
        return
    folders = sorted(f for f in root.iterdir() if f.is_dir() and any(f.rglob(f"*{_TRACE}*")))
    kinds = ["report", "whole"] if root.name in _ON_CPU else ["report", "cut", *(["whole"] if whole else [])]
    with ProcessPoolExecutor(jobs) as pool:
        tasks = [pool.submit(_one, folder, to, what) for what in kinds for folder in folders]
        for task in as_completed(tasks):
            error = task.exception()
            print(task.result() if error is None else f"failed: {error!r}", flush=True)


def choose(packed: Path, mb: float, first: list[str]) -> None:
    """All small files; then whole what is asked for, within a part; then every run folder, cut where that is
    there; then more of them whole.
    """
    small = [p for p in packed.iterdir() if p.is_file() and not p.name.endswith((".tar.xz", "chosen.txt"))]
    room = mb * 1e6 - sum(min(p.stat().st_size / 8, 60e3) for p in small)
    cut_ones = {p.name.removesuffix(".cut.tar.xz"): p for p in packed.glob("*.cut.tar.xz")}
    whole = {p.name.removesuffix(".whole.tar.xz"): p for p in packed.glob("*.whole.tar.xz")}
    order = sorted(
        cut_ones.keys() | whole.keys(), key=lambda n: (n not in first, _ROOTS.index(n.split(".")[0]), n)
    )
    chosen: dict[str, Path] = {}

    def take(name: str, path: Path, most: float) -> float:
        before = chosen[name].stat().st_size + 1024 if name in chosen else 0
        more = path.stat().st_size + 1024 - before
        if more > most:
            return 0.0
        chosen[name] = path
        return more

    own = _OF_FIRST
    for name in order:
        if name in first and name in whole and name in cut_ones:
            used = take(name, whole[name], min(own, room))
            own, room = own - used, room - used
    for name in order:
        if name not in chosen:
            room -= take(name, cut_ones.get(name) or whole[name], room)
    for name in order:
        if name in whole and chosen.get(name) != whole[name]:
            room -= take(name, whole[name], room)
    names = sorted(p.name for p in (*small, *chosen.values()))
    (packed / "chosen.txt").write_text("".join(f"{n}\n" for n in names))
    left = ", ".join(n for n in order if n not in chosen) or "none"
    wholes = sum(path in whole.values() for path in chosen.values())
    print(
        f"brought: {len(chosen)} of {len(order)} run folders, {wholes} whole; not: {left}; {room / 1e6:.1f} MB left"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pack", "choose"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--mb", type=float, default=13)
    parser.add_argument("--first", default="")
    args = parser.parse_args()
    if args.what == "pack":
        pack(args.folder, args.to, args.jobs, whole=args.whole)
    else:
        choose(args.folder, args.mb, [name for name in args.first.split(",") if name])


if __name__ == "__main__":
    main()
