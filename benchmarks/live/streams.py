"""300 generated jobs: what is found of a fault from a random moment on, and what in healthy ones.

    python -m benchmarks.live.streams --half tune      # the half that rules may be tuned on
    python -m benchmarks.live.streams --half held      # the other one

A job's seed decides its half: it is held back where the first byte of sha256("traceops live <seed>") is even.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.live.generated import START_NS, Scene, StepParts, played
from traceops.live.findings import Changed, MemoryGrows, Slower, Stuck

COUNT = 300
HEALTHY = ("none", "evaluation", "checkpoint", "epochs", "longer", "compiling", "jitter")
FAULTS = ("host", "input", "garbage", "cores", "checkpoints", "exchange", "leak", "hang", "work")
_CAUSES = {
    "host": {"host"}, "work": {"host"}, "input": {"input"}, "garbage": {"garbage"}, "cores": {"cores"},
    "checkpoints": {"checkpoint"}, "exchange": {"exchange"},
}  # fmt: skip
_ONE_RANK = ("host", "work", "input", "garbage", "cores", "checkpoints", "leak")


@dataclass
class Told:
    """One job's outcome. faults: what was planted, with rank and second."""

    seed: int
    faults: list[tuple[str, int, float]]
    pages: list[str] = field(default_factory=list)
    seen: list[float | None] = field(default_factory=list)  # s after each fault began
    right: list[float | None] = field(default_factory=list)
    wrong: int = 0  # pages before any fault
    unfit: int = 0  # pages that fit no fault
    rank_hours: float = 0.0


def is_held(seed: int) -> bool:
    """Whether rules must not be tuned on this job."""
    return hashlib.sha256(f"traceops live {seed}".encode()).digest()[0] % 2 == 0


