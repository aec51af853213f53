"""The files of a history: history.html, self-contained, and the same captures as JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
from msgspec import structs

from traceops.baseline.entry import UNKNOWN
from traceops.baseline.history import MOST_COMMITS, SHOWN, KeyHistory, LevelChange, Sample, Trend
from traceops.baseline.json_types import CaptureJson, CommitJson, HistoryDocument, KeyJson, LevelChangeJson, TrendJson
from traceops.baseline.store import Problem
from traceops.core.documents import copied, json_text
from traceops.core.redaction import redact_text
from traceops.core.units import minute_text
from traceops.render.cells import Cell, Column, Table, table_of, word
from traceops.render.document import (
    Block,
    Chart,
    Document,
    Facts,
    Heading,
    Section,
    TableBlock,
    Term,
    Terms,
    code,
    fold,
    items,
    soft,
    spans,
    text,
)
from traceops.render.files import write_files
from traceops.render.history.text import (
    WORDS,
    change_text,
    changes_of,
    headline_trend,
    history_verdict,
    say,
    sparse_text,
    step_text,
    value_text,
)
from traceops.render.report.figures import Figure, axis, dots, escaped, laid_out, line, upright_line
from traceops.render.writers.csv import csv_text
from traceops.render.writers.html import write_html

# The plotly figure of one metric over the commits of a key.

_DOT, _LEVEL = "#0072B2", "#8a8f98"
_COLOURS = {"worse": "#D55E00", "better": "#009E73", "neither": "#8a8f98"}
_MOST_TICKS = 10
_MOST_LETTERS = 60
_LEAST_RANGE = 0.05  # of the median to both sides, so that an even trend looks even


def trend_figure(history: KeyHistory, trend: Trend) -> Figure:
    """A dot a capture over its commit, in time order, a line at each level, and a mark at each lasting change. Captures
    of one commit stand above each other. The axis spans at least 5 % to both sides of the median."""
    scale, unit = (1e-9, "GB") if trend.unit == "B" else (1.0, trend.unit)
    known = [
        (place, value * scale, sample)
        for place, commit in enumerate(history.commits)
        for sample in commit.samples
        if (value := sample.values[trend.metric]) is not None
    ]
    traces, count = [], len(history.commits)
    for start, end in pairwise([0, *(change.position for change in trend.changes), count]):
        if own := [value for value in trend.values[start:end] if value is not None]:
            reach, level = (start - 0.4, end - 1 + 0.4), float(np.median(own)) * scale
            traces.append(line("", reach, [level] * 2, _LEVEL, 2, hoverinfo="skip", showlegend=False))
    x, values = [place for place, _, _ in known], [value for _, value, _ in known]
    about = [_about(sample, trend) for _, _, sample in known]
    marker = {"color": _DOT, "size": 8, "opacity": 0.8}
    traces.append(dots("", x, values, marker, "%{hovertext}", hovertext=about, showlegend=False))
    middle = float(np.median(values))
    low = min(*values, middle - _LEAST_RANGE * abs(middle))
    high = max(*values, middle + _LEAST_RANGE * abs(middle))
    room = (high - low) * 0.08 or 1.0
    ticks = sorted({round(t) for t in np.linspace(0, count - 1, _MOST_TICKS)})
    shown = [history.commits[t] for t in ticks]
    xaxis = {
        "tickvals": ticks, "ticktext": [f"{escaped(one.label, _MOST_LETTERS)}<br>{one.date[5:]}" for one in shown],
        "range": [-0.7, count - 0.3], "zeroline": False, "showgrid": False,
    }  # fmt: skip
    yaxis = axis(unit, range=[low - room, high + 2 * room], zeroline=False)
    edges, notes = [], []
    for change in trend.changes:
        at, colour = change.position - 0.5, _COLOURS[change.verdict]
        edges.append(upright_line(at, {"color": colour, "width": 1.5, "dash": "dash"}))
        notes.append({
            "text": f"{step_text(trend, change)} since {escaped(change.since.label, _MOST_LETTERS)}",
            "font": {"color": colour, "size": 12}, "x": at, "xref": "x", "xanchor": "center",
            "y": 1.0, "yref": "y domain", "yanchor": "bottom", "showarrow": False,
        })  # fmt: skip
    return laid_out(
        traces, 1, pixels=0, least=230, grid_y=True, margin={"l": 60, "t": 22, "b": 46}, xaxis=xaxis, yaxis=yaxis,
        shapes=edges, annotations=notes, hovermode="closest",
    )  # fmt: skip


def _about(sample: Sample, trend: Trend) -> str:
    entry = sample.entry
    commit = (entry.commit or "commit unknown")[:12] + (" and changes" if entry.dirty else "")
    value, time = value_text(sample.values[trend.metric], trend.unit), f"{minute_text(entry.time_ns)} UTC"
    return "<br>".join((value, escaped(commit, _MOST_LETTERS), time, escaped(entry.source, _MOST_LETTERS)))


MOST_ROWS = 400  # captures in a table, the latest ones
_MOST_PROBLEMS = 50
TERMS = tuple(Term(key.removeprefix("term."), meaning) for key, meaning in WORDS.items() if key.startswith("term."))


def render_history_html(
    histories: Sequence[KeyHistory], problems: Sequence[Problem], store: str, *, plotlyjs: str
) -> bytes:
    """The page in UTF-8. `plotlyjs`: as `write_html` takes it. Everything that came from the store is escaped, and a
    content security policy admits the page's own scripts only. Raises ValueError for another `plotlyjs`."""
    return write_html(describe(histories, problems, store), plotlyjs=plotlyjs)


