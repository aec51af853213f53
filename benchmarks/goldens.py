"""Everything traceops says of the recorded runs, kept to be compared after a change.

    python -m benchmarks.goldens make OUT [FOLDER ...]   JSON, page text and terminal text of each run, a folder a run
    python -m benchmarks.goldens compare BEFORE AFTER    which numbers, findings, exit codes and words differ

Runs are those of tests/data, and of each FOLDER given. Numbers within one part in a million are equal.
`compare` exits with 1 where anything but words differs.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import html
import io
import json
import re
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import ROOT

_TRACES = (".json.gz", ".json", ".pt.trace.json.gz")
_WORDS = {
    "message", "title", "advice", "metric", "reason", "sentence", "clear", "summary", "text", "headline", "verdict",
    "proof",
}  # fmt: skip
"""Keys of our documents whose values are sentences."""
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]+>", re.DOTALL)


def cases(folders: list[Path], unpacked: Path) -> Iterator[tuple[str, list[str]]]:
    """A name and a command line, without its output folder, for each recorded run below the folders."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            name = "+".join(path.relative_to(folder.parent).parts)
            if path.suffixes[-2:] == [".tar", ".xz"] or path.suffixes[-2:] == [".tar", ".gz"]:
                into = unpacked / name
                into.mkdir()
                with tarfile.open(path) as archive:
                    archive.extractall(into, filter="data")
                inner = next(iter(sorted(into.iterdir())), into)
                command = (
                    "doctor"
                    if path.name.startswith("doctor_")
                    else "diagnose"
                    if folder.name == "hangs" or "hangs" in path.parts
                    else "analyze"
                )
                yield name, ["doctor", "--from", str(inner)] if command == "doctor" else [command, str(inner)]
            elif path.name.endswith(".report.gz"):
                into = unpacked / name
                into.mkdir()
                (into / "report.json").write_bytes(gzip.decompress(path.read_bytes()))
                yield name, ["show", str(into)]
            elif path.is_dir() and any(one.name.endswith(_TRACES) and "trace" in one.name for one in path.iterdir()):
                yield name, ["analyze", str(path)]
            elif path.suffix in (".txt", ".log") and "log" in path.parent.name:
                yield name, ["diagnose", str(path)]
            elif path.suffix in (".txt", ".xml") and "topo" in path.parent.name:
                yield name, ["doctor", "--from", str(path)]


def make(out: Path, folders: list[Path]) -> None:
    """Run each case here and keep what it wrote and printed."""
    import os

    os.environ["TRACEOPS_CACHE"] = "off"
    os.environ["COLUMNS"] = "120"
    from traceops.cli import main

    with tempfile.TemporaryDirectory() as held:
        for name, command in cases(folders, Path(held)):
            into = out / name
            into.mkdir(parents=True, exist_ok=True)
            printed = io.StringIO()
            with (
                tempfile.TemporaryDirectory() as files,
                contextlib.redirect_stdout(printed),
                contextlib.redirect_stderr(printed),
            ):
                try:
                    code = main(command if command[0] == "show" else [*command, "-o", files])
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else 1
                for path in sorted(Path(files).iterdir()):
                    if path.suffix == ".json":
                        (into / path.name).write_text(
                            _plain(path.read_text(encoding="utf-8"), held, files), encoding="utf-8"
                        )
                    elif path.suffix == ".html":
                        text = html.unescape(_TAGS.sub("\n", path.read_text(encoding="utf-8")))
                        lines = [" ".join(line.split()) for line in text.splitlines()]
                        (into / f"{path.stem}.txt").write_text(
                            _plain("\n".join(filter(None, lines)), held, files), encoding="utf-8"
                        )
                (into / "terminal.txt").write_text(
                    f"exit {code}\n{_plain(printed.getvalue(), held, files)}", encoding="utf-8"
                )


def _plain(text: str, *places: str) -> str:
    """Without paths and versions of this machine and moment."""
    for place in (*places, str(ROOT)):
        text = text.replace(place, "PLACE")
    return re.sub(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?[^\s\",]*", "MOMENT", text)


def compare(before: Path, after: Path) -> int:
    """Print what differs, by kind; 1 where anything but words does."""
    kinds: Counter[str] = Counter()
    for place in sorted({one.name for folder in (before, after) for one in folder.iterdir()}):
        old, new = before / place, after / place
        if not (old.exists() and new.exists()):
            kinds["missing"] += 1
            print(f"{place}: only {'before' if old.exists() else 'after'}")
            continue
        for name in sorted({one.name for folder in (old, new) for one in folder.iterdir()}):
            if not ((old / name).exists() and (new / name).exists()):
                kinds["files"] += 1
                print(f"{place}/{name}: only {'before' if (old / name).exists() else 'after'}")
                continue
            first, second = ((folder / name).read_text(encoding="utf-8") for folder in (old, new))
            if first == second:
                continue
            if name.endswith(".json"):
                for where, was, now in _differences(json.loads(first), json.loads(second)):
                    kind = "words" if where.rpartition(".")[2].rstrip("[]0123456789") in _WORDS else "values"
                    kinds[kind] += 1
                    if kind == "values":
                        print(f"{place}/{name}{where}: {str(was)[:90]} -> {str(now)[:90]}")
            elif first.splitlines()[:1] != second.splitlines()[:1] and name == "terminal.txt":
                kinds["exit codes"] += 1
                print(f"{place}: {first.splitlines()[0]} -> {second.splitlines()[0]}")
            else:
                kinds["texts"] += 1
    print("; ".join(f"{kind} {count}" for kind, count in kinds.items()) or "nothing differs")
    return int(any(kinds[kind] for kind in ("missing", "files", "values", "exit codes")))


def _differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{where}[{index}]")
    elif isinstance(old, float) and isinstance(new, (int, float)):
        if abs(old - new) > 1e-6 * max(abs(old), abs(new)):
            yield where, old, new
    elif old != new:
        yield where, old, new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "compare"))
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    if options.what == "compare":
        return compare(options.paths[0], options.paths[1])
    make(options.paths[0], [ROOT / "tests" / "data", *options.paths[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
