"""What the ranks run for the strategy tests: one group of processes a world size, every case in it."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ports import free_port
from strategy_cases import NAMES, ZERO_FOR_UNUSED, Case, MeshCase, mesh_cases, precision_cases, training_cases
from torch import Tensor, nn
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from traceops.train.config import Sizes
from traceops.train.model import GPT
from traceops.train.strategies import strategy_class
from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions
from traceops.train.strategies.meshes import Experts

CPU = torch.device("cpu")
computed = Path()  # the folder that all workers of a test session share; conftest.py sets it
STEPS = 3
BATCH = 3
OPTIMIZERS = {
    "sgd": OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    # Weight decay moves a parameter whose gradient is zero, but not one that has none.
    "adamw": OptimizerSpec(torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Tiny(nn.Module):
    """Odd sizes (so shards need padding), a tied weight, a frozen parameter, a buffer, an optional layer."""

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.blocks = nn.ModuleList(Block(5) for _ in range(3))
        self.optional = nn.Linear(5, 5)
        self.frozen = nn.Parameter(torch.rand(5), requires_grad=False)
        self.register_buffer("offset", torch.rand(5))
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embed.weight
        self.checkpointing = checkpointing

    def forward(self, tokens: Tensor, use_optional: bool) -> Tensor:
        x = self.embed(tokens) * self.frozen + self.offset
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        if use_optional:
            x = x + self.optional(x)
        # A mean over samples, so that ranks with equal batches average to the whole batch.
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(1, dims=1).flatten())


def tokens_of(step: int, micro: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 100 * micro + rank)
    return torch.randint(11, (BATCH, 4), generator=generator)


def make_model(case: Case, seed: int) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(case.checkpointing).to(torch.float64 if case.precision == "fp64" else torch.float32)


def one_process(case: Case, world_size: int) -> dict[str, Tensor]:
    """The parameters after `STEPS` steps of one process on the batches of all ranks and micro-steps."""
    model = make_model(case, seed=0)
    optimizer = OPTIMIZERS[case.optimizer](p for p in model.parameters() if p.requires_grad)
    for step in range(STEPS):
        optimizer.zero_grad()
        if case.usage == "by_rank":
            losses = [
                model(tokens_of(step, micro, rank), case.uses_optional(step, rank))
                for micro in range(case.grad_accum)
                for rank in range(world_size)
            ]
            torch.stack(losses).mean().backward()
        else:
            whole = [tokens_of(step, m, r) for m in range(case.grad_accum) for r in range(world_size)]
            model(torch.cat(whole), case.uses_optional(step, 0)).backward()
        if case.strategy in ZERO_FOR_UNUSED:
            for p in model.parameters():
                if p.requires_grad and p.grad is None:
                    p.grad = torch.zeros_like(p)
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def make_strategy(case: Case) -> Strategy:
    options = StrategyOptions(
        precision=case.precision,
        bucket_cap_mb=300 / 2**20,  # a few parameters a bucket
        shard_group_size=2,
        find_unused_parameters=case.usage != "always",
    )
    # Ranks start from different weights: the strategy has to make them those of rank 0.
    model = make_model(case, seed=dist.get_rank())
    return strategy_class(case.strategy)(model, OPTIMIZERS[case.optimizer], CPU, options)


def train_step(strategy: Strategy, case: Case, step: int, factor: float = 1.0) -> None:
    rank = dist.get_rank()
    strategy.zero_grad()
    for micro in range(case.grad_accum):
        with strategy.micro_step(last=micro == case.grad_accum - 1):
            with strategy.autocast():
                loss = strategy.model(tokens_of(step, micro, rank), case.uses_optional(step, rank))
            strategy.backward(loss * factor / case.grad_accum)
    strategy.optimizer_step()


def train(case: Case) -> dict[str, Tensor]:
    strategy = make_strategy(case)
    for step in range(STEPS):
        train_step(strategy, case, step)
    return strategy.full_parameters()


def overflow(name: str) -> dict[str, Any]:
    """A step in which the gradients of the last rank alone are infinite, then a good one."""
    case = Case(name, precision="fp16")
    strategy = make_strategy(case)
    train_step(strategy, case, 0)
    before, scale = strategy.full_parameters(), strategy.scaler.get_scale()
    last = dist.get_rank() == dist.get_world_size() - 1
    train_step(strategy, case, 1, factor=float("inf") if last else 1.0)
    after, scale_after = strategy.full_parameters(), strategy.scaler.get_scale()
    train_step(strategy, case, 2)
    later = strategy.full_parameters()
    return {"before": before, "after": after, "later": later, "scales": (scale, scale_after)}


class Branches(nn.Module):
    """Three branches of one parameter each, computed in the given order."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x: Tensor, order: list[int]) -> Tensor:
        return torch.stack([self.branches[i](x).square().mean() for i in order]).sum()


