"""FSDP2: compiled blocks, checkpointing; --save-each: rank 0 saves the whole model; --slow-read: rank 1's loader."""

import time

import torch
import torch.distributed as dist
from parts import CUDA, DEVICE, GPT, RANK, Tokens, begin, loader, loss_of, options, small, steps
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Shards(Tokens):
    """Reads from a disk far away; on rank 1 it takes longer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds if RANK == 1 else 0.0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read_shard()
        return super().__getitem__(index)

    def read_shard(self) -> None:
        if self.seconds:
            time.sleep(self.seconds)


def save(model: torch.nn.Module, copies: int) -> None:
    """Rank 0 writes what all ranks gather; the others wait."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if RANK == 0:
        for copy in range(copies):
            torch.save(state, f"/tmp/ranks_model.{copy}.pt")
    dist.barrier()


def main() -> None:
    given = options(slow_read=0.0, save_each=0, copies=1, compile=1)
    begin()
    model = GPT(4).to(DEVICE)
    for at, block in enumerate(model.blocks):
        model.blocks[at] = checkpoint_wrapper(block)
        if given.compile:
            model.blocks[at].compile()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if CUDA else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    batches = loader(Shards(given.slow_read), small(64, 2))
    for step in steps(given, 1):
        ids = next(batches).to(DEVICE, non_blocking=True)
        loss_of(model(ids), ids).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if given.save_each and step % given.save_each == 0:
            save(model, given.copies)


if __name__ == "__main__":
    main()
