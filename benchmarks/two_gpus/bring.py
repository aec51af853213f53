"""Analyses run folders and packs them small, several at once; then chooses what fits.

python -m benchmarks.two_gpus.bring pack ROOT --to PACKED --jobs N [--no-cut]
    each run folder below ROOT: report, traces slim and cut
python -m benchmarks.two_gpus.bring choose PACKED --mb 13 --first a,b
    writes PACKED/chosen.txt: what to bring, names from PACKED
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
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from itertools import chain
from pathlib import Path

from benchmarks import ROOT
from traceops.core.documents import json_text
from traceops.core.errors import TraceopsError
from traceops.pipeline.analyze import analyze
from traceops.report.document import document_of

sys.path.insert(0, str(ROOT / "tests" / "data"))
cut: Callable[[str], str] = import_module("cut").cut
BETWEEN: str = import_module("cut").BETWEEN

_LEFT_OUT = (".html", ".csv", ".lock", ".svg")
_LARGEST = 60e6  # bytes of a file that is packed
_TRACE = ".trace.json"
_ON_CPU = ("runs", "cpu8")  # cutting keeps all that is read of a GPU's trace alone
_ROOTS = ("planted", "runs", "g8", "mesh", "g2", "hog", "cpu8")  # what is most wanted comes first
# What a slim trace keeps, a third of a cut one: the device, what launched it, marks and collectives.
_SLIM = ("kernel", "gpu_mem", "user_annotation", "Trace")
_OPERATORS = ("autograd::engine", "DistributedDataParallel", "record_param_comms", "c10d::", "nccl:")
_CALLS = re.compile(r"Launch|Synchronize|Memcpy|Memset")


def slim(text: str) -> str:
    """A cut trace without operators, save those of collectives and backward, and calls that put nothing on a device."""
    opening, closing = text.index("{", text.index('"traceEvents"')), text.rindex("\n  }\n  ]")
    parts = text[opening:closing].split(BETWEEN)
    kept = [part for number, part in enumerate(parts) if number == 0 or _is_slim(part)]
    return text[:opening] + BETWEEN.join(kept) + text[closing:]


def _is_slim(part: str) -> bool:
    found = re.search(r'"cat": "([^"]*)", "name": "([^"]*)', part)
    if found is None:
        return True  # names of processes and threads
    category, name = found.groups()
    if category.startswith("cuda_"):
        return bool(_CALLS.search(name))
    if category == "cpu_op":
        return name.startswith(_OPERATORS)
    return category.startswith(_SLIM) and not name.startswith("autograd")


def _pack_folder(folder: Path, target: Path, what: str) -> int:
    """Write the run folder as a .tar.xz, its traces whole, cut or slim; its size in bytes."""
    packed = io.BytesIO()
    preset = 9 | lzma.PRESET_EXTREME if what == "slim" else 6
    filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 96 << 20}]
    with lzma.open(packed, "wb", filters=filters) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
            name = path.relative_to(folder).as_posix()
            if name.endswith(_LEFT_OUT) or "__pycache__" in name or path.stat().st_size > _LARGEST:
                continue
            data = path.read_bytes()
            if _TRACE in name and name.endswith(".gz"):
                data, name = gzip.decompress(data), name[:-3]
            if _TRACE in name and what != "whole":
                try:
                    less = cut(data.decode())
                    data = (slim(less) if what == "slim" else less).encode()
                except (AssertionError, ValueError, KeyError):  # a damaged trace stays as it is
                    name += ".uncut"
            entry = tarfile.TarInfo(f"{folder.name}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    target.write_bytes(packed.getvalue())
    return packed.tell()


def _write_report(folder: Path, to: Path, name: str) -> str:
    try:
        text = json_text(document_of(analyze(folder)))
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
        size = _pack_folder(folder, to / f"{name}.{what}.tar.xz", what)
        said = f"{size / 1e3:.0f} kB"
    return f"{name} {what}: {said}, {time.monotonic() - begun:.1f} s"


def pack(root: Path, to: Path, jobs: int, *, no_cut: bool) -> None:
    to.mkdir(parents=True, exist_ok=True)
    if not root.is_dir():  # its part was left out
        return
    folders = sorted(f for f in root.iterdir() if f.is_dir() and any(f.rglob(f"*{_TRACE}*")))
    kinds = ["report", "whole"] if root.name in _ON_CPU else ["report", "slim", *([] if no_cut else ["cut"])]
    with ProcessPoolExecutor(jobs) as pool:
        tasks = [pool.submit(_one, folder, to, what) for what in kinds for folder in folders]
        for task in as_completed(tasks):
            error = task.exception()
            print(task.result() if error is None else f"failed: {error!r}", flush=True)


def choose(packed: Path, mb: float, first: list[str]) -> None:
    """All small files; then every run folder as small as it is there; then cut, what is asked for before the others."""
    small = [p for p in packed.iterdir() if p.is_file() and not p.name.endswith((".tar.xz", "chosen.txt"))]
    room = mb * 1e6 - sum(min(p.stat().st_size / 8, 60e3) for p in small)
    slim_ones, cut_ones, whole = (
        {p.name.removesuffix(end): p for p in packed.glob(f"*{end}")}
        for end in (".slim.tar.xz", ".cut.tar.xz", ".whole.tar.xz")
    )
    order = sorted(
        slim_ones.keys() | cut_ones.keys() | whole.keys(),
        key=lambda n: (n not in first, _ROOTS.index(n.split(".")[0]), n),
    )
    chosen: dict[str, Path] = {}
    least = [(name, (slim_ones.get(name) or cut_ones.get(name) or whole[name])) for name in order]
    more = [(name, cut_ones[name]) for name in order if name in slim_ones and name in cut_ones]
    for name, path in chain(least, more):
        before = chosen[name].stat().st_size + 1024 if name in chosen else 0
        needed = path.stat().st_size + 1024 - before
        if needed <= room:
            chosen[name] = path
            room -= needed
    names = sorted(p.name for p in (*small, *chosen.values()))
    (packed / "chosen.txt").write_text("".join(f"{n}\n" for n in names))
    left = ", ".join(n for n in order if n not in chosen) or "none"
    cuts = sum(path in cut_ones.values() for path in chosen.values())
    print(f"brought: {len(chosen)} of {len(order)} run folders, {cuts} cut; not: {left}; {room / 1e6:.1f} MB left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "choose"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-cut", action="store_true", help="only slim traces")
    parser.add_argument("--mb", type=float, default=13)
    parser.add_argument("--first", default="")
    args = parser.parse_args()
    if args.what == "pack":
        pack(args.folder, args.to, args.jobs, no_cut=args.no_cut)
    else:
        choose(args.folder, args.mb, [name for name in args.first.split(",") if name])


if __name__ == "__main__":
    main()
