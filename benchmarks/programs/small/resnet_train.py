"""ResNet-50 under DDP: bf16, channels_last, random pictures from a loader with pinned memory."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.models import resnet18, resnet50

CUDA = torch.cuda.is_available()
BATCH, SIDE, STEPS = (128, 224, 44) if CUDA else (2, 32, 30)


class Pictures(Dataset):
    """Bytes of a few random pictures, again and again: what a decoder would give."""

    def __init__(self, count: int) -> None:
        self.count = count
        shape = (64, 3, SIDE, SIDE)
        self.pictures = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pictures[index % 64], index % 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    dist.init_process_group("nccl" if CUDA else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    model = (resnet50 if CUDA else resnet18)().to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(model, device_ids=[device.index] if CUDA else None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    pictures = Pictures(BATCH * given.steps * dist.get_world_size())
    loader = DataLoader(
        pictures, BATCH, sampler=DistributedSampler(pictures), num_workers=4 if CUDA else 1, pin_memory=CUDA
    )
    for images, labels in loader:
        images = images.to(device, non_blocking=True).float().div_(255)
        images = images.to(memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
