"""The programs of runs.py (programs.jsonl): where each is from, how it is set up, run and counted.

Placeholders in a command: {checkout} of the program's repository, {small} the folder of the small programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.records import read_records

TORCH = ("torch==2.13.0", "numpy")
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "torch": (*TORCH, "tqdm", "tiktoken", "requests"),
    "hf": (*TORCH, "transformers", "accelerate", "datasets", "trl", "evaluate"),
    "lightning": (*TORCH, "lightning"),
    "ignite": (*TORCH, "pytorch-ignite"),
    "deepspeed": (*TORCH, "setuptools", "wheel", "deepspeed"),
    "picotron": (*TORCH, "transformers==4.47.0", "datasets", "wandb"),
}


@dataclass(frozen=True)
class Program:
    """One program.

    on: two ranks on a CPU, or two GPUs, where it is run by what the machine has, and wheels next to it.
    origin: owner/name@commit:path or the package on PyPI. environment: of ENVIRONMENTS. command: after ``--``.
    data: what data.py makes in the folder that the program runs in.
    count: a pattern for the program's own number of steps in its output; its last match counts, plus `offset`.
    result: a pattern for what must be equal without traceops: every match counts.
    steps: its number where it prints none: as its arguments and data make it.
    launcher: of `traceops run`. within: whether it has to run in its checkout, there in `folder`.
    groups: whether the ranks talk to each other at all. aside: kept unseen until the others' faults were fixed.
    plant: where:rank:seconds of a planted slow rank, and the cause it must be named with.
    stubs: whether packages that it imports and does not use stand in for missing ones (stubs).
    """

    name: str
    on: Literal["gloo", "cuda"]
    origin: str
    environment: str
    command: tuple[str, ...]
    count: str
    result: str
    data: str = ""
    offset: int = 0
    steps: int | None = None
    folder: str = ""
    launcher: str = "torchrun"
    env: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ("--unprofiled", "4", "--active", "8")
    ranks: int = 2
    groups: bool = True
    aside: bool = False
    within: bool = False
    plant: str = ""
    cause: str = ""
    stubs: bool = False


_ALL = read_records(Path(__file__).with_name("programs.jsonl"), Program)
PROGRAMS = tuple(program for program in _ALL if program.on == "gloo")
CUDA_PROGRAMS = tuple(program for program in _ALL if program.on == "cuda")
