"""accelerate: prepare, accumulate over two batches, clip, schedule, evaluate and gather after each epoch."""

import torch
from accelerate import Accelerator
from common import CUDA, STEPS, blocks, samples, tell
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=not CUDA, gradient_accumulation_steps=2)
model, loader, check = (blocks(), DataLoader(samples(16 * STEPS), batch_size=8), DataLoader(samples(64), batch_size=8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
model, optimizer, loader, check, schedule = accelerator.prepare(model, optimizer, loader, check, schedule)
done = 0
for _ in range(2):
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                done += 1
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    for x, _y in check:
        with torch.no_grad():
            accelerator.gather_for_metrics(model(x).argmax(-1))
if accelerator.is_main_process:
    tell(done, model)
