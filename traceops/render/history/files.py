"""history.html, history.json and history.csv: the same histories for people, programs and spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from traceops.baseline.history import SHOWN, Change, Commit, KeyHistory, Sample, Trend
from traceops.baseline.store import Problem
from traceops.core.units import minute_text
from traceops.render import write_files
from traceops.render.history.text import change_text
from traceops.render.report.csv import csv_text
from traceops.render.report.json import json_text, plain_json
from traceops.version import __version__

SCHEMA_VERSION = 1
FILES = ("history.html", "history.json", "history.csv")


def write_history(
    histories: Sequence[KeyHistory],
    problems: Sequence[Problem],
    store: str,
    folder: Path,
    plotlyjs: str = "inline",
) -> list[Path]:
    """Write the three files into `folder`, each whole or not at all; the page comes first.

    Raises InputError where the folder cannot be written to.
    """
    from traceops.render.history.html import render_history_html

    contents: dict[str, str | bytes] = {
        "history.html": render_history_html(histories, problems, store, plotlyjs=plotlyjs),
        "history.json": json_text(plain_json(history_document(histories, problems, store))),
        "history.csv": csv_text([_row(h, sample) for h in histories for sample in h.samples], _COLUMNS),
    }
    return write_files(contents, set(FILES), folder)


def history_document(
    histories: Sequence[KeyHistory], problems: Sequence[Problem], store: str
) -> dict[str, Any]:
    """The object of history.json, see docs/formats.md."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "traceops", "version": __version__},
        "store": store,
        "keys": [_key_object(history) for history in histories],
        "problems": [asdict(problem) for problem in problems],
    }


def _key_object(history: KeyHistory) -> dict[str, Any]:
    return {
        "slug": history.key.slug,
        "key": asdict(history.key),
        "commits": [_commit_object(commit) for commit in history.commits],
        "trends": [_trend_object(trend) for trend in history.trends],
    }


def _commit_object(commit: Commit) -> dict[str, Any]:
    return {
        "commit": commit.commit,
        "label": commit.label,
        "captures": [{**entry_object(sample), "values": sample.values} for sample in commit.samples],
    }


def entry_object(sample: Sample) -> dict[str, Any]:
    """Where a capture lies and where it came from."""
    entry = sample.entry
    return {
        "url": entry.url,
        "started_ns": entry.started_ns,
        "saved_ns": entry.saved_ns,
        "commit": entry.commit,
        "dirty": entry.dirty,
        "branch": entry.branch,
        "source": entry.source,
    }


def _trend_object(trend: Trend) -> dict[str, Any]:
    return {
        "metric": trend.metric,
        "label": trend.label,
        "unit": trend.unit,
        "better": trend.better,
        "values": trend.values,
        "changes": [_change_object(trend, change) for change in trend.changes],
    }


def _change_object(trend: Trend, change: Change) -> dict[str, Any]:
    return {
        "text": change_text(trend, change),
        "position": change.position,
        "since_commit": change.since.commit,
        "since": change.since.date,
        "last_commit_before": change.last.commit,
        "before": change.before,
        "after": change.after,
        "change_pct": change.change_pct,
        "p": change.p,
        "verdict": change.verdict,
    }


_COLUMNS = (
    "key", "model", "world_size", "gpu", "topology", "strategy", "precision", "branch",
    "time", "commit", "dirty", *SHOWN, "source", "url",
)  # fmt: skip


def _row(history: KeyHistory, sample: Sample) -> dict[str, Any]:
    return {
        "key": history.key.slug,
        **asdict(history.key),
        "time": minute_text(sample.entry.time_ns),
        **entry_object(sample),
        **sample.values,
    }
