"""A pipeline written by hand, GPipe: all micro-batches forward, all backward; isend and irecv; --layers by stage."""

import torch
import torch.distributed as dist
from own import RANK, begin, blocks, for_ever, samples, steps
from torch.utils.data import DataLoader

WIDTH = 384


class Stage:
    def __init__(self, layers: int, micro: int, batch: int) -> None:
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.part = blocks(WIDTH, layers, 8 if self.rank == self.last else None)
        self.micro, self.rows = micro, batch // micro

    def forward_all(self, x: torch.Tensor, y: torch.Tensor) -> list:
        kept, sends = [], []
        for n in range(self.micro):
            rows = slice(n * self.rows, (n + 1) * self.rows)
            if self.rank == 0:
                got = x[rows]
            else:
                got = torch.empty(self.rows, WIDTH)
                dist.irecv(got, self.rank - 1).wait()
                got.requires_grad_()
            out = self.part(got)
            if self.rank == self.last:
                out = torch.nn.functional.cross_entropy(out, y[rows]) / self.micro
            else:
                sends.append(dist.isend(out.detach(), self.rank + 1))
            kept.append((got, out))
        for send in sends:
            send.wait()
        return kept

    def backward_all(self, kept: list) -> None:
        sends = []
        for got, out in kept:
            if self.rank == self.last:
                out.backward()
            else:
                grad = torch.empty_like(out)
                dist.irecv(grad, self.rank + 1).wait()
                out.backward(grad)
            if self.rank:
                sends.append(dist.isend(got.grad, self.rank - 1))
        for send in sends:
            send.wait()


def main() -> None:
    given = begin(RANK, layers="3,3,3", batch=96, micro=6)
    stage = Stage([int(n) for n in given.layers.split(",")][dist.get_rank()], given.micro, given.batch)
    optimizer = torch.optim.AdamW(stage.part.parameters(), 1e-4)
    batches = for_ever(DataLoader(samples(1920, WIDTH), given.batch))
    for _ in steps(given, stage.part):
        x, y = next(batches)
        optimizer.zero_grad()
        stage.backward_all(stage.forward_all(x, y))
        optimizer.step()


if __name__ == "__main__":
    main()
