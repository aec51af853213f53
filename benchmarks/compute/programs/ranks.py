"""Pairs of programs that waste the devices of two ranks and the same work done well, and two programs without a waste.

    torchrun --nproc-per-node 2 ranks.py time OUT S       # all pairs without traceops, in S seconds: OUT/truth.jsonl
    torchrun --nproc-per-node 2 ranks.py calibrate FILE   # what a step of `small`, and a product in it, take
    traceops run --nproc 2 -- ranks.py run NAME           # the sick program of a pair
    traceops run --nproc 2 -- ranks.py slower FILE PCT    # `small`, slower by this much
    traceops run --nproc 2 -- ranks.py signalled OUT SIGTERM handled     # rank 1 gets it within an all-reduce

LOCK names a file that jobs hold while they use the devices, so that the next one starts up in the meantime. SMALL=1
DEVICE=cpu: tiny, over gloo.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from case import CASES, DEVICE, Case, Step, images, layout, normal, pair, size, tokens, training
from measured import Measured, busy, record, reset, step_lengths, synchronize, truth
from parts import convolutions, mean_square
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "40"))  # capture and light window with their surroundings
Attend = Callable[..., torch.Tensor]
causal: Attend = functools.partial(F.scaled_dot_product_attention, is_causal=True)


def unfused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masked: bool = True) -> torch.Tensor:
    """Attention by hand, over all scores."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if masked:
        later = torch.ones(scores.shape[-2:], device=q.device, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores.softmax(-1) @ v


class Layer(nn.Module):
    """A transformer's layer whose heads may be spread over ranks."""

    def __init__(self, width: int, head: int, attend: Attend) -> None:
        super().__init__()
        self.before, self.between, self.head, self.attend = nn.LayerNorm(width), nn.LayerNorm(width), head, attend
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, -1, self.head)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


def stack(layers: int, width: int, attend: Attend) -> nn.Sequential:
    with torch.device(DEVICE):
        return nn.Sequential(*[Layer(width, size(64, 8), attend) for _ in range(layers)])


def language(vocabulary: int, layers: int, width: int, attend: Attend = causal) -> nn.Sequential:
    with torch.device(DEVICE):
        head = nn.Linear(width, vocabulary, bias=False)
        return nn.Sequential(nn.Embedding(vocabulary, width), *stack(layers, width, attend), nn.LayerNorm(width), head)


def next_token(model: nn.Module, vocabulary: int, batch: int, length: int) -> Callable[[], torch.Tensor]:
    ids, targets = tokens(vocabulary, batch, length), tokens(vocabulary, batch, length)
    return lambda: F.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten())


