"""A GPT on text that an IterableDataset reads from a packed file.

Planted, and left out with --tidy: a single worker that cuts words into tokens in Python, and every 25 steps a
validation that takes its batches by the same way. Tidy: tokens of before, no validation.
"""

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from gpt import GPT
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, timed, training_begins
from torch.utils.data import DataLoader, IterableDataset

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH, STEPS, CHECKS = (
    (16384, 768, 6, 12, 512, 16, 80, 12) if CUDA else (256, 32, 1, 2, 32, 2, 80, 4)
)


class Lines(IterableDataset):
    """One text after the other, without an end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            with gzip.open(self.path, "rt") as lines:
                for line in lines:
                    yield tokens_of(line)


def tokens_of(line: str) -> torch.Tensor:
    ids = []
    for word in line.split():
        letters = list(word)
        while len(letters) > 1:
            best = min(range(len(letters) - 1), key=lambda at: letters[at] + letters[at + 1])
            letters[best : best + 2] = [letters[best] + letters[best + 1]]
        ids.append(sum(ord(letter) * 31**at for at, letter in enumerate(letters[0])) % VOCABULARY)
    return torch.tensor(ids)


@torch.no_grad()
def validate(model: torch.nn.Module, batches: Iterator[torch.Tensor]) -> float:
    model.eval()
    with autocast():
        mean = sum(model.loss(next(batches).to(DEVICE)).item() for _ in range(CHECKS)) / CHECKS
    model.train()
    return mean


def main() -> None:
    same_each_time()
    path = Path(tempfile.mkdtemp()) / "text.gz"
    with gzip.open(path, "wt", compresslevel=1) as lines:
        for row in range(256):
            lines.write(" ".join(f"{(row * 131 + at * at) % 40009}" for at in range(LENGTH + 1)) + "\n")
    model = GPT(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    if TIDY:
        rows = [one for one, _ in zip(Lines(path), range(256), strict=False)]
        batches = iter(torch.stack(rows).view(-1, BATCH, LENGTH + 1).repeat(STEPS * BATCH // 256 + 1, 1, 1))
    else:
        batches = iter(DataLoader(Lines(path), BATCH, num_workers=1, pin_memory=CUDA))
        checks = iter(DataLoader(Lines(path), BATCH, num_workers=1, pin_memory=CUDA))
    loss = None
    training_begins()
    for step in range(STEPS):
        batch = next(batches).to(DEVICE, non_blocking=True)
        with autocast():
            loss = model.loss(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if not TIDY and step % 25 == 24:
            with timed("validate"):
                print(f"step {step}: val {validate(model, checks):.4f}, train {loss.item():.4f}")
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
