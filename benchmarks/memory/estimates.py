"""Estimates what runs on GPUs were measured to need, and prints both: `python -m benchmarks.memory.estimates`.

The runs are in tests/data/memory/measured.json and h200.json; of the latter some were set aside until the estimator was
done. `--set h200` prints those. NCCL may hold the first buckets of DDP into the second step or not, and
ranks of one run differ in that, so a rank is compared with the nearer of the two estimates; the table says which.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from benchmarks import ROOT
from traceops.memory.estimate import EstimateRequest, Worker, worker
from traceops.memory.model import RankMemory
from traceops.train.config import TrainConfig

DATA = ROOT / "tests" / "data" / "memory"
MEASURED = DATA / "measured.json"
_MIB = 1 << 20


def config_of(run: dict[str, Any]) -> TrainConfig:
    """The training of a measured run."""
    return TrainConfig(strategy=run["strategy"], device="cuda", **run["config"])


def estimates(run: dict[str, Any], helper: Worker) -> dict[int, RankMemory]:
    """What each rank of a measured run is estimated to need; rank 0 stands for all where they are alike."""
    answer = helper.ask(config_of(run), EstimateRequest(config_of(run), run["world_size"], gpu="H200"))
    if answer.problem:
        raise RuntimeError(f"{run['name']}: {answer.problem}")
    found = {rank.rank: rank for rank in answer.ranks}
    return {rank: found.get(rank, answer.ranks[0]) for rank, _, _ in run["ranks"]}


def errors(rank: RankMemory, allocated: int, reserved: int) -> tuple[float, float, bool]:
    """Signed errors of allocated and reserved as shares, and whether the first buckets lingered."""
    lingered = abs(rank.peak_allocated_bytes - allocated) <= abs(rank.least_allocated_bytes - allocated)
    if lingered:
        return rank.peak_allocated_bytes / allocated - 1, rank.peak_reserved_bytes / reserved - 1, True
    return rank.least_allocated_bytes / allocated - 1, rank.least_reserved_bytes / reserved - 1, False


def main() -> None:
    """One row a run and way of ending; the errors of all ranks below."""
    name = sys.argv[2] if sys.argv[1:2] == ["--set"] else "measured"
    runs = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["runs"]
    alloc_errors, reserved_errors, upper_errors = [], [], []
    print("| run | strategy | ranks | allocated, MiB | estimated | error | reserved, MiB | estimated | error |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    with worker() as helper:
        for run in runs:
            found = estimates(run, helper)
            named = run["name"] + (" (aside)" if run.get("aside") else "")
            shown = set()
            for rank, allocated, reserved in run["ranks"]:
                one = found[rank]
                share, reserved_share, _ = errors(one, allocated, reserved)
                alloc_errors.append(abs(share))
                reserved_errors.append(abs(reserved_share))
                upper_errors.append(one.peak_reserved_bytes / reserved - 1)
                if (allocated, reserved) in shown:
                    continue
                shown.add((allocated, reserved))
                said = (allocated * (1 + share), reserved * (1 + reserved_share))
                print(
                    f"| {named} | {run['strategy']} | {run['world_size']} | {allocated / _MIB:,.1f} | "
                    f"{said[0] / _MIB:,.1f} | {share:+.2%} | {reserved / _MIB:,.0f} | {said[1] / _MIB:,.0f} | "
                    f"{reserved_share:+.1%} |"
                )
    for name, values in (("allocated", alloc_errors), ("reserved", reserved_errors)):
        print(f"{name}: {len(values)} ranks, median {statistics.median(values):.2%}, largest {max(values):.2%}")
    print(f"reserved, always the larger estimate: {min(upper_errors):+.1%} to {max(upper_errors):+.1%}")


if __name__ == "__main__":
    main()
