"""A GPT with autocast, DDP, clipping, a fused optimizer and accumulation, as small training scripts are."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

p = argparse.ArgumentParser()
for n, d in {
    "dim": 1024,
    "layers": 12,
    "heads": 16,
    "vocab": 50304,
    "seq": 1024,
    "batch": 8,
    "accum": 2,
    "steps": 20,
}.items():
    p.add_argument("--" + n, type=int, default=d)
p.add_argument("--fp16", action="store_true")
p.add_argument("--views", action="store_true")
p.add_argument("--unfused", action="store_true")
a = p.parse_args()


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2 = nn.LayerNorm(a.dim), nn.LayerNorm(a.dim)
        s.qkv, s.o = nn.Linear(a.dim, 3 * a.dim), nn.Linear(a.dim, a.dim)
        s.a, s.b = nn.Linear(a.dim, 4 * a.dim), nn.Linear(4 * a.dim, a.dim)
        s.d = nn.Dropout(0.1)

    def forward(s, x):
        b, t, c = x.shape
        q, k, v = s.qkv(s.n1(x)).view(b, t, 3, a.heads, c // a.heads).permute(2, 0, 3, 1, 4)
        x = x + s.d(s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)))
        return x + s.d(s.b(F.gelu(s.a(s.n2(x)))))


class GPT(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.p = nn.Embedding(a.vocab, a.dim), nn.Embedding(a.seq, a.dim)
        s.h = nn.ModuleList(Block() for _ in range(a.layers))
        s.n = nn.LayerNorm(a.dim)
        s.o = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(s, x, y):
        x = s.e(x) + s.p(torch.arange(x.shape[1], device=x.device))
        for h in s.h:
            x = h(x)
        z = s.o(s.n(x))
        return F.cross_entropy(z.view(-1, z.size(-1)), y.view(-1))


local = int(os.environ.get("LOCAL_RANK", 0))
ddp = int(os.environ.get("WORLD_SIZE", 1)) > 1
dev = f"cuda:{local}"
torch.cuda.set_device(dev)
if ddp:
    dist.init_process_group("nccl", device_id=torch.device(dev))
model = GPT().to(dev)
if ddp:
    model = DDP(model, device_ids=[local], gradient_as_bucket_view=a.views)
opt = torch.optim.AdamW(model.parameters(), 3e-4, fused=not a.unfused)
scaler = torch.amp.GradScaler("cuda", enabled=a.fp16)
dt = torch.float16 if a.fp16 else torch.bfloat16
for step in range(a.steps):
    for micro in range(a.accum):
        x = torch.randint(a.vocab, (a.batch, a.seq)).pin_memory().to(dev, non_blocking=True)
        with model.no_sync() if ddp and micro < a.accum - 1 else contextlib.nullcontext():
            with torch.autocast("cuda", dtype=dt):
                loss = model(x, x) / a.accum
            scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    if local == 0 and step % 5 == 0:
        print(step, loss.item())
if ddp:
    dist.destroy_process_group()
