"""A mean teacher: it labels every batch, and follows the student after each step, parameter by parameter."""

import copy

import torch
from timed import DEVICE, phase, plain, rounds, sizes, wrap
from torch import nn
from torch.nn import functional

BATCH, LAYERS, WIDTH = sizes(72, 288), sizes(6, 36), sizes(240, 1152)


@torch.no_grad()
def pseudo_label(teacher: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.softmax(teacher(images + 0.1 * torch.randn_like(images)), -1) for _ in range(5)]).mean(0)


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module) -> None:
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        for row, other in zip(slow.split(16), fast.split(16), strict=True):
            row.mul_(0.99).add_(other, alpha=0.01)


def main() -> None:
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    student = wrap(nn.Sequential(*layers))
    teacher = copy.deepcopy(plain(student))
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-3)
    for _ in rounds():
        images = torch.randn(BATCH, WIDTH, device=DEVICE)
        with phase("teacher", pseudo_label):
            labels = pseudo_label(teacher, images)
        with phase("student"):
            loss = functional.cross_entropy(student(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with phase("follow", follow):
            follow(teacher, plain(student))


main()
