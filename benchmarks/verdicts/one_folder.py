"""A training with a profiler of its own, as two people start it at once on one machine with the same folder for traces.

torchrun --nproc-per-node 2 one_folder.py FOLDER
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = DistributedDataParallel(
    torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).to(device), device_ids=[device.index]
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=20, warmup=2, active=4),
    on_trace_ready=tensorboard_trace_handler(sys.argv[1]),
) as recorded:
    for _ in range(40):
        loss = model(torch.randn(512, 2048, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorded.step()
dist.destroy_process_group()
