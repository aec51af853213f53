"""history.html, history.json and history.csv: the same histories for people, programs and spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from msgspec import structs

from traceops.baseline.history import SHOWN, KeyHistory, LevelChange, Sample, Trend
from traceops.baseline.json_types import CaptureJson, CommitJson, HistoryDocument, KeyJson, LevelChangeJson, TrendJson
from traceops.baseline.store import Problem
from traceops.core.redaction import redact_text
from traceops.core.units import minute_text
from traceops.render import write_files
from traceops.render.history.text import change_text
from traceops.render.writers.csv import csv_text
from traceops.report.write import json_text

FILES = ("history.html", "history.json", "history.csv")


def write_history(
    histories: Sequence[KeyHistory], problems: Sequence[Problem], store: str, folder: Path, plotlyjs: str = "none"
) -> list[Path]:
    """Write the three files into `folder`, each whole or not at all; the page comes first.

    Raises InputError where the folder cannot be written to.
    """
    from traceops.render.history.html import render_history_html

    contents: dict[str, str | bytes] = {
        "history.html": render_history_html(histories, problems, store, plotlyjs=plotlyjs),
        "history.json": json_text(history_document(histories, problems, store)),
        "history.csv": csv_text([_row(h, sample) for h in histories for sample in h.samples], _COLUMNS),
    }
    return write_files(contents, set(FILES), folder)


def history_document(histories: Sequence[KeyHistory], problems: Sequence[Problem], store: str) -> HistoryDocument:
    """What history.json holds, see docs/formats.md."""
    return HistoryDocument(store=redact_text(store), keys=tuple(map(_key, histories)), problems=tuple(problems))


def _key(history: KeyHistory) -> KeyJson:
    commits = tuple(
        CommitJson(commit.commit, commit.label, tuple(map(capture_json, commit.samples))) for commit in history.commits
    )
    return KeyJson(history.key.slug, history.key, commits, tuple(map(_trend, history.trends)))


def capture_json(sample: Sample) -> CaptureJson:
    """Where a capture lies, where it came from, and what was measured of it."""
    entry = sample.entry
    return CaptureJson(
        url=redact_text(entry.url),
        started_ns=entry.started_ns,
        saved_ns=entry.saved_ns,
        commit=entry.commit,
        dirty=entry.dirty,
        branch=entry.branch,
        source=entry.source,
        values=sample.values,
    )


def _trend(trend: Trend) -> TrendJson:
    return TrendJson(
        metric=trend.metric,
        label=trend.label,
        unit=trend.unit,
        better=trend.better,
        values=trend.values,
        changes=tuple(_change(trend, change) for change in trend.changes),
    )


def _change(trend: Trend, change: LevelChange) -> LevelChangeJson:
    return LevelChangeJson(
        text=change_text(trend, change),
        position=change.position,
        since_commit=change.since.commit,
        since=change.since.date,
        last_commit_before=change.last.commit,
        before=change.before,
        after=change.after,
        change_pct=change.change_pct,
        p=change.p,
        verdict=change.verdict,
    )


_COLUMNS = (
    "key", "model", "world_size", "gpu", "topology", "strategy", "precision", "branch",
    "time", "commit", "dirty", *SHOWN, "source", "url",
)  # fmt: skip


def _row(history: KeyHistory, sample: Sample) -> dict[str, object]:
    return {
        "key": history.key.slug,
        **asdict(history.key),
        "time": minute_text(sample.entry.time_ns),
        **structs.asdict(capture_json(sample)),
        **sample.values,
    }
