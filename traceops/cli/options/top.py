"""The options of `traceops top`."""

from __future__ import annotations

import argparse

HELP = "Show a running job in the terminal: pace, lag, input, memory and goodput of each rank."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="?", help="run folder of a job that was started with --live (the only one below profile/)")
    add("--once", action="store_true", help="print once and end")
    add("--sort", choices=("rank", "step", "pace", "input", "memory"), default="rank", help="order (%(default)s)")
