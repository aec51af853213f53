"""The options of `traceops view`."""

from __future__ import annotations

import argparse
import re

from traceops.cli.options.types import positive

HELP = "Write all ranks as one aligned timeline for ui.perfetto.dev."
_MOST_NUMBERS = 1_000_000  # in a list such as 0-3: more is a slip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", help="profile/NAME, any folder with traces of ranks, one .json or .json.gz trace, or s3://…")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write, gzipped if its name ends in .gz (reports/NAME/timeline.json.gz)",
    )
    add("--ranks", type=_numbers, metavar="LIST", help="ranks to show, such as 0,2-3 (all)")
    add("--steps", type=_numbers, metavar="LIST", help="steps to show, such as 4-5 (all)")
    add("--jobs", type=positive, metavar="N", help="processes to read traces with (one a core)")
    add("-q", "--quiet", action="store_true", help="print the file's path only")


def _numbers(text: str) -> tuple[int, ...]:
    """`0,2-3` as (0, 2, 3)."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or len(numbers) + last - first >= _MOST_NUMBERS:
            raise argparse.ArgumentTypeError(f"takes numbers and ranges such as 0,2-3, not {text!r}")
        numbers |= set(range(first, last + 1))
    return tuple(sorted(numbers))