def describe(histories: Sequence[KeyHistory], problems: Sequence[Problem], store: str) -> Document:
    """The history of every key as a document."""
    verdict = history_verdict(histories)
    sections = [_section(index, history) for index, history in enumerate(histories)]
    if len(histories) > 1:
        rows = []
        for history in histories:
            trend = headline_trend(history)
            latest = next((v for v in reversed(trend.values) if v is not None), None) if trend else None
            row = {"key": history.key.text, "captures": len(history.samples), "commits": len(history.commits)}
            row["latest"] = minute_text(history.samples[-1].entry.time_ns)
            # Show the latest lasting change of a key's step time, or why there is none.
            if trend is not None and trend.changes:
                last = trend.changes[-1]
                last_change = say("changed", change=step_text(trend, last), commit=last.since.label)
            else:
                last_change = WORDS["sparse"] if sparse_text(history) else "none"
            rows.append({**row, "step": value_text(latest, "ms"), "change": last_change})
        sections.insert(0, Section("keys", "Keys", (TableBlock(table_of("history_keys", rows)),)))
    if problems:
        lines = items([text(code(problem.url), f": {problem.what}") for problem in problems[:_MOST_PROBLEMS]])
        more = len(problems) - _MOST_PROBLEMS
        rest = (soft(say("more_problems", more=more)),) if more > 0 else ()
        sections.append(Section("problems", "Not used", (lines, *rest)))
    sections.append(Section("definitions", "What is shown", (Terms(TERMS), soft(WORDS["when_not_why"])), "Definitions"))
    return Document(
        title="History", heading=spans(store), command="traceops baseline history", verdict=verdict, intro=(),
        sections=tuple(sections), footer=WORDS["footer"],
    )  # fmt: skip


