"""A curriculum: sequences get longer from stage to stage."""

import torch
from timed import DEVICE, phase, rounds, sizes, wrap
from torch import nn

LENGTHS, PARTS = (56, 120, 240), sizes((0.3, 0.4, 0.3), (0.4, 0.25, 0.35))
WIDTH, BATCH = sizes(104, 480), sizes(5, 52)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, length: int) -> None:
    tokens = torch.randn(BATCH, length, WIDTH, device=DEVICE)
    loss = model(tokens).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = wrap(nn.TransformerEncoder(layer, sizes(2, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for stage, (length, part) in enumerate(zip(LENGTHS, PARTS, strict=True)):
        for _ in rounds(part):
            with phase(f"stage {stage}", train_step):
                train_step(model, optimizer, length)


main()
