"""FSDP2 on a mesh of two dimensions (replicate, shard): sharded checkpoints, or one of rank 0 while the others wait."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from own import begin, blocks, samples, sharded, steps
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def save_on_rank_0(model: torch.nn.Module, optimizer: torch.optim.Optimizer, copies: int) -> None:
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            for copy in range(copies):
                torch.save(state, Path(folder) / f"model.{copy}.pt")
    dist.barrier()


def main() -> None:
    given = begin(save_alone=0, copies=1, dcp_each=0)
    ranks = dist.get_world_size()
    shape = (2, ranks // 2) if ranks > 2 else (1, ranks)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = blocks(512, 6, 8)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = sharded(samples(2048, 512), 32)
    for step in steps(given, model, 1):
        x, y = next(batches)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if given.save_alone and step % given.save_alone == 0:
            save_on_rank_0(model, optimizer, given.copies)
        if given.dcp_each and step % given.dcp_each == 0:
            with tempfile.TemporaryDirectory() as folder:
                dcp.save({"model": model.state_dict()}, checkpoint_id=Path(folder) / "dcp")


if __name__ == "__main__":
    main()
