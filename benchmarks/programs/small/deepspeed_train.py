"""DeepSpeed's engine with ZeRO of the stage named first, accumulation over two batches."""

import sys

import deepspeed
import torch
from common import CUDA, STEPS, blocks, tell

deepspeed.init_distributed(dist_backend="nccl" if CUDA else "gloo")
adam = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
config = {
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "optimizer": adam,
    "zero_optimization": {"stage": int(sys.argv[-1])}, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
}  # fmt: skip
model = blocks(128, 6)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
generator = torch.Generator().manual_seed(engine.global_rank)
for _ in range(2 * STEPS):
    x = torch.randn(4, 128, generator=generator).to(engine.device, torch.bfloat16)
    engine.backward(engine(x).float().pow(2).mean())
    engine.step()
if engine.global_rank == 0:
    print("loss", engine(x).float().pow(2).mean().item())
    tell(engine.global_steps, torch.nn.Module())
elif int(sys.argv[-1]) == 3:
    engine(x)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
