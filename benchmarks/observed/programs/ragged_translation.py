"""An encoder-decoder that translates sentences of every length, in bf16.

Planted, and left out with --tidy: sentences are cut into pieces in Python by the collate function of a DataLoader
without workers, and the weights and the optimizer's state are saved behind every 20th step.
"""

import random
import tempfile

import torch
from gpt import Block
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, timed, training_begins
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, WORDS, BATCH, STEPS = (768, 6, 120, 24, 80) if CUDA else (32, 1, 8, 2, 60)
PIECES = 4096
KNOWN = {f"{number:03d}": number for number in range(1000)} | {"w": 1000}


class Sentences(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> list[str]:
        drawn = random.Random(index)
        return [f"w{drawn.randrange(10**12)}" for _ in range(drawn.randrange(WORDS // 4, WORDS))]


def pieces_of(words: list[str]) -> list[int]:
    """The longest pieces that are known, from the left."""
    ids = []
    for word in words:
        begin = 0
        while begin < len(word):
            end = next(end for end in range(len(word), begin, -1) if word[begin:end] in KNOWN or end == begin + 1)
            ids.append(KNOWN.get(word[begin:end], 0))
            begin = end
    return ids


def padded(rows: list[list[str]]) -> torch.Tensor:
    ids = [pieces_of(row) for row in rows]
    longest = max(map(len, ids))
    return torch.tensor([row + [0] * (longest - len(row)) for row in ids])


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(PIECES, WIDTH)
        self.encoder = nn.Sequential(*(Block(WIDTH, WIDTH // 16) for _ in range(LAYERS)))
        self.decoder = nn.Sequential(*(Block(WIDTH, WIDTH // 16) for _ in range(LAYERS)))
        self.cross = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.head = nn.Linear(WIDTH, PIECES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        seen = self.encoder(self.words(ids))
        x = self.decoder(self.words(ids))
        return self.head(x + self.cross(x, seen, seen, need_weights=False)[0])


def main() -> None:
    same_each_time()
    model = Translator().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=CUDA)
    loader = iter(DataLoader(Sentences(), batch_size=BATCH, collate_fn=padded))
    kept = [next(loader) for _ in range(8)] if TIDY else []
    folder, loss = tempfile.mkdtemp(), None
    training_begins()
    for step in range(STEPS):
        ids = (kept[step % 8] if TIDY else next(loader)).to(DEVICE)
        with autocast():
            loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 19 and not TIDY:
            with timed("saving"):
                torch.save({"model": model.state_dict(), "of": optimizer.state_dict()}, f"{folder}/last.pt")
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
