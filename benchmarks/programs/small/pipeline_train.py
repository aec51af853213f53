"""torch.distributed.pipelining: two stages, the schedule named first, four micro-batches."""

import os
import sys

import torch
import torch.distributed as dist
from common import CUDA, STEPS, tell
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

dist.init_process_group("nccl" if CUDA else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
if CUDA:
    torch.cuda.set_device(device)
torch.manual_seed(rank)
part = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).to(device)
stage = PipelineStage(part, rank, world, device)
schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[sys.argv[1]](stage, 4, loss_fn=torch.nn.MSELoss())
optimizer = torch.optim.SGD(part.parameters(), 0.01)
x, y = torch.randn(64, 256, device=device), torch.randn(64, 256, device=device)
losses: list[torch.Tensor] = []
for _ in range(STEPS):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(x)
    elif rank == world - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    optimizer.step()
tell(STEPS, part)
dist.destroy_process_group()
