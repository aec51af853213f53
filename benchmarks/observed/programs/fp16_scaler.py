"""accelerate in fp16 on a GPU: accumulation over four batches, clipping, a schedule. The scaler's first steps overflow,
and one now and then, as it doubles its scale every twelve steps.

Nothing is planted. On a CPU it is bf16, without a scaler.
"""

import torch
from accelerate import Accelerator, GradScalerKwargs
from gpt import GPT
from own import CUDA, same_each_time, tell, training_begins
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH, STEPS = (
    (8192, 768, 6, 12, 512, 12, 70) if CUDA else (256, 64, 2, 2, 32, 4, 40)
)
ACCUMULATED = 4


class WithLoss(GPT):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = super().forward(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def main() -> None:
    same_each_time()
    accelerator = Accelerator(
        cpu=not CUDA, mixed_precision="fp16" if CUDA else "bf16", gradient_accumulation_steps=ACCUMULATED,
        kwargs_handlers=[GradScalerKwargs(init_scale=2.0**32, growth_interval=12)],
    )  # fmt: skip
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (BATCH * ACCUMULATED * STEPS, LENGTH + 1), generator=drawn)
    loader = DataLoader(TensorDataset(tokens), BATCH, shuffle=True, generator=drawn, num_workers=2, pin_memory=CUDA)
    model = WithLoss(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    done, skipped, loss = 0, 0, None
    training_begins()
    for (batch,) in loader:
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = model(batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if accelerator.sync_gradients:
                done += 1
                skipped += accelerator.optimizer_step_was_skipped
            schedule.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients and done % 10 == 0:
                accelerator.print(f"step {done}: loss {accelerator.gather(loss).mean().item():.4f}")
    print(f"{skipped} of {done} steps were left out by the scaler")
    tell(done, accelerator.unwrap_model(model), f"loss {loss.item():.6f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
