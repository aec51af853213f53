"""ResNet-50 in channels-last, autocast, DDP, SGD with momentum."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torchvision.models import resnet50

r = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(r)
dist.init_process_group("nccl")
m = resnet50().cuda().to(memory_format=torch.channels_last)
m = torch.nn.parallel.DistributedDataParallel(m, device_ids=[r])
o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
for _ in range(20):
    x = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (64,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
dist.destroy_process_group()
