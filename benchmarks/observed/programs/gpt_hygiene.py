"""A GPT with "memory hygiene": gc.collect() and empty_cache() every 8 steps, loss.item() in each,
estimate_loss() every 40.

Planted, and left out with --tidy: the collection with the emptied cache, and the .item().
"""

import gc

import torch
from gpt import GPT
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, timed, training

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH, STEPS, DOCUMENTS = (
    (16384, 768, 8, 12, 512, 32, 121, 150_000) if CUDA else (256, 64, 2, 2, 32, 4, 121, 40_000)
)


@torch.no_grad()
def estimate_loss(model: torch.nn.Module, batches: list) -> float:
    model.eval()
    with autocast():
        mean = sum(model.loss(batch.to(DEVICE)).item() for batch in batches) / len(batches)
    model.train()
    return mean


def main() -> None:
    same_each_time()
    documents = [{"name": f"document {at}", "length": at % 700, "kept": [at]} for at in range(DOCUMENTS)]
    tokens = torch.randint(0, VOCABULARY, (64, BATCH, LENGTH + 1))
    tokens = tokens.pin_memory() if CUDA else tokens
    model = GPT(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    losses, loss = [], None
    for step in training(STEPS):
        if step and step % 40 == 0:
            with timed("estimate_loss"):
                print(f"step {step}: val loss {estimate_loss(model, list(tokens[:12])):.4f}")
        batch = tokens[step % 64].to(DEVICE, non_blocking=True)
        with autocast():
            loss = model.loss(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if not TIDY:
            losses.append(loss.item())
            if step % 8 == 7:
                with timed("gc.collect"):
                    gc.collect()
                with timed("empty_cache"):
                    torch.cuda.empty_cache()
    tell(STEPS, model, f"loss {loss.item():.6f} of {len(documents)} documents")


if __name__ == "__main__":
    main()
