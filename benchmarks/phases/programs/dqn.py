"""DQN: a few moves in a game of Python before each step of the optimizer."""

import random

import numpy as np
import torch
from timed import DEVICE, phase, plain, rounds, sizes, wrap
from torch import nn

MOVES, BOARD, BATCH = sizes(5, 6), 38, sizes(112, 576)


class Game:
    def __init__(self) -> None:
        self.board = np.random.rand(BOARD, BOARD) > 0.5

    def play(self, action: int) -> tuple[np.ndarray, float]:
        alive = sum(np.roll(self.board, (i, j), (0, 1)).astype(int) for i in (-1, 0, 1) for j in (-1, 0, 1))
        score = 0
        for row in alive.tolist():
            for cell in row:
                score += cell if cell % 3 == action % 3 else -1
        self.board = (alive == 3) | (self.board & (alive == 4))
        return self.board, float(score)


def main() -> None:
    width = sizes(368, 2176)
    net = wrap(
        nn.Sequential(
            nn.Linear(BOARD * BOARD, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    game = Game()
    memory: list[tuple[np.ndarray, float]] = [game.play(0)]
    for _ in rounds():
        with phase("act", Game.play):
            for _ in range(MOVES):
                with torch.no_grad():
                    seen = torch.as_tensor(game.board.reshape(1, -1), dtype=torch.float32, device=DEVICE)
                    action = int(plain(net)(seen).argmax())
                memory.append(game.play(action))
        with phase("learn"):
            chosen = random.choices(memory, k=BATCH)
            states = torch.as_tensor(
                np.stack([board.reshape(-1) for board, _ in chosen]), dtype=torch.float32, device=DEVICE
            )
            rewards = torch.tensor([reward for _, reward in chosen], device=DEVICE)
            loss = (net(states).amax(1) - rewards).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
