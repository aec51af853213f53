"""A graph network: neighbours are drawn in the main thread, messages summed by a sparse matrix.

Planted, and left out with --tidy: the drawing itself, as a loader would hide it; features that are copied from memory
that is not pinned, though they fit on the device.
"""

import numpy as np
import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, training
from torch import nn

NODES, SEEDS, NEIGHBOURS, WIDTH, STEPS = (200_000, 4096, 15, 512, 70) if CUDA else (4000, 64, 5, 32, 60)


class Graph:
    """Random neighbours and features."""

    def __init__(self) -> None:
        self.drawn = np.random.default_rng(0)
        self.neighbours = self.drawn.integers(0, NODES, (NODES, 32))
        self.features = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1))
        self.near = self.features.to(DEVICE) if TIDY else None

    def sample(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Nodes of a batch, and the sparse matrix that averages each seed's neighbours."""
        seeds = self.drawn.integers(0, NODES, SEEDS)
        columns = np.argsort(self.drawn.random((SEEDS, 32)), axis=1)[:, :NEIGHBOURS]
        around = self.neighbours[seeds[:, None], columns]
        nodes, places = np.unique(np.concatenate([seeds, around.ravel()]), return_inverse=True)
        rows = np.repeat(np.arange(SEEDS), NEIGHBOURS)
        at = np.stack([rows, places[SEEDS:]])
        weights = torch.full((at.shape[1],), 1 / NEIGHBOURS)
        adjacency = torch.sparse_coo_tensor(torch.from_numpy(at), weights, (SEEDS, len(nodes)), check_invariants=False)
        return torch.from_numpy(nodes), adjacency.coalesce()

    def batch(self, nodes: torch.Tensor) -> torch.Tensor:
        if self.near is not None:
            return self.near[nodes.to(DEVICE)]
        return self.features[nodes].to(DEVICE)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.ReLU())
        self.after = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 47))

    def forward(self, features: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        return self.after(torch.sparse.mm(adjacency, self.before(features)))


def main() -> None:
    same_each_time()
    graph, model = Graph(), Net().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    known = [graph.sample() for _ in range(8)] if TIDY else []
    known = [(nodes.to(DEVICE), adjacency.to(DEVICE)) for nodes, adjacency in known]
    labels = torch.arange(SEEDS, device=DEVICE) % 47
    for step in training(STEPS):
        nodes, adjacency = known[step % 8] if TIDY else graph.sample()
        x, adjacency = graph.batch(nodes), adjacency.to(DEVICE)
        loss = nn.functional.cross_entropy(model(x, adjacency), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step}: loss {loss.item():.4f}")
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