def launch_order(name: str) -> dict[str, Any]:
    """The order gradients get ready in and buckets start in, where ranks compute in different orders."""
    order = [0, 1, 2] if dist.get_rank() == 0 else [2, 0, 1]
    launched: list[int] = []
    ready: list[int] = []

    class Recording(strategy_class(name)):  # type: ignore[misc]
        def launch(self, index: int) -> None:
            launched.append(index)
            super().launch(index)

    torch.manual_seed(0)
    model = Branches().double()
    for i, branch in enumerate(model.branches):
        branch.weight.register_post_accumulate_grad_hook(lambda _, i=i: ready.append(i))
    strategy = Recording(model, OPTIMIZERS["sgd"], CPU, StrategyOptions("fp64", bucket_cap_mb=1e-6))
    strategy.zero_grad()
    with strategy.micro_step(last=True):
        x = torch.full((2, 4), 1.0 + dist.get_rank(), dtype=torch.float64)
        strategy.backward(strategy.model(x, order))
    strategy.optimizer_step()
    return {"ready": ready, "launched": launched, "parameters": strategy.full_parameters()}


def storage_bytes(tensors: list[Tensor]) -> int:
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())


def held(name: str) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state this rank holds between backward and the step."""
    case = Case(name, "adamw")
    strategy = make_strategy(case)
    train_step(strategy, case, 0)
    strategy.zero_grad()
    strategy.backward(strategy.model(tokens_of(1, 0, dist.get_rank()), True))
    in_model = [p for p in strategy.module.parameters() if p.requires_grad]
    for_optimizer = [p for group in strategy.optimizer.param_groups for p in group["params"]]
    everywhere = [*in_model, *for_optimizer]
    inner = getattr(strategy.optimizer, "optim", strategy.optimizer)  # ZeroRedundancyOptimizer's own
    states = [t for state in inner.state.values() for t in state.values() if t.ndim]
    return {
        "whole": sum(p.numel() for p in make_model(case, 0).parameters() if p.requires_grad) * 8,
        "parameters": storage_bytes(everywhere),
        "gradients": storage_bytes([p.grad for p in everywhere if p.grad is not None]),
        "state": storage_bytes(states),
    }


SIZES = Sizes(layers=4, dim=16, heads=4, vocab=32, seq_len=16, batch_size=4, workers=0, bucket_mb=0.001)


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(SIZES).double()


def text_of(step: int, micro: int, share: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 100 * micro + share)
    tokens = torch.randint(SIZES.vocab, (SIZES.batch_size, SIZES.seq_len + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train_mesh(case: MeshCase) -> tuple[int, dict[str, Tensor], float | None]:
    """Shares of the batch, the whole parameters, and the last loss where this rank sees it."""
    options = StrategyOptions("fp64", SIZES.bucket_mb, **dict(case.options))
    strategy = strategy_class(case.strategy)(gpt(), OPTIMIZERS["adamw"], CPU, options)
    for step in range(STEPS):
        strategy.zero_grad()
        for micro in range(case.grad_accum):
            with strategy.micro_step(last=micro == case.grad_accum - 1):
                batch = text_of(step, micro, strategy.data_rank)
                loss = strategy.forward_backward(*batch, case.grad_accum)
        strategy.optimizer_step()
    return strategy.data_size, strategy.full_parameters(), None if loss is None else loss.item()


def one_process_of_mesh(case: MeshCase, shares: int, group: Any) -> dict[str, Tensor]:
    """The parameters after as many steps of one process, a `group` of its own, on all shares of the batches."""
    model, options = gpt(), dict(case.options)
    if case.strategy == "expert_parallel":
        generator = torch.Generator().manual_seed(0)
        for block in model.blocks:
            block.mlp = Experts(block.mlp, options["experts"], group, options.get("skew"), generator)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        batches = [text_of(step, m, s) for m in range(case.grad_accum) for s in range(shares)]
        model(*(torch.cat(part) for part in zip(*batches, strict=True))).backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


class SharedBlocks(nn.Module):
    """Two blocks with one weight between them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.blocks[1].weight = self.blocks[0].weight

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x.square().mean()


