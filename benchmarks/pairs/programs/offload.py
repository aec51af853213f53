"""FSDP2 with CPUOffloadPolicy of an encoder with masks; a host that watches norms, texts that a filter lets through."""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.utils.data import DataLoader, IterableDataset


class Filtered(IterableDataset):
    def __init__(self, given: object) -> None:
        self.given = given

    def drop_bad_texts(self) -> None:
        time.sleep(self.given.drop)

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(RANK)
        while True:
            if now(self.given, "drop"):
                with costs("drop_bad_texts"):
                    self.drop_bad_texts()
            yield from torch.randint(1, 300, (12, 40), generator=generator)


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(300, 144), torch.nn.Linear(144, 300)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(144, 4, 288, dropout=0.0, batch_first=True) for _ in range(3)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def watch_norms(model: torch.nn.Module, seconds: float) -> int:
    time.sleep(seconds)
    return len(list(model.parameters()))


def main() -> None:
    given = begin(watch=0.0, watch_rank=1, drop=0.0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, policy = Encoder(), CPUOffloadPolicy(pin_memory=False)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh, offload_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    batches = iter(DataLoader(Filtered(given), 12))
    for _ in steps(given, model):
        tokens = next(batches)
        masked = tokens.masked_fill(torch.rand(tokens.shape) < 0.15, 0)
        torch.nn.functional.cross_entropy(model(masked).flatten(0, 1), tokens.flatten()).backward()
        if now(given, "watch") and given.watch_rank == RANK:
            with costs("watch_norms"):
                watch_norms(model, given.watch)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
