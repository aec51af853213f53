"""The options of `traceops memory`."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceops.cli.options.types import positive
from traceops.train.options import add_training_arguments

HELP = "Estimate the GPU memory that a training needs, without a GPU; or show what a run or a snapshot held."
GLOBAL_BATCH = "samples of all ranks in an optimizer step; each rank's batch is computed from it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="SNAPSHOT|RUN",
        help="a pickle of torch.cuda.memory._dump_snapshot: show what held the memory; two of them: what the second "
        "holds more; a run folder: what its ranks held; -- SCRIPT ARGS or -- -m MODULE ARGS: what a script would need "
        "(it runs on fake tensors)",
    )
    device = parser.add_argument_group("memory")
    add = device.add_argument
    add("--nproc", type=positive, default=1, metavar="N", help="ranks in all, one a GPU (%(default)s)")
    add("--capacity", metavar="SIZE", help="memory of a GPU, such as 47.4GiB (2³⁰ bytes) or 80GB (10⁹)")
    add("--gpu", metavar="NAME", help="the same by the GPU's name: H100, A6000, …")
    add(
        "--params",
        type=float,
        metavar="N",
        help="count only parameters, gradients and optimizer state of a model with N parameters, such as 8.36e9",
    )
    add("--rank", type=int, metavar="N", help="with a script: the rank to run (0)")
    add("--global-batch-size", type=positive, metavar="N", help=GLOBAL_BATCH)
    add("--no-changes", action="store_true", help="do not look for changes that make it fit")
    add("--json", type=Path, metavar="FILE", help="also write the result to this file (docs/formats.md)")
    add_training_arguments(parser)
