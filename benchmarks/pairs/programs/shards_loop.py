"""FSDP2 of a small ViT, a unit a block; accumulation; validation."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, samples, sharded, steps
from torch.distributed.fsdp import fully_shard


class Mixer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.TransformerEncoderLayer(96, 4, 192, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


class Vit(torch.nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.cut, self.blocks = torch.nn.Linear(48, 96), torch.nn.ModuleList(Mixer() for _ in range(depth))
        self.head = torch.nn.Linear(96, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cut(x.view(len(x), 8, 48))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def show_attention(seconds: float) -> None:
    time.sleep(seconds)


def upload_scores(seconds: float) -> None:
    time.sleep(seconds)


@torch.no_grad()
def quality(model: torch.nn.Module, batches: int, seconds: float) -> float:
    model.eval()
    generator = torch.Generator().manual_seed(3)
    total = torch.zeros(())
    for _ in range(batches):
        total += model(torch.randn(16, 384, generator=generator)).square().mean()
        time.sleep(seconds)
    model.train()
    dist.all_reduce(total)
    return total.item()


def main() -> None:
    given = begin(accumulate=1, show=0.0, show_rank=0, each=8, val_batches=0, upload=0.0, upload_rank=-1)
    model = Vit(4)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    batches = sharded(samples(2048, 384), 8)
    for step in steps(given, model, 1):
        for micro in range(given.accumulate):
            model.set_requires_gradient_sync(micro == given.accumulate - 1)
            x, y = next(batches)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if now(given, "show") and given.show_rank == RANK:
                with costs("show_attention"):
                    show_attention(given.show)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if now(given, "upload") and given.upload_rank == RANK:
            with costs("upload_scores"):
                upload_scores(given.upload)
        if now(given, "val_batches") and step % given.each == 0:
            with costs("quality"):
                quality(model, given.val_batches, 0.03)


if __name__ == "__main__":
    main()
