"""The options of `traceops show`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from traceops.answers.asked import QUESTIONS, SUMMARY
from traceops.cli.options.types import numbers, positive

HELP = "Answer one question about a run or report, in a few lines or as JSON."

_NARROWING: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "ranks": lambda add: add("--ranks", "--rank", type=numbers, metavar="LIST", help="only these ranks, such as 0,2-3"),
    "steps": lambda add: add("--steps", "--step", type=numbers, metavar="LIST", help="only these steps, such as 4-5"),
    "group": lambda add: add(
        "--group", metavar="NAME", help="a group's name, a part of it, or its role: data, tensor, …"
    ),
    "op": lambda add: add("--op", metavar="NAME", help="an operation, or a part of its name"),
    "kind": lambda add: add("--kind", metavar="KIND", help="compute, comm or memory"),
    "name": lambda add: add("--name", metavar="TEXT", help="kernels with this in their name"),
    "severity": lambda add: add("--severity", choices=("info", "warning", "error"), help="at least this severe"),
    "by": lambda add: add("--by", metavar="COLUMN", help="sort by this column of --json, largest first"),
    "top": lambda add: add("--top", "--worst", type=positive, metavar="N", help="the first N rows only"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a report folder, a report.json, or what traceops analyze takes")
    _add_common(parser)
    asked = parser.add_subparsers(dest="question", metavar="QUESTION", title="questions")
    parser.set_defaults(question=SUMMARY)
    for question in QUESTIONS:
        sub = asked.add_parser(question.name, help=question.about, description=question.about)
        for name in question.narrowed_by:
            if name == "rule":
                what = "TO-S001" if question.name == "finding" else "a rule's id or its beginning: TO-S"
                sub.add_argument("rule", nargs=None if question.name == "finding" else "?", help=what)
            else:
                _NARROWING[name](sub.add_argument)
        _add_common(sub, default=argparse.SUPPRESS)


def _add_common(parser: argparse.ArgumentParser, default: Any = None) -> None:
    """Options that may stand before the question or behind it."""
    add = parser.add_argument
    add(
        "--json",
        action="store_true",
        default=default if default is not None else False,
        help="JSON, with a unit in each name (docs/formats.md)",
    )
    add("--jobs", type=positive, metavar="N", default=default, help="ranks to read at a time (one a core)")
    add("-q", "--quiet", action="store_true", default=default if default is not None else False, help="no progress")
