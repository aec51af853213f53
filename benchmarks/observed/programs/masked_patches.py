"""A masked autoencoder of pictures' patches: four micro-batches a step, clipping, a warm-up of the learning rate.

Planted, and left out with --tidy: a checkpoint with the optimizer's state every 15 steps, and in each micro-batch a
look whether the loss is finite.
"""

import tempfile
from pathlib import Path

import torch
from gpt import Block
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, timed, training
from torch import nn

PATCH, WIDTH, LAYERS, HEADS, LENGTH, BATCH, MICRO, STEPS = (
    (768, 768, 8, 12, 196, 64, 4, 62) if CUDA else (48, 32, 2, 2, 16, 2, 4, 62)
)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(PATCH, WIDTH), nn.Linear(WIDTH, PATCH)
        self.hidden, self.places = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.encoder = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(LAYERS)))
        self.decoder = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(2)))

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        every = torch.where(seen[..., None], self.first(x), self.hidden) + self.places
        made = self.last(self.decoder(self.encoder(every)))
        return ((made - x) ** 2).mean(-1).mul(~seen).sum() / (~seen).sum()


def main() -> None:
    same_each_time()
    model = Masked().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1.5e-4, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    patches = torch.randn(4, BATCH, LENGTH, PATCH, device=DEVICE)
    folder = Path(tempfile.mkdtemp())
    for step in training(STEPS):
        for micro in range(MICRO):
            seen = torch.rand(BATCH, LENGTH, device=DEVICE) < 0.25
            with autocast():
                loss = model(patches[micro], seen) / MICRO
            if not TIDY and not torch.isfinite(loss):
                raise ValueError("the loss is not finite")
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        rate.step()
        if not TIDY and step % 15 == 14:
            with timed("checkpoint"):
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, folder / "last.pt")
    (folder / "last.pt").unlink(missing_ok=True)
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
