"""FSDP2 with bf16 parameters, checkpointed activations and clipping, on one rank. Nothing is planted."""

import torch
import torch.distributed as dist
from gpt import GPT
from own import CUDA, DEVICE, same_each_time, tell, training
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH, STEPS = (
    (16384, 1536, 12, 12, 1024, 6, 60) if CUDA else (256, 64, 2, 2, 32, 4, 40)
)


def main() -> None:
    dist.init_process_group("nccl" if CUDA else "gloo")
    same_each_time()
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    model = GPT(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH).to(DEVICE)
    model.blocks = torch.nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, foreach=True)
    drawn = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in training(STEPS):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=drawn).to(DEVICE)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            print(f"step {step}: loss {loss.item():.4f}")
    tell(STEPS, model, f"loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
