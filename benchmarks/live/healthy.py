"""Healthy jobs of 64 ranks for hours, in memory: pages that nobody needs, in tens of thousands of rank hours.

    python -m benchmarks.live.healthy --jobs 120 --hours 4 --out healthy.jsonl

The detectors and what finds causes run as in the monitor; nothing is written or read. A look is taken every 10 s, and
each second while a change of pace is open. A job has one or two habits, all of them harmless. Ranks train in step, and
each has some noise of its own. Memory is judged on the first eight ranks: it goes alike on all. Lines of the program
and the host's counters are not known.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.live.generated import START_NS
from traceops.core.live_pulses import KINDS, Pulse
from traceops.live.job import Job
from traceops.live.measures import RankState
from traceops.live.stream import LineReader, RankLook, Step

HABITS = ("none", "evaluation", "checkpoint", "epochs", "longer", "compiling", "jitter", "drift", "tails", "settles")
_GIB, _MIB = 1 << 30, 1 << 20
_Pulse: Any = make_dataclass("_Pulse", Pulse.__dataclass_fields__)  # made in a quarter of the time: not frozen
_MEMORY_OF = 8
_LONG = {"evaluation": "evaluation", "checkpoint": "checkpoint", "epochs": "input", "compiling": "compiling"}


class _Nothing:
    """No lines, no machine; closer looks as ranks take them."""

    host_bytes = 512 * _GIB
    close_until = -1.0
    now_s = 0.0

    def lines(self, rank: int) -> LineReader:
        """Of a folder that is not there."""
        return LineReader(Path(f"none_{rank}"))

    def machine(self, rank: int) -> None:
        """None."""

    def closer(self) -> None:
        """For four seconds."""
        self.close_until = self.now_s + 4.0


class HealthyJob:
    """Draws what the ranks of one job write."""

    def __init__(self, seed: int, ranks: int) -> None:
        self.random = random = np.random.default_rng(seed)
        self.ranks, self.step, self.clock_s = ranks, 0, 0.0
        self.habits = {HABITS[seed % len(HABITS)], HABITS[random.integers(len(HABITS))] if seed % 2 else "none"}
        self.usual_s = float(np.exp(random.uniform(np.log(0.4), np.log(3.0))))
        self.noise, self.own_noise = random.choice((0.01, 0.03, 0.06)), random.choice((0.001, 0.004, 0.01))
        self.every_s = random.uniform(120, 1200)
        self.long_s = {name: random.uniform(3, 12) * max(self.usual_s, 1.0) for name in _LONG}
        self.odd, self.odd_times = random.uniform(0.005, 0.25), random.uniform(1.3, 3.0)
        self.parts = random.dirichlet((6, 0.6, 1.5, 12, 2)) if seed % 3 else random.dirichlet((9, 1, 2, 5, 1))
        self.rank_parts = np.abs(1 + 0.1 * random.standard_normal((ranks, 5)))
        self.memory = random.uniform(8, 60, ranks) * _GIB
        self.growth = random.uniform(0, 0.3) * _MIB  # bytes per s, of a host: what each program takes in days
        self.next_long = dict.fromkeys(_LONG, random.uniform(60, self.every_s))
        self.level, self.seen = 1.0, np.zeros((ranks, len(KINDS)), dtype=np.int64)
        self.looks = 0
        self.drift = 0.0

    def next_step(self) -> tuple[float, str | None, int]:
        """How long it takes in s, in which of `KINDS` for the most part where it is a long one, and on which rank."""
        random, kind, where = self.random, None, -1
        if "drift" in self.habits:
            self.drift = float(np.clip(0.995 * self.drift + 0.004 * random.standard_normal(), -0.05, 0.05))
        if "longer" in self.habits and random.random() < self.usual_s / 5_000:
            self.level *= random.uniform(0.7, 1.5)
            self.level = min(max(self.level, 0.3), 3.0)
        noise = min(random.standard_t(3), 12) * 0.7 if "tails" in self.habits else random.standard_normal()
        took = self.usual_s * self.level * float(np.exp(self.noise * noise + self.drift))
        for name in self.habits & set(_LONG):
            if self.clock_s >= self.next_long[name]:
                self.next_long[name] = self.clock_s + self.every_s
                kind, where = _LONG[name], 0 if name == "checkpoint" else -1
                took += self.long_s[name]
        if "jitter" in self.habits and random.random() < self.odd:
            took, kind, where = took * self.odd_times, kind or "own", int(random.integers(self.ranks))
        return took, kind, where

    def shares(self, kind: str | None, where: int) -> NDArray[np.float64]:
        """In which kinds each rank is seen in such a step."""
        share = np.zeros((self.ranks, len(KINDS)))
        share[:, : self.parts.size] = self.parts * self.rank_parts
        if kind is not None:
            part = 0.0 if where >= 0 else 3.0
            share[:, KINDS.index(kind)] += part * share.sum(1)
            if where >= 0:
                share[:, KINDS.index("backward")] += 0.7 * share.sum(1)
                share[where] = self.parts.sum() * 0.1 / len(KINDS)
                share[where, KINDS.index(kind)] = self.parts.sum()
        return np.asarray(share / share.sum(1, keepdims=True))

    def resident(self, second: float) -> NDArray[np.float64]:
        """Bytes that each rank's process holds."""
        settles = 1 - 0.5 ** (second / (600 if "settles" in self.habits else 60))
        takes = 0.5 * _GIB if second % self.every_s < 20 else 0.0
        return np.asarray(self.memory * (0.7 + 0.3 * settles) + takes + self.growth * second)


