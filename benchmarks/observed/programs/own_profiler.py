"""A GPT with a profiler of its own in steps 30 to 35, and a checkpoint with all states every 20 steps.

Planted, and left out with --tidy: the checkpoints, which the training waits for.
"""

import torch
from gpt import GPT
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, timed, training_begins

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH, STEPS = (
    (16384, 768, 6, 12, 512, 24, 101) if CUDA else (256, 64, 2, 2, 32, 4, 61)
)


def main() -> None:
    same_each_time()
    model = GPT(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    tokens = torch.randint(0, VOCABULARY, (32, BATCH, LENGTH + 1))
    tokens = tokens.pin_memory() if CUDA else tokens
    loss = None
    schedule = torch.profiler.schedule(skip_first=28, wait=0, warmup=2, active=4, repeat=1)
    ready = torch.profiler.tensorboard_trace_handler("out_profiler")
    training_begins()
    with torch.profiler.profile(schedule=schedule, on_trace_ready=ready) as profiler:
        for step in range(STEPS):
            with autocast():
                loss = model.loss(tokens[step % 32].to(DEVICE, non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 20 == 19 and not TIDY:
                with timed("checkpoint"):
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "out_gpt.pt")
            profiler.step()
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
