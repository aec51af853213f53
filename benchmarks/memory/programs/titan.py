"""Llama 3 trained as torchtitan trained it in December 2024, in words of our own: `torchrun … titan.py --size 8B`.

FSDP2 over --dp ranks and the --cp ranks of the context, tensor, sequence and loss parallelism over --tp, --pp stages of
a pipeline, checkpointing of whole blocks (--ac full) or of all but some operators (--ac op). What other stages send is
made up where it would arrive. --fused computes what torch.compile fuses as one operator, with what it keeps.
"""

import argparse
import os
from collections import Counter
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


class Size(NamedTuple):
    """Of a Llama 3: width, layers, heads, heads of keys and values, width of the feed-forward, vocabulary."""

    dim: int
    layers: int
    heads: int
    kv: int
    ffn: int
    vocab: int = 128256


SIZES = {
    "1B": Size(2048, 16, 32, 8, 8192),
    "8B": Size(4096, 32, 32, 8, 14336),
    "70B": Size(8192, 80, 64, 8, 28672),
    "405B": Size(16384, 126, 128, 8, 53248),
}
p = argparse.ArgumentParser()
p.add_argument("--size", choices=SIZES, default="1B")
p.add_argument("--layers", type=int)
p.add_argument("--batch", type=int, default=2)
p.add_argument("--seq", type=int, default=8192, help="of the whole context")
p.add_argument("--tp", type=int, default=1)
p.add_argument("--cp", type=int, default=1)
p.add_argument("--pp", type=int, default=1)
p.add_argument("--chunks", type=int, default=1, help="stages of a rank, of an interleaved pipeline")
p.add_argument("--ac", choices=("none", "op", "full"), default="none")
p.add_argument("--fused", action="store_true")
p.add_argument("--fused-loss", action="store_true")
p.add_argument("--compile", action="store_true")
p.add_argument("--steps", type=int, default=4)
a = p.parse_args()
size = SIZES[a.size]
if a.layers:
    size = size._replace(layers=a.layers)
head = size.dim // size.heads


class FusedNorm(torch.autograd.Function):
    """Keeps the input and a number a row."""

    @staticmethod
    def forward(ctx, x, w):
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        r = torch.rsqrt(r.square() / x.size(-1) + 1e-5)
        ctx.save_for_backward(x, w, r)
        return (x * r.to(x.dtype)).mul_(w)

    @staticmethod
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        n = x * r.to(x.dtype)
        gw = torch.einsum("...d,...d->d", g, n)
        gn = g * w
        n.mul_(torch.linalg.vecdot(gn, n).div_(x.size(-1)).unsqueeze(-1))
        return gn.sub_(n).mul_(r.to(x.dtype)), gw


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size.dim))

    def forward(self, x):
        if not a.fused:
            y = x.float()
            return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight
        return FusedNorm.apply(x, self.weight)


