"""What comparing ranks costs against reading their traces, on many ranks made of a few real ones.

python -m benchmarks.speed.cross_rank FOLDER_OF_TRACES --ranks 64

Reads the folder's traces one by one, renames copies of their summaries until there are as many ranks as asked
for, in one process group, and times the cross-rank stage (matching, clocks, replay, attribution, judging) on them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from traceops.across.cross_rank import measure_across
from traceops.measure.summary import RankSummary, summarize
from traceops.rules.inputs import Inputs
from traceops.rules.registry import judge
from traceops.traces.discover import discover
from traceops.traces.kineto import load_trace


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    found = discover(str(args.folder))
    files = found.windows[-1].files
    loads, maps, summaries = [], [], []
    for file in files:
        loads.append(_seconds(partial(load_trace, file.path)))
        began = time.perf_counter()
        summaries.append(summarize(file))
        maps.append(time.perf_counter() - began)
    many = [renamed(summaries[rank % len(files)], rank, args.ranks) for rank in range(args.ranks)]
    reduces = [_seconds(lambda: measure_across(many, args.ranks)) for _ in range(args.runs)]
    run = measure_across(many, args.ranks)
    judging = _seconds(lambda: judge(Inputs(found, run)))
    load = statistics.median(loads) * args.ranks
    steps = len(run.replay.graph.steps) if run.replay is not None else 0
    print(f"{args.ranks} ranks × {steps} steps, {len(run.matching.collectives)} collectives matched")
    print(f"load (one rank {statistics.median(loads):.3f} s)      {load:8.2f} s")
    print(f"map  (one rank {statistics.median(maps):.3f} s)      {statistics.median(maps) * args.ranks:8.2f} s")
    print(f"cross-rank stage               {statistics.median(reduces):8.2f} s, judging {judging:.2f} s")
    print(f"cross-rank ÷ load              {(statistics.median(reduces) + judging) / load:8.3f}")
    return 0


def renamed(summary: RankSummary, rank: int, world: int) -> RankSummary:
    """The summary as if it were this rank's of a job of so many ranks in one group."""
    everyone = tuple(range(world))
    args = tuple(
        None if own is None else replace(own, group_ranks=everyone, group_size=world) for own in summary.comm.args
    )
    meta = replace(summary.meta, rank=rank, world_size=world, groups=())
    return replace(summary, rank=rank, meta=meta, comm=replace(summary.comm, args=args))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    raise SystemExit(main())
