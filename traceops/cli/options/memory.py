"""The options of `traceops memory`."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceops.cli.options.types import positive
from traceops.train.options import add_training_arguments

HELP = "Estimate the GPU memory that a training needs, without a GPU; or read what a run or a snapshot held."
GLOBAL_BATCH = "samples of all ranks in an optimizer step, from which a rank's batch follows"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="SNAPSHOT|RUN",
        help="pickles of torch.cuda.memory._dump_snapshot: what held the memory; of two, what the second holds more; "
        "the folder of a run: what its ranks held; -- SCRIPT ARGS or -- -m MODULE ARGS: what a script would need, "
        "run on fake tensors",
    )
    device = parser.add_argument_group("memory")
    add = device.add_argument
    add("--nproc", type=positive, default=1, metavar="N", help="ranks in all, one a GPU (%(default)s)")
    add("--capacity", metavar="SIZE", help="of a GPU, such as 47.4GiB (2³⁰ bytes) or 80GB (10⁹)")
    add("--gpu", metavar="NAME", help="its memory by name: H100, A6000, …")
    add(
        "--params",
        type=float,
        metavar="N",
        help="only count parameters, gradients and optimizer state of so many, 8.36e9",
    )
    add("--rank", type=int, metavar="N", help="of a script: the rank to run (0)")
    add("--global-batch-size", type=positive, metavar="N", help=GLOBAL_BATCH)
    add("--no-changes", action="store_true", help="do not look for changes that make it fit")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the estimate here too, or what a run held (docs/formats.md)",
    )
    add_training_arguments(parser)
