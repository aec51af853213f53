"""Q-learning from a memory of moves, without a DataLoader: small networks.

Planted, and left out with --tidy: a batch is drawn from the memory move by move in Python, and the target network
follows tensor by tensor.
"""

import random

import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, timed, training
from torch import nn
from torch.nn import functional as F

STATE, WIDTH, LAYERS, BATCH, STEPS = (128, 1024, 16, 512, 200) if CUDA else (16, 16, 2, 8, 60)


def network() -> nn.Sequential:
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Linear(STATE, WIDTH), *layers, nn.Linear(WIDTH, 6)).to(DEVICE)


class Replay:
    """Moves as they were made: what was seen, what was done, what it gave, and what came of it."""

    def __init__(self, many: int) -> None:
        self.source = random.Random(0)
        seen = torch.rand(many + 1, STATE).tolist()
        self.moves = [(seen[n], self.source.randrange(6), self.source.random(), seen[n + 1]) for n in range(many)]

    def sample(self) -> tuple[torch.Tensor, ...]:
        drawn = self.source.sample(self.moves, BATCH)
        return tuple(torch.tensor([move[part] for move in drawn]) for part in range(4))


def follow(target: nn.Module, online: nn.Module) -> None:
    with torch.no_grad():
        for old, new in zip(target.parameters(), online.parameters(), strict=True):
            old.mul_(0.995)
            old.add_(0.005 * new)


def main() -> None:
    same_each_time()
    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), 1e-4, fused=CUDA)
    replay = Replay(5000)
    kept = [part.to(DEVICE) for part in replay.sample()]
    for step in training(STEPS):
        with timed("sample"):
            seen, done, gave, then = kept if TIDY else (part.to(DEVICE) for part in replay.sample())
        with torch.no_grad():
            aim = gave + 0.99 * target(then).amax(1)
        loss = F.smooth_l1_loss(online(seen).gather(1, done[:, None])[:, 0], aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if TIDY:
            with torch.no_grad():
                torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 0.005)
        else:
            follow(target, online)
        if step % 50 == 49:
            print(f"step {step}: loss {loss.item():.5f}")
    tell(STEPS, online, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
