"""The programs and troubles of on_pairs.py: what is true of each was written before any ran on GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.observed_ranks.truth import Run
from benchmarks.observed_ranks.turns import Turn
from benchmarks.records import read_records

# traceops records in the first and in the fourth turn of 38 steps. One job fewer where four would not fit into 80 GB.
PROGRAMS = read_records(Path(__file__).with_name("programs.jsonl"), Turn)


@dataclass(frozen=True)
class Beside:
    """What runs beside a job: products on its second GPU, or Python on the cores of rank 1."""

    gpu: bool = False
    cores: bool = False


TROUBLES = read_records(Path(__file__).with_name("troubles.jsonl"), Run)
BESIDE = {
    "stranger": Beside(gpu=True), "stranger_saves": Beside(gpu=True),
    "hogged_cores": Beside(cores=True), "collector_cores": Beside(cores=True),
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A program of `sources`/field under traceops: its command, what is true of it. own: it starts its ranks itself.

    alone: it runs without traceops. slow: rank 1 sleeps for 50 ms a step.
    """

    name: str
    truth: str
    command: tuple[str, ...]
    own: bool = False
    slow: bool = False
    alone: bool = False
    ranks: int = 2
    seconds: float = 30.0


# Truths as in the README of these programs.
FIELD = read_records(Path(__file__).with_name("field.jsonl"), Field)
