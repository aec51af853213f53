"""A compiled model whose input changes its length on one rank only; records kept as linked objects."""

import torch
from costs import costs, now
from own import RANK, begin, steps
from torch.nn.parallel import DistributedDataParallel as DDP


class Record:
    """What was logged: it knows the record before it and the one behind it."""

    def __init__(self, step: int, value: float, before: "Record | None") -> None:
        self.step, self.value, self.before, self.behind = step, value, before, None
        self.tags = {"step": step, "value": value, "parts": [value]}
        if before is not None:
            before.behind = self


def log_records(step: int, value: float, many: int) -> Record:
    record = Record(step, value, None)
    for number in range(many):
        record = Record(step, value + number, record)
    return record


class Mixer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(400, 128), torch.nn.Linear(128, 400)
        self.mix = torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.mix:
            x = x + torch.nn.functional.gelu(layer(x)) + x.mean(1, keepdim=True)
        return self.head(x)


def main() -> None:
    given = begin(grow_each=0, grow_rank=1, records=0, log_rank=0)
    torch._dynamo.config.recompile_limit = 64
    model = DDP(torch.compile(Mixer(), backend="aot_eager", dynamic=False))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    generator = torch.Generator().manual_seed(RANK)
    for step in steps(given, model.module):
        each = now(given, "grow_each")
        length = 32 + (step // each if each and given.grow_rank == RANK else 0)
        tokens = torch.randint(0, 400, (16, length), generator=generator)
        scores = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if now(given, "records") and given.log_rank == RANK:
            with costs("log_records"):
                log_records(step, loss.item(), now(given, "records"))


if __name__ == "__main__":
    main()
