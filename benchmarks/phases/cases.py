"""The programs with phases, what is true of each, and which cases were set aside before the rule was written."""

from __future__ import annotations

import hashlib
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
# Steps of the optimizer in a round, on the CPU and on a GPU. Where two optimizers step in turn, a step may be counted
# where either ends one, or where the more frequent one does.
ROUNDS: dict[str, tuple[set[int], set[int]]] = {
    "ppo": ({5}, {7}), "rlhf": ({4}, {3}), "gan": ({4, 5}, {6, 7}), "dqn": ({1}, {1}), "mean_teacher": ({1}, {1}),
    "alternating": ({3, 4}, {5, 6}), "evaluates": ({8}, {18}), "micro_steps": ({1}, {1}), "curriculum": ({1}, {1}),
    "diffusion": ({7}, {16}), "mining": ({5}, {7}), "self_play": ({10}, {20}),
}  # fmt: skip
DRAW = "third"  # of programs: their sizes and seeds, and which are set aside
DEVICES = ("cpu", "gpu")
# A phase below this share of the time need not be named; a share is right within this much, in points or as a part.
LEAST_PCT, POINTS, PART = 10.0, 5.0, 0.15


def cases() -> list[str]:
    """Names such as `ppo.cpu`, those set aside first: the first half by the SHA-256 of the draw and the name."""
    names = [f"{program}.{device}" for program in ROUNDS for device in DEVICES]
    return sorted(names, key=lambda name: hashlib.sha256(f"{DRAW} {name}".encode()).hexdigest())


def set_aside() -> frozenset[str]:
    every = cases()
    return frozenset(every[: len(every) // 2])


def rounds_of(case: str) -> set[int]:
    """The numbers of steps that a round of the case may be said to have."""
    program, device = case.rsplit(".", 1)
    return ROUNDS[program][DEVICES.index(device)]