def _section(index: int, history: KeyHistory) -> Section:
    sparse, changes = sparse_text(history), changes_of(history)
    blocks: list[Block] = [soft(code(history.key.slug)), Facts(tuple(_facts(history)))]
    if sparse:
        blocks.append(text(sparse, look="notes"))
    if len(history.commits) > MOST_COMMITS:
        blocks.append(soft(say("searched", commits=MOST_COMMITS)))
    if changes:
        blocks.append(TableBlock(_changes_table(changes)))
    metrics = []
    for trend in history.trends:
        latest = next(value for value in reversed(trend.values) if value is not None)
        heading = say("latest", label=trend.label, value=value_text(latest, trend.unit))
        label = say("chart", heading=heading)
        blocks += [Heading(heading), Chart(f"{index}-{trend.metric}", label, trend_figure(history, trend))]
        unit, scale = ("GB", 1e-9) if trend.unit == "B" else (trend.unit, 1.0)
        metrics.append(Column(trend.metric, f"{trend.label}, {unit}", scale=scale))
    rows: list[dict[str, object]] = []
    for sample in reversed(history.samples[-MOST_ROWS:]):
        entry = sample.entry
        commit = None if entry.commit is None else entry.commit[:12] + ("+" if entry.dirty else "")
        rows.append({"commit": commit, "time": minute_text(entry.time_ns), "source": entry.source, **sample.values})
    captures = TableBlock(table_of("history_captures", rows, columns=metrics))
    blocks.append(fold(f"Captures ({len(history.samples)})", captures))
    return Section(f"key-{index}", history.key.model, tuple(blocks), history.key.slug)


def _facts(history: KeyHistory) -> list[tuple[str, Cell]]:
    samples, key = history.samples, history.key
    last = samples[-1].entry
    named = [("Ranks", key.world_size), ("Device", key.gpu), ("Hosts × ranks", key.topology)]
    named += [("Strategy", key.strategy), ("Precision", key.precision), ("Branch", key.branch)]
    return [
        *((label, word(None if value == UNKNOWN else value)) for label, value in named),
        ("Captures", Cell(str(len(samples)))),
        ("Commits", Cell(str(len(history.commits)))),
        ("First", Cell(minute_text(samples[0].entry.time_ns), "UTC")),
        ("Latest", Cell(minute_text(last.time_ns), "UTC")),
        ("Latest commit", word(history.commits[-1].label if last.commit else None)),
    ]


def _changes_table(changes: Sequence[tuple[Trend, LevelChange]]) -> Table:
    rows = [
        {
            "metric": trend.label,
            "change": Cell(
                step_text(trend, change), f"for the {change.verdict}", "worst" if change.verdict == "worse" else ""
            ),
            "before": value_text(change.before, trend.unit),
            "after": value_text(change.after, trend.unit),
            "since": f"{change.since.label} ({change.since.date})",
            "last": f"{change.last.label} ({change.last.date})",
            "p": change.p,
        }
        for trend, change in changes
    ]
    return table_of("history_changes", rows, make={"change": itemgetter("change")})


FILES = ("history.html", "history.json", "history.csv")


def write_history(
    histories: Sequence[KeyHistory], problems: Sequence[Problem], store: str, folder: Path, plotlyjs: str = "none"
) -> list[Path]:
    """Write the three files into `folder`, each whole or not at all; the page comes first. Raises InputError where the
    folder cannot be written to."""
    # docs/formats.md describes history.json.
    contents: dict[str, str | bytes] = {
        "history.html": render_history_html(histories, problems, store, plotlyjs=plotlyjs),
        "history.json": json_text(
            HistoryDocument(store=redact_text(store), keys=tuple(map(_key, histories)), problems=tuple(problems))
        ),
        "history.csv": csv_text([_row(h, sample) for h in histories for sample in h.samples], _COLUMNS),
    }
    return write_files(contents, set(FILES), folder)


def _key(history: KeyHistory) -> KeyJson:
    commits = tuple(
        CommitJson(commit.commit, commit.label, tuple(map(capture_json, commit.samples))) for commit in history.commits
    )
    return KeyJson(history.key.slug, history.key, commits, tuple(map(_trend, history.trends)))


def capture_json(sample: Sample) -> CaptureJson:
    """Where a capture lies, where it came from, and what was measured of it."""
    return copied(CaptureJson, sample.entry, url=redact_text(sample.entry.url), values=sample.values)


def _trend(trend: Trend) -> TrendJson:
    changes = [
        copied(
            LevelChangeJson, change, text=change_text(trend, change), since_commit=change.since.commit,
            since=change.since.date, last_commit_before=change.last.commit,
        )
        for change in trend.changes
    ]  # fmt: skip
    return copied(TrendJson, trend, changes=tuple(changes))


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
