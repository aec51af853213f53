"""DDP whose ranks gather their scores as objects in each step; rank 0 keeps a moving average of the weights."""

import copy
import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


def gather_scores(scores: torch.Tensor, truth: torch.Tensor, words: int) -> float:
    """Exact matches over all ranks: what each rank has is sent as a list of dicts."""
    mine = [
        {"score": score, "truth": label, "text": ["word"] * 20 + [str(number) for number in range(words)]}
        for score, label in zip(scores.argmax(1).tolist(), truth.tolist(), strict=True)
    ]
    all_of_them: list[list[dict[str, object]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(all_of_them, mine)
    rows = [row for rows in all_of_them for row in rows]
    return sum(row["score"] == row["truth"] for row in rows) / len(rows)


class Average:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = copy.deepcopy(model)

    @torch.no_grad()
    def update_average(self, model: torch.nn.Module, seconds: float) -> None:
        for mean, value in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.mul_(0.999).add_(value, alpha=0.001)
        time.sleep(seconds)


def main() -> None:
    given = begin(words=0, average=0.0)
    net = blocks(288, 4, 8)
    model, average = DDP(net), Average(net)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = sharded(samples(8192, 288), 48)
    for _ in steps(given, model):
        x, y = next(batches)
        scores = model(x)
        torch.nn.functional.cross_entropy(scores, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if RANK == 0 and now(given, "average"):
            with costs("update_average"):
                average.update_average(net, given.average)
        with costs("gather_scores"):
            gather_scores(scores, y, now(given, "words"))


if __name__ == "__main__":
    main()
