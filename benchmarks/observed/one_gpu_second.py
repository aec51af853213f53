"""Eight more programs of one rank on one GPU, unlike those of one_gpu.py: written before any result.

Each runs by itself twice, so that it is known whether it differs from itself, once without what is planted, and once
under traceops. Half of them, by a checksum of the name, are read last.
"""

from __future__ import annotations

import hashlib

from benchmarks.observed.one_gpu import Told
from benchmarks.observed.registry import Program


def _program(name: str, seconds: float, *, tidy: bool = True, **more: object) -> Program:
    return Program(name, (f"{{one_gpu}}/{name}.py",), seconds=seconds, tidy=tidy, twice=True, **more)  # type: ignore[arg-type]


PROGRAMS: tuple[Program, ...] = (
    _program("unet_emptied", 13),
    _program("trainer_emptied", 20),
    _program("expert_loop", 12),
    _program("streamed_text", 15),
    _program("hashed_tables", 11),
    _program("masked_patches", 14),
    _program("heat_lbfgs", 11),
    _program("two_towers", 12, tidy=False),
)


def aside(name: str) -> bool:
    """Whether it belongs to the half that is read last."""
    names = sorted((one.name for one in PROGRAMS), key=lambda one: hashlib.sha256(one.encode()).hexdigest())
    return name in names[: len(names) // 2]


_SAID = {
    "unet_emptied": (
        "empty_cache() as the allocator's doing (TO-W001 `allocator`, or TO-M005), by its share of the run; that the "
        "host waits for the answer and counts overlaps in `overlap` (TO-I003 or TO-I001), with its line",
        "late input; a leak or fragments of memory as the cause; a gain beyond the tidy run's",
    ),
    "trainer_emptied": (
        "the evaluations (TO-W001 `evaluation` or a model without gradients) by their share; empty_cache() by its "
        "share if it is 1 % or more",
        "late input; a host that is late by 10 % or more where the tidy run gains nothing of it; recompilation",
    ),
    "expert_loop": (
        "the host is late, or waits in nonzero() (TO-I003, TO-I001), with the loop's line; a step near the tidy run's",
        "late input; communication; a gain beyond the tidy run's by more than a tenth of the step",
    ),
    "streamed_text": (
        "late data, the only worker (TO-I002), with tokens_of's line; the validations by their share of the run",
        "a host that launches late as the first cause; validation as late data",
    ),
    "hashed_tables": (
        "the main thread's hashing as input or as a late host (TO-I002 or TO-I001), with `hashed`; the rest is the "
        "device's Adam",
        "workers or a DataLoader that are late: there is none; a gain that leaves less than the device works",
    ),
    "masked_patches": (
        "checkpoints (TO-W001) by their share of the run; looks at the loss at most as a remark",
        "steps counted by micro-batch; late input; a look at the loss with a gain beyond the tidy run's",
    ),
    "heat_lbfgs": (
        "60 steps; drawing the points in the main thread (`drawn`), and launches of the host if the tidy run is bound "
        "by them",
        "steps counted by closure; workers or a DataLoader that are late; a step that is a window",
    ),
    "two_towers": (
        "nothing serious; the GPU is busy",
        "any warning or error of idle time; evaluation; .item() with a gain of 1 % or more",
    ),
}
TOLD: dict[str, Told] = {name: Told(due, never, aside(name)) for name, (due, never) in _SAID.items()}
