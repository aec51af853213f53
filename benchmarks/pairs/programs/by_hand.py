"""DDP by hand: rows a rank, a line of one rank's host that is slow, torch.compile of a model whose input changes."""

import time

import torch
from costs import costs, now
from own import RANK, begin, steps
from torch.nn.parallel import DistributedDataParallel as DDP


class Reader(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(500, 160)
        self.first = torch.nn.Sequential(torch.nn.Linear(160, 640), torch.nn.GELU(), torch.nn.Linear(640, 160))
        self.head = torch.nn.Linear(160, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        return self.head(x + self.first(x) + x.mean(1, keepdim=True))


def weigh_classes(seconds: float) -> float:
    time.sleep(seconds)
    return 1.0


def main() -> None:
    given = begin(rows="16,16,16", weigh=0.0, weigh_rank=0, compile=0, grow_each=0)
    torch._dynamo.config.recompile_limit = 64
    reader = Reader()
    if given.compile:
        reader = torch.compile(reader, backend="aot_eager", dynamic=False)
    model = DDP(reader)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    generator = torch.Generator().manual_seed(RANK)
    for step in steps(given, model.module):
        each = now(given, "grow_each")
        length = 32 + (step // each if each else 0)
        rows = [int(n) for n in now(given, "rows").split(",")]
        tokens = torch.randint(0, 500, (rows[RANK], length), generator=generator)
        scores = model(tokens[:, :-1])
        weight = 1.0
        if now(given, "weigh") and given.weigh_rank == RANK:
            with costs("weigh_classes"):
                weight = weigh_classes(given.weigh)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()) * weight
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
