"""Time and memory of loading small gzip files that hold gigabytes of what no reader can keep; prints a table.

python fuzz/hostile_files.py [--scale 0.01] [--folder DIR] [CASE...]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from isal import igzip

EVENT = b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2.25, "args": {"stream": 7}}'
GOOD = b",\n  ".join([EVENT] * 1000)  # before and behind what is hostile
MB, GB = 10**6, 10**9
MOST_MEMORY = 12 * GB  # of a load, before the machine suffers

# what stands between the good events: an opening, a unit, how many bytes of it, a closing
Hostile = tuple[bytes, bytes, int, bytes]
NAMED = b'{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "name": "'
ARGS = b'{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "name": "x", "args": {"a": '
CASES: dict[str, Hostile] = {
    "a string of 2 GB": (NAMED, b"n", 2 * GB, b'"}'),
    "a string of 2 GB, emoji": (NAMED, "🚀".encode(), 2 * GB, b'"}'),
    "a string of 2 GB, escapes": (NAMED, rb"\n", 2 * GB, b'"}'),
    "a string of 2 GB, separators": (NAMED, b"}, {", 2 * GB, b'"}'),
    "a string of 200 MB": (NAMED, b"n", 200 * MB, b'"}'),
    "10 million lists in each other": (ARGS, b"[", 10 * MB, b"]" * 10 * MB + b"}}"),
    "10 million lists, not closed": (ARGS, b"[", 10 * MB, b"}}"),
    "10 million objects, not closed": (ARGS, b'{"a":', 50 * MB, b"}}"),
    "a number of 1 GB": (ARGS, b"7", GB, b"}}"),
    "a number of 1 GB as a time": (b'{"ph": "X", "cat": "kernel", "dur": 1, "ts": ', b"7", GB, b"}"),
    "a number of 1 GB behind a point": (ARGS + b"0.", b"7", GB, b"}}"),
    "a number of 200 MB behind a point": (ARGS + b"0.", b"7", 200 * MB, b"}}"),
    "1 GB of spaces": (b"", b" ", GB, EVENT),
    "1 GB of commas": (b"", b",", GB, EVENT),
    "1 GB of zeros": (b"", b"\0", GB, b"," + EVENT),
    "1 GB of empty events": (b"{}", b",{}", GB, b""),
    "1 GB of empty lists": (b"[]", b",[]", GB, b""),
    "1 GB of event-like scraps": (b"", b'{"ph": 1}, {"ph": ', GB, b""),
    "an event of 1 GB of empty lists": (ARGS + b"[[]", b",[]", GB, b"]}}"),
    "an event of 200 MB of empty lists": (ARGS + b"[[]", b",[]", 200 * MB, b"]}}"),
    "an event of 50 MB, its separators nested": (ARGS + b"[", b'{},{"a":[', 50 * MB, b"]}}"),
    "an event of 50 MB, its separators many": (ARGS + b"[", b'{},{"a":1},', 50 * MB, b"x]}}"),
    "an event of 50 MB of NaN": (ARGS + b"[nan", b", nan", 50 * MB, b"]}}"),
    "50 MB of events with NaN": (ARGS + b"nan}}", b",\n  " + ARGS + b"nan}}", 50 * MB, b""),
    "50 MB of events with half a character": (ARGS + rb'"\ud800"}}', b",\n  " + ARGS + rb'"\ud800"}}', 50 * MB, b""),
}
HEADER = {
    "a header of 1 GB of empty lists": (b'{"a": [[]', b",[]", GB, b"], "),
    "a header of 200 MB of empty lists": (b'{"a": [[]', b",[]", 200 * MB, b"], "),
    "metadata of 1 GB behind the events": (b', "a": [[]', b",[]", GB, b"]}"),
}


def pieces(case: str, scale: float) -> Iterator[bytes]:
    """The bytes of a trace with the case in it."""
    opening, unit, size, closing = {**CASES, **HEADER}[case]
    if scale < 1:
        closing = closing.replace(b"]" * 10 * MB, b"]" * int(10 * MB * scale))
    block = unit * (MB // len(unit))
    hostile = [opening, *[block] * max(int(size * scale) // len(block), 1), closing]
    start, end = b'{"traceEvents": [' + GOOD, b"]}"
    if case in CASES:
        yield from (start, b",\n  ", *hostile, b",\n  ", GOOD, end)
    elif case.startswith("a header"):
        yield from (*hostile, start[1:], end)
    else:
        yield from (start, b"]", *hostile)


def measure(path: str) -> None:
    """Load one file in this process and print what that took as JSON."""
    from traceops.traces.kineto import load_trace

    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
    try:
        trace = load_trace(path)
        names = [trace.events.names[number] for number in trace.events.name]
        result = f"{names.count('k')} + {len(names) - names.count('k')}", "; ".join(trace.damage)
    except MemoryError:
        result = "MemoryError", ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps([time.process_time() - start, (peak - before.ru_maxrss) / 1000, *result]))


def main() -> None:
    """Make each file, load it in a process of its own with either scanner, and print a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES, *HEADER], metavar="CASE")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes")
    parser.add_argument("--folder", default=None, help="where the files go while they are read")
    parser.add_argument("--most-seconds", type=float, default=600)
    arguments = parser.parse_args()
    print("| | file | compiled s | MB | plain s | MB | events kept | damage |\n|---|---|---|---|---|---|---|---|")
    for case in arguments.cases:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            path = Path(folder) / "rank_0.json.gz"
            with igzip.open(path, "wb", compresslevel=3) as file:
                for piece in pieces(case, arguments.scale):
                    file.write(piece)
            cells = [case, f"{path.stat().st_size / MB:.1f} MB"]
            kept = []
            for native in ("1", "0"):
                try:
                    done = subprocess.run(
                        [sys.executable, __file__, "--measure", str(path)],
                        env=os.environ | {"TRACEOPS_NATIVE": native}, capture_output=True, text=True,
                        timeout=arguments.most_seconds,
                    )  # fmt: skip
                except subprocess.TimeoutExpired:
                    cells += [f"> {arguments.most_seconds:.0f}", ""]
                    continue
                if done.returncode:
                    cells += [f"exit {done.returncode}", done.stderr.strip().rpartition("\n")[2]]
                    continue
                seconds, peak, events, damage = json.loads(done.stdout)
                cells += [f"{seconds:.1f}", f"{peak:.0f}"]
                kept.append((events, damage))
            for column in zip(*kept, strict=True):
                cells.append(" / ".join(dict.fromkeys(column)))
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2])
    else:
        main()