def pages_of(seed: int, ranks: int, hours: float) -> dict[str, object]:
    """What is found in one job."""
    given, sources = HealthyJob(seed, ranks), _Nothing()
    job, pages, remarks = Job(sources), list[str](), 0
    usual = given.shares(None, -1)
    second, until, number = 0, int(3600 * hours), 0
    steps: list[list[Step]] = [[] for _ in range(ranks)]
    pulses: list[list[Any]] = [[] for _ in range(ranks)]
    for rank in range(ranks):
        job.ranks[rank] = RankState(rank)
        job.ranks[rank].weighed = 0 if rank < _MEMORY_OF else 1 << 60
    took, kind, where = given.next_step()
    share = usual
    while second < until:
        second += 1
        sources.now_s = second
        while given.clock_s + took <= second:  # steps that end in this second
            given.clock_s += took
            own = given.random.normal(1e6 * took, 1e6 * took * given.own_noise, ranks).astype(int)
            compiled = int(1e6 * took) if kind == "compiling" else 0
            for of_rank, us in zip(steps, own.tolist(), strict=True):
                of_rank.append(Step(given.step, us, 0, compiled))
            given.step += 1
            took, kind, where = given.next_step()
            share = usual if kind is None else given.shares(kind, where)
        now_ns, begun_ns = START_NS + second * 10**9, START_NS + int(given.clock_s * 1e9)
        per_s = 50 if second <= sources.close_until else 2 + second % 2
        given.seen += given.random.multinomial(per_s, share) * (1_000_000 // per_s)
        given.looks += per_s
        sizes = given.resident(second).astype(int).tolist()
        for latest, seen, size in zip(pulses, given.seen.tolist(), sizes, strict=True):
            latest.append(
                _Pulse(second - 1, now_ns, given.step, begun_ns, -1, 0, 0, 0, size, 0, 0, 0, 0, given.looks, seen)
            )
        number += 1
        if number < 10 and not job._episode and second < until:
            continue
        number = 0
        looks = [RankLook(rank, steps[rank], pulses[rank], START_NS) for rank in range(ranks)]
        steps, pulses = [[] for _ in range(ranks)], [[] for _ in range(ranks)]
        for one in job.take(looks, now_ns):
            remarks += not one.page
            if one.page:
                pages.append(f"{second} s: {one.claim.headline()}")
    return {"seed": seed, "habits": sorted(given.habits), "step_s": round(given.usual_s, 2), "noise": given.noise,
            "rank_hours": ranks * hours, "remarks": remarks, "pages": pages}  # fmt: skip


def main() -> None:
    """Print each job with pages, and the sums; go on where --out was left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=120)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds, after which no job is begun")
    parser.add_argument("--out", type=Path, default=Path("healthy.jsonl"))
    args = parser.parse_args()
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    left = [seed for seed in range(args.first, args.first + args.jobs) if seed not in {one["seed"] for one in done}]
    begin = time.monotonic()
    with ProcessPoolExecutor(args.processes) as pool, args.out.open("a") as file:
        while left and time.monotonic() - begin < args.until:
            now, left = left[: args.processes], left[args.processes :]
            for one in pool.map(partial(pages_of, ranks=args.ranks, hours=args.hours), now):
                file.write(json.dumps(one) + "\n")
                file.flush()
                done.append(one)
                if one["pages"]:
                    print(one, flush=True)
    hours = sum(one["rank_hours"] for one in done)
    print(f"{len(done)} jobs, {hours:.0f} rank hours, {sum(one['remarks'] for one in done)} remarks, "
          f"{sum(len(one['pages']) for one in done)} pages")  # fmt: skip


if __name__ == "__main__":
    main()
