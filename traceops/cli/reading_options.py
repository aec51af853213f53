"""The options of the commands that read: runs, reports, dumps, and this machine."""

from __future__ import annotations

import argparse
from typing import Any

from traceops.cli.declared import Command, Group, Option, add_common, add_options, flag, numbers, option, positive
from traceops.core.files import FORMATS
from traceops.words.catalogue import texts

_SEVERITIES = ("info", "warning", "error")
_FORMAT = option("--format", default=",".join(FORMATS), metavar="LIST")
_FAIL_ON = option("--fail-on", choices=_SEVERITIES)
_PLOTLYJS = option("--plotlyjs", choices=("none", "inline", "cdn"), default="none")
_JOBS = option("--jobs", type=positive, metavar="N")
_OUTPUT = option("-o", "--output", metavar="DIR")
_RANKS = option("--ranks", type=numbers, metavar="LIST")
_STEPS = option("--steps", type=numbers, metavar="LIST")
_AROUND = option("--around", metavar="FINDING")
_QUIET = flag("-q", "--quiet")
_VERBOSE = flag("-v", "--verbose")

ANALYZE = Command(
    "analyze",
    shown=("--output", "--select", "--format", "--fail-on", "--evidence", "--jobs", "--quiet"),
    options=(
        option("path", nargs="+"),
        _OUTPUT,
        option("--select", choices=("latest", "all"), default="latest"),
        _FORMAT,
        _PLOTLYJS,
        _FAIL_ON,
        flag("--strict"),
        _JOBS,
        option("--executor", metavar="WHERE"),
        option("--no-cache", dest="cache", action="store_false"),
        option("--evidence", action="append", default=[], metavar="FILE"),
        option("--gpu", default="", metavar="NAME"),
        flag("--hta", default=None),
        option("--no-hta", dest="hta", default=None, action="store_false"),
        _VERBOSE,
        _QUIET,
    ),
)

COMPARE = Command(
    "compare",
    shown=("--base", "--head", "--threshold", "--config", "--strict", "--force", "--output", "--format", "--quiet"),
    options=(
        option("paths", nargs="*", metavar="BASE HEAD"),
        option("--base", nargs="+", metavar="PATH", default=[]),
        option("--head", nargs="+", metavar="PATH", default=[]),
        option("--threshold", action="append", metavar="METRIC=PCT", default=[]),
        option("--config", metavar="FILE"),
        option("--store", metavar="DIR|URL"),
        option("--last", type=positive, default=5, metavar="N"),
        flag("--force"),
        flag("--strict"),
        _OUTPUT,
        option("--format", default="html,md,json", metavar="LIST"),
        _PLOTLYJS,
        option("--name", default=""),
        _JOBS,
        _QUIET,
    ),
)

_STORE = option("--store", metavar="URL")
_KEY = option("--key", metavar="PATTERN")
_BASELINE_ACTIONS: dict[str, tuple[Option, ...]] = {
    "save": (
        option("paths", nargs="+", metavar="PATH"),
        option("--branch"),
        option("--name"),
        option("--commit"),
        flag("-q", "--quiet", default=argparse.SUPPRESS),
    ),
    "list": (_KEY,),
    "show": (option("key", metavar="KEY"), flag("--json")),
    "prune": (
        option("--keep", type=positive, metavar="N"),
        option("--older-than", type=float, metavar="DAYS"),
        _KEY,
        flag("--dry-run"),
    ),
    "history": (_KEY, option("-o", "--output", metavar="DIR", default="reports/history"), _PLOTLYJS),
}


def _add_baseline_actions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, options in _BASELINE_ACTIONS.items():
        about = texts("options", "baseline")[name]
        sub = actions.add_parser(name, help=about, description=about)
        add_options(sub, (_STORE, *options), "baseline")
        add_common(sub, default=argparse.SUPPRESS)


BASELINE = Command("baseline", extend=_add_baseline_actions)


