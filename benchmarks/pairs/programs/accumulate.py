"""DDP with accumulation: --sync-each reduces in every micro-batch, --unused looks for parameters that are not used."""

import contextlib

import torch
from own import begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoHeads(torch.nn.Module):
    def __init__(self, depth: int, one_at_a_time: bool) -> None:
        super().__init__()
        self.one_at_a_time = one_at_a_time
        self.trunk = blocks(320, depth)
        self.first, self.second = torch.nn.Linear(320, 8), torch.nn.Linear(320, 8)

    def forward(self, x: torch.Tensor, task: int) -> torch.Tensor:
        x = self.trunk(x)
        if self.one_at_a_time:
            return self.second(x) if task else self.first(x)
        both = self.first(x), self.second(x)
        return both[task] + 0.0 * both[1 - task]


def main() -> None:
    given = begin(micro=6, sync_each=0, unused=0, depth=6)
    model = DDP(TwoHeads(given.depth, bool(given.unused)), find_unused_parameters=bool(given.unused))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = sharded(samples(8192, 320), 16)
    for _step in steps(given, model):
        optimizer.zero_grad()
        for micro in range(given.micro):
            last = micro == given.micro - 1
            waits = contextlib.nullcontext() if last or given.sync_each else model.no_sync()
            with waits:
                x, y = next(batches)
                scores = model(x, micro % 2)
                loss = torch.nn.functional.cross_entropy(scores, y)
                (loss / given.micro).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
