"""The options of `traceops explain`."""

from __future__ import annotations

import argparse

HELP = "Explain a rule in one screen: what it means, what to do, with an example."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", help="a rule's id (TO-S001), or its beginning (TO-S), which lists the rules")
