"""The options of `traceops view`."""

from __future__ import annotations

import argparse

from traceops.cli.options.types import numbers, positive

HELP = "Write all ranks as one aligned timeline for ui.perfetto.dev."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", help="profile/NAME, any folder with traces of ranks, one .json or .json.gz trace, or s3://…")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write (reports/NAME/timeline.pftrace.gz; a part has a name of its own, such as "
        "timeline.TO-S001.pftrace.gz). A name that ends in .gz is gzipped; one that ends "
        "in .json or .json.gz becomes Chrome's JSON",
    )
    add("--ranks", type=numbers, metavar="LIST", help="ranks to show, such as 0,2-3 (all)")
    add("--steps", type=numbers, metavar="LIST", help="steps to show, such as 4-5 (all)")
    add(
        "--around",
        metavar="FINDING",
        help="show one finding, such as TO-S001: the ranks it names, a rank that waits, and its longest step",
    )
    add("--jobs", type=positive, metavar="N", help="processes to read traces with (one a core)")
    add("-q", "--quiet", action="store_true", help="print the file's path only")
