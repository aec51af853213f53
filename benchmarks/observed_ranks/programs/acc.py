"""accelerate: prepare, accumulate over two batches, clip, gather the loss; --alone-each: rank 0 evaluates alone."""

import time

import torch
from accelerate import Accelerator
from parts import CUDA, GPT, Tokens, loss_of, options, small, tell
from torch.utils.data import DataLoader


def evaluate(model: torch.nn.Module, batches: list[torch.Tensor]) -> float:
    """The mean loss of a few batches."""
    model.eval()
    losses = []
    with torch.no_grad():
        for ids in batches:
            losses.append(loss_of(model(ids), ids).item())
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    given = options(alone_each=0, batches=0)
    accelerator = Accelerator(cpu=not CUDA, gradient_accumulation_steps=2, mixed_precision="bf16" if CUDA else "no")
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    data = DataLoader(Tokens(), small(32, 2), num_workers=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    kept: list[torch.Tensor] = []
    steps, began = 0, time.perf_counter()
    for ids in data:
        if len(kept) < 4:
            kept.append(ids)
        with accelerator.accumulate(model):
            loss = loss_of(model(ids), ids)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        steps += 1
        if steps % 10 == 0:
            accelerator.print(steps, accelerator.gather(loss).mean().item(), flush=True)
        if given.alone_each and steps % given.alone_each == 0 and accelerator.is_main_process:
            with accelerator.autocast():
                print(evaluate(accelerator.unwrap_model(model), kept * given.batches), flush=True)
        if steps == given.steps:
            break
    tell(steps, began)
    accelerator.end_training()


if __name__ == "__main__":
    main()
