"""torch.compile(mode="reduce-overhead"): CUDA graphs of a small GPT, whose host alone would be the limit.

Planted, and left out with --tidy: a shorter last batch in each epoch of 40 batches, compiled and recorded anew.
"""

import torch
from gpt import GPT
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, training

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH, STEPS = (
    (4096, 768, 2, 12, 256, 32, 121) if CUDA else (128, 32, 1, 2, 16, 4, 60)
)
EPOCH = 40 if CUDA else 20


def main() -> None:
    same_each_time()
    model = GPT(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH).to(DEVICE)
    compiled = torch.compile(
        model, mode="reduce-overhead" if CUDA else "default", backend="inductor" if CUDA else "eager"
    )
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    tokens = torch.randint(0, VOCABULARY, (EPOCH, BATCH, LENGTH + 1))
    tokens = tokens.pin_memory() if CUDA else tokens
    for step in training(STEPS):
        batch = tokens[step % EPOCH]
        if step % EPOCH == EPOCH - 1 and not TIDY:
            batch = batch[: BATCH - 1 - step // EPOCH]
        batch = batch.to(DEVICE, non_blocking=True)
        with autocast():
            logits = compiled(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
