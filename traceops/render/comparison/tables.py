"""The tables of compare.html: metrics, the ledger, what changed, captures, outlier steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from traceops.compare.model import Change, ChangeKind, Comparison, MetricChange, Side
from traceops.core.findings import Evidence
from traceops.core.short_text import one_line
from traceops.core.units import UNKNOWN
from traceops.render.cells import Cell, Column, Table, build_table, name
from traceops.render.comparison import method_text, text
from traceops.render.report.terms import TERMS

MOST_CHANGES = 100  # of a kind
MOST_OUTLIERS = 100
MOST_CAPTURES = 200
MOST_EVIDENCE = 20  # of an explanation
_NOTHING = Cell("")


def metrics_table(comparison: Comparison) -> Table:
    """A row a metric that is no bucket of the ledger, gated ones first."""
    metrics = [metric for metric in text.known(comparison.metrics) if not text.is_bucket(metric)]
    return build_table("Metrics, base against head", _metric_columns(comparison.power), _rows(metrics))


def ledger_table(comparison: Comparison) -> Table | None:
    """A row a bucket of the step; None where neither side has any."""
    metrics = [metric for metric in text.ledger_rows(comparison) if text.is_bucket(metric)]
    if not metrics:
        return None
    columns = [
        _column("bucket", "Part of the step", _bucket_cell, number=False),
        _metric_column("base", "Base", text.base_text),
        _metric_column("head", "Head", text.head_text),
        _column("change", "ms a step", lambda m: _plain(_milliseconds(m))),
        _metric_column("pct", "Change, of the step", text.change_text),
        _metric_column("interval", "Interval", text.interval_text),
    ]
    return build_table("Where the step goes, base against head", columns, _rows(metrics))


def changes_table(comparison: Comparison, kind: ChangeKind) -> Table | None:
    """What changed of a kind, what costs or saves most first; None where nothing did."""
    changes = text.important_first([change for change in comparison.changes if change.kind == kind])
    if not changes:
        return None
    rest = len(changes) - MOST_CHANGES
    note = f"{rest} more in compare_changes.csv." if rest > 0 else ""
    columns = _environment_columns() if kind == "environment" else _change_columns(changes)
    title = f"{text.KINDS[kind][0]}, changed: {len(changes)}"
    return build_table(title, columns, _rows(changes[:MOST_CHANGES]), note=note)


def captures_table(side: Side, title: str) -> Table:
    """A row a capture of a side."""
    columns = [
        _column("name", f"Captures of {title}", lambda c: name(c.name), number=False),
        _column("path", "Path", lambda c: name(c.path, 60), number=False),
        _column("started", "Started", lambda c: _plain(method_text.started_text(c.started_ns)), number=False),
        _column("commit", "Commit", lambda c: _commit(c.commit, c.dirty), number=False),
        _column("steps", "Profiled steps", lambda c: Cell(str(c.steps))),
        _column("unprofiled", "Steps without profiler", lambda c: Cell(str(c.unprofiled_steps))),
    ]
    rest = len(side.captures) - MOST_CAPTURES
    note = f"{rest} more in compare.json." if rest > 0 else ""
    return build_table(f"Captures of {title}", columns, _rows(side.captures[:MOST_CAPTURES]), note=note)


def outliers_table(comparison: Comparison) -> Table | None:
    """Steps far from their capture's median; None without any."""
    if not comparison.outliers:
        return None
    columns = [
        _column("capture", "Capture", lambda o: name(f"{o.side}: {o.capture}"), number=False),
        _column("step", "Step", lambda o: Cell(str(o.step))),
        _column("profiled", "Profiled", lambda o: Cell("yes" if o.profiled else "no"), number=False),
        _column("ms", "ms", lambda o: _plain(text.amount(o.ms, "ms"))),
        _column("median", "Median of its capture", lambda o: _plain(text.amount(o.median_ms, "ms"))),
    ]
    rest = len(comparison.outliers) - MOST_OUTLIERS
    note = f"{rest} more in compare.json." if rest > 0 else ""
    rows = _rows(comparison.outliers[:MOST_OUTLIERS])
    return build_table("Outlier steps: named, and left in what is compared", columns, rows, note=note)


def evidence_table(evidence: Sequence[Evidence]) -> Table | None:
    """The numbers an explanation rests on; None without any."""
    if not evidence:
        return None
    columns = [
        _column("metric", "Metric", lambda e: name(e.metric, 90), number=False),
        _column("value", "Value", lambda e: _plain(f"{_value(e)}{' ' + e.unit if e.unit else ''}")),
    ]
    rest = len(evidence) - MOST_EVIDENCE
    note = f"{rest} more in compare.json." if rest > 0 else ""
    return build_table("Evidence", columns, _rows(evidence[:MOST_EVIDENCE]), note=note)


