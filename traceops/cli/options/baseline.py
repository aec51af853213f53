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