def run_all(world_size: int) -> dict[Any, Any]:
    results: dict[Any, Any] = {}
    jobs: list[tuple[Any, Callable[[], Any]]] = [(case, lambda c=case: train(c)) for case in training_cases()]
    if world_size == 2:
        jobs += [(case, lambda c=case: train(c)) for case in precision_cases()]
        jobs += [(("overflow", name), lambda n=name: overflow(n)) for name in NAMES]
    jobs += [(("order", n), lambda n=n: launch_order(n)) for n in ("bucket_ddp_async", "zero2")]
    jobs += [(("held", name), lambda n=name: held(n)) for name in NAMES]
    jobs += [(case, lambda c=case: train_mesh(c)) for case in mesh_cases(world_size)]
    key: Any = None
    try:
        for key, job in jobs:
            results[key] = job()
    except Exception as error:
        raise RuntimeError(f"failed in {key}") from error
    return results


def rank_main(rank: int, world_size: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    gc.disable()  # it ends soon
    if hasattr(os, "SCHED_BATCH"):
        # Or gloo's threads, woken for each message, push aside the one that holds what they then spin for.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    dist.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    results = run_all(world_size)
    Path(folder, f"rank_{rank}.pkl").write_bytes(pickle.dumps(results))
    dist.destroy_process_group()


@cache
def results_of(world_size: int) -> list[dict[Any, Any]] | str:
    """What each rank of a group of `world_size` got, by case, or why it failed; it runs once a session."""
    kept = computed / f"strategies_{world_size}.pkl"
    with Path(computed, f"strategies_{world_size}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest-xdist may be at it
        if not kept.exists():
            kept.write_bytes(pickle.dumps(run_group(world_size)))
    results: list[dict[Any, Any]] | str = pickle.loads(kept.read_bytes())
    return results


def run_group(world_size: int) -> list[dict[Any, Any]] | str:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with TemporaryDirectory() as folder:
        try:
            # From a server that has loaded torch once, not in every rank.
            late = "traceops.train.strategies.pytorch_ddp"  # brings much of torch with it
            multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", late])
            torch.multiprocessing.start_processes(
                rank_main, (world_size, free_port(), folder), nprocs=world_size, start_method="forkserver"
            )
        except (ProcessRaisedException, ProcessExitedException) as error:
            return str(error)  # kept, so that the group is not started again for every test
        return [pickle.loads(Path(folder, f"rank_{r}.pkl").read_bytes()) for r in range(world_size)]


def result_of(world_size: int, key: Any) -> list[Any]:
    """What each rank got for one case; fails with the traceback of the rank that failed."""
    results = results_of(world_size)
    assert not isinstance(results, str), results
    return [rank[key] for rank in results]
