"""A network that must meet a heat equation, by LBFGS, whose closure is called several times a step, and whose
line search reads each loss.

Planted, and left out with --tidy: each step's points are drawn by Python, one after the other.
"""

import random

import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, timed, training
from torch import nn

WIDTH, LAYERS, POINTS, STEPS = (512, 6, 8192, 60) if CUDA else (16, 2, 64, 40)


def drawn(source: random.Random) -> torch.Tensor:
    with timed("drawing"):
        cells = list(range(POINTS))
        source.shuffle(cells)
        return torch.tensor(
            [[(at + source.random()) / POINTS, (to + source.random()) / POINTS] for at, to in enumerate(cells)]
        )


def slope(of: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(of, by, torch.ones_like(of), create_graph=True)[0]


def main() -> None:
    same_each_time()
    source = random.Random(0)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    net = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), *layers, nn.Linear(WIDTH, 1)).to(DEVICE)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, history_size=10, line_search_fn="strong_wolfe")
    kept = drawn(source).to(DEVICE)
    for step in training(STEPS):
        points = kept if TIDY else drawn(source).to(DEVICE)

        def closure(points: torch.Tensor = points) -> torch.Tensor:
            optimizer.zero_grad()
            at = points.clone().requires_grad_()
            first = slope(net(at), at)
            second = slope(first[:, :1], at)[:, :1]
            rest = (first[:, 1:] - 0.1 * second).square().mean() + (net(at[:256]) - at[:256, :1]).square().mean()
            rest.backward()
            return rest

        loss = optimizer.step(closure)
        if step % 20 == 19:
            print(f"step {step}: {loss.item():.5f}")
    tell(STEPS, net, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
