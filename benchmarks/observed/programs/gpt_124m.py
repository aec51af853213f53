"""A GPT-2 of 124M parameters as nanoGPT trains it: accumulation over two, batches from a memory map; --compile. Nothing
is planted."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from gpt import GPT
from own import CUDA, DEVICE, autocast, tell, training_begins

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH = (50304, 768, 12, 12, 1024, 12) if CUDA else (256, 64, 2, 2, 32, 4)


def get_batch(data: np.ndarray, drawn: np.random.Generator) -> torch.Tensor:
    at = drawn.integers(0, len(data) - LENGTH - 1, BATCH)
    ids = torch.stack([torch.from_numpy(data[one : one + LENGTH + 1].astype(np.int64)) for one in at])
    return ids.pin_memory().to(DEVICE, non_blocking=True) if CUDA else ids


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    path = Path(tempfile.mkdtemp()) / "train.bin"
    drawn = np.random.default_rng(0)
    drawn.integers(0, VOCABULARY, 2_000_000).astype(np.uint16).tofile(path)
    data = np.memmap(path, dtype=np.uint16, mode="r")
    model = GPT(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH).to(DEVICE)
    loss_of = torch.compile(model.loss) if given.compile else model.loss
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95), weight_decay=0.1, fused=CUDA)
    tokens = get_batch(data, drawn)
    loss = None
    training_begins()
    for step in range(given.steps):
        for _ in range(2):
            with autocast():
                loss = loss_of(tokens) / 2
            tokens = get_batch(data, drawn)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"iter {step}: loss {2 * loss.item():.4f}", flush=True)
    tell(given.steps, model, f"loss {2 * loss.item():.6f}")


if __name__ == "__main__":
    main()
