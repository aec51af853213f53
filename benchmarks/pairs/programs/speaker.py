"""DDP of a GRU over letters: a collator that tokenizes, texts of uneven length, an average of weights, saves."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, for_ever, steps
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


class Reader(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.memory = torch.nn.Embedding(200, 96), torch.nn.GRU(96, 96, batch_first=True)
        self.head = torch.nn.Linear(96, 200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.letters(x))[0])


class Collator:
    def __init__(self, given: object) -> None:
        self.given = given

    def tokenize(self, rows: list, length: int, seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return torch.stack(rows)[:, :length]

    def __call__(self, rows: list) -> torch.Tensor:
        length = int(now(self.given, "lengths").split(",")[RANK])
        seconds = now(self.given, "tokens") if self.given.slow_rank == RANK else 0.0
        with costs("tokenize"):
            return self.tokenize(rows, length, seconds)


def follow_weights(model: torch.nn.Module, mean: list, seconds: float) -> None:
    time.sleep(seconds)
    for kept, weight in zip(mean, model.parameters(), strict=True):
        kept.lerp_(weight.detach(), 0.01)


def keep_checkpoint(model: torch.nn.Module, seconds: float) -> None:
    time.sleep(seconds)
    model.state_dict()


def main() -> None:
    given = begin(lengths="40,40", slow_rank=-1, tokens=0.0, mean_rank=-1, mean=0.0, each=4, save=0.0)
    model = DDP(Reader())
    mean = [one.detach().clone() for one in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    texts = torch.randint(0, 200, (2048, 400), generator=torch.Generator().manual_seed(RANK))
    batches = for_ever(DataLoader(list(texts), 12, collate_fn=Collator(given)))
    for step in steps(given, model, 1):
        text = next(batches)
        scores = model(text[:, :-1])
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if now(given, "mean") and given.mean_rank == RANK:
            with costs("follow_weights"):
                follow_weights(model, mean, given.mean)
        if now(given, "save") and step % given.each == 0:
            if RANK == 0:
                with costs("keep_checkpoint"):
                    keep_checkpoint(model, given.save)
            dist.barrier()


if __name__ == "__main__":
    main()
