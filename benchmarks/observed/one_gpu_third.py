"""Six more programs of one rank on one GPU, unlike the others: written before any result. Half are read last."""

from __future__ import annotations

import hashlib

from benchmarks.observed.one_gpu import Told
from benchmarks.observed.registry import Program


def _program(name: str, seconds: float, *, tidy: bool = True, **more: object) -> Program:
    return Program(name, (f"{{one_gpu}}/{name}.py",), seconds=seconds, tidy=tidy, **more)  # type: ignore[arg-type]


PROGRAMS: tuple[Program, ...] = (
    _program("blocks_emptied", 14),
    _program("ragged_translation", 13, twice=True),
    _program("distilled", 13),
    _program("dqn_replay", 11, twice=True),
    _program("host_embeddings", 13),
    _program("wide_products", 14, tidy=False),
)


def aside(name: str) -> bool:
    """Whether it belongs to the half that is read last."""
    names = sorted((one.name for one in PROGRAMS), key=lambda one: hashlib.sha256(one.encode()).hexdigest())
    return name in names[: len(names) // 2]


_SAID = {
    "blocks_emptied": (
        "empty_cache() (TO-W001 `allocator`) by its share of the run, near what the tidy run saves; 8 steps and those "
        "behind them, in which the driver is asked for memory anew",
        "late input; .item() with a gain; a leak or fragments of memory; a host that is late by 10 % or more where the "
        "tidy run gains nothing of it",
    ),
    "ragged_translation": (
        "input in the main thread, in pieces_of or padded (TO-I002), with its ms a step; checkpoints by their share of "
        "the run (TO-W001)",
        "workers that are late: there are none; recompilation; lengths as a trouble beyond what they differ by",
    ),
    "distilled": (
        "copies from memory that is not pinned (TO-I004), or the host that waits in them; looked_at's reads (TO-I003); "
        "at most the gain of the tidy run",
        "evaluation, or the teacher as a trouble of some steps; late input by workers; a gain beyond the tidy run's",
    ),
    "dqn_replay": (
        "sample() in the main thread as input or as a late host (TO-I002 or TO-I001), with its line; `follow` as part "
        "of what is launched late",
        "workers or a DataLoader that are late: there is none; evaluation (the target network is called in each step)",
    ),
    "host_embeddings": (
        "the host is late by its tables (TO-I001), lookups and SparseAdam on the CPU, or copies; the histograms by "
        "their share of the run (TO-W001) if it is 1 % or more",
        "a DataLoader; steps counted by optimizer (two a step): 80 steps; launches as the only cause where the CPU "
        "computes",
    ),
    "wide_products": (
        "nothing serious: the GPU computes all the time; at most a remark that its clock is capped by power",
        "any warning or error; slow ranks: there is one; late input; the host",
    ),
}
TOLD: dict[str, Told] = {name: Told(due, never, aside(name)) for name, (due, never) in _SAID.items()}
