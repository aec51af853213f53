"""Decentralised SGD: each rank averages its weights with its neighbours in a ring, by batched sends and receives."""

import torch
import torch.distributed as dist
from own import begin, blocks, samples, sharded, tell, window


def average_with_neighbours(flat: torch.Tensor) -> torch.Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    left, right = torch.empty_like(flat), torch.empty_like(flat)
    work = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, flat, (rank + 1) % ranks, tag=1),
        dist.P2POp(dist.irecv, left, (rank - 1) % ranks, tag=1),
        dist.P2POp(dist.isend, flat, (rank - 1) % ranks, tag=2),
        dist.P2POp(dist.irecv, right, (rank + 1) % ranks, tag=2),
    ])  # fmt: skip
    for one in work:
        one.wait()
    return (flat + left + right) / 3


def main() -> None:
    given = begin()
    model = blocks(384, 5, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    batches = sharded(samples(3072, 384), 96)
    with window(given) as own:
        for _ in range(given.steps):
            x, y = next(batches)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
            torch.nn.utils.vector_to_parameters(average_with_neighbours(flat), model.parameters())
            optimizer.step()
            own.step()
    dist.barrier()
    tell(given.steps, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
