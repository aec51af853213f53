"""The options of `traceops capture`."""

from __future__ import annotations

import argparse

HELP = "Record a window of a running job now, on all ranks from the same step."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="?", help="run folder of the running job (the only running one below profile/)")
    add("--job", metavar="NAME", help="the run called NAME: profile/NAME")
    add(
        "--warmup",
        type=int,
        default=2,
        metavar="N",
        help="steps with the profiler on before the window, not recorded (%(default)s)",
    )
    add("--active", type=int, default=4, metavar="N", help="steps to record (%(default)s)")
    add(
        "--with-memory",
        action="store_true",
        help="record the stack of each GPU allocation from now on, and save a memory snapshot at the window's end",
    )
    add("--no-wait", action="store_true", help="return at once; do not wait for the window")
