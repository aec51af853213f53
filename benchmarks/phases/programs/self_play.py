"""Self-play: games of Python, searched with a net, then many steps on what they left; the number of moves varies."""

import random

import torch
from timed import DEVICE, phase, plain, rounds, sizes, wrap
from torch import nn
from torch.nn import functional

STEPS, GAMES, WIDTH = sizes(10, 20), 4, sizes(352, 1664)


def search(board: list[int], depth: int) -> int:
    if depth == 0:
        return sum(i * x for i, x in enumerate(board)) % 17
    return max(-search([*board[:move], 1 - board[move], *board[move + 1 :]], depth - 1) for move in range(0, 40, 8))


def play(net: nn.Module) -> list[tuple[list[int], int]]:
    board, moves = [0] * 40, []
    for _ in range(random.randint(6, 9)):
        value = search(board, 3)
        with torch.no_grad():
            move = int(net(torch.tensor([board], dtype=torch.float32, device=DEVICE)).argmax())
        moves.append((board, value))
        board = [*board[:move], 1 - board[move], *board[move + 1 :]]
    return moves


def learn(net: nn.Module, optimizer: torch.optim.Optimizer, moves: list[tuple[list[int], int]]) -> None:
    chosen = random.choices(moves, k=256)
    boards = torch.tensor([board for board, _ in chosen], dtype=torch.float32, device=DEVICE)
    values = torch.tensor([value % 40 for _, value in chosen], device=DEVICE)
    loss = functional.cross_entropy(net(boards), values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main() -> None:
    net = wrap(nn.Sequential(nn.Linear(40, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 40)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for _ in rounds():
        with phase("self-play", play, search):
            moves = [move for _ in range(GAMES) for move in play(plain(net))]
        for _ in range(STEPS):
            with phase("learn", learn):
                learn(net, optimizer, moves)


main()