def _gpus(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers. Raises ArgumentTypeError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError("must be numbers separated by commas: 0,1")
    return tuple(int(part) for part in parts)


DIAGNOSE = Command("diagnose", (option("path"), _OUTPUT, _FORMAT, _FAIL_ON, _QUIET))

DOCTOR = Command(
    "doctor",
    shown=("--from", "--cluster", "--output", "--no-tests", "--compute", "--quick", "--gpus", "--nproc", "--fail-on",
           "--json", "--verbose", "--quiet"),
    options=(
        option("--from", dest="saved", nargs="+", metavar="FILE"),
        flag("--cluster"),
        option("-o", "--output", default="reports/doctor", metavar="DIR"),
        _FORMAT,
        flag("--json"),
        _FAIL_ON,
        _VERBOSE,
        _QUIET,
        Group("tests", (
            option("--no-tests", dest="tests", action="store_false"),
            flag("--compute"),
            flag("--quick"),
            option("--gpus", type=_gpus, metavar="LIST"),
            option("--device", choices=("auto", "cpu", "cuda"), default="auto"),
            option("--nproc", type=positive, metavar="N"),
            option("--budget", type=positive, metavar="S"),
        )),
        Group("several nodes", (
            option("--nnodes", type=positive, metavar="N"),
            option("--node-rank", type=int, metavar="N"),
            option("--master-addr", metavar="HOST"),
            option("--master-port", type=positive, metavar="PORT"),
        )),
    ),
)  # fmt: skip

VIEW = Command(
    "view", (option("path"), option("-o", "--output", metavar="FILE"), _RANKS, _STEPS, _AROUND, _JOBS, _QUIET)
)
OPEN = Command("open", (option("path"), option("--port", type=int, default=0, metavar="N"), flag("--no-browser")))
QUERY = Command("query", (option("path"), option("sql"), _RANKS, _STEPS, _AROUND, _JOBS))

_NARROWING = {
    "ranks": option("--ranks", "--rank", type=numbers, metavar="LIST"),
    "steps": option("--steps", "--step", type=numbers, metavar="LIST"),
    "group": option("--group", metavar="NAME"),
    "op": option("--op", metavar="NAME"),
    "kind": option("--kind", metavar="KIND"),
    "name": option("--name", metavar="TEXT"),
    "severity": option("--severity", choices=_SEVERITIES),
    "by": option("--by", metavar="COLUMN"),
    "top": option("--top", "--worst", type=positive, metavar="N"),
    "rule": option("rule"),
}
_OF_ANSWERS = (flag("--json"), _JOBS, _QUIET)  # before the question or behind it


def _add_questions(parser: argparse.ArgumentParser) -> None:
    from traceops.answers.asked import QUESTIONS, SUMMARY

    asked: Any = parser.add_subparsers(dest="question", metavar="QUESTION", title="questions")
    parser.set_defaults(question=SUMMARY)
    for question in QUESTIONS:
        sub = asked.add_parser(question.name, help=question.about, description=question.about)
        for name in question.narrowed_by:
            optional = {"nargs": "?"} if name == "rule" and question.name != "finding" else {}
            _NARROWING[name].add_to(sub, "show", **optional)
        for one in _OF_ANSWERS:
            one.add_to(sub, "show", default=argparse.SUPPRESS)
        add_common(sub, default=argparse.SUPPRESS)


SHOW = Command("show", (option("path", metavar="RUN"), *_OF_ANSWERS), extend=_add_questions)
EXPLAIN = Command("explain", (option("rule"), _VERBOSE))
DEMO = Command("demo", (option("-o", "--output", default="reports/demo", metavar="DIR"),))
MCP = Command("mcp")
COMPLETION = Command("completion", (option("shell", choices=("bash", "zsh", "fish")),))
_ALL = (ANALYZE, COMPARE, BASELINE, DIAGNOSE, DOCTOR, VIEW, OPEN, QUERY, SHOW, EXPLAIN, DEMO, MCP, COMPLETION)
COMMANDS = {command.name: command for command in _ALL}
