"""DDP whose ranks write what each has into one file, by turns; a loader that asks a server for each batch."""

import fcntl
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, blocks, samples, sharded, tell, window
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import Dataset

PATH = Path(tempfile.gettempdir()) / f"one_file_{os.environ.get('MASTER_PORT', '0')}"


class FromServer(Dataset):
    def __init__(self, given: object) -> None:
        self.given, self.inner = given, samples(4096, 320)

    def __len__(self) -> int:
        return len(self.inner)

    def ask_server(self) -> None:
        time.sleep(self.given.ask)

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if now(self.given, "ask") and self.given.ask_rank == RANK:
            with costs("ask_server"):
                self.ask_server()
        return [self.inner[index] for index in indices]


def flush_to_share(seconds: float) -> None:
    time.sleep(seconds)


def save_shared(optimizer: torch.optim.Optimizer, seconds: float) -> None:
    """Each rank waits for the file, and appends its part of the optimizer's state."""
    with PATH.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        parts = list(optimizer.state.values())[RANK :: dist.get_world_size()]
        torch.save(parts, file)
        file.flush()
        flush_to_share(seconds)
    dist.barrier()


def main() -> None:
    given = begin(ask=0.0, ask_rank=0, save_each=0, flush=0.2)
    model = DDP(blocks(320, 6, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = sharded(FromServer(given), 32)
    with window(given) as own:
        for step in range(1, given.steps + 1):
            x, y = next(batches)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if now(given, "save_each") and step % now(given, "save_each") == 0:
                with costs("save_shared"):
                    save_shared(optimizer, given.flush)
            own.step()
    tell(given.steps, model)
    if RANK == 0:
        PATH.unlink(missing_ok=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
