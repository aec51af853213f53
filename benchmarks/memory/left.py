"""Reserved memory with what the training before it left: `python -m benchmarks.memory.left [h200|h200_second]`.

The trainings of tests/data/memory/h200.json and h200_second.json ran one after the other in a process, and
`empty_cache` gives whole segments back only: cuBLAS' workspaces keep those that they lie in. Here one allocator goes
through the estimated trainings of a process in the same order, as torch's did. Of DDP's two peaks the nearer is taken.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.memory.estimates import DATA, config_of
from traceops.memory.allocator import CachingAllocator, Category, Event
from traceops.memory.dry_run import dry_run
from traceops.memory.gpus import workspaces_of

_MIB = 1 << 20


def go_through(allocator: CachingAllocator, events: Sequence[Event], kept: set[str], linger: bool) -> None:
    """A training of `events`, after which only workspaces stay; those in `kept` are there already.

    linger: NCCL holds the first buckets of DDP to the end.
    """
    blocks = {}
    for made, new in events:
        known = made.category is Category.WORKSPACE and made.op + made.phase.value in kept
        if known or (linger and made.lingers and not new):
            continue
        if new:
            blocks[id(made)] = allocator.allocate(made.size, made.stream)
        else:
            allocator.release(blocks.pop(id(made)))
    for made, new in events:
        if new and made.category is Category.WORKSPACE:
            kept.add(made.op + made.phase.value)
        elif new and id(made) in blocks:
            allocator.release(blocks.pop(id(made)))


def main() -> None:
    """A row a rank; the errors of all below."""
    runs = json.loads((DATA / f"{(sys.argv[1:] or ['h200'])[0]}.json").read_text(encoding="utf-8"))["runs"]
    errors = []
    print("| training | rank | reserved, MiB | estimated | error |\n|---|---:|---:|---:|---:|")
    for world in sorted({run["world_size"] for run in runs}):
        allocators = {rank: CachingAllocator() for rank in range(world)}
        kept: dict[int, set[str]] = {rank: set() for rank in range(world)}
        for run in runs:
            if run["world_size"] != world:
                continue
            differ = range(world) if run["strategy"] == "pytorch_zero1" else (0,)
            dry = {rank: dry_run(config_of(run), rank, world, workspaces_of("H200")) for rank in differ}
            for rank, allocated, reserved in run["ranks"]:
                tried = []
                for linger in (False, True):
                    one = copy.deepcopy((allocators[rank], kept[rank]))
                    go_through(one[0], dry.get(rank, dry[0]).events, one[1], linger)
                    tried.append(one)
                best, kept[rank] = min(tried, key=lambda one: abs(one[0].peak_allocated - allocated))
                errors.append(abs(best.peak_reserved / reserved - 1))
                print(
                    f"| {run['name']} | {rank} | {reserved / _MIB:,.0f} | {best.peak_reserved / _MIB:,.0f} | "
                    f"{best.peak_reserved / reserved - 1:+.1%} |",
                    flush=True,
                )
                best.empty_cache()
                allocators[rank] = best
    print(f"{len(errors)} ranks: median {statistics.median(errors):.2%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
