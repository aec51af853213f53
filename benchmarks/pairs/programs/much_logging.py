"""DDP whose rank 0 keeps a diary: histograms of all weights each step, written as JSON (--diary numbers)."""

import json
import os
import tempfile

import torch
import torch.distributed as dist
from own import begin, blocks, for_ever, samples, steps
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Diary:
    def __init__(self, numbers: int) -> None:
        self.numbers = numbers
        self.file = tempfile.TemporaryFile("w")  # noqa: SIM115

    def write_histograms(self, step: int, model: torch.nn.Module) -> None:
        for name, parameter in model.named_parameters():
            values = parameter.detach().flatten()[: self.numbers].tolist()
            self.file.write(json.dumps({"step": step, "name": name, "values": values}) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def main() -> None:
    given = begin(diary=0, batches="64,64,64,64")
    rank = dist.get_rank()
    model = DDP(blocks(256, 5, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    data = samples(8192, 256)
    rows = int(given.batches.split(",")[rank])
    batches = for_ever(DataLoader(data, rows, sampler=DistributedSampler(data)))
    diary = Diary(given.diary)
    for step in steps(given, model):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if rank == 0 and given.diary:
            diary.write_histograms(step, model.module)


if __name__ == "__main__":
    main()
