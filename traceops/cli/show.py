"""`traceops show`: one answer about a run or a report, as text or JSON."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from traceops.answers.answering import answer
from traceops.answers.asked import Asked
from traceops.answers.opening import open_run
from traceops.answers.text import describe_answer
from traceops.core.text import json_for, printable
from traceops.pipeline.mapping.ranks import ProgressLine
from traceops.render.writers.terminal import write_terminal
from traceops.report.write import json_text


def main(args: argparse.Namespace) -> int:
    given = vars(args)
    names = {field.name for field in dataclasses.fields(Asked)}
    asked = Asked(**{name: value for name, value in given.items() if name in names and value is not None})

    def say(path: str) -> None:
        if not args.quiet:
            print(
                printable(f"traceops show: reading the traces of {path}; traceops analyze keeps a report"),
                file=sys.stderr,
            )

    with ProgressLine(sys.stderr, enabled=not args.quiet) as progress:
        found = open_run(args.path, jobs=args.jobs, progress=progress, before_analysis=say)
    for problem in found.problems:
        print(printable(f"traceops show: {problem}"), file=sys.stderr)
    answered = answer(found, asked)
    if args.json:
        sys.stdout.write(json_for(sys.stdout, json_text(answered)))
    else:
        write_terminal(describe_answer(answered), sys.stdout)
    return 0
