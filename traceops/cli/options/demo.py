"""The options of `traceops demo`."""

from __future__ import annotations

import argparse

HELP = "Analyse a bundled run of four GPUs with a slow data loader: no GPU, no torch, no training."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", default="reports/demo", metavar="DIR", help="report folder (%(default)s)")
