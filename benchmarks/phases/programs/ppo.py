"""PPO: a rollout in an environment of NumPy, then a few steps of the optimizer over what was collected."""

import numpy as np
import torch
from timed import DEVICE, phase, plain, rounds, sizes, wrap
from torch import nn

EPOCHS, HORIZON, ENVS = sizes(5, 7), sizes(56, 84), 15


class Physics:
    def __init__(self) -> None:
        self.state = np.random.randn(ENVS, 24)
        self.links = np.random.randn(ENVS, 60, 60) / 60

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        forces = self.links
        for _ in range(2):
            forces = np.tanh(forces @ self.links)
        self.state = 0.9 * self.state + 0.1 * action.mean(1, keepdims=True) + forces[:, :24, 0]
        return self.state, -np.abs(self.state).sum(1)


def rollout(env: Physics, policy: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    states, actions, rewards = [], [], []
    state = env.state
    for _ in range(HORIZON):
        with torch.no_grad():
            action = policy(torch.as_tensor(state, dtype=torch.float32, device=DEVICE)).cpu().numpy()
        states.append(state)
        actions.append(action)
        state, reward = env.step(action)
        rewards.append(reward)
    stacked = (
        torch.as_tensor(np.concatenate(one), dtype=torch.float32, device=DEVICE) for one in (states, actions, rewards)
    )
    return tuple(stacked)


def update(policy: nn.Module, optimizer: torch.optim.Optimizer, states, actions, rewards) -> None:
    for _ in range(EPOCHS):
        chosen = torch.randperm(len(states), device=DEVICE)[: len(states) // 2]
        loss = ((policy(states[chosen]) - actions[chosen]).square().mean(1) * rewards[chosen]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    width = sizes(336, 1920)
    policy = wrap(
        nn.Sequential(nn.Linear(24, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 6))
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    env = Physics()
    for _ in rounds():
        with phase("rollout", rollout, Physics.step):
            batch = rollout(env, plain(policy))
        with phase("update", update):
            update(policy, optimizer, *batch)


main()
