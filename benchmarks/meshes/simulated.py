"""Generated meshes (data × tensor × pipeline × expert parallel) with a planted fault: are rank and role told right?

    python -m benchmarks.meshes.simulated score --seeds 40         # each kind of fault in turn; odd seeds are set aside
    python -m benchmarks.meshes.simulated score --seeds 40 --held  # the half that was set aside
    python -m benchmarks.meshes.simulated size 64 128 256          # CPU time of analyze, with a fault in each

The jobs come from tests/generated_run: simulated ranks, whose traces are written as torch's profiler does. A seed draws
the mesh, whether its groups have names, the kind of fault, and who has it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from generated_run import Mesh, SlowCompute, SlowHost, SlowInput, SlowLink, TraceStyle, simulate, write_traces
from generated_run.faults import Fault

from traceops.pipeline.analyze import analyze
from traceops.report.model import Report

_MESHES = (
    Mesh(data=2, tensor=4), Mesh(data=4, tensor=2), Mesh(data=4, pipeline=2), Mesh(data=4, tensor=2, pipeline=2),
    Mesh(data=8, experts=4), Mesh(data=4, tensor=2, experts=2), Mesh(data=4, pipeline=2, experts=2),
    Mesh(data=4, tensor=2, pipeline=2, experts=4),
)  # fmt: skip
_LARGE = {
    64: Mesh(data=8, tensor=4, pipeline=2, experts=4, layers=1),
    128: Mesh(data=16, tensor=4, pipeline=2, experts=8, layers=1),
    256: Mesh(data=16, tensor=4, pipeline=4, experts=8, layers=1),
    512: Mesh(data=32, tensor=4, pipeline=4, experts=8, layers=1),
}


@dataclass(frozen=True)
class Job:
    """A mesh and what is planted in it: `ranks` are to be told, with `role`; none where nothing is wrong."""

    mesh: Mesh
    kind: str
    faults: tuple[Fault, ...]
    ranks: tuple[int, ...]
    role: str | None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    score = commands.add_parser("score")
    score.add_argument("--seeds", type=int, default=20)
    score.add_argument("--held", action="store_true", help="odd seeds instead of even ones")
    score.add_argument("--seed", type=int, nargs="*", help="these alone")
    size = commands.add_parser("size")
    size.add_argument("worlds", type=int, nargs="+", choices=sorted(_LARGE))
    args = parser.parse_args()
    if args.command == "size":
        return _sizes(args.worlds)
    return _score(args.seed or list(range(int(args.held), 2 * args.seeds, 2)))


def job_of(seed: int) -> Job:
    """The job that a seed draws."""
    random = Random(seed)
    drawn = random.choice(_MESHES)
    mesh = Mesh(**{**vars(drawn), "named": random.random() < 0.5, "micro_batches": random.choice((2, 4))})
    return planted(mesh, random)


def planted(mesh: Mesh, random: Random) -> Job:
    """A fault of a kind that the mesh can have."""
    rank = random.randrange(mesh.world)
    several = mesh.micro_batches * mesh.layers
    kinds = ["none", "host", "data", "input"]
    kinds += ["tensor", "tensor link"] if mesh.tensor > 1 else []
    kinds += ["expert"] if mesh.experts > 1 else []
    kinds += ["pipeline"] if mesh.pipeline > 1 else []
    kind = random.choice(kinds)
    first = "tensor" if mesh.tensor > 1 else "expert" if mesh.experts > 1 else None
    more = random.uniform(250.0, 500.0)  # µs a layer and micro-batch
    if kind == "none":
        return Job(mesh, kind, (), (), None)
    if kind == "tensor link":
        near = tuple(sorted(rank - rank % mesh.tensor + place for place in range(mesh.tensor)))
        return Job(mesh, kind, (SlowLink("tp", random.uniform(4, 10), near),), near, "tensor")
    if kind == "tensor":
        fault: Fault = SlowCompute(rank, random.uniform(2.0, 4.0), at="attention")
    elif kind == "expert":
        fault = SlowCompute(rank, random.uniform(3.0, 6.0), at="experts")
    elif kind == "data":
        fault = SlowCompute(rank, extra_us=several * more, at="gradients")
    elif kind == "pipeline":
        fault = SlowCompute(rank, 1.0 + more / 10.0, at="handover")
        # The last stage hands nothing on forward, the first nothing backward.
    elif kind == "input":
        rank %= mesh.data * mesh.tensor  # only the first stage reads
        fault = SlowInput(rank, several * more)
    else:
        fault = SlowHost(rank, several * more, at="attention")
    if kind in ("host", "input") and first is None:
        first = "pipeline" if mesh.pipeline > 1 else "data"
        if kind == "host" or mesh.pipeline > 1:
            first = None  # the first to be met differs by stage
    return Job(mesh, kind, (fault,), (rank,), first if kind in ("host", "input") else kind)


def outcome(job: Job, report: Report) -> str:
    """right, wrong (another rank, another role, an alarm without a fault) or missed, and what was said."""
    serious = [found for found in report.findings if found.severity != "info" and found.ranks]
    told = [found for found in serious if found.rule in ("TO-S001", "TO-S002", "TO-C002", "TO-I002")]
    if job.kind == "none":
        return "right" if not told else f"wrong: {told[0].message}"
    if not told:
        return "missed"
    first = told[0]
    if tuple(first.ranks) != job.ranks:
        return f"wrong: ranks {first.ranks}: {first.message}"
    role = first.role if isinstance(first.role, str) else None
    if job.role is not None and role != job.role:
        return f"{'wrong' if role else 'role open'}: {role}: {first.message}"
    return "right"


def _score(seeds: list[int]) -> int:
    counts: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        job = job_of(seed)
        said = outcome(job, analysed(job, seed))
        counts[job.kind, said.partition(":")[0]] += 1
        mesh = job.mesh
        shape = f"{mesh.data}×{mesh.tensor}×{mesh.pipeline}, experts over {mesh.experts}"
        print(
            f"{seed:4} {job.kind:12} {shape:28} {'named' if mesh.named else 'no names'} {job.ranks} {said}", flush=True
        )
    kinds = sorted({kind for kind, _ in counts})
    outcomes = ("right", "role open", "missed", "wrong")
    print(f"\n| fault | {' | '.join(outcomes)} |\n|---|{'---:|' * len(outcomes)}")
    for kind in kinds:
        print(f"| {kind} | {' | '.join(str(counts[kind, own]) for own in outcomes)} |")
    print(f"| all | {' | '.join(str(sum(counts[k, own] for k in kinds)) for own in outcomes)} |")
    return 0 if not any(counts[kind, "wrong"] for kind in kinds) else 1


def analysed(job: Job, seed: int) -> Report:
    """What traceops says of the traces of a job."""
    with tempfile.TemporaryDirectory() as folder:
        write_traces(simulate(job.mesh.program(), job.mesh.world, job.faults, seed), Path(folder), TraceStyle())
        return analyze(folder, cache=False, jobs=1)


def _sizes(worlds: list[int]) -> int:
    print("| ranks | MB of JSON | simulate CPU s | analyze CPU s | CPU ms a rank | told |\n|---|---|---|---|---|---|")
    for world in worlds:
        mesh = _LARGE[world]
        rank = 5 * world // 8 + 1
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            paths = write_traces(
                simulate(mesh.program(2), world, (SlowCompute(rank, 5.0, at="experts"),)), Path(folder)
            )
            made = time.process_time()
            report = analyze(folder, cache=False)
            took = time.process_time() - made
            megabytes = sum(path.stat().st_size for path in paths) / 1e6
        job = Job(mesh, "expert", (), (rank,), "expert")
        print(
            f"| {world} | {megabytes:.0f} | {made - began:.1f} | {took:.1f} | {1e3 * took / world:.0f} "
            f"| {outcome(job, report)} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
