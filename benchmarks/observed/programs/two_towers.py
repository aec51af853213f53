"""Contrastive training of two towers, as CLIP: a running mean of the weights, clipping, a cosine schedule. Nothing is
planted."""

import torch
from gpt import Block
from own import CUDA, DEVICE, autocast, same_each_time, tell, training
from torch import nn
from torch.nn import functional as F

BATCH, STEPS, IMAGE, TEXT = (256, 80, (196, 768, 8), (77, 512, 8)) if CUDA else (4, 60, (8, 32, 1), (6, 32, 1))


class Tower(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 256, bias=False)
        self.blocks = nn.Sequential(*(Block(width, 8) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.last(self.blocks(self.first(x)).mean(1)), dim=-1)


def main() -> None:
    same_each_time()
    towers = nn.ModuleList(Tower(width, layers) for _, width, layers in (IMAGE, TEXT)).to(DEVICE)
    means = [p.detach().clone() for p in towers.parameters()]
    optimizer = torch.optim.AdamW(towers.parameters(), 5e-4, fused=CUDA)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    host = [torch.randn(2, BATCH, length, width) for length, width, _ in (IMAGE, TEXT)]
    host = [part.pin_memory() for part in host] if CUDA else host
    aim, loss = torch.arange(BATCH, device=DEVICE), None
    for step in training(STEPS):
        given = [part[step % 2].to(DEVICE, non_blocking=True) for part in host]
        with autocast():
            one, other = (tower(x) for tower, x in zip(towers, given, strict=True))
            alike = 20 * one @ other.t()
            loss = (F.cross_entropy(alike, aim) + F.cross_entropy(alike.t(), aim)) / 2
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(towers.parameters(), 1.0)
        optimizer.step()
        rate.step()
        with torch.no_grad():
            torch._foreach_lerp_(means, list(towers.parameters()), 0.002)
        if step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
    tell(STEPS, towers, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
