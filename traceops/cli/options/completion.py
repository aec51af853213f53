"""The options of `traceops completion`."""

from __future__ import annotations

import argparse

HELP = "Print a script that completes commands and options in your shell."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
