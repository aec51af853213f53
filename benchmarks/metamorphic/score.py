"""Does a verdict on traces depend on what does not matter? Each change of `changes.py`, on each folder.

    python -m benchmarks.metamorphic.score FOLDER … [--half work|aside] [--change TEXT] [--show]

FOLDER holds traces, or folders with traces. A half is drawn by the SHA-256 of a folder's name.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.metamorphic.change import Change
from benchmarks.metamorphic.changes import CHANGES
from benchmarks.metamorphic.traces import Traces, read_traces
from benchmarks.metamorphic.verdict import Difference, Verdict, differences, verdict_of
from traceops.core.errors import TraceopsError
from traceops.pipeline.analyze import analyze


def half_of(name: str) -> str:
    """'work' or 'aside', by a folder's name."""
    return "aside" if hashlib.sha256(name.encode()).digest()[0] & 1 else "work"


def verdict_on(run: Traces) -> Verdict:
    """Of the run, written and read."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "run")
        place.mkdir()
        run.write(place)
        try:
            return verdict_of(analyze(place, jobs=1, cache=False))
        except TraceopsError as error:
            return Verdict(error=str(error).replace(str(place), "RUN"))


def tried(run: Traces, before: Verdict, change: Change, name: str) -> list[Difference] | None:
    """What differs after this change; None where it does not apply."""
    changed = change.make(run, random.Random(f"{name} {change.name}"))
    if changed is None:
        return None
    return differences(before, verdict_on(changed.run), changed, change.expected)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--half", choices=("work", "aside"))
    parser.add_argument("--change", default="", help="only changes whose name this regular expression finds")
    parser.add_argument("--largest", type=float, default=6.0, help="leave out folders of more MB")
    parser.add_argument("--show", action="store_true", help="each difference")
    args = parser.parse_args(argv)
    table: dict[str, Counter[str]] = {change.name: Counter() for change in CHANGES}
    for folder in args.folders:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if (args.half and half_of(folder.name) != args.half) or size > args.largest * 1e6:
            continue
        began = time.monotonic()
        try:
            run = read_traces(folder)
        except (TraceopsError, ValueError) as error:
            print(f"## {folder.name}: {error}", flush=True)
            continue
        before = verdict_on(run)
        told = ", ".join(f"{one.rule} {one.severity} {list(one.ranks)}" for one in before.said)
        print(f"## {folder.name}: {told}{before.error}", flush=True)
        for change in CHANGES:
            if not re.search(args.change, change.name):
                continue
            found = tried(run, before, change, folder.name)
            if found is None:
                continue
            table[change.name]["runs"] += 1
            table[change.name]["differ"] += bool(found)
            table[change.name].update({one.kind for one in found})
            if args.show:
                for one in found:
                    print(f"  {change.name} | {one.kind} | {one.what}", flush=True)
        print(f"   {time.monotonic() - began:.0f} s", flush=True)
    for name, counts in table.items():
        if counts["runs"]:
            kinds = ", ".join(f"{kind} {n}" for kind, n in counts.most_common() if kind not in ("runs", "differ"))
            print(f"{name:26} {counts['differ']:3} of {counts['runs']:3} differ  {kinds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
