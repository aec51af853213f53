"""A language model with 32 experts in each layer, of which each token takes one.

Planted, and left out with --tidy: a loop over the experts that finds each one's tokens by nonzero(), which waits for
the device. Tidy: all experts at once, an equal number of tokens for each.
"""

import torch
from own import CUDA, DEVICE, TIDY, autocast, same_each_time, tell, training
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, WIDE, EXPERTS, LAYERS, TOKENS, STEPS = (
    (16384, 768, 1024, 32, 4, 16384, 70) if CUDA else (128, 32, 64, 4, 2, 64, 60)
)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(0.02 * torch.randn(EXPERTS, WIDTH, WIDE))
        self.down = nn.Parameter(0.02 * torch.randn(EXPERTS, WIDE, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.norm(x)
        best, which = self.gate(given).softmax(-1).max(-1)
        if TIDY:
            order = which.argsort()
            parts = given[order].view(EXPERTS, TOKENS // EXPERTS, WIDTH)
            seen = torch.bmm(F.gelu(torch.bmm(parts, self.up)), self.down).view(TOKENS, WIDTH)
            return x + torch.zeros_like(x).index_copy(0, order, (seen * best[order, None]).to(x.dtype))
        made = torch.zeros_like(x)
        for number in range(EXPERTS):
            at = (which == number).nonzero(as_tuple=True)[0]
            if len(at):
                seen = F.gelu(given[at] @ self.up[number]) @ self.down[number]
                made = made.index_add(0, at, (seen * best[at, None]).to(made.dtype))
        return x + made


def main() -> None:
    same_each_time()
    layers = [Experts() for _ in range(LAYERS)]
    head = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, *head).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    tokens = torch.randint(0, VOCABULARY, (8, TOKENS), device=DEVICE)
    for step in training(STEPS):
        batch = tokens[step % 8]
        with autocast():
            loss = F.cross_entropy(model(batch), batch.roll(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step}: loss {loss.item():.4f}")
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
