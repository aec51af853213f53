"""The options of `traceops baseline`."""

from __future__ import annotations

import argparse
from typing import Any

from traceops.cli.options.types import positive

HELP = "Keep captures as baselines in a folder or bucket, list them, and show their history."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    save = _action(actions, "save", "Add captures to the store.")
    save.add_argument(
        "paths", nargs="+", metavar="PATH", help="profile/NAME, a folder of traces, a report folder or report.json"
    )
    save.add_argument("--branch", help="branch of the captures (as the run recorded it)")
    save.add_argument("--name", help="name in the key, instead of the model and its sizes")
    save.add_argument("--commit", help="commit of the trained code (as the run recorded it)")
    save.add_argument("-q", "--quiet", action="store_true", help="print only where each entry is")

    listing = _action(
        actions, "list", "List the keys in the store, each with its number of entries and the latest one."
    )
    _add_key(listing)

    show = _action(actions, "show", "Show the entries of a key.")
    show.add_argument("key", metavar="KEY", help="model name, slug, other word of the key, or pattern")
    show.add_argument("--json", action="store_true", help="print JSON, with the place of each entry")

    prune = _action(actions, "prune", "Delete old entries, and nothing else in the store.")
    prune.add_argument("--keep", type=positive, metavar="N", help="keep the newest N of each key")
    prune.add_argument(
        "--older-than", type=float, metavar="DAYS", help="delete only entries captured more than DAYS ago"
    )
    _add_key(prune)
    prune.add_argument("--dry-run", action="store_true", help="show what would be deleted, delete nothing")

    history = _action(actions, "history", "Write a page with the trend of each key and where it changed for good.")
    _add_key(history)
    history.add_argument("-o", "--output", metavar="DIR", default="reports/history", help="folder (%(default)s)")
    history.add_argument(
        "--plotlyjs",
        choices=("none", "inline", "cdn"),
        default="none",
        help="zoom in charts: inline adds 1.5 MB, cdn needs the network (%(default)s)",
    )


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
