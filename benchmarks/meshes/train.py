"""Trains strategies on a mesh one after the other in one process group, each captured into a folder of its own.

torchrun --nproc-per-node 2 -m benchmarks.meshes.train --cases gpipe4_even,gpipe4_uneven --out /tmp/meshes
torchrun --nproc-per-node 4 -m benchmarks.meshes.train --cases tp_dp,pp_dp,ep_dp --seeds 20 --out /tmp/score

With --seeds each case is trained that many times; the seed draws the rank that its fault is planted on.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import traceops
from benchmarks.planted.cases import Plant
from benchmarks.planted.faults import Faults, synchronize
from benchmarks.planted.train import measure
from traceops.capture import Schedule
from traceops.capture.manifest import write_json
from traceops.train.build import RandomTokens, pick_backend, pick_device
from traceops.train.config import Sizes, TrainConfig
from traceops.train.model import GPT, Block
from traceops.train.strategies import strategy_class
from traceops.train.strategies.base import OptimizerSpec, StrategyOptions

_CUDA = Sizes(layers=8, dim=2048, heads=16, vocab=2048, seq_len=1024, batch_size=16, workers=0, bucket_mb=25.0)
_CPU = Sizes(layers=8, dim=64, heads=4, vocab=256, seq_len=64, batch_size=8, workers=0, bucket_mb=0.5)


@dataclass(frozen=True)
class MeshCase:
    """A strategy, its options, and what is planted.

    kind: gpu or host, see Plant; None for no fault but what the options make (uneven stages, skewed experts).
    share: of a healthy step that the fault costs its rank. rank: None, drawn by the seed. sizes: other than usual.
    uneven: share of two ranks' samples that the second one has.
    """

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: str | None = None
    share: float = 0.0
    rank: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    uneven: float | None = None


def _pipeline(schedule: str, micro_batches: int, layers: tuple[int, ...] = ()) -> MeshCase:
    options = {"pp_schedule": schedule, "micro_batches": micro_batches, "stage_layers": layers}
    return MeshCase("pytorch_pp", options)


CASES = {
    "gpipe4_even": _pipeline("gpipe", 4),
    "gpipe4_uneven": _pipeline("gpipe", 4, (2, 6)),
    "gpipe8_even": _pipeline("gpipe", 8),
    "1f1b4_even": _pipeline("1f1b", 4),
    "1f1b4_uneven": _pipeline("1f1b", 4, (3, 5)),
    "1f1b8_even": _pipeline("1f1b", 8),
    "1f1b8_uneven": _pipeline("1f1b", 8, (2, 6)),
    # The stage that waits has a host that is late.
    "1f1b8_uneven_host": replace(_pipeline("1f1b", 8, (6, 2)), kind="host", share=0.3, rank=1),
    "1f1b8_light": _pipeline("1f1b", 8, (6, 2)),
    "interleaved4": _pipeline("interleaved", 4),
    "interleaved8": _pipeline("interleaved", 8),
    "ep50": MeshCase("expert_parallel", {"skew": 0.5}),
    "ep60": MeshCase("expert_parallel", {"skew": 0.6}),
    "ep75": MeshCase("expert_parallel", {"skew": 0.75}),
    "ep90": MeshCase("expert_parallel", {"skew": 0.9}),
    "ddp50": MeshCase("pytorch_ddp", uneven=0.5),
    "ddp60": MeshCase("pytorch_ddp", uneven=0.6),
    "ddp70": MeshCase("pytorch_ddp", uneven=0.7),
    "ddp80": MeshCase("pytorch_ddp", uneven=0.8),
    "tp": MeshCase("pytorch_tp"),
    "tp_slow": MeshCase("pytorch_tp", {}, "gpu", 0.3, 1),
    "cp": MeshCase("pytorch_cp", sizes={"seq_len": 8192, "batch_size": 2}),
    "cp_slow": MeshCase("pytorch_cp", {}, "gpu", 0.3, 1, {"seq_len": 8192, "batch_size": 2}),
    "tp_dp": MeshCase("pytorch_tp", {"replicas": 2}, "gpu", 1.5, sizes={"layers": 2}),
    "pp_dp": MeshCase("pytorch_pp", {"replicas": 2, "pp_schedule": "1f1b", "micro_batches": 4}, "gpu", 1.5),
    "ep_dp": MeshCase("expert_parallel", {"replicas": 2, "skew": 0.5}, "gpu", 1.5),
}


def thread_ms() -> tuple[float, float]:
    """How long this thread ran, and how long it was ready to run and had no core, ms so far, as Linux counts it."""
    ran, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(ran) / 1e6, int(queued) / 1e6


def run_case(name: str, seed: int | None, args: argparse.Namespace, device: torch.device) -> None:
    """Train, capture and document one case."""
    begun = time.time()
    case, rank, world = CASES[name], dist.get_rank(), dist.get_world_size()
    sizes = replace(_CUDA if device.type == "cuda" else _CPU, **case.sizes)
    if args.large:  # one batch of a pipeline passes through all ranks; others have one each
        batch = sizes.batch_size if case.strategy == "pytorch_pp" else sizes.batch_size // 2
        sizes = replace(sizes, dim=2 * sizes.dim, heads=2 * sizes.heads, batch_size=batch)
    planted_on = case.rank if case.rank is not None or seed is None else random.Random(seed).randrange(world)
    schedule = Schedule(skip_first=2, unprofiled=args.unprofiled, warmup=1, active=args.steps)
    torch.manual_seed(0)
    with device:
        model = GPT(sizes)
    precision = "bf16" if device.type == "cuda" else "fp32"
    options = StrategyOptions(precision, sizes.bucket_mb, **case.options)
    optimizer = OptimizerSpec(torch.optim.AdamW, {"lr": 3e-4})
    strategy = strategy_class(case.strategy)(model, optimizer, device, options)
    blocks = [module for module in strategy.module.modules() if isinstance(module, Block)]
    calls = case.options.get("micro_batches", 1)  # of a block in a step
    plants = [Plant(case.kind, planted_on, case.share / calls)] if case.kind and planted_on == rank else []
    faults = Faults(plants, device, late_step=-1)
    blocks[len(blocks) // 2].register_forward_pre_hook(lambda module, inputs: faults.in_forward())
    of_all = sizes.batch_size * strategy.data_size
    samples = RandomTokens(of_all, sizes.seq_len, sizes.vocab, seed=0)
    count = sizes.batch_size
    if case.uneven is not None:
        count = round(of_all * (case.uneven if rank else 1 - case.uneven))
    own = [samples[(strategy.data_rank * sizes.batch_size + i) % of_all] for i in range(count)]
    tokens, targets = (torch.stack(part).to(device) for part in zip(*own, strict=True))

    def step() -> None:
        with strategy.micro_step(last=True):
            loss = strategy.forward_backward(tokens, targets)
        if "host" in faults.plants and loss is not None:
            faults.after_forward(loss)
        strategy.optimizer_step()
        strategy.zero_grad()

    pace = measure(step, device)
    faults.calibrate(pace)
    manifest = {
        "strategy": case.strategy, "config": {**asdict(sizes), "precision": precision, **case.options},
        "syncs_in_backward": strategy.syncs_in_backward, "samples_per_step": of_all, "device": device.type,
        "backend": dist.get_backend(),
    }  # fmt: skip
    out = args.out / (name if seed is None else f"{name}_{seed}")
    dist.barrier()
    before = thread_ms()
    with traceops.capture(out, schedule=schedule, manifest=manifest, overwrite=True) as profile:
        for number in range(schedule.total_steps):
            if number == schedule.total_steps - schedule.active:
                before = thread_ms()
            step()
            if number == schedule.total_steps - 1:
                spent = [(ms - past) / schedule.active for ms, past in zip(thread_ms(), before, strict=True)]
            profile.step(samples=count)
    synchronize(device)
    of_ranks: list[Any] = [None] * world
    dist.all_gather_object(of_ranks, spent)
    if rank == 0:
        truth = {"case": name, "definition": asdict(case), "rank": planted_on, "world": world,
                 "healthy_step_ms": pace.step_ms, "took_s": time.time() - begun,
                 "ran_ms": [ran for ran, _ in of_ranks], "queued_ms": [queued for _, queued in of_ranks]}  # fmt: skip
        write_json(out / "truth.json", truth)
        print(f"{out.name}: {truth['took_s']:.1f} s, {pace.step_ms:.1f} ms healthy, rank {planted_on}", flush=True)
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--cases", required=True, help=f"of {', '.join(CASES)}, separated by commas")
    add("--out", type=Path, required=True)
    add("--seeds", type=int, help="times that each case is trained")
    add("--first-seed", type=int, default=0)
    add("--large", action="store_true", help="twice the width, so that hosts are never late")
    add("--steps", type=int, default=6, help="recorded steps (%(default)s)")
    add("--unprofiled", type=int, default=6, help="steps timed before them (%(default)s)")
    args = parser.parse_args()
    device = pick_device(TrainConfig(), int(os.environ["LOCAL_RANK"]))
    backend = pick_backend(TrainConfig(), device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None, timeout=timedelta(seconds=120))
    seeds = [None] if args.seeds is None else range(args.first_seed, args.first_seed + args.seeds)
    for seed in seeds:
        for name in args.cases.split(","):
            run_case(name, seed, args, device)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
