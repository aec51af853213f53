"""Products of large matrices in bf16, back to back, for long enough that the GPU reaches its power limit by itself.
Nothing is planted."""

import torch
from own import CUDA, DEVICE, same_each_time, tell, training
from torch import nn

WIDTH, LAYERS, STEPS = (16384, 2, 120) if CUDA else (64, 2, 60)


def main() -> None:
    same_each_time()
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=True)
    x = torch.randn(WIDTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    for step in training(STEPS):
        loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            print(f"step {step}: loss {loss.item():.5f}")
    tell(STEPS, nn.ParameterList([model[0].weight[:64].clone()]), f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
