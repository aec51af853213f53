"""DDP whose rank 0 evaluates and saves in the same steps, while the other ranks go on to the next one and wait."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from own import begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def evaluate(model: torch.nn.Module, batches: int) -> float:
    model.eval()
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    total = sum(model(x).square().mean().item() for _ in range(batches))
    model.train()
    return total


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, copies: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for copy in range(copies):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(folder) / f"last.{copy}.pt")


def main() -> None:
    given = begin(each=8, eval_batches=0, copies=0)
    model = DDP(blocks(256, 6, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = sharded(samples(4096, 256), 64)
    for step in steps(given, model, 1):
        x, y = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % given.each == 0 and dist.get_rank() == 0:
            if given.eval_batches:
                print("quality", evaluate(model.module, given.eval_batches), flush=True)
            if given.copies:
                save(model.module, optimizer, given.copies)


if __name__ == "__main__":
    main()
