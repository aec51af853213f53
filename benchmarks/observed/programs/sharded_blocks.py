"""FSDP2 on one rank, gradients clipped; --compile each block, --checkpoint their activations. Nothing is planted."""

import argparse

import torch
import torch.distributed as dist
from gpt import GPT
from own import CUDA, DEVICE, tell, training_begins
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH = (32000, 2048, 12, 16, 2048, 4) if CUDA else (256, 64, 2, 2, 32, 4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    given = parser.parse_args()
    dist.init_process_group("nccl" if CUDA else "gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    model = GPT(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH).to(DEVICE)
    if given.checkpoint:
        model.blocks = torch.nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if given.compile:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    loss = None
    training_begins()
    for step in range(given.steps):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            print(f"step {step}: loss {loss.item():.4f}")
    tell(given.steps, model, f"loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
