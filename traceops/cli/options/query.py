"""The options of `traceops query`."""

from __future__ import annotations

import argparse

from traceops.cli.options.types import numbers, positive

HELP = "Query a run's timeline in SQL, with Perfetto's trace processor."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", help="a timeline that `traceops view` wrote, or profile/NAME: then a temporary one is made")
    add("sql", help='such as "select name, count(*), sum(dur) from slice group by name order by 3 desc limit 10"')
    add("--ranks", type=numbers, metavar="LIST", help="ranks of a run, such as 0,2-3 (all)")
    add("--steps", type=numbers, metavar="LIST", help="steps of a run, such as 4-5 (all)")
    add("--around", metavar="FINDING", help="the ranks and the step of a finding, such as TO-S001")
    add("--jobs", type=positive, metavar="N", help="processes to read traces with (one a core)")
