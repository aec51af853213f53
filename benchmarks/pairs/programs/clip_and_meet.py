"""Gradients clipped by a norm: of each parameter by its own all-reduce (--norms), and a barrier a step (--meet)."""

import torch
import torch.distributed as dist
from own import begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


def norm_by_parameter(parameters: list) -> float:
    total = 0.0
    for parameter in parameters:
        square = parameter.grad.square().sum()
        dist.all_reduce(square)
        total += square.item()
    return total**0.5


def clip(parameters: list, norms: bool) -> None:
    if not norms:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        return
    scale = 1.0 / max(norm_by_parameter(parameters), 1.0)
    torch._foreach_mul_([parameter.grad for parameter in parameters], scale)


def main() -> None:
    given = begin(norms=0, meet=0, depth=60)
    model = DDP(blocks(128, given.depth, 8))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-4)
    batches = sharded(samples(4096, 128), 32)
    for _ in steps(given, model):
        x, y = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        clip(parameters, bool(given.norms))
        optimizer.step()
        for _ in range(given.meet):
            dist.barrier()


if __name__ == "__main__":
    main()
