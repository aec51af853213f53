"""A small network of convolutions learns from a larger one, which is called without gradients in each step, as it must.

Planted, and left out with --tidy: batches of 100 MB are copied from memory that is not pinned, and 40 values of the
answers are read by .item() in each step.
"""

import torch
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, timed, training
from torch import nn
from torch.nn import functional as F

BATCH, SIDE, WIDTH, STEPS = (160, 224, 128, 80) if CUDA else (2, 16, 4, 60)


def network(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 4, 3), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


def looked_at(answers: torch.Tensor, taught: torch.Tensor) -> list[float]:
    values = []
    for kind in range(20):
        values.append(answers[:, kind].mean().item())
        values.append(taught[:, kind].mean().item())
    return values


def main() -> None:
    same_each_time()
    teacher, student = network(2 * WIDTH, 8).to(DEVICE).eval(), network(WIDTH, 6).to(DEVICE)
    optimizer = torch.optim.SGD(student.parameters(), 1e-2, momentum=0.9)
    pictures = [torch.rand(BATCH, 3, SIDE, SIDE) for _ in range(4)]
    if TIDY and CUDA:
        pictures = [one.pin_memory() for one in pictures]
    values: list[float] = []
    for step in training(STEPS):
        with timed("copying"):
            x = pictures[step % 4].to(DEVICE, non_blocking=TIDY)
        with autocast():
            with torch.no_grad():
                taught = teacher(x)
            answers = student(x)
            loss = F.kl_div(answers.float().log_softmax(-1), taught.float().softmax(-1), reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not TIDY:
            with timed("looked_at"):
                values += looked_at(answers.detach(), taught)
    tell(STEPS, student, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
