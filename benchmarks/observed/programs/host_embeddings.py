"""A recommender whose large tables stay in the host's memory, because "they do not fit".

Planted, and left out with --tidy: the tables are looked up and updated on the host, and behind every 25th step a
histogram of each table is written to a file.
"""

import tempfile
from pathlib import Path

import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, timed, training
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH, TABLES, BATCH, TOP, STEPS = (200_000, 64, 6, 8192, 2048, 80) if CUDA else (100, 8, 2, 8, 16, 60)


def histograms(tables: nn.ModuleList, path: Path) -> None:
    with path.open("a") as file:
        for table in tables:
            counts = torch.histc(table.weight.detach().float().cpu(), 100)
            print(*counts.tolist(), file=file)


def main() -> None:
    same_each_time()
    where = DEVICE if TIDY else torch.device("cpu")
    tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True) for _ in range(TABLES))
    tables = tables.to(where)
    top = nn.Sequential(
        nn.Linear(TABLES * WIDTH, TOP), nn.ReLU(), *(p for _ in range(4) for p in (nn.Linear(TOP, TOP), nn.ReLU())),
        nn.Linear(TOP, 1),
    ).to(DEVICE)  # fmt: skip
    of_tables = torch.optim.SparseAdam(list(tables.parameters()), 1e-3)
    of_top = torch.optim.Adam(top.parameters(), 1e-3, fused=CUDA)
    ids = [torch.randint(0, ROWS, (TABLES, BATCH, 4), device=where) for _ in range(4)]
    clicks = torch.randint(0, 2, (BATCH,), device=DEVICE).float()
    path = Path(tempfile.mkdtemp()) / "histograms.txt"
    for step in training(STEPS):
        with timed("tables"):
            seen = torch.cat([table(one) for table, one in zip(tables, ids[step % 4], strict=True)], 1)
        loss = F.binary_cross_entropy_with_logits(top(seen.to(DEVICE))[:, 0], clicks)
        of_tables.zero_grad()
        of_top.zero_grad()
        loss.backward()
        of_top.step()
        with timed("tables' optimizer"):
            of_tables.step()
        if step % 25 == 24 and not TIDY:
            with timed("histograms"):
                histograms(tables, path)
    tell(STEPS, top, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
