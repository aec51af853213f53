"""Post-local SGD: DDP's hook reduces all gradients for ten steps, then weights are averaged every fourth step."""

import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from own import begin, blocks, samples, sharded, steps
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    given = begin()
    model = DDP(blocks(384, 5, 8))
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=10)
    model.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(model.parameters(), 0.01),
        averager=averagers.PeriodicModelAverager(period=4, warmup_steps=10),
    )
    batches = sharded(samples(3072, 384), 64)
    for _ in steps(given, model):
        x, y = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
