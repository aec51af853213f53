"""Small models of other kinds than the built-in one, each a few steps: `torchrun … zoo.py --kind vit --how ddp`.

gqa: Llama with few heads of keys, its loss in chunks. tied: GPT-2 with tied embeddings, autocast and an odd vocabulary.
vit: pictures. t5: encoder and decoder with a bias in attention. moe: experts of fixed capacity.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

p = argparse.ArgumentParser()
p.add_argument("--kind", choices=("gqa", "tied", "vit", "t5", "moe"), default="gqa")
p.add_argument("--how", choices=("one", "ddp", "fsdp", "keep", "hsdp", "offload", "fsdp1"), default="one")
for name, value in {
    "dim": 1536, "layers": 10, "heads": 24, "kv": 3, "ffn": 4096, "vocab": 50257,
    "seq": 1024, "batch": 4, "accum": 1, "steps": 5,
}.items():  # fmt: skip
    p.add_argument("--" + name, type=int, default=value)
p.add_argument("--ckpt", action="store_true")
p.add_argument("--half", action="store_true", help="weights, gradients and states in bf16")
p.add_argument("--opt", choices=("adamw", "fused", "sgd", "adafactor"), default="adamw")
a = p.parse_args()
head = a.dim // a.heads


class Attention(nn.Module):
    def __init__(self, kv):
        super().__init__()
        self.q, self.o = nn.Linear(a.dim, a.dim, bias=False), nn.Linear(a.dim, a.dim, bias=False)
        self.kv = nn.Linear(a.dim, 2 * kv * head, bias=False)

    def forward(self, x, causal=True, other=None, bias=None):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, -1, head).transpose(1, 2)
        other = x if other is None else other
        k, v = self.kv(other).view(b, other.size(1), 2, -1, head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=causal and bias is None, enable_gqa=k.size(1) != q.size(1)
        )
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.ab, self.c = nn.Linear(a.dim, 2 * a.ffn, bias=False), nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x):
        one, two = self.ab(x).chunk(2, -1)
        return self.c(F.silu(one) * two)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(a.dim, a.ffn), nn.Linear(a.ffn, a.dim)

    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


class Experts(nn.Module):
    """Eight experts; each takes as many tokens as are its share, so that shapes do not depend on values."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(a.dim, 8, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(8, m, n) * 0.02) for m, n in ((a.dim, a.ffn), (a.ffn, a.dim)))

    def forward(self, x):
        flat = x.flatten(0, 1)
        scores = self.gate(flat).softmax(-1)
        weight, which = scores.t().topk(flat.size(0) // 4, dim=-1)
        y = torch.bmm(F.silu(torch.bmm(flat[which], self.up.to(x.dtype))), self.down.to(x.dtype))
        out = torch.zeros_like(flat).index_add(
            0, which.flatten(), (y * weight.unsqueeze(-1)).flatten(0, 1).to(flat.dtype)
        )
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, cross=False):
        super().__init__()
        norm = nn.RMSNorm if a.kind in ("gqa", "t5", "moe") else nn.LayerNorm
        self.n1, self.n2 = norm(a.dim), norm(a.dim)
        self.attention = Attention(a.kv if a.kind == "gqa" else a.heads)
        self.mlp = Experts() if a.kind == "moe" else Gated() if a.kind in ("gqa", "t5") else Plain()
        self.drop = nn.Dropout(0.1 if a.kind in ("tied", "t5") else 0.0)
        self.n3, self.cross = (norm(a.dim), Attention(a.heads)) if cross else (None, None)

    def forward(self, x, causal=True, other=None, bias=None):
        x = x + self.drop(self.attention(self.n1(x), causal, None, bias))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.n3(x), False, other))
        return x + self.drop(self.mlp(self.n2(x)))


