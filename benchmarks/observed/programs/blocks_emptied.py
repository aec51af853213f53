"""A deep network of many equal layers on large batches, whose activations lie in more than a thousand blocks.

Planted, and left out with --tidy: torch.cuda.empty_cache() behind every 10th step, "so that memory does not pile up".
"""

import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, timed, training
from torch import nn
from torch.nn import functional as F

LAYERS, WIDTH, BATCH, STEPS = (400, 768, 8192, 80) if CUDA else (4, 16, 8, 60)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.wide(self.norm(x)))


def main() -> None:
    same_each_time()
    torch.set_float32_matmul_precision("high")
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 10)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=CUDA)
    x = torch.randn(BATCH, WIDTH, device=DEVICE)
    y = torch.randint(0, 10, (BATCH,), device=DEVICE)
    for step in training(STEPS):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
            if not TIDY:
                with timed("empty_cache"):
                    torch.cuda.empty_cache()
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
