"""Trains one case after the other in one process group, each captured into a folder of its own with its truth.

torchrun --nproc-per-node 4 -m benchmarks.planted.train --cases healthy_ddp,slow_gpu --out /tmp/planted
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, default_collate

import traceops
from benchmarks.planted.cases import BY_NAME, Case, expectation, rank_of
from benchmarks.planted.faults import Faults, Pace, synchronize
from traceops.capture import Schedule
from traceops.capture.environment import torch_facts
from traceops.capture.manifest import read_ranks, write_json
from traceops.train.build import RandomTokens, pick_backend, pick_device
from traceops.train.config import Sizes, TrainConfig
from traceops.train.model import GPT
from traceops.train.strategies import strategy_class
from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions

# On a GPU the device must bound the step, also under the profiler: else a fault on it would not show.
_CUDA = {"layers": 8, "dim": 2048, "vocab": 32768, "seq": 1024, "batch": 8}
_CPU = {"layers": 2, "dim": 64, "vocab": 256, "seq": 32, "batch": 4}
_WARMUP, _TIMED, _LAUNCHES = 3, 5, 3


def shape(case: Case, args: argparse.Namespace) -> Sizes:
    """The model and batch of a case."""
    layers, dim, vocab, batch = args.layers, args.dim, args.vocab, args.batch
    if case.shape == "half":
        batch = max(1, batch // 2)
    elif case.shape == "narrow":  # an eighth of the width: buckets of 1 MiB are then many
        layers, dim, vocab, batch = 2 * layers, dim // 8, vocab // 8, 16 * batch
    return Sizes(layers, dim, max(1, dim // 64), vocab, args.seq, batch, workers=0, bucket_mb=case.bucket_mb)


class Training:
    """A model under a strategy, its data, and one step of it with the faults where they belong."""

    def __init__(
        self, case: Case, sizes: Sizes, faults: Faults, device: torch.device, precision: str, steps: int
    ) -> None:
        self.faults, self.device = faults, device
        world = dist.get_world_size()
        torch.manual_seed(0)
        with device:  # half a billion weights take seconds to draw on one core
            model = GPT(sizes)
        options = StrategyOptions(
            precision=precision,
            bucket_cap_mb=case.bucket_mb,
            shard_group_size=world // 2 if case.strategy == "pytorch_hsdp" else None,
        )
        self.parameters = sum(p.numel() for p in model.parameters())
        optimizer = OptimizerSpec(torch.optim.AdamW, {"lr": 3e-4})
        self.strategy: Strategy = strategy_class(case.strategy)(model, optimizer, device, options)
        middle = cast(Any, self.strategy.module).blocks[sizes.layers // 2]
        middle.register_forward_pre_hook(lambda module, inputs: faults.in_forward())
        self.batches = self._batches(sizes, steps)

    def _batches(self, sizes: Sizes, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        def collate(samples: list[tuple[Tensor, Tensor]]) -> Any:
            self.faults.in_loader()
            return default_collate(samples)

        rank, world = dist.get_rank(), dist.get_world_size()
        dataset = RandomTokens(2 * steps * sizes.batch_size * world, sizes.seq_len, sizes.vocab, seed=0)
        loader = DataLoader(
            dataset,
            batch_size=self.faults.batch_size(sizes.batch_size),
            sampler=DistributedSampler(dataset, world, rank, shuffle=False),
            collate_fn=collate,
            pin_memory=self.device.type == "cuda",
        )
        return iter(loader)

    def step(self) -> None:
        """One optimizer step."""
        strategy, faults, device = self.strategy, self.faults, self.device
        faults.before_batch()
        tokens, targets = next(self.batches)
        tokens, targets = tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        faults.before_forward()
        with strategy.micro_step(last=True):
            with strategy.autocast(), faults.computing():
                loss = strategy.model(tokens, targets)
            faults.after_forward(loss)
            strategy.backward(loss)
        strategy.optimizer_step()
        strategy.zero_grad()


def measure(step: Callable[[], None], device: torch.device) -> Pace:
    """The pace of `step`; the slowest rank's step time, and this rank's own time to launch one."""
    for _ in range(_WARMUP):
        step()
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(_TIMED):
        step()
    synchronize(device)
    step_ms = torch.tensor((time.perf_counter() - begin) * 1e3 / _TIMED, device=device)
    dist.all_reduce(step_ms, dist.ReduceOp.MAX)
    launches = []
    for _ in range(_LAUNCHES):
        synchronize(device)
        begin = time.perf_counter()
        step()
        launches.append((time.perf_counter() - begin) * 1e3)
    return Pace(step_ms.item(), min(launches) if device.type == "cuda" else step_ms.item())


def run_case(case: Case, args: argparse.Namespace, device: torch.device) -> None:
    """Train, capture and document one case."""
    begun = time.time()
    rank, world = dist.get_rank(), dist.get_world_size()
    schedule = Schedule(skip_first=4, unprofiled=args.unprofiled, warmup=2, active=args.steps)
    late_step = schedule.active_steps(0)[args.steps // 2]
    sizes = shape(case, args)
    mine = [plant for plant in case.plants if rank_of(plant, world, args.shift) in (None, rank)]
    faults = Faults(mine, device, late_step)
    steps = schedule.total_steps + _WARMUP + _TIMED + _LAUNCHES
    training = Training(case, sizes, faults, device, args.precision, steps)
    pace = measure(training.step, device)
    faults.calibrate(pace)
    samples = sizes.batch_size * world
    manifest = {
        "strategy": case.strategy, "config": {**asdict(sizes), "precision": args.precision},
        "syncs_in_backward": training.strategy.syncs_in_backward, "parameters": training.parameters,
        "samples_per_step": samples, "tokens_per_step": samples * sizes.seq_len, "device": device.type,
        "backend": dist.get_backend(), "planted": {"pace": asdict(pace), **faults.planned},
    }  # fmt: skip
    dist.barrier()
    out = args.out / case.name
    with traceops.capture(out, schedule=schedule, manifest=manifest, overwrite=True) as profile:
        for number in range(schedule.total_steps):
            faults.step = number
            training.step()
            profile.step(samples=faults.batch_size(sizes.batch_size))
    faults.end()
    dist.barrier()
    if rank == 0:
        truth = describe(case, args, world, late_step, sizes, device, out)
        write_json(out / "truth.json", {**truth, "took_s": time.time() - begun})
        print(f"{case.name}: {time.time() - begun:.1f} s, {truth['step_ms']}", flush=True)
    dist.barrier()


def describe(
    case: Case, args: argparse.Namespace, world: int, late_step: int, sizes: Sizes, device: torch.device, out: Path
) -> dict[str, Any]:
    """What truth.json holds: the plant and what is expected of it, and the step times of every rank."""
    ranks = read_ranks(out)
    times = {name: {str(r.rank): getattr(r, f"{name}_step_ms") for r in ranks} for name in ("unprofiled", "profiled")}
    return {
        "case": case.name, "definition": asdict(case),
        "expectation": asdict(expectation(case, world, args.shift, late_step)),
        "arguments": {key: str(v) if isinstance(v, Path) else v for key, v in vars(args).items()}, "world": world,
        "shift": args.shift, "late_step": late_step, "sizes": asdict(sizes),
        "planted": {str(r.rank): r.training.get("planted") for r in ranks},
        "step_ms": {name: round(_median(by_rank), 3) for name, by_rank in times.items()},
        "unprofiled_step_ms": times["unprofiled"], "profiled_step_ms": times["profiled"],
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "nccl": torch_facts().get("nccl_version"),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }  # fmt: skip


def _median(by_rank: dict[str, list[float]]) -> float:
    return statistics.median(value for values in by_rank.values() for value in values)


def in_time(until: float | None, device: torch.device) -> bool:
    """Whether rank 0's clock allows another case; the same answer on all ranks."""
    answer = torch.tensor(int(until is None or time.time() < until), device=device)
    dist.broadcast(answer, src=0)
    return bool(answer.item())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--cases", required=True, help="names, separated by commas")
    add("--out", type=Path, required=True)
    add("--steps", type=int, default=6, help="recorded steps (%(default)s)")
    add("--unprofiled", type=int, default=6, help="steps timed before them (%(default)s)")
    add("--shift", type=int, default=0, help="move every planted rank on by this many")
    add("--until", type=float, help="Unix time after which no further case is begun")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    add("--precision", choices=("fp32", "bf16"), help="bf16 on cuda, fp32 on cpu")
    add("--backend", choices=("nccl", "gloo"), help="with gloo, more ranks than GPUs share these")
    for name in _CUDA:
        add(f"--{name}", type=int, metavar="N", help=f"{_CPU[name]} on cpu, {_CUDA[name]} on cuda")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    number, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if args.backend == "gloo" and ranks > torch.cuda.device_count() > 0:
        number = number * torch.cuda.device_count() // ranks
    device = pick_device(replace(TrainConfig(), device=args.device), number)
    backend = args.backend or pick_backend(TrainConfig(), device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for name, value in (_CUDA if device.type == "cuda" else _CPU).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.precision = args.precision or ("bf16" if device.type == "cuda" else "fp32")
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None, timeout=timedelta(seconds=120))
    for name in args.cases.split(","):
        if not in_time(args.until, device):
            break
        run_case(BY_NAME[name], args, device)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
