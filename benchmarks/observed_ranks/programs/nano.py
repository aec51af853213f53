"""As nanoGPT trains: DDP, a compiled model, accumulation, batches from a memory map; --heap: of rank 1."""

import gc
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from parts import CUDA, DEVICE, GPT, RANK, VOCAB, autocast, begin, loss_of, options, small, steps
from torch.nn.parallel import DistributedDataParallel

ROWS, LENGTH = small(32, 2), small(256, 16)
kept: list[list[list[int]]] = []


def keep_scores(many: int) -> None:
    """--heap: rank 1 keeps so many objects, and frees what it can every fourth step."""
    if not kept:
        kept.append([[at, at] for at in range(many)])
    gc.collect()


def get_batch(data: np.ndarray, drawn: np.random.Generator) -> torch.Tensor:
    at = drawn.integers(0, len(data) - LENGTH, ROWS)
    ids = torch.stack([torch.from_numpy(data[one : one + LENGTH].astype(np.int64)) for one in at])
    return ids.pin_memory().to(DEVICE, non_blocking=True) if CUDA else ids


def learning_rate(step: int) -> float:
    return 3e-4 * 0.5 * (1.0 + math.cos(math.pi * step / 100))


def main() -> None:
    given = options(heap=0, compile=1)
    begin()
    path = Path(tempfile.mkdtemp()) / "train.bin"
    np.random.default_rng(0).integers(0, VOCAB, 400_000).astype(np.uint16).tofile(path)
    data, drawn = np.memmap(path, dtype=np.uint16, mode="r"), np.random.default_rng(RANK)
    model: torch.nn.Module = GPT().to(DEVICE)
    model = torch.compile(model) if given.compile else model
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    ids = get_batch(data, drawn)
    for step in steps(given):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        for micro in range(2):
            model.require_backward_grad_sync = micro == 1
            with autocast():
                loss = loss_of(model(ids), ids) / 2
            ids = get_batch(data, drawn)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if given.heap and RANK == 1 and step % 4 == 3:
            keep_scores(given.heap)
        if step % 10 == 0 and RANK == 0:
            print(f"iter {step}: loss {loss.item() * 2:.4f}", flush=True)


if __name__ == "__main__":
    main()
