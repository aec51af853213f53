"""A denoiser that draws samples every few steps, to look at them."""

import torch
from timed import DEVICE, phase, plain, rounds, sizes, wrap
from torch import nn

EVERY, SIDE, CHANNELS = sizes(7, 16), sizes(20, 36), sizes(12, 56)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, CHANNELS, 3, padding=1), nn.SiLU(), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.SiLU(),
            nn.Conv2d(CHANNELS, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        return self.layers(noisy)


@torch.inference_mode()
def draw(model: nn.Module) -> torch.Tensor:
    image = torch.randn(16, 3, SIDE, SIDE, device=DEVICE)
    for step in range(sizes(26, 220)):
        image = image - 0.05 * model(image) + 0.01 * torch.randn_like(image) / (step + 1)
    return image.cpu()


def main() -> None:
    model = wrap(Denoiser())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in rounds():
        for _ in range(EVERY):
            with phase("train"):
                images = torch.rand(32, 3, SIDE, SIDE, device=DEVICE)
                noise = torch.randn_like(images)
                loss = (model(images + noise) - noise).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with phase("draw", draw):
            draw(plain(model))


main()