def _metric_columns(power: float) -> list[Column]:
    return [
        _metric_column("metric", "Metric", lambda m: one_line(m.label, 120), number=False),
        _metric_column("base", "Base", text.base_text),
        _metric_column("head", "Head", text.head_text),
        _metric_column("change", "Change", text.effect_text),
        _column("limit", "Limit", lambda m: Cell(text.threshold_text(m)), title="a change for the worse fails from"),
        _column(
            "mde", "Would be found", lambda m: Cell("" if m.mde_pct is None else f"{m.mde_pct:.2g} %"),
            title=f"the smallest change that would have been found {text.times_text(power)}",
        ),
        _column(
            "p", "p", lambda m: Cell("" if m.p is None else "<0.0001" if m.p < 1e-4 else f"{m.p:.2g}"),
            title="two-sided, corrected for the number of metrics tested together",
        ),
        _column("samples", "Samples", lambda m: Cell(f"{m.samples.base} / {m.samples.head}"), title="base / head"),
        _column("outcome", "Outcome", _outcome_cell, number=False),
        _column("why", "Why", lambda m: Cell(text.reason_text(m), css="word"), number=False),
    ]  # fmt: skip


def _change_columns(changes: Sequence[Change]) -> list[Column]:
    columns = [
        _column("name", text.KINDS[changes[0].kind][1].capitalize(), _name_cell, number=False),
        _column("status", "", lambda c: Cell(c.status), number=False),
        _column("count", "Count a step", lambda c: Cell(text.count_text(c)), title="mean over ranks, base → head"),
        _column("base_ms", "Base", lambda c: _optional_ms(c.base_ms)),
        _column("head_ms", "Head", lambda c: _optional_ms(c.head_ms)),
        _column("delta", text.milliseconds_title(changes[0].kind), lambda c: Cell(text.milliseconds_text(c))),
    ]
    if any(change.detail for change in changes):
        columns.append(
            _column("detail", "Detail", lambda c: name(c.detail, 80) if c.detail else _NOTHING, number=False)
        )
    return columns


def _environment_columns() -> list[Column]:
    return [
        _column("name", "Variable", _name_cell, number=False),
        _column("status", "", lambda c: Cell(c.status), number=False),
        _column("base", "Base", lambda c: name(text.value_text(c.base_value), 100), number=False),
        _column("head", "Head", lambda c: name(text.value_text(c.head_value), 100), number=False),
        _column("detail", "Detail", lambda c: name(c.detail, 80) if c.detail else _NOTHING, number=False),
    ]


def _rows(items: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"item": item} for item in items]


def _column(key: str, label: str, make: Callable[[Any], Cell], *, title: str = "", number: bool = True) -> Column:
    def cell(row: Mapping[str, Any]) -> Cell:
        return make(row["item"])

    return Column(key, label, title, number=number, make=cell)


def _metric_column(key: str, label: str, said: Callable[[MetricChange], str], *, number: bool = True) -> Column:
    return _column(key, label, lambda metric: _plain(said(metric)), number=number)


def _plain(said: str) -> Cell:
    return Cell(UNKNOWN, "not known", "unknown") if said == UNKNOWN else Cell(said)


def _outcome_cell(metric: MetricChange) -> Cell:
    mark = text.MARK[metric.outcome]
    gated = metric.threshold_pct is not None
    css = f"outcome {text.LEVEL[metric.outcome]}" if gated else "outcome"
    return Cell(f"{mark} {text.outcome_text(metric)}" if gated else text.outcome_text(metric), css=css)


def _bucket_cell(metric: MetricChange) -> Cell:
    return Cell(metric.label, TERMS[metric.metric].definition, "swatch", colour=TERMS[metric.metric].colour)


def _name_cell(change: Change) -> Cell:
    return name(text.change_name(change), 100)


def _milliseconds(metric: MetricChange) -> str:
    if metric.base is None or metric.head is None:
        return UNKNOWN
    return text.signed(metric.head - metric.base, "ms").removesuffix(" ms")


def _optional_ms(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(text.amount(value, "ms"))


def _commit(commit: str | None, dirty: bool | None) -> Cell:
    return _plain(UNKNOWN) if not commit else Cell(f"{commit[:10]}{' + changes' if dirty else ''}", commit)


def _value(evidence: Evidence) -> str:
    value = evidence.value
    if value is None:
        return UNKNOWN
    return value[:200] if isinstance(value, str) else f"{value:g}"
