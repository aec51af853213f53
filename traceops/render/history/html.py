"""history.html: how the captures of each key developed, self-contained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceops.baseline.history import MOST_COMMITS, Change, KeyHistory, Sample, Trend, time_text
from traceops.baseline.key import UNKNOWN
from traceops.baseline.store import Problem
from traceops.render import page
from traceops.render.cells import Cell, Column, Table, build_table
from traceops.render.history.figure import trend_figure
from traceops.render.history.text import (
    changes_of,
    headline_trend,
    history_verdict,
    size_text,
    sparse_text,
    value_text,
)

MOST_ROWS = 400  # captures in a table, the latest ones
_MOST_PROBLEMS = 50


def render_history_html(
    histories: Sequence[KeyHistory], problems: Sequence[Problem], store: str, *, plotlyjs: str = "inline"
) -> bytes:
    """The page in UTF-8. `plotlyjs` is 'inline' (works offline, about 5 MB) or 'cdn' (small, needs the network).

    Everything that came from the store is escaped, and a content security policy admits the page's own
    scripts only. Raises ValueError for another `plotlyjs`.
    """
    charts = {
        f"{index}-{trend.metric}": trend_figure(history, trend)
        for index, history in enumerate(histories)
        for trend in history.trends
    }
    content = {
        "store": store,
        "verdict": history_verdict(histories),
        "keys": [_section(history) for history in histories],
        "overview": _overview(histories) if len(histories) > 1 else None,
        "problems": problems[:_MOST_PROBLEMS],
        "more_problems": max(len(problems) - _MOST_PROBLEMS, 0),
        "most_commits": MOST_COMMITS,
    }
    return page.chart_page("history.html.j2", ("summary.css",), charts, plotlyjs, content)


def _section(history: KeyHistory) -> dict[str, Any]:
    """What the template needs of one key."""
    changes = changes_of(history)
    return {
        "title": history.key.model,
        "slug": history.key.slug,
        "facts": _facts(history),
        "sparse": sparse_text(history),
        "cut": len(history.commits) > MOST_COMMITS,
        "changes_table": _changes_table(changes) if changes else None,
        "trends": [(trend.metric, _heading(trend)) for trend in history.trends],
        "captures": len(history.samples),
        "captures_table": _captures_table(history),
    }


def _facts(history: KeyHistory) -> list[tuple[str, Cell]]:
    samples, key = history.samples, history.key
    last = samples[-1].entry
    named = [("Ranks", key.world_size), ("Device", key.gpu), ("Hosts × ranks", key.topology)]
    named += [("Strategy", key.strategy), ("Precision", key.precision), ("Branch", key.branch)]
    return [
        *((label, page.word(None if word == UNKNOWN else word)) for label, word in named),
        ("Captures", Cell(str(len(samples)))),
        ("Commits", Cell(str(len(history.commits)))),
        ("First", Cell(time_text(samples[0].entry.time_ns), "UTC")),
        ("Latest", Cell(time_text(last.time_ns), "UTC")),
        ("Latest commit", page.word(history.commits[-1].label if last.commit else None)),
    ]


def _heading(trend: Trend) -> str:
    latest = next(value for value in reversed(trend.values) if value is not None)
    return (
        f"{trend.label[:1].upper()}{trend.label[1:]}: {value_text(latest, trend.unit)} at the latest commit"
    )


def _overview(histories: Sequence[KeyHistory]) -> Table:
    rows = []
    for history in histories:
        trend = headline_trend(history)
        changed = trend.changes[-1] if trend and trend.changes else None
        latest = next((v for v in reversed(trend.values) if v is not None), None) if trend else None
        rows.append(
            {
                "key": history.key.text,
                "captures": len(history.samples),
                "commits": len(history.commits),
                "latest": time_text(history.samples[-1].entry.time_ns),
                "step": value_text(latest, "ms"),
                "change": f"{size_text(trend, changed)} since {changed.since.label}"
                if trend and changed
                else "too few commits yet"
                if sparse_text(history)
                else "none",
            }
        )
    return build_table(
        "Keys: captures with the same model, ranks, device, strategy, precision and branch",
        (
            Column("key", "Key", number=False),
            Column("captures", "Captures", decimals=0),
            Column("commits", "Commits", decimals=0),
            Column("latest", "Latest, UTC", number=False),
            Column("step", "Step, latest commit", number=False),
            Column("change", "Last lasting change of the step", number=False),
        ),
        rows,
    )


def _changes_table(changes: Sequence[tuple[Trend, Change]]) -> Table:
    rows = [
        {
            "metric": trend.label,
            "change": size_text(trend, change),
            "verdict": change.verdict,
            "before": value_text(change.before, trend.unit),
            "after": value_text(change.after, trend.unit),
            "since": f"{change.since.label} ({change.since.date})",
            "last": f"{change.last.label} ({change.last.date})",
            "p": change.p,
        }
        for trend, change in changes
    ]
    return build_table(
        "Lasting changes, the latest first",
        (
            Column("metric", "Metric", number=False),
            Column("change", "Change", number=False, make=_change_cell),
            Column("before", "Level before", "median of the commits up to the change before", number=False),
            Column("after", "Level since", "median of the commits up to the next change", number=False),
            Column("since", "First commit at the new level", number=False),
            Column("last", "Last commit at the old one", number=False),
            Column("p", "p", "share of random orders of these commits that part as clearly", decimals=3),
        ),
        rows,
    )


def _change_cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["change"], f"for the {row['verdict']}", "worst" if row["verdict"] == "worse" else "")


def _captures_table(history: KeyHistory) -> Table:
    columns = [
        Column("commit", "Commit", number=False),
        Column("time", "Captured, UTC", number=False),
        *(
            Column(
                trend.metric,
                f"{trend.label}, {'GB' if trend.unit == 'B' else trend.unit}",
                scale=1e-9 if trend.unit == "B" else 1.0,
            )
            for trend in history.trends
        ),
        Column("source", "From", number=False),
    ]
    return build_table(
        "Captures, the latest first",
        columns,
        [_capture_row(sample) for sample in reversed(history.samples[-MOST_ROWS:])],
    )


def _capture_row(sample: Sample) -> dict[str, Any]:
    entry = sample.entry
    commit = None if entry.commit is None else entry.commit[:12] + ("+" if entry.dirty else "")
    return {
        "commit": commit,
        "time": time_text(entry.time_ns),
        "source": entry.source,
        **sample.values,
    }