def run(block, *args):
    return checkpoint(block, *args, use_reentrant=False) if a.ckpt else block(*args)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.norm = nn.Embedding(a.vocab, a.dim), nn.LayerNorm(a.dim)
        self.blocks = nn.ModuleList(Block() for _ in range(a.layers))
        self.head = nn.Linear(a.dim, a.vocab, bias=False)
        if a.kind == "tied":
            self.head.weight = self.tok.weight
            self.place = nn.Embedding(a.seq, a.dim)

    def forward(self, x, y):
        h = self.tok(x)
        if a.kind == "tied":
            h = h + self.place(torch.arange(x.size(1), device=x.device))
        for block in self.blocks:
            h = run(block, h)
        h = self.norm(h)
        if a.kind != "gqa":
            return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())
        parts = zip(h.flatten(0, 1).chunk(8), y.flatten().chunk(8), strict=True)
        return sum(checkpoint(self.part, one, two, use_reentrant=False) for one, two in parts) / y.numel()

    def part(self, h, y):
        return F.cross_entropy(self.head(h).float(), y, reduction="sum")


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, a.dim, 16, 16)
        self.place = nn.Parameter(torch.zeros(1, 197, a.dim))
        self.first = nn.Parameter(torch.zeros(1, 1, a.dim))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(a.layers)), nn.LayerNorm(a.dim)
        self.head = nn.Linear(a.dim, 1000)

    def forward(self, x, y):
        h = self.cut(x).flatten(2).transpose(1, 2)
        h = torch.cat((self.first.expand(h.size(0), -1, -1), h), 1) + self.place
        for block in self.blocks:
            h = run(block, h, False)
        return F.cross_entropy(self.head(self.norm(h[:, 0])), y)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.far = nn.Embedding(a.vocab, a.dim), nn.Embedding(32, a.heads)
        self.read = nn.ModuleList(Block() for _ in range(a.layers // 2))
        self.blocks = nn.ModuleList(Block(True) for _ in range(a.layers // 2))
        self.norm = nn.RMSNorm(a.dim)

    def forward(self, x, y):
        h = self.tok(x)
        at = torch.arange(x.size(1), device=x.device)
        bias = self.far((at[:, None] - at[None]).abs().clamp(max=31)).permute(2, 0, 1).unsqueeze(0).to(h.dtype)
        for block in self.read:
            h = run(block, h, False, None, bias)
        g = self.tok(y)
        for block in self.blocks:
            g = run(block, g, True, h)
        return F.cross_entropy(F.linear(self.norm(g), self.tok.weight).flatten(0, 1).float(), y.flatten())


local = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(local)
if a.how != "one":
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
world = dist.get_world_size() if a.how != "one" else 1
model = Pictures() if a.kind == "vit" else Both() if a.kind == "t5" else Words()
if a.half:
    model.to(torch.bfloat16)
if a.how != "offload":
    model.to("cuda")
autocast = torch.autocast("cuda", dtype=torch.bfloat16)
inner = model
if a.how == "ddp":
    model = DistributedDataParallel(model, device_ids=[local])
elif a.how == "fsdp1":
    bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=bf16, device_id=local, use_orig_params=True
    )
elif a.how != "one":
    mesh = init_device_mesh("cuda", (world,))
    if a.how == "hsdp":
        mesh = init_device_mesh("cuda", (world, 1), mesh_dim_names=("copies", "shards"))
    how = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16), "mesh": mesh}
    if a.how == "offload":
        how["offload_policy"] = CPUOffloadPolicy()
    for block in model.modules():
        if isinstance(block, Block):
            fully_shard(block, reshard_after_forward=a.how != "keep", **how)
    fully_shard(model, reshard_after_forward=a.how != "keep", **how)
if a.how not in ("one", "ddp"):
    autocast = nullcontext()
kinds = {
    "adamw": torch.optim.AdamW,
    "fused": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adafactor": torch.optim.Adafactor,
}
more = {"fused": True} if a.opt == "fused" else {"momentum": 0.9} if a.opt == "sgd" else {}
opt = kinds[a.opt](model.parameters(), lr=1e-3, **more)
for _ in range(a.steps):
    for micro in range(a.accum):
        if a.kind == "vit":
            x, y = torch.randn(a.batch, 3, 224, 224), torch.randint(1000, (a.batch,))
            x = x.to("cuda", torch.bfloat16 if a.how not in ("one", "ddp") or a.half else torch.float32)
        else:
            x, y = (torch.randint(a.vocab, (a.batch, a.seq)) for _ in range(2))
            x = x.to("cuda")
        y = y.to("cuda")
        quiet = a.how == "ddp" and micro < a.accum - 1
        with model.no_sync() if quiet else nullcontext():
            with autocast:
                loss = model(x, y) / a.accum
            loss.backward()
    nn.utils.clip_grad_norm_(inner.parameters(), 1.0) if a.how != "fsdp1" else model.clip_grad_norm_(1.0)
    opt.step()
    opt.zero_grad()
if a.how != "one":
    dist.destroy_process_group()
