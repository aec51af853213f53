"""Four ranks on a mesh of two dimensions: tensor parallel within, FSDP2 across."""

import torch
import torch.distributed as dist
from parts import CUDA, DEVICE, GPT, RANK, RANKS, Tokens, begin, loader, loss_of, options, small, steps
from tensor_parallel import PLAN
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module


def main() -> None:
    given = options()
    begin()
    mesh = init_device_mesh(DEVICE.type, (RANKS // 2, 2), mesh_dim_names=("dp", "tp"))
    model = GPT(2).to(DEVICE)
    model = model.to(torch.bfloat16) if CUDA else model
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], PLAN)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, foreach=False)
    data = Tokens()
    batches = loader(data, small(16, 2), workers=1)
    for step in steps(given):
        ids = next(batches).to(DEVICE)
        dist.broadcast(ids, mesh["tp"].mesh.tolist()[0], group=mesh["tp"].get_group())
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9 and RANK == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
