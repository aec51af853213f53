"""Estimates what torchtitan published, without a GPU: `python -m benchmarks.memory.torchtitan [seen|aside|TABLE…]`.

tests/data/memory/torchtitan.json has the rows; those with "aside" were scored once. Each is a command of
benchmarks/memory/programs/titan.py as one rank of a fake group, with expandable segments, as torchtitan's launcher sets
them. Of a pipeline a few ranks are estimated, and the one that reserves most is taken, as in the tables. Those of 405B
are drawn out: two models of fewer layers are estimated ("drawn": their layers, how many of these the rank has, and how
many it has of the whole), and what a layer adds from the first to the second is added for each that is missing.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import ROOT
from traceops.core.errors import UsageError
from traceops.memory.estimate import AskedScript, estimate_script

PROGRAMS = Path(__file__).parent / "programs"
ROWS = ROOT / "tests" / "data" / "memory" / "torchtitan.json"
_GIB = 1 << 30


def wanted(row: dict[str, Any], words: list[str]) -> bool:
    """Whether the words of the command line ask for the row."""
    return not words or ("aside" if row["aside"] else "seen") in words or any(w == row["where"] for w in words)


class Peak(NamedTuple):
    """Of a rank: what tensors hold and what is reserved at most, in GiB, and the seconds that it took to tell."""

    allocated: float
    reserved: float
    rank: int
    seconds: float


def drawn_out(less: Peak, more: Peak, held: tuple[int, int], of: int) -> Peak:
    """A rank of `of` layers, from two of which it has `held` layers."""
    times = (of - held[0]) / (held[1] - held[0])
    allocated, reserved = (low + (high - low) * times for low, high in zip(less[:2], more[:2], strict=True))
    return Peak(allocated, reserved, less.rank, less.seconds + more.seconds)


def main() -> None:
    """A row a configuration; the errors of all below."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    os.chdir(PROGRAMS)
    errors: list[float] = []
    done: dict[AskedScript, Peak] = {}

    def peak(command: str, world_size: int, rank: int) -> Peak:
        asked = AskedScript(tuple(command.split()), world_size, rank, gpu="H100")
        if asked not in done:  # compiled with Float8 or not, it is the same
            one = estimate_script(asked)
            sizes = (one.peak_allocated_bytes / _GIB, one.peak_reserved_bytes / _GIB)
            done[asked] = Peak(*sizes, rank, one.seconds)
        return done[asked]

    print("| configuration | GPUs | published, GiB | tensors hold | reserved | error | rank | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in json.loads(ROWS.read_text(encoding="utf-8"))["rows"]:
        if not wanted(row, sys.argv[1:]):
            continue
        start = f"| {row['where']}: {row['name']} | {row['world_size']} | {row['reserved_gib']} |"
        drawn = row.get("drawn")
        commands = [f"{row['command']} --layers {n}" for n in drawn["layers"]] if drawn else [row["command"]]
        found = []
        try:
            for rank in row["ranks"]:
                peaks = [peak(command, row["world_size"], rank) for command in commands]
                found.append(drawn_out(peaks[0], peaks[1], drawn["held"], drawn["of"]) if drawn else peaks[0])
        except UsageError as error:
            print(start, str(error).replace("\n", " "), flush=True)
            continue
        most = max(found, key=lambda one: one.reserved)
        errors.append(most.reserved / row["reserved_gib"] - 1)
        seconds = sum(one.seconds for one in found)
        how = f", drawn out from {drawn['layers'][0]} and {drawn['layers'][1]} layers" if drawn else ""
        print(
            f"{start} {most.allocated:.1f} | {most.reserved:.1f} | {errors[-1]:+.1%}{how} | {most.rank} | "
            f"{seconds:.0f} |",
            flush=True,
        )
    if errors:
        shares = [abs(one) for one in errors]
        print(f"{len(shares)} rows: median {statistics.median(shares):.1%}, largest {max(shares):.1%}")


if __name__ == "__main__":
    main()
