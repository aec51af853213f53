"""A Llama on a mesh of --dp and --tp: sequence and loss parallel, fully_shard, checkpointing, made on meta."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

p = argparse.ArgumentParser()
for n, d in {
    "dim": 2048, "layers": 8, "heads": 16, "kv": 8, "ffn": 5632, "seq": 2048, "batch": 4, "vocab": 32000, "tp": 2,
    "steps": 20,
}.items():  # fmt: skip
    p.add_argument("--" + n, type=int, default=d)
p.add_argument("--ckpt", action="store_true")
a = p.parse_args()


class Attention(nn.Module):
    def __init__(s):
        super().__init__()
        h = a.dim // a.heads
        s.wq, s.wk, s.wv, s.wo = (
            nn.Linear(a.dim, a.dim, bias=False),
            nn.Linear(a.dim, a.kv * h, bias=False),
            nn.Linear(a.dim, a.kv * h, bias=False),
            nn.Linear(a.dim, a.dim, bias=False),
        )

    def forward(s, x):
        b, t, _ = x.shape
        h = a.dim // a.heads
        q, k, v = (w(x).view(b, t, -1, h).transpose(1, 2) for w in (s.wq, s.wk, s.wv))
        n = q.shape[1] // k.shape[1]
        k, v = (z.repeat_interleave(n, 1) for z in (k, v))
        return s.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(s):
        super().__init__()
        s.w1, s.w3, s.w2 = (
            nn.Linear(a.dim, a.ffn, bias=False),
            nn.Linear(a.dim, a.ffn, bias=False),
            nn.Linear(a.ffn, a.dim, bias=False),
        )

    def forward(s, x):
        return s.w2(F.silu(s.w1(x)) * s.w3(x))


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2, s.attention, s.mlp = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim), Attention(), MLP()

    def forward(s, x):
        x = x + s.attention(s.n1(x))
        return x + s.mlp(s.n2(x))


class Llama(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(a.vocab, a.dim)
        s.layers = nn.ModuleList(Block() for _ in range(a.layers))
        s.n = nn.RMSNorm(a.dim)
        s.o = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(s, x):
        x = s.e(x)
        for block in s.layers:
            x = block(x)
        return s.o(s.n(x))


local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
mesh = init_device_mesh("cuda", (dist.get_world_size() // a.tp, a.tp), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    m = Llama()
if a.tp > 1:
    tp = mesh["tp"]
    parallelize_module(
        m,
        tp,
        {
            "e": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "n": SequenceParallel(),
            "o": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        },
    )
    for block in m.layers:
        parallelize_module(
            block,
            tp,
            {
                "n1": SequenceParallel(), "n2": SequenceParallel(),
                "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(), "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "mlp.w1": ColwiseParallel(), "mlp.w3": ColwiseParallel(),
                "mlp.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
        )  # fmt: skip
if a.ckpt:
    m.layers = nn.ModuleList(checkpoint_wrapper(block) for block in m.layers)
mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in m.layers:
    fully_shard(block, mesh=mesh["dp"], mp_policy=mp)
fully_shard(m, mesh=mesh["dp"], mp_policy=mp)
m.to_empty(device="cuda")
with torch.no_grad():
    for w in m.parameters():
        nn.init.normal_(w, std=0.02) if w.dim() > 1 else nn.init.ones_(w)
opt = torch.optim.AdamW(m.parameters(), 3e-4, fused=True)
for i in range(a.steps):
    x = torch.randint(0, a.vocab, (a.batch, a.seq), device="cuda")
    if a.tp > 1:
        with loss_parallel():
            loss = F.cross_entropy(m(x).flatten(0, 1).float(), x.flatten())
            loss.backward()
    else:
        loss = F.cross_entropy(m(x).flatten(0, 1).float(), x.flatten())
        loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    if local == 0 and i % 10 == 0:
        print(i, flush=True)
dist.destroy_process_group()
