"""ResNet-50 in the manner of timm: augmentation in the loader, a running mean of the weights, accuracy each step.

Planted, and left out with --tidy: two workers where the augmentation needs fourteen, and pictures that are not pinned
with an accuracy that waits for the device.
"""

import copy

import torch
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, training_begins
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18, resnet50
from torchvision.transforms import v2

BATCH, SIDE, STEPS = (64, 224, 45) if CUDA else (4, 32, 40)


class Pictures(Dataset):
    """Decoded pictures, and what a recipe does to them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pictures = torch.randint(0, 256, (64, 3, SIDE + 32, SIDE + 32), dtype=torch.uint8)
        self.recipe = v2.Compose([
            v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4),
            v2.GaussianBlur(9), v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,) * 3, (0.25,) * 3),
            v2.RandomErasing(0.25),
        ])  # fmt: skip

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.recipe(self.pictures[index % 64]), index % 1000


class RunningMean:
    """Of the weights, one parameter after the other."""

    def __init__(self, model: torch.nn.Module, decay: float = 0.999) -> None:
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        for mean, value in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.mul_(self.decay).add_(value, alpha=1 - self.decay)


def main() -> None:
    same_each_time()
    model = (resnet50 if CUDA else resnet18)().to(DEVICE, memory_format=torch.channels_last)
    ema = RunningMean(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-5, nesterov=True)
    workers = (14 if TIDY else 2) if CUDA else 1
    loader = DataLoader(
        Pictures(BATCH * STEPS), BATCH, shuffle=True, num_workers=workers, pin_memory=TIDY and CUDA,
        generator=torch.Generator().manual_seed(1), drop_last=True,
    )  # fmt: skip
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    right, steps, loss = 0.0, 0, None
    training_begins()
    for images, labels in loader:
        images = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=True)
        with autocast():
            logits = model(images)
            loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        steps += 1
        if not TIDY:
            right += (logits.argmax(1) == labels).float().mean().item()
    tell(steps, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
