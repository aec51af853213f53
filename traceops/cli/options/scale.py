"""The options of `traceops scale`: its own, and those of `traceops run` for the trainings of --nproc."""

from __future__ import annotations

import argparse

from traceops.cli.options import run
from traceops.cli.options.types import positive

HELP = "Say how a training scales: speedup, efficiency, where the rest goes, what it costs, the next size."
_EPILOG = """RUN: run folders of one training with different numbers of ranks, or a folder of them. Several runs of a
size give intervals. With --nproc 1,2,4 traceops trains the sizes first, in turn, --repeat times each (3). Then the
script stands after --, and all other options are those of `traceops run`:

  traceops scale profile/n1 profile/n2 profile/n4 --price 2.50
  traceops scale --nproc 1,2,4 --global-batch-size 64 --strategy pytorch_ddp
  traceops scale --nproc 1,2 --global-batch-size 64 -- train.py --epochs 1"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    run.add_options(parser)
    for action in parser._actions:
        if "--nproc" in action.option_strings:
            action.type, action.metavar, action.help = (str, "N,N,…", "train with each of these numbers of ranks")
        if "--repeat" in action.option_strings:
            action.help = "trainings of each size, in turn (3)"
        if {"--against", "--summarize"} & set(action.option_strings):
            action.help = argparse.SUPPRESS
    add = parser.add_argument
    add("words", nargs="*", metavar="RUN", help="existing runs; with --nproc: the script and its arguments")
    add(
        "--price",
        metavar="P",
        help="price of one GPU (rank) for an hour, in any currency; shows the cost of a million samples",
    )
    add(
        "--predict",
        type=positive,
        action="append",
        default=[],
        metavar="N",
        help="number of ranks to predict (twice the largest run); repeatable",
    )
    add("-o", "--output", metavar="DIR", help="where the files go (reports/NAME)")
    add("-q", "--quiet", action="store_true", help="print the page's path only")
