"""The options of `traceops mcp`: none."""

from __future__ import annotations

import argparse

HELP = "Serve the answers of traceops show to an agent, over the Model Context Protocol (stdio)."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Takes none: each question names its run."""
