"""Healthy jobs of hours at generated speed: pages that nobody needs, and what the monitor's memory grows by.

    python -m benchmarks.live.soak --jobs 200 --hours 1      # pages
    python -m benchmarks.live.soak --jobs 1 --hours 8        # memory
    python -m benchmarks.live.soak --day 64                  # 24 h of records of 64 ranks: bytes, and seconds to read

Steps take 0.4 to 2 s here, so that hours take minutes; noise and habits are those of `streams`.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.live.generated import START_NS, GeneratedRank, Scene, StepParts, played
from benchmarks.live.streams import HEALTHY
from traceops.core.live_pulses import PULSES_FILE
from traceops.core.rank_files import RECORD, STEPS_FILE
from traceops.live.job import Job
from traceops.live.stream import LineReader, RankReader

_GIB = 1 << 30


def scene_of(seed: int, seconds: int) -> Scene:
    """A healthy job with one habit, whose memory settles, and is taken and given back."""
    random = Random(f"soak {seed}")
    scale, habit = random.uniform(14, 45), HEALTHY[seed % len(HEALTHY)]
    base = StepParts(own=scale * random.uniform(4, 14), input=scale * random.uniform(0.2, 2),
                     optimizer=scale * random.uniform(1, 3), backward=scale * random.uniform(8, 20))  # fmt: skip
    whole = (base.busy + base.backward) / 1000
    every, odd = random.uniform(60, 600), Random(f"odd soak {seed}")
    longer = sorted(random.uniform(60, seconds) for _ in range(3))

    def parts(rank: int, second: float, step: int) -> StepParts:
        now = second % every < whole
        if habit == "evaluation" and now:
            return replace(base, evaluation=20_000.0)
        if habit == "checkpoint" and now and rank == 0:
            return replace(base, checkpoint=6_000.0)
        if habit == "epochs" and now:
            return replace(base, input=base.input + 5_000.0)
        if habit == "compiling" and any(at <= second < at + 6 for at in longer):
            return replace(base, compile=2_500.0)
        if habit == "jitter" and odd.random() < 0.02:
            return replace(base, own=base.own + 2_000 * whole)
        if habit == "longer":
            factor = 1.4 ** sum(second >= at for at in longer)
            return replace(
                base, own=factor * base.own, backward=factor * base.backward, optimizer=factor * base.optimizer
            )
        return base

    def resident(rank: int, second: float) -> int:
        settles = 1 - 0.5 ** (second / 30)
        return int((3 + 2 * settles + (0.5 if second % every < 20 else 0)) * _GIB)

    ranks, noise = random.randint(2, 4), random.choice((0.01, 0.03, 0.06))
    return Scene(parts, ranks, seconds, noise, resident=resident, seed=seed)


def pages_of(seed: int, seconds: int) -> tuple[int, list[str], float, float]:
    """What is found in one job: its ranks, pages, and MB that this process grew by since a tenth of it, and a half."""
    scene = scene_of(seed, seconds)
    folder = Path(tempfile.mkdtemp(prefix="live"))
    sizes: list[int] = []
    resident = scene.resident

    def watched(rank: int, second: float) -> int:
        if rank == 0 and second in (seconds // 10, seconds // 2, seconds - 1):
            gc.collect()
            sizes.append(_own_bytes())
        return resident(rank, second)

    try:
        found, _ = played(folder, replace(scene, resident=watched))
    finally:
        shutil.rmtree(folder)
    pages = [f"{(one.seen_ns - START_NS) / 1e9:.0f} s: {one.claim.headline()}" for one in found if one.page]
    return scene.ranks, pages, (sizes[-1] - sizes[0]) / 1e6, (sizes[-1] - sizes[1]) / 1e6


def _own_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def day(ranks: int, step_s: float) -> None:
    """What 24 h of records take on disk, and how long a monitor that is started then takes to read them."""
    folder = Path(tempfile.mkdtemp(prefix="live"))
    try:
        random, steps = Random(1), int(86_400 / step_s)
        ms = [1000 * step_s * random.lognormvariate(0, 0.03) for _ in range(1_000)]
        raw = b"".join(RECORD.pack(int(1000 * one), 0, 0, 0, 0, 0, 0, 0) for one in ms)
        for rank in range(ranks):
            one = GeneratedRank(folder / f"rank_{rank}", rank, random)
            with (one.folder / STEPS_FILE).open("ab") as file:
                for _ in range(steps // len(ms)):
                    file.write(raw)
            one.step = steps // len(ms) * len(ms)
            for second in range(1_100):
                one.write(START_NS + second * 500_000_000, START_NS)
        sizes = {name: sum(path.stat().st_size for path in folder.glob(f"rank_*/{name}"))
                 for name in (STEPS_FILE, PULSES_FILE)}  # fmt: skip
        begin, cpu = time.monotonic(), time.process_time()
        readers, job, count = [RankReader(folder / f"rank_{rank}", rank) for rank in range(ranks)], Job(_Nothing()), 0
        while new := [look for reader in readers if (look := reader.look()) is not None and look.steps]:
            count += sum(len(look.steps) + look.skipped[0] for look in new)
            job.take(new, START_NS + 10**15)
        print(f"{ranks} ranks, steps of {step_s} s: {sum(sizes.values()) / 1e6:.0f} MB {sizes}; {count} steps taken in "
              f"within {time.monotonic() - begin:.1f} s ({time.process_time() - cpu:.1f} s of CPU)")  # fmt: skip
    finally:
        shutil.rmtree(folder)


class _Nothing:
    """No lines, no machine."""

    host_bytes = 64 * _GIB

    def lines(self, rank: int) -> LineReader:
        """Of a folder that is not there."""
        return LineReader(Path(f"none_{rank}"))

    def machine(self, rank: int) -> None:
        """None."""

    def closer(self) -> None:
        """Nothing."""


def main() -> None:
    """Print what was found, and the sums."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--day", type=int, metavar="RANKS")
    parser.add_argument("--step", type=float, default=0.5, help="with --day: seconds of a step")
    args = parser.parse_args()
    if args.day:
        day(args.day, args.step)
        return
    seconds = int(3600 * args.hours)
    seeds = range(args.first, args.first + args.jobs)
    done, ranks, pages = 0, 0, 0
    with ProcessPoolExecutor(args.processes) as pool:
        for seed, (of_job, found, grown, late) in zip(
            seeds, pool.map(pages_of, seeds, [seconds] * args.jobs), strict=True
        ):
            done, ranks, pages = done + 1, ranks + of_job, pages + len(found)
            if found or args.jobs == 1:
                grew = f"grew {grown:.1f} MB, {late:.1f} in the later half"
                print(f"{seed} {HEALTHY[seed % len(HEALTHY)]}: {grew}; {found}", flush=True)
            if done % 10 == 0 or done == args.jobs:
                print(
                    f"{done * args.hours:.0f} job hours, {ranks * args.hours:.0f} rank hours: {pages} pages", flush=True
                )


if __name__ == "__main__":
    main()
