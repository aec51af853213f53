"""How fast memory snapshots are read, beside pickle.load: CPU seconds and the most memory beyond what Python had.

    python -m benchmarks.memory.snapshots SNAPSHOT...         files of torch.cuda.memory._dump_snapshot
    python -m benchmarks.memory.snapshots --events 1000000    one made here, in the shape of real ones

Each way reads in a process of its own, in turn. pickle.load is what torch's own _memory_viz begins with.
"""

from __future__ import annotations

import argparse
import pickle
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WAYS = ("traceops", "pickle.load", "unpickler")  # the last: traceops without its extension


def made(path: Path, events: int) -> None:
    """A snapshot with about so many events: stacks of 20 to 45 shared frames, each event's own list."""
    chance = random.Random(1)
    frames = [
        {"name": f"f{i}", "filename": f"/me/{'lib/python3/torch/m' if i % 3 else 'model'}{i % 97}.py", "line": i}
        for i in range(3000)
    ]
    trace: list[dict[str, Any]] = []
    live: list[tuple[int, int]] = []
    address = 0x7F0000000000

    def event(action: str, at: int, size: int, stack: list[Any]) -> dict[str, Any]:
        return {
            "action": action, "addr": at, "size": size, "stream": 0, "time_us": 1700000000000000 + 7 * len(trace),
            "compile_context": "N/A", "user_metadata": "", "frames": stack,
        }  # fmt: skip

    while len(trace) < events:
        if len(live) < 2000 or chance.random() < 0.5:
            size, first = 512 * chance.randrange(1, 60000), chance.randrange(2900)
            trace.append(event("alloc", address, size, frames[first : first + chance.randrange(20, 45)]))
            live.append((address, size))
            address += size
        else:
            at, size = live.pop(chance.randrange(len(live)))
            trace += [event("free_requested", at, size, []), event("free_completed", at, size, [])]
    segments = [
        {"device": 0, "address": at, "total_size": size, "stream": 0, "segment_type": "large",
         "blocks": [{"address": at, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}]}
        for at, size in live
    ]  # fmt: skip
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [trace], "allocator_settings": {}}))


def read(path: str, way: str) -> None:
    """Prints CPU seconds and MiB."""
    from traceops.traces import memory_snapshot
    from traceops.traces.snapshot_rows import rows_of

    before, began = _most(), time.process_time()
    if way == "traceops":
        memory_snapshot.read_snapshot(Path(path))
    else:
        with Path(path).open("rb") as file:
            found = pickle.load(file)
        if way == "unpickler":
            memory_snapshot._devices(rows_of(found))
    print(time.process_time() - began, (_most() - before) / 1024)


def _most() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(path: Path, times: int) -> None:
    size = path.stat().st_size / 2**20
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(times):
        for way in WAYS:
            said = subprocess.run(
                [sys.executable, "-m", "benchmarks.memory.snapshots", "--read", way, str(path)],
                capture_output=True,
                text=True,
                check=True,
            )
            seconds, mib = map(float, said.stdout.split())
            found[way].append((seconds, mib))
    for way, own in found.items():
        seconds, mib = (statistics.median(column) for column in zip(*own, strict=True))
        rate = f"{seconds:6.2f} s CPU  {size / seconds:6.0f} MiB/s"
        print(f"{path.name} ({size:.0f} MiB)  {way:12} {rate}  {mib:6.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshots", nargs="*", type=Path)
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--read", metavar="WAY", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        read(str(args.snapshots[0]), args.read)
        return
    for path in args.snapshots:
        measured(path, args.times)
    if args.events:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "made.pickle"
            made(path, args.events)
            measured(path, args.times)


if __name__ == "__main__":
    main()
