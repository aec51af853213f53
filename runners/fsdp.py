"""Sharded training (FSDP2) of a language model: copy this file and put your model and data in.

    traceops run --nproc 2 -- python runners/fsdp.py         # two GPUs, or two processes on the CPU
    torchrun --nproc-per-node 2 runners/fsdp.py              # the same without traceops

The text is made in code; --text FILE trains on the bytes of a file instead.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY = 256  # bytes


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        x = x + self.mlp(self.norms[1](x))
        return x


class LanguageModel(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a file to train on; a text made in code if not given")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4, help="sequences per rank")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")

    torch.manual_seed(0)
    model = LanguageModel(args.width, args.layers, args.width // 64, args.length).to(device)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mp_policy": precision} if cuda else {}
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=cuda)

    text = args.text.read_bytes() if args.text else b"the quick brown fox jumps over the lazy dog. " * 4096
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    drawn = torch.Generator().manual_seed(dist.get_rank())  # each rank reads other places
    for _ in range(args.steps):
        starts = torch.randint(len(data) - args.length - 1, (args.batch_size,), generator=drawn).tolist()
        chunk = torch.stack([data[at : at + args.length + 1] for at in starts]).to(device, non_blocking=True)
        logits = model(chunk[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), chunk[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss after {args.steps} steps: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
