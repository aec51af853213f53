"""A UNet that marks what is in pictures, in bf16.

Planted, and left out with --tidy: torch.cuda.empty_cache() every 4 steps, "against running out of memory", and an
overlap that numpy counts of each step's answer.
"""

from itertools import pairwise

import torch
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, timed, training_begins
from torch import nn
from torch.nn import functional as F

WIDTH, DEPTH, SIDE, BATCH, STEPS = (64, 4, 512, 8, 100) if CUDA else (8, 2, 32, 2, 60)


def two(a: int, b: int) -> nn.Sequential:
    layers = [part for given in (a, b) for part in (nn.Conv2d(given, b, 3, padding=1), nn.GroupNorm(8, b), nn.ReLU())]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [WIDTH * 2 ** min(level, 3) for level in range(DEPTH + 1)]
        self.first, self.last = two(3, WIDTH), nn.Conv2d(WIDTH, 4, 1)
        self.downs = nn.ModuleList(two(a, b) for a, b in pairwise(widths))
        self.ups = nn.ModuleList(two(a + b, a) for a, b in pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for down in self.downs:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up in reversed(self.ups):
            x = up(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return self.last(x)


def overlap(logits: torch.Tensor, labels: torch.Tensor) -> float:
    guess, true = logits.argmax(1).cpu().numpy(), labels.cpu().numpy()
    both = [
        (2 * ((guess == k) & (true == k)).sum() + 1) / ((guess == k).sum() + (true == k).sum() + 1) for k in range(4)
    ]
    return float(sum(both) / 4)


def main() -> None:
    same_each_time()
    model = UNet().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    pictures = torch.rand(4, BATCH, 3, SIDE, SIDE)
    pictures = pictures.pin_memory() if CUDA else pictures
    overlaps, loss = [], None
    training_begins()
    for step in range(STEPS):
        x = pictures[step % 4].to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        labels = (4 * x.mean(1)).long().clamp(0, 3)
        with autocast():
            logits = model(x)
            loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if not TIDY:
            with timed("overlap"):
                overlaps.append(overlap(logits.detach(), labels))
            del logits
            if step % 4 == 3:
                with timed("empty_cache"):
                    torch.cuda.empty_cache()
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
