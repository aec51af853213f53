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
from typing import TYPE_CHECKING, Any, TextIO

from traceops.cli.arguments import positive
from traceops.core.errors import InputError, UsageError
from traceops.core.units import minute_text, number_text

if TYPE_CHECKING:
    from traceops.baseline.entry import Entry
    from traceops.baseline.history import Sample
    from traceops.baseline.store import Problem

HELP = "Keep captures as baselines in a folder or bucket, list them, and show how they developed."

_MOST_PROBLEMS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    save = _action(actions, "save", "Add captures to the store.")
    save.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="profile/NAME, a folder of traces, a report folder or report.json",
    )
    save.add_argument("--branch", help="branch it belongs to (what the run says)")
    save.add_argument("--name", help="name in place of the model and its sizes in the key")
    save.add_argument("--commit", help="commit of the trained code (what the run says)")
    save.add_argument("-q", "--quiet", action="store_true", help="print where each entry lies only")

    listing = _action(
        actions, "list", "The keys in the store, with their number of entries and the latest one."
    )
    _add_key(listing)

    show = _action(actions, "show", "The entries of a key.")
    show.add_argument("key", metavar="KEY", help="model name, slug, other word of the key, or pattern")
    show.add_argument("--json", action="store_true", help="as JSON, with the place of each entry")

    prune = _action(actions, "prune", "Delete old entries; nothing else in the store is touched.")
    prune.add_argument("--keep", type=positive, metavar="N", help="keep the newest N of each key")
    prune.add_argument(
        "--older-than", type=float, metavar="DAYS", help="delete only what was captured before"
    )
    _add_key(prune)
    prune.add_argument("--dry-run", action="store_true", help="say what would be deleted")

    history = _action(actions, "history", "A page with each key's trends and where they changed for good.")
    _add_key(history)
    history.add_argument(
        "-o", "--output", metavar="DIR", default="reports/history", help="folder (%(default)s)"
    )
    history.add_argument(
        "--plotlyjs",
        choices=("inline", "cdn"),
        default="inline",
        help="inline works offline, cdn makes a small page (%(default)s)",
    )


def main(args: argparse.Namespace) -> int:
    from traceops.baseline.store import chosen_store

    store = chosen_store(args.store)
    code: int = _ACTIONS[args.action](args, store)
    return code


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--store",
        metavar="URL",
        help="folder, or s3://…, gs://… ($TRACEOPS_BASELINES, else baselines in the settings, else baselines/)",
    )
    return parser


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key", metavar="PATTERN", help="only keys with this model name, slug, other word, or shell pattern"
    )


def _save(args: argparse.Namespace, store: str) -> int:
    from traceops.baseline.store import save
    from traceops.compare.capture import read_capture

    for path in args.paths:
        report = read_capture(path).report
        entry = save(store, report, branch=args.branch, name=args.name, commit=args.commit, source=path)
        if args.quiet:
            print(entry.url)
        else:
            _say_saved(path, entry)
    return 0


def _say_saved(path: str, entry: Entry) -> None:
    from traceops.baseline.key import UNKNOWN

    changed = ", and the code was changed since" if entry.dirty else ""
    _say(f"{path}: saved as {entry.url}")
    _say(f"  key     {entry.key.text}")
    _say(f"  commit  {entry.commit or 'not known'}{changed}")
    if entry.key.model == UNKNOWN:
        _say("  The run does not say what it trains: other models get this key too, unless --name says more.")


def _list(args: argparse.Namespace, store: str) -> int:
    from traceops.baseline.history import label_of

    problems: list[Problem] = []
    empty = True
    for key, own in groupby(_samples(store, args.key, problems), key=lambda sample: sample.entry.key):
        count, latest = 0, None
        for latest in own:  # noqa: B007 the last one is shown
            count += 1
        assert latest is not None
        empty = False
        _say(f"{key.slug}\n  {key.text}")
        _say(
            f"  {_entries(count)}, the latest of commit {label_of(latest.entry)}, {_age(latest.entry)} ago: "
            f"step {_ms(latest.step_ms)}"
        )
    if empty:
        _say(f"No baseline in {store}" + (f" matches {args.key!r}." if args.key else " yet."))
    _name_problems(problems)
    return 0


def _show(args: argparse.Namespace, store: str) -> int:
    from traceops.baseline.history import label_of
    from traceops.render.history.files import entry_object

    problems: list[Problem] = []
    keys = []
    for key, own in groupby(_samples(store, args.key, problems), key=lambda sample: sample.entry.key):
        samples = list(own)
        entries = [{**entry_object(sample), "values": sample.values} for sample in samples]
        keys.append({"slug": key.slug, "key": asdict(key), "entries": entries})
        if args.json:
            continue
        _say(f"{key.slug}\n  {key.text}")
        for sample in samples:
            entry = sample.entry
            _say(
                f"  {minute_text(entry.time_ns)}  {label_of(entry):8}  {_ms(sample.step_ms):>10}  {entry.url}"
            )
    if not keys:
        raise _nothing(store, args.key)
    if args.json:
        print(json.dumps(keys, indent=1, allow_nan=False))
    _name_problems(problems)
    return 0


def _prune(args: argparse.Namespace, store: str) -> int:
    from traceops.baseline.store import entries, remove, to_prune

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
        _say(f"{_entries(len(gone))} would be deleted, {kept} kept")
    else:
        already = f", {len(gone) - deleted} had gone already" if deleted < len(gone) else ""
        _say(f"{_entries(deleted)} deleted{already}, {kept} kept")
    _name_problems(problems)
    return 0


def _history(args: argparse.Namespace, store: str) -> int:
    from traceops.baseline.history import histories
    from traceops.render.history.files import write_history
    from traceops.render.history.text import history_verdict

    problems: list[Problem] = []
    found = histories(_samples(store, args.key, problems))
    if not found:
        raise _nothing(store, args.key)
    written = write_history(found, problems, store, Path(args.output), args.plotlyjs)
    _say(history_verdict(found).sentence)
    _say(f"History: {written[0]}")
    _name_problems(problems)
    return 0


_ACTIONS = {"save": _save, "list": _list, "show": _show, "prune": _prune, "history": _history}


def _samples(store: str, pattern: str | None, problems: list[Problem]) -> Iterator[Sample]:
    from traceops.baseline.history import samples_of
    from traceops.baseline.store import scan

    return samples_of(scan(store, pattern, problems), problems)


def _nothing(store: str, pattern: str | None) -> InputError:
    what = f"no baseline in {store}" + (f" matches {pattern!r}" if pattern else "")
    return InputError(f"{what}; see traceops baseline list, and save one with traceops baseline save RUN")


def _name_problems(problems: Sequence[Problem]) -> None:
    """What was left alone, on stderr: it may be a foreign file, or an entry that somebody should look at."""
    for problem in problems[:_MOST_PROBLEMS]:
        _say(f"traceops baseline: {problem.url} is left out: {problem.what}", sys.stderr)
    if len(problems) > _MOST_PROBLEMS:
        _say(f"traceops baseline: and {len(problems) - _MOST_PROBLEMS} more", sys.stderr)


def _say(text: str, file: TextIO | None = None) -> None:
    """Text that may come from the store: nothing in it steers the terminal."""
    from traceops.render.printer import printable

    print(printable(text), file=file or sys.stdout)


def _ms(value: float | None) -> str:
    return "not known" if value is None else f"{number_text(value)} ms"


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"


def _age(entry: Entry) -> str:
    hours = max(time.time_ns() - entry.time_ns, 0) / 3.6e12
    if hours < 1:
        return f"{60 * hours:.0f} min"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
