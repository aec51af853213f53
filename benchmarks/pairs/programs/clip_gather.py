"""Two towers, a contrastive loss over what all ranks gather, metrics by all_gather_object each ten steps."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
from own import begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    given = begin()
    model = DDP(torch.nn.ModuleDict({"image": blocks(384, 4, 64), "text": blocks(384, 4, 64)}).requires_grad_())
    towers = model.module
    model.forward = lambda x: model(x)
    optimizer = torch.optim.AdamW(towers.parameters(), 1e-4)
    batches = sharded(samples(2048, 384), 48)

    def embed(x: torch.Tensor) -> torch.Tensor:
        image, text = towers["image"](x), towers["text"](x.flip(1))
        every = [torch.cat(collectives.all_gather(part)) for part in (image, text)]
        return every[0] @ every[1].T

    towers.forward = embed
    del model.forward
    for step in steps(given, towers):
        x, _ = next(batches)
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            every = [None] * dist.get_world_size()
            dist.all_gather_object(every, {"step": step, "loss": loss.item()})
            if dist.get_rank() == 0:
                print(every[0], flush=True)


if __name__ == "__main__":
    main()
