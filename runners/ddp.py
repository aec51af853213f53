"""Data parallel training of an image classifier: copy this file and put your model and data in.

    traceops run --nproc 2 -- python runners/ddp.py          # two GPUs, or two processes on the CPU
    torchrun --nproc-per-node 2 runners/ddp.py               # the same without traceops

Images are made in code; --data FOLDER reads a folder of class folders with torchvision instead.
"""

from __future__ import annotations

import argparse
import os
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class MadeImages(Dataset[tuple[torch.Tensor, int]]):
    """Random images of ten classes; those of one class share a pattern, so the loss falls."""

    def __init__(self, count: int = 2048, size: int = 32) -> None:
        self._patterns = torch.randn(10, 3, size, size, generator=torch.Generator().manual_seed(0))
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % 10
        return self._patterns[label] + torch.randn(self._patterns[label].shape), label


def images_of(folder: str | None) -> Dataset[tuple[torch.Tensor, int]]:
    if folder is None:
        return MadeImages()
    from torchvision import datasets, transforms

    prepare = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
    images: Dataset[tuple[torch.Tensor, int]] = datasets.ImageFolder(folder, prepare)
    return images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder of class folders; images made in code if not given")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers per rank")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")

    images = images_of(args.data)
    sampler = DistributedSampler(images)  # without it every rank trains on the same samples
    loader = DataLoader(
        images, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=cuda, drop_last=True
    )
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
    ).to(device, memory_format=torch.channels_last)  # fmt: skip
    parallel = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3, fused=cuda)

    done, epoch = 0, 0
    while done < args.steps:
        sampler.set_epoch(epoch)
        for batch, labels in islice(loader, args.steps - done):
            batch = batch.to(device, non_blocking=True, memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
                loss = nn.functional.cross_entropy(parallel(batch), labels.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
        epoch += 1
    if dist.get_rank() == 0:
        print(f"loss after {done} steps: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
