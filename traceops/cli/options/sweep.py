"""The options of `traceops sweep`: its own, and those of `traceops run` for what all trainings share."""

from __future__ import annotations

import argparse

from traceops.cli.options import run

HELP = "Train all combinations of some settings, each captured, and say which is best and why."
_EPILOG = """All other options are those of `traceops run` (traceops run --help). They hold for all trainings.

  traceops sweep --vary strategy=pytorch_ddp,zero3 --vary workers=0,2,4 --nproc 2
  traceops sweep --vary-arg batch-size=8,16,32 --budget 20m --nproc 2 -- train.py --epochs 1

To continue an interrupted sweep, run the same command again. Folders: profile/NAME/<combination>_<n>, reports/NAME."""
_BUDGET = """successive halving within this time (20m, 1h, 90s): train all combinations once, then the better half
again, until one is left. Without it: train every combination --repeat times"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V,V",
        help="an option of traceops run and the values to try; repeatable",
    )
    add(
        "--vary-arg",
        action="append",
        default=[],
        metavar="KEY=V,V",
        help="the same for an option of the script: replaces {KEY} in its arguments, or appends --KEY V; repeatable",
    )
    add("--budget", metavar="TIME", help=_BUDGET)
    run.add_options(parser)
    parser.add_argument("script", nargs=argparse.REMAINDER, help="-- SCRIPT ARGS, or -- -m MODULE ARGS")
    _describe_repeat(parser)


def _describe_repeat(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if "--repeat" in action.option_strings:
            action.help = "trainings of each combination, in turn (1)"
        if {"--against", "--summarize"} & set(action.option_strings):
            action.help = argparse.SUPPRESS