class FusedTurn(torch.autograd.Function):
    """Rotary embedding without temporaries."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        one, two = x.chunk(2, -1)
        return torch.cat((two, one), -1).mul_(sin).addcmul_(x, cos)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        one, two = (g * sin).chunk(2, -1)
        return torch.cat((two, one), -1).addcmul_(g, cos), None, None


def turned(x, turns):
    if a.fused:
        angle = torch.view_as_real(turns).to(x.dtype)
        cos, sin = (torch.cat((one, one), -1)[:, None] for one in angle.unbind(-1))
        return FusedTurn.apply(x, cos, sin)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


def joined(x):
    """The whole sequence, of the parts of all ranks of tensor parallelism."""
    if a.tp == 1:
        return x
    parts = x.new_empty((a.tp, *x.shape))
    dist.all_gather_into_tensor(parts.flatten(0, 1), x, group=mesh["tp"].get_group())
    return torch.cat(parts.unbind(0), 1)


def summed(x):
    """This rank's part of the sequence, of the sum over all ranks of tensor parallelism."""
    if a.tp == 1:
        return x
    parts = torch.cat(x.chunk(a.tp, 1), 0)
    found = x.new_empty((x.size(0), x.size(1) // a.tp, x.size(2)))
    dist.reduce_scatter_tensor(found, parts, group=mesh["tp"].get_group())
    return found


class Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return joined(x)

    @staticmethod
    def backward(ctx, g):
        return summed(g)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, g):
        return joined(g)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(size.dim, size.dim // a.tp, bias=False)
        self.wk = nn.Linear(size.dim, size.kv * head // a.tp, bias=False)
        self.wv = nn.Linear(size.dim, size.kv * head // a.tp, bias=False)
        self.wo = nn.Linear(size.dim // a.tp, size.dim, bias=False)

    def forward(self, x, turns):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, head) for w in (self.wq, self.wk, self.wv))
        q, k = turned(q, turns), turned(k, turns)
        times = size.heads // size.kv
        k, v = (one.unsqueeze(3).expand(b, t, one.size(2), times, head).reshape(b, t, -1, head) for one in (k, v))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(b, t, -1))


class FusedGate(torch.autograd.Function):
    """silu(a) * b, which keeps a and b."""

    @staticmethod
    def forward(ctx, one, two):
        ctx.save_for_backward(one, two)
        return F.silu(one).mul_(two)

    @staticmethod
    def backward(ctx, g):
        one, two = ctx.saved_tensors
        second = F.silu(one).mul_(g)
        return torch.ops.aten.silu_backward(g, one).mul_(two), second


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(size.dim, size.ffn // a.tp, bias=False)
        self.w3 = nn.Linear(size.dim, size.ffn // a.tp, bias=False)
        self.w2 = nn.Linear(size.ffn // a.tp, size.dim, bias=False)

    def forward(self, x):
        if a.fused:
            return self.w2(FusedGate.apply(self.w1(x), self.w3(x)))
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def whole(x):
    return Join.apply(x) if a.tp > 1 else x


def part(x):
    return Sum.apply(x) if a.tp > 1 else x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = Norm(), Attention()
        self.ffn_norm, self.feed_forward = Norm(), FeedForward()

    def forward(self, x, turns):
        x = x + part(self.attention(whole(self.attention_norm(x)), turns))
        return x + part(self.feed_forward(whole(self.ffn_norm(x))))


class Llama(nn.Module):
    """The layers `begin` to `end`, with the embedding before the first and the head behind the last."""

    def __init__(self, begin, end):
        super().__init__()
        self.tok = nn.Embedding(size.vocab // a.tp, size.dim) if begin == 0 else None
        self.layers = nn.ModuleDict({str(i): Block() for i in range(begin, end)})
        self.norm = Norm() if end == size.layers else None
        self.output = nn.Linear(size.dim, size.vocab // a.tp, bias=False) if end == size.layers else None

    def forward(self, x, turns):
        if self.tok is not None:
            x = part(self.tok(x % self.tok.num_embeddings))
        for block in self.layers.values():
            x = block(x, turns)
        return x if self.output is None else self.output(whole(self.norm(x)))


_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
_PRODUCTS = 7  # of a block; a compiler drops the last one's result, which backward does not use


def policies():
    seen = Counter()

    def policy(ctx, func, *args, **kwargs):
        keep = func in _KEPT
        if func is torch.ops.aten.mm.default:
            seen[ctx.is_recompute] += 1
            number = seen[ctx.is_recompute]
            keep = number % 2 == 1 and not (a.fused and number == _PRODUCTS)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def made(begin, end):
    """A stage as it trains."""
    with torch.device("meta"):
        model = Llama(begin, end)
    for name, block in list(model.layers.items()):
        if a.ac == "full":
            block = checkpoint_wrapper(block, preserve_rng_state=False)
        elif a.ac == "op":
            block = checkpoint_wrapper(block, context_fn=policies, preserve_rng_state=False)
        if a.compile:
            block = torch.compile(block, fullgraph=True)
        model.layers.register_module(name, block)
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, block in model.layers.items():
        again = a.pp == 1 and int(name) < size.layers - 1
        fully_shard(block, mesh=shards, mp_policy=mp, reshard_after_forward=again)
    # The outermost was never resharded after forward by torch of 2024, whatever was asked for.
    fully_shard(model, mesh=shards, mp_policy=mp, reshard_after_forward=False)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for w in model.parameters():
            nn.init.normal_(w, std=0.02)
    return model


class FusedLoss(torch.autograd.Function):
    """Cross entropy that keeps the logits as they are, and a number a row."""

    @staticmethod
    def forward(ctx, logits, labels):
        sums = torch.cat([torch.logsumexp(one.float(), -1) for one in logits.chunk(64)])
        ctx.save_for_backward(logits, labels, sums)
        return (sums - logits.gather(1, labels[:, None]).squeeze(1)).mean()

    @staticmethod
    def backward(ctx, g):
        logits, labels, sums = ctx.saved_tensors
        found = torch.empty_like(logits)
        for three, one, two in zip(found.chunk(64), logits.chunk(64), sums.chunk(64), strict=True):
            three.copy_(torch.exp(one.float() - two[:, None]))
        found.scatter_add_(1, labels[:, None], torch.full_like(labels[:, None], -1, dtype=found.dtype))
        return found.mul_(g / labels.numel()), None


def loss_of(logits, labels):
    if a.tp > 1:
        logits = DTensor.from_local(logits, mesh["tp"], [Shard(2)], run_check=False)
    if a.fused_loss:
        return FusedLoss.apply(logits.flatten(0, 1), labels.flatten(0, 1))
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


class Pipeline:
    """The stages of a rank in the order of 1F1B, or interleaved; a micro-batch a rank of the pipeline."""

    def __init__(self, stages, rank):
        self.stages, self.rank, self.micro = stages, rank, a.pp
        total = a.pp * a.chunks
        self.first = [rank + a.pp * chunk == 0 for chunk in range(a.chunks)]
        self.last = [rank + a.pp * chunk == total - 1 for chunk in range(a.chunks)]

    def order(self):
        """("F" or "B", chunk, micro-batch), as torch's Schedule1F1B and ScheduleInterleaved1F1B have it."""
        count = self.micro * a.chunks
        warm = self.micro - self.rank
        if a.chunks > 1:
            warm = (a.chunks - 1) * self.micro + 2 * (a.pp - 1 - self.rank)
        warm = min(warm, count)

        def place(number, forward):
            chunk = number // a.pp % a.chunks
            at = number // (a.pp * a.chunks) * a.pp + number % a.pp
            return (chunk if forward else a.chunks - 1 - chunk), at

        forwards = [("F", *place(i, True)) for i in range(count)]
        backwards = [("B", *place(i, False)) for i in range(count)]
        found = forwards[:warm]
        for i in range(warm, count):
            found += [forwards[i], backwards[i - warm]] if a.chunks > 1 else [backwards[i - warm], forwards[i]]
        return found + backwards[count - warm :]

    def step(self, tokens, labels, turns):
        parts, targets = tokens.chunk(self.micro), labels.chunk(self.micro)
        shape = (parts[0].size(0), tokens.size(1) // a.tp, size.dim)

        def buffers(wanted):
            return [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for _ in range(wanted)]

        ins = [buffers(0 if first else self.micro) for first in self.first]
        grads = [buffers(0 if last else self.micro) for last in self.last]
        kept, merged, losses = {}, [], []
        for what, chunk, at in self.order():
            stage = self.stages[chunk]
            if what == "F":
                x = parts[at] if self.first[chunk] else ins[chunk][at].detach().requires_grad_()
                out = stage(x, turns)
                kept[chunk, at] = (out, x)
                if self.last[chunk]:
                    merged.append(out)
                    kept[chunk, at] = (loss_of(out, targets[at]), x)
                    losses.append(kept[chunk, at][0])
                del out, x
                continue
            ready = at == self.micro - 1
            stage.set_is_last_backward(ready)
            stage.set_reshard_after_backward(ready)
            stage.set_requires_gradient_sync(ready)
            out, x = kept.pop((chunk, at))
            out.backward(None if self.last[chunk] else grads[chunk][at])
            del out, x
        return torch.cat(merged) if merged else None


local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
dp = dist.get_world_size() // (a.tp * a.cp * a.pp)
mesh = init_device_mesh("cuda", (a.pp, dp, a.cp, a.tp), mesh_dim_names=("pp", "dp", "cp", "tp"))
shards = mesh["dp", "cp"]._flatten("dp_cp") if a.cp > 1 else mesh["dp"]
stage = mesh["pp"].get_local_rank()
total = a.pp * a.chunks
bounds = [0]
for i in range(total):  # the first has no layer more, and the last none
    extra = size.layers % total
    bounds.append(bounds[-1] + size.layers // total + (1 <= i <= extra))
bounds[-1] = size.layers
models = [made(bounds[i], bounds[i + 1]) for i in range(stage, total, a.pp)]
turns = torch.empty(a.seq, head // 2, dtype=torch.complex64, device="cuda")
opts = [torch.optim.AdamW(m.parameters(), 3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True) for m in models]
pipeline = Pipeline(models, stage) if a.pp > 1 else None
for _ in range(a.steps):
    tokens = torch.randint(0, size.vocab, (a.batch, a.seq)).to("cuda")
    labels = torch.randint(0, size.vocab, (a.batch, a.seq)).to("cuda")
    for opt in opts:
        opt.zero_grad()
    context = nullcontext()
    if a.cp > 1:
        context = context_parallel(
            mesh["cp"], buffers=[tokens, labels, turns], buffer_seq_dims=[1, 1, 0], no_restore_buffers={tokens, labels}
        )
    with loss_parallel() if a.tp > 1 else nullcontext(), context:
        if pipeline is not None:
            pipeline.step(tokens, labels, turns)
        else:
            logits = models[0](tokens, turns)
            loss = loss_of(logits, labels)
            del logits
            loss.backward()
    nn.utils.clip_grad_norm_([w for m in models for w in m.parameters()], 1.0, foreach=True)
    for opt in opts:
        opt.step()
dist.destroy_process_group()
