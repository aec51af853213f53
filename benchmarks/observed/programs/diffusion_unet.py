"""A diffusion model: a UNet with attention in bf16, a running mean of its weights, pictures drawn every 30 steps.

Nothing is planted: the pictures that are drawn (24 passes under no_grad) are meant.
"""

import copy

import torch
from own import CUDA, DEVICE, autocast, same_each_time, tell, timed, training
from torch import nn
from torch.nn import functional as F

WIDTH, SIDE, BATCH, STEPS, PASSES = (160, 64, 48, 100, 24) if CUDA else (8, 8, 2, 61, 6)


class Part(nn.Module):
    """Two convolutions with the time added, and attention where the picture is small."""

    def __init__(self, before: int, width: int, attends: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, width, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.time, self.skip = nn.Linear(4 * WIDTH, width), nn.Conv2d(before, width, 1)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True) if attends else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.first(x) + self.time(time)[:, :, None, None]
        h = self.second(h) + self.skip(x)
        if self.attention is not None:
            flat = h.flatten(2).transpose(1, 2)
            h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(h)
        return h


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [WIDTH, 2 * WIDTH, 2 * WIDTH]
        self.time = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, 4 * WIDTH))
        self.first, self.last = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 3, 3, padding=1)
        before = [WIDTH, *widths[:-1]]
        self.down = nn.ModuleList(Part(a, b, at > 0) for at, (a, b) in enumerate(zip(before, widths, strict=True)))
        self.middle = Part(widths[-1], widths[-1], True)
        after = [WIDTH, WIDTH, 2 * WIDTH]
        self.up = nn.ModuleList(
            Part(2 * a, b, at > 0) for at, (a, b) in reversed(list(enumerate(zip(widths, after, strict=True))))
        )

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        waves = time[:, None] * torch.exp(-torch.linspace(0, 6, WIDTH // 2, device=x.device))
        time = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        x, kept = self.first(x), []
        for part in self.down:
            x = part(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for part in self.up:
            x = part(torch.cat([x.repeat_interleave(2, 2).repeat_interleave(2, 3), kept.pop()], 1), time)
        return self.last(x)


@torch.no_grad()
def draw_pictures(model: nn.Module) -> torch.Tensor:
    x = torch.randn(BATCH, 3, SIDE, SIDE, device=DEVICE)
    for at in reversed(range(PASSES)):
        with autocast():
            noise = model(x, torch.full((BATCH,), float(at), device=DEVICE))
        x = x - noise.float() / PASSES
    return x.clamp(-1, 1).cpu()


def main() -> None:
    same_each_time()
    model = UNet().to(DEVICE)
    mean = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=CUDA)
    pictures = torch.randn(256, 3, SIDE, SIDE)
    pictures = pictures.pin_memory() if CUDA else pictures
    for step in training(STEPS):
        first = step * BATCH % (256 - BATCH)
        x = pictures[first : first + BATCH].to(DEVICE, non_blocking=True)
        time = torch.rand(BATCH, device=DEVICE)
        noise = torch.randn_like(x)
        mixed = (1 - time)[:, None, None, None] * x + time[:, None, None, None] * noise
        with autocast():
            loss = F.mse_loss(model(mixed, 1000 * time).float(), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 0.001)
        if step % 30 == 29:
            with timed("draw_pictures"):
                print(f"step {step}: pictures of {draw_pictures(mean).std():.4f}")
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
