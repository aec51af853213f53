"""Gradients of a few micro-batches for each step of the optimizer; the texts of each are packed by Python."""

import contextlib

import torch
from timed import DEVICE, WORLD, phase, rounds, sizes, wrap
from torch import nn
from torch.nn import functional

MICRO, BATCH, LENGTH, WIDTH = sizes(6, 5), sizes(9, 36), 64, sizes(136, 832)


def pack(texts: list[list[int]]) -> torch.Tensor:
    """Cuts and joins texts to rows of one length."""
    rows, row = [], []
    for text in texts:
        for token in text:
            row.append((token * 31 + 7) % 256)
            if len(row) == LENGTH:
                rows.append(row)
                row = []
    return torch.tensor(rows[:BATCH], device=DEVICE)


def main() -> None:
    width = WIDTH
    model = wrap(
        nn.Sequential(nn.Embedding(256, width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 256))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    texts = [list(range(50 + i % 200)) for i in range(sizes(180, 360))]
    for _ in rounds():
        for micro in range(MICRO):
            with phase("pack", pack):
                tokens = pack(texts)
            last = micro == MICRO - 1 or WORLD == 1
            with phase("train"), contextlib.nullcontext() if last else model.no_sync():
                logits = model(tokens)
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()) / MICRO
                loss.backward()
        with phase("train"):
            optimizer.step()
            optimizer.zero_grad()


main()
