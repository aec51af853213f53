"""A classifier that is evaluated every so many steps."""

import torch
from timed import DEVICE, phase, plain, rounds, sizes, wrap
from torch import nn
from torch.nn import functional

EVERY, BATCH, WIDTH = sizes(8, 18), sizes(72, 1152), sizes(368, 1920)


@torch.no_grad()
def accuracy(model: nn.Module, batches: int) -> float:
    right = 0.0
    for _ in range(batches):
        images, labels = torch.randn(BATCH, WIDTH, device=DEVICE), torch.randint(10, (BATCH,), device=DEVICE)
        right += (model(images).argmax(1) == labels).float().mean().item()
    return right / batches


def main() -> None:
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
    model = wrap(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in rounds():
        for _ in range(EVERY):
            with phase("train"):
                images, labels = torch.randn(BATCH, WIDTH, device=DEVICE), torch.randint(10, (BATCH,), device=DEVICE)
                loss = functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with phase("evaluation", accuracy):
            accuracy(plain(model), sizes(22, 50))


main()
