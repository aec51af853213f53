"""Metric learning: every few steps all items are embedded again, and their hardest negatives are searched in NumPy."""

import numpy as np
import torch
from timed import DEVICE, phase, plain, rounds, sizes, wrap
from torch import nn
from torch.nn import functional

EVERY, ITEMS, WIDTH = sizes(5, 7), sizes(700, 2200), sizes(240, 1152)


def mine(model: nn.Module, items: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        embedded = model(items).cpu().numpy()
    alike = embedded @ embedded.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1)[:, 0]


def main() -> None:
    model = wrap(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 64))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    items = torch.randn(ITEMS, WIDTH, device=DEVICE)
    for _ in rounds():
        with phase("mine", mine):
            hardest = torch.as_tensor(mine(plain(model), items), device=DEVICE)
        for _ in range(EVERY):
            with phase("train"):
                chosen = torch.randint(ITEMS, (128,), device=DEVICE)
                anchor = model(items[chosen])
                loss = functional.relu(1 + (anchor * model(items[hardest[chosen]])).sum(1)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


main()