def scene_of(seed: int) -> tuple[Scene, list[tuple[str, int, float]]]:
    """A job, which has a harmless habit, and the faults in it."""
    random = Random(f"live {seed}")
    ranks, seconds = random.randint(2, 8), 110
    scale = random.choice((0.7, 1.5, 3.0, 8.0))
    base = StepParts(
        own=scale * random.uniform(4, 20), input=scale * random.uniform(0.2, 4), optimizer=scale * random.uniform(1, 4),
        backward=scale * random.uniform(8, 25),
    )  # fmt: skip
    whole = base.busy + base.backward
    habit = HEALTHY[seed % len(HEALTHY)]
    faults: list[tuple[str, int, float]] = []
    if seed % 3:
        # Seeds below 300 that have faults are no multiples of 3, and so never have "cores" or "leak" alone.
        chosen = FAULTS[(seed if seed < COUNT else seed // 3) % len(FAULTS)]
        faults.append((chosen, random.randrange(ranks), random.uniform(45, 60)))
        if seed % 5 == 0 and chosen not in ("hang", "leak"):
            other = random.choice([one for one in ("host", "input", "garbage") if one != chosen])
            faults.append((other, random.randrange(ranks), faults[0][2] + random.uniform(0, 12)))
    size = random.uniform(0.3, 1.2) * whole
    noise = random.choice((0.01, 0.03, 0.06))
    odd = Random(f"odd {seed}")

    def parts(rank: int, second: float, step: int) -> StepParts:
        own = base
        if habit == "evaluation" and second % 25 < whole / 1000:
            own = replace(own, evaluation=2500.0)
        if habit == "checkpoint" and rank == 0 and second % 25 < whole / 1000:
            own = replace(own, checkpoint=1500.0)
        if habit == "epochs" and second % 20 < whole / 1000:
            own = replace(own, input=own.input + 1800.0)
        if habit == "longer" and second >= 50:
            own = replace(own, own=1.5 * own.own, backward=1.5 * own.backward, optimizer=1.5 * own.optimizer)
        if habit == "compiling" and 50 <= second < 54:
            own = replace(own, compile=900.0)
        if habit == "jitter" and odd.random() < 0.04:
            own = replace(own, own=own.own + 2 * whole)
        for fault, where, since in faults:
            if second < since or (rank != where and fault in _ONE_RANK):
                continue
            if fault == "host":
                own = replace(own, fault=size)
            elif fault == "work":
                own = replace(own, own=own.own + size)
            elif fault == "input":
                own = replace(own, input=own.input + size)
            elif fault == "garbage":
                own = replace(own, gc=own.gc + size)
            elif fault == "cores":
                factor = 1 + size / own.busy
                own = replace(own, own=own.own * factor, input=own.input * factor, cores=0.9 * size)
            elif fault == "checkpoints":
                own = replace(own, checkpoint=size)
        return own

    def exchange(second: float) -> float:
        return sum(size for fault, _, since in faults if fault == "exchange" and second >= since)

    def resident(rank: int, second: float) -> int:
        leaks = [since for fault, where, since in faults if fault == "leak" and where == rank and second >= since]
        return (4 << 30) + sum(int((second - since) * (60 << 20)) for since in leaks)

    stops = min((since for fault, _, since in faults if fault == "hang"), default=1e9)
    scene = Scene(parts, ranks, seconds, noise, exchange, stops, resident, seed=seed)
    return scene, faults


def outcome(seed: int) -> Told:
    """Play one job, and hold what was found against what was planted."""
    scene, faults = scene_of(seed)
    folder = Path(tempfile.mkdtemp(prefix="live"))
    try:
        found, _ = played(folder, scene)
    finally:
        shutil.rmtree(folder)
    told = Told(seed, faults, rank_hours=scene.ranks * scene.seconds / 3600)
    pages = [one for one in found if one.page]
    for one in pages:
        second = (one.seen_ns - START_NS) / 1e9
        told.pages.append(f"{second:.0f} s: {one.claim.headline()}")
        begun = [(fault, rank) for fault, rank, since in faults if second >= since]
        told.wrong += not begun
        told.unfit += bool(begun) and not any(_fits(one.claim, *fault) for fault in begun)
    remarks = [one for one in found if isinstance(one.claim, Changed | Slower)]
    for fault, rank, since in faults:
        noted = [s for one in remarks if (s := (one.seen_ns - START_NS) / 1e9 - since) >= 0]
        after = [(one, (one.seen_ns - START_NS) / 1e9 - since) for one in pages]
        after = [(one, s) for one, s in after if s >= 0]
        told.seen.append(min([s for _, s in after] + noted, default=None))
        told.right.append(min((s for one, s in after if _fits(one.claim, fault, rank)), default=None))
    return told


def _fits(claim: Any, fault: str, rank: int) -> bool:
    if fault == "hang":
        return isinstance(claim, Stuck)
    if fault == "leak":
        return isinstance(claim, MemoryGrows) and rank in claim.ranks
    if not isinstance(claim, Slower) or claim.cause not in _CAUSES[fault]:
        return False
    return fault not in _ONE_RANK or rank in claim.ranks


def main() -> None:
    """Print the counts, and each job that went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--half", choices=("tune", "held", "both"), default="tune")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    drawn = range(args.first, args.first + args.count)
    seeds = [seed for seed in drawn if args.half == "both" or is_held(seed) is (args.half == "held")]
    with ProcessPoolExecutor(args.jobs) as pool:
        outcomes = list(pool.map(outcome, seeds, chunksize=4))
    seen, right, whole = Counter[str](), Counter[str](), Counter[str]()
    for told in outcomes:
        for (fault, _, _), at, named in zip(told.faults, told.seen, told.right, strict=True):
            whole[fault] += 1
            seen[fault] += at is not None and at <= 10
            right[fault] += named is not None and named <= 30
        bad = told.wrong or told.unfit or any(at is None or at > 10 for at in told.seen) or None in told.right
        if bad:
            print(
                f"{told.seed} {HEALTHY[told.seed % len(HEALTHY)]} {told.faults}: {told.seen} {told.right} {told.pages}"
            )
    healthy = [told for told in outcomes if not told.faults]
    print(f"{args.half}: {len(outcomes)} jobs, {sum(whole.values())} faults")
    for fault in sorted(whole):
        print(f"  {fault:12} {whole[fault]:3}  seen within 10 s {seen[fault]:3}  cause within 30 s {right[fault]:3}")
    print(f"  all          {whole.total():3}  seen {seen.total()}  cause {right.total()}")
    print(
        f"  wrong pages {sum(told.wrong for told in outcomes)} in {sum(told.rank_hours for told in outcomes):.1f} "
        f"rank hours; of healthy jobs {sum(len(told.pages) for told in healthy)} in {len(healthy)}; "
        f"of a wrong cause {sum(told.unfit for told in outcomes)}"
    )
    if args.out:
        args.out.write_text(json.dumps([told.__dict__ for told in outcomes]))


if __name__ == "__main__":
    main()
