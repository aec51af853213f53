"""FSDP2: --each says whether every small layer is a unit, or the whole; accumulation; validation on all ranks."""

import torch
import torch.distributed as dist
from own import begin, for_ever, samples, steps
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(width), torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


@torch.no_grad()
def validate(model: torch.nn.Module, data: torch.utils.data.Dataset, batches: int) -> float:
    model.eval()
    total = torch.zeros(())
    for n in range(batches):
        x, y = data[64 * (n % 16) : 64 * (n % 16) + 64]
        total += torch.nn.functional.cross_entropy(model(x), y)
    model.train()
    dist.all_reduce(total)
    return total.item()


def main() -> None:
    given = begin(each=0, blocks=10, val_each=0, val_batches=40, accumulate=1)
    model = torch.nn.Sequential(*(Block(128) for _ in range(given.blocks)), torch.nn.Linear(128, 8))
    for module in model:
        if given.each and isinstance(module, Block):
            for layer in (module.norm, module.up, module.down):
                fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    data, held = samples(4096, 128), samples(1024, 128)
    batches = for_ever(DataLoader(data, 32, sampler=DistributedSampler(data)))
    for step in steps(given, model, 1):
        for micro in range(given.accumulate):
            model.set_requires_gradient_sync(micro == given.accumulate - 1)
            x, y = next(batches)
            torch.nn.functional.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if given.val_each and step % given.val_each == 0:
            told = validate(model, held, given.val_batches)
            if dist.get_rank() == 0:
                print("validation", told, flush=True)


if __name__ == "__main__":
    main()