def replicated(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def sharded(model: nn.Sequential, low: bool) -> nn.Module:
    """Each layer by itself under FSDP2."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if low else None
    for layer in [*model, model]:
        if not isinstance(layer, nn.LayerNorm):
            fully_shard(layer, **({"mp_policy": policy} if policy else {}))
    return model


def adamw(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    """Plain and distributed parameters apart, which no fused optimizer takes together."""
    plain = [p for p in model.parameters() if type(p) is nn.Parameter]
    others = [p for p in model.parameters() if type(p) is not nn.Parameter]
    groups = [{"params": group} for group in (plain, others) if group]
    return torch.optim.AdamW(groups, lr=1e-4, **(more or {"fused": True}))


@pair
def ddp_vocabulary(sick: bool) -> Step:
    vocabulary = size(50257 if sick else 50304, 101)
    model = replicated(language(vocabulary, size(2, 1), size(1024, 32)))
    return training(next_token(model, size(50257, 101), size(16, 2), size(1024, 8)), adamw(model))


@pair
def fsdp_attention(sick: bool) -> Step:
    vocabulary = size(32000, 96)
    model = sharded(language(vocabulary, size(6, 2), size(1024, 32), unfused if sick else causal), low=True)
    return training(next_token(model, vocabulary, size(4, 2), size(2048, 8)), adamw(model), autocast=False)


@pair
def ddp_float32(sick: bool) -> Step:
    torch.set_float32_matmul_precision("highest" if sick else "high")
    width = size(4096, 32)
    with torch.device(DEVICE):
        model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(width, width), nn.GELU())])
    whole = replicated(model)
    return training(mean_square(whole, normal(size(8192, 8), width)), adamw(whole), autocast=False)


@pair
def ddp_optimizer_loop(sick: bool) -> Step:
    vocabulary = size(32000, 96)
    model = replicated(language(vocabulary, size(8, 2), size(1024, 32)))
    optimizer = adamw(model, **({"foreach": False} if sick else {"fused": True}))
    return training(next_token(model, vocabulary, size(2, 1), size(512, 8)), optimizer)


@pair
def ddp_channels_first(sick: bool) -> Step:
    model = replicated(convolutions(size(128, 8), size(8, 2)).to(memory_format=layout(not sick)))
    x, y = images(size(64, 2), size(64, 8), not sick), tokens(100, size(64, 2))
    return training(lambda: F.cross_entropy(model(x), y), adamw(model))


@pair
def tp_attention(sick: bool) -> Step:
    attend: Attend = functools.partial(unfused, masked=False) if sick else F.scaled_dot_product_attention
    model = stack(size(6, 2), size(2048, 32), attend)
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    split = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in model:
        parallelize_module(layer, mesh, split)
    torch.manual_seed(0)  # all ranks have the same batch
    return training(mean_square(model, normal(size(4, 2), size(2048, 8), size(2048, 32))), adamw(model))


@pair
def pipeline_attention(sick: bool) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world, many, width = dist.get_rank(), dist.get_world_size(), 4, size(1024, 32)
    attend = unfused if sick and rank == 0 else causal
    model = stack(size(6, 1), width, attend).to(torch.bfloat16)
    x = normal(size(8, 4), size(2048, 8), width, dtype=torch.bfloat16)
    stage = PipelineStage(model, rank, world, x.device)
    schedule = Schedule1F1B(stage, many, loss_fn=lambda out, target: (out - target).float().square().mean())
    optimizer = adamw(model)

    def step() -> None:
        given = () if rank else (x,)
        schedule.step(*given, **({"target": x} if rank == world - 1 else {}))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair
def fsdp_float32(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    vocabulary = size(32000, 96)
    model = sharded(language(vocabulary, size(6, 2), size(1024, 32)), low=not sick)
    return training(next_token(model, vocabulary, size(8, 2), size(1024, 8)), adamw(model), autocast=False)


OWN = [name for name, known in CASES.items() if known.module == __name__]


def small(products: int) -> Step:
    """A step of some 20 ms in bf16 under DDP, with further products in forward."""
    vocabulary = size(32000, 96)
    model = replicated(language(vocabulary, size(6, 2), size(1024, 32)))
    x = normal(size(2048, 16), size(2048, 16), dtype=torch.bfloat16)
    loss = next_token(model, vocabulary, size(12, 2), size(1024, 8))

    def more() -> torch.Tensor:
        for _ in range(products):
            torch.mm(x, x)
        return loss()

    return training(more, adamw(model))


def made(make: Callable[[], Step]) -> Step:
    """The step, warm."""
    reset()
    step = make()
    for _ in range(4):
        step()
    synchronize()
    dist.barrier()
    return step


def paced(step: Step) -> float:
    """The median step in ms, of the slowest rank."""
    own = torch.tensor(statistics.median(step_lengths(step, size(13, 4))[1:]), device=DEVICE)
    dist.all_reduce(own, dist.ReduceOp.MAX)
    return float(own)


def time_pairs(out: Path, seconds: float) -> None:
    """All pairs without a profiler first, as CUPTI slows what follows; then each recorded, and timed again."""
    until = time.time() + seconds
    out.mkdir(parents=True, exist_ok=True)
    before: dict[str, dict[bool, float]] = {}

    def first(name: str) -> None:
        before[name] = {sick: paced(made(functools.partial(CASES[name].make, sick))) for sick in (True, False)}
        row = {"name": name, "labels_ok": CASES[name].labels}
        tell(out / "times.jsonl", {**row, "sick_ms": before[name][True], "cured_ms": before[name][False]})

    def second(name: str) -> None:
        tell(out / "truth.jsonl", recorded(CASES[name], before[name], out))

    for function in (first, second):
        for name in OWN:
            in_time = [time.time() < until]
            dist.broadcast_object_list(in_time, src=0)
            if not in_time[0]:
                return
            try:
                function(name)
            except Exception as error:  # the same on all ranks, or the job hangs until its limit
                print(f"{name}: {error!r}", flush=True)


def recorded(case: Case, before: dict[bool, float], out: Path) -> dict[str, Any]:
    """The row of truth of a pair: busy times without collectives, of the rank that is busiest in the sick program."""
    found: dict[bool, list[tuple[float, float]]] = {}
    after = {}
    for sick in (True, False):
        step = made(functools.partial(case.make, sick))
        path = out / f"{case.name}.{'sick' if sick else 'fixed'}" / f"rank_{dist.get_rank()}.pt.trace.json.gz"
        path.parent.mkdir(exist_ok=True)
        record(step, case.recorded, path)
        after[sick] = paced(step)
        found[sick] = [(0.0, 0.0)] * dist.get_world_size()
        dist.all_gather_object(found[sick], busy(path, without="nccl"))
    most = max(range(dist.get_world_size()), key=lambda one: found[True][one])
    both = [Measured(before[sick], after[sick], *found[sick][most], peak_gib=0.0) for sick in (True, False)]
    by_rank = {"sick" if sick else "fixed": [ms for ms, _ in each] for sick, each in found.items()}
    return {**truth(case, *both), "busy_by_rank": by_rank}


def tell(path: Path, row: dict[str, Any]) -> None:
    if dist.get_rank() == 0:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row)[:300], flush=True)


def calibrate(path: Path) -> None:
    """What products add to a step: of so many that the difference is far above what steps differ by."""
    some, many = size(60, 4), size(180, 12)
    plain, less, more = (paced(made(functools.partial(small, products))) for products in (0, some, many))
    tell(path.with_suffix(".part"), {"step_ms": plain, "product_ms": (more - less) / (many - some)})
    if dist.get_rank() == 0:
        path.with_suffix(".part").rename(path)


def slower(known: Path, percent: str) -> Step:
    found = json.loads(known.read_text())
    return small(round(float(percent) / 100 * found["step_ms"] / found["product_ms"]))


def signalled(out: Path, name: str, how: str) -> Step:
    """Rank 1 gets the signal in the 20th step, while it waits in an all-reduce for rank 0."""
    rank, number = dist.get_rank(), getattr(signal, name, 0)

    def handle(got: int, frame: object) -> None:
        (out / f"{rank}.handled").touch()
        if got == signal.SIGTERM:
            sys.exit(7)

    def meet() -> None:
        if next(steps) != 20:
            return
        if rank == 0:
            time.sleep(3)
        elif number:
            threading.Timer(1, os.kill, (os.getpid(), number)).start()
        dist.all_reduce(torch.ones(1, device=DEVICE))
        synchronize()
        if rank:
            (out / f"{rank}.passed").touch()

    if how == "handled" and number:
        signal.signal(number, handle)
    steps = itertools.count(1)
    model = replicated(nn.Linear(64, 64).to(DEVICE))
    return training(mean_square(model, normal(8, 64)), adamw(model), after_step=meet)


def main() -> None:
    what, *words = sys.argv[1:]
    local, device = int(os.environ["LOCAL_RANK"]), None
    if DEVICE != "cpu":
        device = torch.device("cuda", local % torch.cuda.device_count())
        if local >= torch.cuda.device_count():
            os.environ["NCCL_HOSTID"] = f"host{local}"  # NCCL lets ranks of different hosts alone share a GPU
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    known, began = Path(words[0]), time.time()
    while what == "slower" and not known.exists() and time.time() < began + 90:
        time.sleep(0.1)
    lock = os.open(os.environ.get("LOCK", os.devnull), os.O_RDWR | os.O_CREAT)
    if os.environ["RANK"] == "0" and "LOCK" in os.environ:
        fcntl.flock(lock, fcntl.LOCK_EX)
    dist.init_process_group("gloo" if device is None else "nccl", device_id=device)
    reset()
    if what == "time":
        time_pairs(known, float(words[1]))
    elif what == "calibrate":
        calibrate(known)
    else:
        make: dict[str, Callable[..., Step]] = {"slower": slower, "signalled": signalled}
        step = CASES[words[0]].make(True) if what == "run" else make[what](known, *words[1:])
        for _ in range(STEPS):
            step()
        synchronize()
        if what == "signalled":
            (known / f"{dist.get_rank()}.finished").touch()
    os.close(lock)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
