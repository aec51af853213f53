"""Tests whether communication between ranks gives the right values."""

from __future__ import annotations

import copy
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from traceops.doctor.pairs import pair_order
from traceops.doctor.worker_context import WorkerContext

# Odd counts leave a remainder wherever work is cut by powers of two; the last one is 16 MB of float32.
_CASES = (
    (torch.float32, (1, 1023, 65_537, 4_194_301)),
    (torch.bfloat16, (1, 65_537, 4_194_301)),
    (torch.float16, (1023,)),
    (torch.int64, (1, 65_537)),
)
_EXACT_BFLOAT16 = 256
_PAIR_COUNTS = (1, 65_537, 1_048_577)
_LONG = timedelta(hours=1)  # the deadline is the parent's


def all_reduce(context: WorkerContext) -> None:
    """Sums over all ranks against values known beforehand; reports what is wrong on this rank."""
    everyone = range(context.world_size)
    for dtype, counts in _CASES:
        for count in counts:
            expected = context.pattern(count, torch.float32, everyone)
            if dtype == torch.bfloat16 and float(expected.max()) > _EXACT_BFLOAT16:
                continue
            what = f"all-reduce of {count} × {str(dtype).removeprefix('torch.')}"
            context.at(what)
            tensor = context.pattern(count, dtype, [context.rank])
            dist.all_reduce(tensor)
            context.check(what, tensor, expected.to(dtype))


def pairs(context: WorkerContext) -> None:
    """Send and receive both ways, and an all-reduce, with each partner; the pairs of a round run side by side."""
    order = pair_order(context.world_size)
    if not order:
        context.reporter.say("skipped", stage=context.stage, text="pairs need two devices")
        return
    groups = {}
    for pair in order:
        # All ranks make all groups: torch 2.13 and older name a group by how many groups a rank has made, so the
        # members of one alone may not find each other. NCCL starts a communicator only when it is used.
        context.at(f"{_name(pair)}: making a group")
        groups[pair] = dist.new_group(list(pair), timeout=_LONG)
    for pair in order:
        if context.rank in pair:
            context.reporter.say("pair", stage=context.stage, ranks=pair, state="began")
            right = [_exchange_is_right(context, pair), _sum_is_right(context, pair, groups[pair])]
            context.reporter.say("pair", stage=context.stage, ranks=pair, state="ok" if all(right) else "wrong")


def _exchange_is_right(context: WorkerContext, pair: tuple[int, int]) -> bool:
    """Through the communicator of all ranks, which exists already."""
    peer = pair[1] if context.rank == pair[0] else pair[0]
    right = True
    for count in _PAIR_COUNTS:
        what = f"{_name(pair)}: send and receive of {count} × float32"
        context.at(what)
        sent = context.pattern(count, torch.float32, [context.rank])
        received = torch.full_like(sent, -1.0)
        exchange(sent, peer, received, peer)
        right &= context.check(f"{what}, from rank {peer}", received, context.pattern(count, torch.float32, [peer]))
    return right


def _sum_is_right(context: WorkerContext, pair: tuple[int, int], group: dist.ProcessGroup) -> bool:
    right = True
    for count in _PAIR_COUNTS:
        what = f"{_name(pair)}: all-reduce of {count} × float32"
        context.at(what)
        tensor = context.pattern(count, torch.float32, [context.rank])
        dist.all_reduce(tensor, group=group)
        right &= context.check(what, tensor, context.pattern(count, torch.float32, pair))
    return right


def exchange(sent: torch.Tensor | None, to: int, received: torch.Tensor | None, source: int) -> None:
    """Send and receive at once. As a batch, because NCCL then makes no communicator for each pair."""
    operations = []
    if sent is not None:
        operations.append(dist.P2POp(dist.isend, sent, to))
    if received is not None:
        operations.append(dist.P2POp(dist.irecv, received, source))
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def ddp_step(context: WorkerContext) -> None:
    """One step of a tiny model under DDP against the same model on the batches of all ranks together."""
    context.at("building the model")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)).to(context.device)
    alone = copy.deepcopy(model)
    batches = torch.randn(context.world_size, 16, 32, generator=torch.Generator().manual_seed(1)).to(context.device)
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[context.device.index] if context.on_gpu else None)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    context.at("forward and backward")
    parallel(batches[context.rank]).square().mean().backward()
    alone(batches.flatten(0, 1)).square().mean().backward()
    gradient, expected = _gradient(model), _gradient(alone)
    if not bool(gradient.isfinite().all()):
        context.wrong("gradients are not finite after the first backward")
    elif not torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5):
        off = float((gradient - expected).abs().max())
        context.wrong(f"averaged gradients are off by up to {off:.3g} from those of all batches on one device")
    context.at("optimizer step")
    optimizer.step()
    context.at("comparing gradients between ranks")
    gathered = [torch.empty_like(gradient) for _ in range(context.world_size)]
    dist.all_gather(gathered, gradient)
    others = [rank for rank, other in enumerate(gathered) if not torch.allclose(other, gradient, rtol=1e-5)]
    if others:
        context.wrong(f"averaged gradients differ from those of ranks {', '.join(map(str, others))}")


def _gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _name(pair: tuple[int, int]) -> str:
    return f"ranks {pair[0]} and {pair[1]}"
