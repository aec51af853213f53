"""The options of the built-in training's DataLoader, by the names that torch gives its arguments."""

from __future__ import annotations

import argparse
from typing import Any

from traceops.core.errors import UsageError
from traceops.train.config import CPU_SIZES, CUDA_SIZES, TrainConfig


def add_loader_arguments(add: Any) -> None:
    """Add the flags to a group whose ``add_argument`` is `add`; but for ``--workers``, which has sizes by device."""
    add("--prefetch-factor", type=int, metavar="N", help="batches that each DataLoader worker loads ahead (2)")
    add(
        "--pin-memory",
        action=argparse.BooleanOptionalAction,
        help="put batches in page-locked memory, which copies to a GPU while it computes (on cuda)",
    )
    add(
        "--persistent-workers",
        action="store_true",
        default=None,  # as in a run.json that was written before there was this option
        help="keep the DataLoader's workers from epoch to epoch; see --epoch-steps",
    )
    add(
        "--epoch-steps",
        type=int,
        metavar="N",
        help="profiler steps in an epoch; then the data and the DataLoader start over (all steps are one epoch)",
    )


def check_loader(config: TrainConfig, device: str) -> None:
    """Raise UsageError for what the DataLoader would refuse, or what would do nothing. device: "auto" if not known."""
    if config.workers is not None and config.workers < 0:
        raise UsageError(f"--workers {config.workers}: must be 0 (load in the training process) or more")
    for name in ("prefetch_factor", "epoch_steps"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be 1 or more")
    default = min(CPU_SIZES.workers, CUDA_SIZES.workers)
    if (config.workers if config.workers is not None else default) == 0:
        given = [name for name in ("prefetch_factor", "persistent_workers") if getattr(config, name)]
        if given:
            raise UsageError(
                f"--{given[0].replace('_', '-')} is for loader workers, and --workers 0 has none; use "
                "--workers 1 or more"
            )
    if config.pin_memory and device == "cpu":
        raise UsageError("--pin-memory is for copies to a GPU; leave it out with --device cpu")
    if config.persistent_workers and config.epoch_steps is None:
        raise UsageError(
            "--persistent-workers changes nothing within one epoch; add --epoch-steps N, after which the data starts "
            "anew"
        )
