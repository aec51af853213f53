"""Reinforcement learning in the manner of PPO: a rollout of 64 moves under no_grad, then four epochs of four batches.

Planted, and left out with --tidy: an environment that Python steps one after the other, and rewards that are read from
the device move by move.
"""

import numpy as np
import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, timed, training_begins
from torch import nn

WORLDS, MOVES, WIDTH, SEEN, ROUNDS = (256, 64, 2048, 64, 14) if CUDA else (16, 16, 64, 16, 12)


class Worlds:
    """All environments."""

    def __init__(self) -> None:
        drawn = np.random.default_rng(0)
        self.state = drawn.standard_normal((WORLDS, SEEN)).astype(np.float32)
        self.push = drawn.standard_normal((8, SEEN)).astype(np.float32) * 0.1

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if TIDY:
            self.state = np.tanh(self.state + self.push[actions])
        else:
            for at in range(WORLDS):
                self.state[at] = np.tanh(self.state[at] + self.push[actions[at]])
        return self.state.copy(), -np.abs(self.state).mean(1)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(SEEN, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 1)

    def forward(self, seen: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        x = self.body(seen)
        return torch.distributions.Categorical(logits=self.actor(x)), self.critic(x).squeeze(-1)


@torch.no_grad()
def rollout(agent: Agent, worlds: Worlds, seen: np.ndarray) -> tuple[list, np.ndarray]:
    kept = []
    for _ in range(MOVES):
        at = torch.from_numpy(seen).to(DEVICE)
        policy, value = agent(at)
        action = policy.sample()
        seen, reward = worlds.step(action.cpu().numpy())
        reward = torch.from_numpy(reward).to(DEVICE)
        if not TIDY:
            float(reward.mean())
        kept.append((at, action, policy.log_prob(action), reward - value))
    return kept, seen


def update(agent: Agent, optimizer: torch.optim.Optimizer, kept: list) -> int:
    seen, action, before, advantage = (torch.cat(column) for column in zip(*kept, strict=True))
    steps = 0
    for _ in range(4):
        for rows in torch.randperm(len(seen), device=DEVICE).chunk(4):
            policy, value = agent(seen[rows])
            ratio = (policy.log_prob(action[rows]) - before[rows]).exp()
            gain = advantage[rows]
            surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = 0.5 * (value - gain).square().mean() - surrogate - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            steps += 1
    return steps


def main() -> None:
    same_each_time()
    agent, worlds = Agent().to(DEVICE), Worlds()
    optimizer = torch.optim.Adam(agent.parameters(), 3e-4, eps=1e-5)
    seen, steps = worlds.state.copy(), 0
    training_begins()
    for _ in range(ROUNDS):
        with timed("rollout"):
            kept, seen = rollout(agent, worlds, seen)
        steps += update(agent, optimizer, kept)
    tell(steps, agent)


if __name__ == "__main__":
    main()
