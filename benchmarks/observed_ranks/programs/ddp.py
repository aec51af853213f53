"""DDP as in torch's tutorials: workers, gradients clipped, the loss read in each step."""

import time

import torch
from parts import DEVICE, GPT, RANK, Tokens, autocast, begin, loader, loss_of, options, small, tell
from torch.nn.parallel import DistributedDataParallel


def mask_tokens(ids: torch.Tensor, seconds: float) -> torch.Tensor:
    """On the host; --slow-mask: for so long on rank 1."""
    if seconds and RANK == 1:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            sorted(range(500), key=str)
    return ids


def main() -> None:
    given = options(slow_mask=0.0)
    begin()
    model = DistributedDataParallel(GPT().to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    batches = loader(Tokens(), small(64, 2))
    running, began = 0.0, time.perf_counter()
    for step in range(given.steps):
        ids = mask_tokens(next(batches), given.slow_mask).to(DEVICE, non_blocking=True)
        optimizer.zero_grad()
        with autocast():
            loss = loss_of(model(ids), ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += loss.item()
        if step % 20 == 19 and RANK == 0:
            print(step, running / 20, flush=True)
            running = 0.0
    tell(given.steps, began)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
