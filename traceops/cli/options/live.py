"""The options of `traceops live`."""

from __future__ import annotations

import argparse

HELP = "Watch a running job: changes of pace, ranks that lag, waiting for input, memory, hangs."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="?", help="run folder of a job that was started with --live (the only one below profile/)")
    add("--metrics", metavar="[HOST:]PORT", help="serve metrics for Prometheus there (host: 127.0.0.1)")
    add("--webhook", metavar="URL", help="post each detection there as JSON, which Slack takes too")
    add(
        "--windows",
        type=int,
        default=4,
        metavar="N",
        help="windows to record per hour, each after a detection, with a pause that doubles; 0: none (%(default)s)",
    )
    add("--seconds", type=float, metavar="S", help="end after so long (when the job ends)")
