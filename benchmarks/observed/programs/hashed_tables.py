"""A recommender: 26 tables of embeddings, a network on top.

Planted, and left out with --tidy: words hashed by Python in the training's own thread, without a DataLoader, and an
Adam that goes over whole tables for the few rows that a batch has touched. Tidy: hashed before, and sparse.
"""

import zlib

import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, timed, training
from torch import nn
from torch.nn import functional as F

TABLES, ROWS, WIDTH, BATCH, STEPS = (26, 600_000, 32, 1024, 120) if CUDA else (4, 500, 8, 64, 80)


def hashed(words: list[list[str]], step: int) -> torch.Tensor:
    with timed("hashing"):
        salt = str(step % 8).encode()
        return torch.tensor([[zlib.crc32(word.encode() + salt) % ROWS for word in of] for of in words])


def main() -> None:
    same_each_time()
    torch.use_deterministic_algorithms(False)
    words = [[f"table {table}, word {at * 7919 % 4001}" for at in range(BATCH)] for table in range(TABLES)]
    tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=TIDY) for _ in range(TABLES)).to(DEVICE)
    top = nn.Sequential(
        nn.Linear(TABLES * WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
    ).to(DEVICE)
    kind = torch.optim.SparseAdam if TIDY else torch.optim.Adam
    optimizers = [kind(list(tables.parameters()), 1e-3), torch.optim.Adam(top.parameters(), 1e-3)]
    before = [hashed(words, step).to(DEVICE) for step in range(8)] if TIDY else []
    clicks = torch.randint(0, 2, (BATCH,), device=DEVICE).float()
    for step in training(STEPS):
        ids = before[step % 8] if TIDY else hashed(words, step).to(DEVICE)
        found = torch.cat([table(one[:, None]) for table, one in zip(tables, ids, strict=True)], 1)
        loss = F.binary_cross_entropy_with_logits(top(found)[:, 0], clicks)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if step % 30 == 29:
            print(f"step {step}: loss {loss.item():.4f}")
    tell(STEPS, nn.ModuleList([top, tables[0]]), f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
