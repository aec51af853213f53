"""A loop of your own on one GPU, with the steps marked by hand: copy this file and put your model in.

    python runners/own_loop.py                               # writes profile/own_loop
    traceops analyze profile/own_loop

Two networks and two optimizers take turns here, so no optimizer shows where a step ends: `profile.step()` does.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import traceops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--out", default="profile/own_loop")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
    judge = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-4)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-4)
    right, wrong = (torch.full((args.batch_size, 1), value, device=device) for value in (1.0, 0.0))
    loss_of = nn.functional.binary_cross_entropy_with_logits

    with traceops.capture(args.out) as profile:
        for _ in range(args.steps):
            real = torch.randn(args.batch_size, 64, device=device).cumsum(1)
            made = maker(torch.randn(args.batch_size, 32, device=device))

            loss = loss_of(judge(real), right) + loss_of(judge(made.detach()), wrong)
            of_judge.zero_grad()
            loss.backward()
            of_judge.step()

            fooled = loss_of(judge(made), right)
            of_maker.zero_grad()
            fooled.backward()
            of_maker.step()
            profile.step()


if __name__ == "__main__":
    main()
