"""The options of `traceops scale`: its own, and those of `traceops run` for the trainings of --nproc."""

from __future__ import annotations

import argparse

from traceops.cli.options import run
from traceops.cli.options.types import positive

HELP = "Say how a training scales: speedup, efficiency, where the rest goes, what it costs, the next size."
_EPILOG = """RUN: run folders of one training with different numbers of ranks (several of a size give intervals), or a
folder of them. With --nproc 1,2,4 they are trained first, in turn, --repeat times each (3); what is behind -- is
then the script, and further options are those of `traceops run`:

  traceops scale profile/n1 profile/n2 profile/n4 --price 2.50
  traceops scale --nproc 1,2,4 --global-batch-size 64 --strategy pytorch_ddp
  traceops scale --nproc 1,2 -- train.py --epochs 1"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    run.add_options(parser)
    for action in parser._actions:
        if "--nproc" in action.option_strings:
            action.type, action.metavar, action.help = (
                str,
                "N,N,…",
                "train with each of these numbers of ranks",
            )
        if "--repeat" in action.option_strings:
            action.help = "trainings of each size, in turn (3)"
        if {"--against", "--summarize"} & set(action.option_strings):
            action.help = argparse.SUPPRESS
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="RUN",
        help="runs that are there; with --nproc the script and its arguments",
    )
    add(
        "--price",
        metavar="P",
        help="of a GPU (a rank) and hour, in whatever currency: cost a million samples",
    )
    add(
        "--predict",
        type=positive,
        action="append",
        default=[],
        metavar="N",
        help="ranks of a size to predict (twice the most)",
    )
    add("-o", "--output", metavar="DIR", help="where the files go (reports/NAME)")
    add("-q", "--quiet", action="store_true", help="print the page's path only")
