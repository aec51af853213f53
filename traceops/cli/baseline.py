"""`traceops baseline`: captures kept over time, to compare with and to see how a training develops."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TextIO

from msgspec import to_builtins

from traceops.baseline.entry import UNKNOWN, Entry
from traceops.baseline.history import Sample, histories, label_of, samples_of
from traceops.baseline.store import Problem, chosen_store, entries, remove, save, scan, to_prune
from traceops.compare.capture import capture_of, report_object
from traceops.core.claims import Wording
from traceops.core.errors import InputError, UsageError
from traceops.core.redaction import redact_text
from traceops.core.units import minute_text, number_text
from traceops.render.history.text import history_verdict
from traceops.render.printer import Printer

_text = Wording("cli", "baseline")
_MOST_PROBLEMS = 10


def main(args: argparse.Namespace) -> int:
    store = chosen_store(args.store)
    code: int = _ACTIONS[args.action](args, store)
    return code


def _save(args: argparse.Namespace, store: str) -> int:
    for path in args.paths:
        report, read_from = report_object(path)
        capture_of(report, read_from)  # which says what is wrong with it
        entry = save(store, report, branch=args.branch, name=args.name, commit=args.commit, source=path)
        if args.quiet:
            _say(entry.url, whole=True)
        else:
            _say(f"{path}: saved as {entry.url}")
            _say(f"  key     {entry.key.text}")
            _say("  " + _text("commit", commit=entry.commit or "not known", changed=entry.dirty))
            if entry.key.model == UNKNOWN:
                _say("  " + _text("model_unknown"))
    return 0


def _list(args: argparse.Namespace, store: str) -> int:
    problems: list[Problem] = []
    empty = True
    for key, own in groupby(_samples(store, args.key, problems), key=lambda sample: sample.entry.key):
        count, latest = 0, None
        for latest in own:  # noqa: B007 the last one is shown
            count += 1
        assert latest is not None
        empty = False
        _say(f"{key.slug}\n  {key.text}")
        entry = latest.entry
        _say("  " + _text("key", n=count, commit=label_of(entry), age=_age(entry), step=_ms(latest.step_ms)))
    if empty:
        _say(f"No baseline in {store}" + (f" matches {args.key!r}." if args.key else " yet."))
    _name_problems(problems)
    return 0


def _show(args: argparse.Namespace, store: str) -> int:
    problems: list[Problem] = []
    keys = []
    for key, own in groupby(_samples(store, args.key, problems), key=lambda sample: sample.entry.key):
        samples = list(own)
        from traceops.render.history.html import capture_json  # what only some actions show

        entries = [to_builtins(capture_json(sample)) for sample in samples]
        keys.append({"slug": key.slug, "key": asdict(key), "entries": entries})
        if args.json:
            continue
        _say(f"{key.slug}\n  {key.text}")
        for sample in samples:
            entry = sample.entry
            _say(f"  {minute_text(entry.time_ns)}  {label_of(entry):8}  {_ms(sample.step_ms):>10}  {entry.url}")
    if not keys:
        raise _nothing(store, args.key)
    if args.json:
        print(json.dumps(keys, indent=1, allow_nan=False))
    _name_problems(problems)
    return 0


def _prune(args: argparse.Namespace, store: str) -> int:
    if args.older_than is not None and not args.older_than >= 0:
        raise UsageError(f"--older-than {args.older_than}: a number of days, 0 or more")
    problems: list[Problem] = []
    found = entries(store, args.key, problems)
    gone = to_prune(found, keep=args.keep, older_than_days=args.older_than, now_ns=time.time_ns())
    for entry in gone:
        _say(f"{'would delete' if args.dry_run else 'deleting'} {entry.url}")
    deleted = 0 if args.dry_run else remove(gone)
    kept = len(found) - len(gone)
    if args.dry_run:
        _say(_text("would_delete", n=len(gone), kept=kept))
    else:
        _say(_text("deleted", n=deleted, gone=len(gone) - deleted or None, kept=kept))
    _name_problems(problems)
    return 0


def _history(args: argparse.Namespace, store: str) -> int:
    problems: list[Problem] = []
    if not (found := histories(_samples(store, args.key, problems))):
        raise _nothing(store, args.key)
    from traceops.render.history.html import write_history

    written = write_history(found, problems, store, Path(args.output), args.plotlyjs)
    _say(history_verdict(found).sentence)
    _say(f"History: {written[0]}")
    _name_problems(problems)
    return 0


_ACTIONS = {"save": _save, "list": _list, "show": _show, "prune": _prune, "history": _history}


def _samples(store: str, pattern: str | None, problems: list[Problem]) -> Iterator[Sample]:
    return samples_of(scan(store, pattern, problems), problems)


def _nothing(store: str, pattern: str | None) -> InputError:
    return InputError(_text("none_found", store=store, pattern=pattern and repr(pattern)))


def _name_problems(problems: Sequence[Problem]) -> None:
    """What was left alone, on stderr: it may be a foreign file, or an entry that somebody should look at."""
    for problem in problems[:_MOST_PROBLEMS]:
        _say(_text("left_out", url=problem.url, why=problem.what), sys.stderr)
    if len(problems) > _MOST_PROBLEMS:
        _say(_text("more_left_out", n=len(problems) - _MOST_PROBLEMS), sys.stderr)


def _say(text: str, file: TextIO | None = None, *, whole: bool = False) -> None:
    """Text that may come from the store: nothing in it steers the terminal. whole: a place to copy, never broken. A
    message elsewhere than on a terminal is one line, which grep finds."""
    printer = Printer(file or sys.stdout)
    whole = whole or (file is not None and not file.isatty())
    for line in redact_text(text).split("\n"):
        if whole:
            printer.whole(line)
        else:
            printer.line((line, ""), hanging=2)


def _ms(value: float | None) -> str:
    return "not known" if value is None else f"{number_text(value)} ms"


def _age(entry: Entry) -> str:
    hours = max(time.time_ns() - entry.time_ns, 0) / 3.6e12
    if hours < 1:
        return f"{60 * hours:.0f} min"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
