"""Expert parallel: an expert a rank, tokens go by all-to-all and back; --hot: the share that goes to rank 1's."""

import torch
import torch.distributed.nn.functional as exchanged
from parts import CUDA, DEVICE, RANK, RANKS, WIDTH, begin, options, small, steps
from torch import nn
from torch.nn import functional


class Experts(nn.Module):
    def __init__(self, wide: int, hot: float) -> None:
        super().__init__()
        self.hot = hot
        self.norm, self.up, self.down = (nn.LayerNorm(wide), nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        many = len(x)
        hot = int(many * self.hot) if self.hot else many // RANKS
        sent = [(many - hot) // (RANKS - 1)] * RANKS
        sent[1] = many - sum(sent[:1] + sent[2:])
        took = [sent[RANK]] * RANKS
        y = self.norm(x)
        inside = exchanged.all_to_all_single(y.new_empty(sum(took), y.shape[1]), y, took, sent)
        outside = self.down(functional.gelu(self.up(inside)))
        return x + exchanged.all_to_all_single(torch.empty_like(x), outside, sent, took)


def main() -> None:
    given = options(hot=0.0)
    begin()
    wide = small(2 * WIDTH, WIDTH)
    torch.manual_seed(RANK)
    model = nn.Sequential(*(Experts(wide, given.hot) for _ in range(small(4, 2)))).to(DEVICE)
    model = model.to(torch.bfloat16) if CUDA else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in steps(given):
        x = torch.randn(small(8192, 64), wide, device=DEVICE, dtype=torch.bfloat16 if CUDA else torch.float32)
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
