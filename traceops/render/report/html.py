"""summary.html: one self-contained page that works offline, from a Report."""

from __future__ import annotations

from collections import Counter
from typing import Any

from traceops.core.rank_text import ranks_text
from traceops.measure.ledger import IDLE_BUCKETS
from traceops.pipeline.report import Report
from traceops.render import page
from traceops.render.cells import Cell, number
from traceops.render.page import word
from traceops.render.report import (
    cross_figures,
    cross_tables,
    cross_text,
    detail_tables,
    figures,
    path_figures,
    rank_tables,
)
from traceops.render.report.terms import COLUMNS, TERMS
from traceops.render.report.verdict import verdict
from traceops.render.report.worst import MOST_RANKS, shown_ranks
from traceops.rules.registry import RULES


def render_html(report: Report, *, plotlyjs: str = "inline") -> bytes:
    """The page in UTF-8. `plotlyjs` is 'inline' (works offline, about 1.6 MB) or 'cdn' (small, needs the network).

    Everything that came from a trace is escaped, and a content security policy admits the page's own
    scripts only. Raises ValueError for another `plotlyjs`.
    """
    shown = shown_ranks(report)
    styles = ["summary.css", *(["hang.css"] if report.hang is not None else [])]
    styles += ["topology.css"] if report.fabric is not None else []
    charts = _charts(report, shown)
    return page.chart_page("summary.html.j2", styles, charts, plotlyjs, _content(report, shown))


def prepare() -> None:
    """Read what the page needs whatever the report will say; best done while the report is not there yet."""
    page.prepare(
        "summary.html.j2", "_macros.html.j2", "_hang.html.j2", "_topology.html.j2", "_finding.html.j2"
    )


def _charts(report: Report, shown: list[int]) -> dict[str, Any]:
    """Plotly figures by the id of the element they are drawn into; empty charts are left out."""
    made = {}
    if report.tables.get("lateness"):
        made["lateness"] = cross_figures.lateness_figure(report, shown)
    if report.what_if:
        made["what-if"] = cross_figures.what_if_figure(report)
    if report.steps and report.ranks:
        made["ledger"] = figures.ledger_figure(report, shown)
        if len(report.ranks) > MOST_RANKS:
            made["distribution"] = figures.distribution_figure(report)
        if len({row["step"] for row in report.steps if row["step"] is not None}) > 1:
            made["steps"] = figures.steps_figure(report, shown)
        if any(row.get(f"{bucket}_ms") for row in report.ranks for bucket in IDLE_BUCKETS):
            made["idle"] = figures.idle_figure(report, shown)
    if report.tables.get("critical_path"):
        made["path"] = path_figures.critical_path_figure(report)
    if report.tables.get("timeline"):
        made["timeline"] = path_figures.timeline_figure(report, shown)
    if report.tables.get("arrivals"):
        made["arrivals"] = cross_figures.arrivals_figure(report)
    if any(row.get("bytes") for row in report.tables.get("bandwidth") or []):
        made["bandwidth"] = cross_figures.bandwidth_figure(report)
    return made


def _content(report: Report, shown: list[int]) -> dict[str, Any]:
    hang: dict[str, Any] | None = None
    if report.hang is not None:
        from traceops.render.hang.html import hang_content

        hang = hang_content(report.hang)
    fabric: dict[str, Any] | None = None
    if report.fabric is not None or report.tables.get("reference"):
        from traceops.render.report.fabric_html import fabric_content

        fabric = fabric_content(report)
    return {
        "report": report,
        "run": report.run,
        "verdict": verdict(report),
        "facts": _facts(report),
        "notes": [*(report.summary.get("notes") or []), *_damage(report)],
        "findings": [(finding, detail_tables.evidence_table(finding)) for finding in report.findings],
        "buckets_table": rank_tables.buckets_table(report),
        "ranks_table": rank_tables.ranks_table(report, shown),
        "steps_table": rank_tables.steps_table(report),
        "idle_table": rank_tables.idle_table(report, shown),
        "kernels_table": detail_tables.kernels_table(report),
        "collectives_table": detail_tables.collectives_table(report),
        "blocking_table": detail_tables.blocking_table(report),
        "hta_tables": detail_tables.hta_tables(report, shown),
        "what_if_table": detail_tables.what_if_table(report),
        **_cross_rank(report, shown),
        "own_breakdown": [row["rank"] for row in report.ranks if row.get("breakdown_source") == "traceops"],
        "split": any(row.get("comm_wait_ms") is not None for row in report.ranks),
        "matching": report.summary.get("matching") or {},
        "checks": Counter(check.status for check in report.checks),
        "terms": TERMS,
        "definitions": COLUMNS,
        "cut": len(shown) < len(report.ranks),
        "shown": shown,
        "rule_titles": {rule.id: rule.title for rule in RULES},
        "number": number,
        "ranks_text": ranks_text,
        "hang": hang,
        "fabric": fabric,
    }


def _cross_rank(report: Report, shown: list[int]) -> dict[str, Any]:
    """What compares ranks: tables, None where there is nothing to show, and sentences, empty likewise."""
    path, timeline = report.tables.get("critical_path") or [], report.tables.get("timeline") or []
    return {
        "lateness_table": cross_tables.lateness_table(report),
        "waiting_sentence": cross_text.waiting_sentence(report) if len(report.ranks) > 1 else "",
        "replay_sentence": cross_text.replay_sentence(report),
        "path_table": cross_tables.path_table(report),
        "path_sentence": cross_text.path_sentence(report),
        "path_step": path[0]["step"] if path else None,
        "timeline_table": cross_tables.timeline_table(report, shown),
        "timeline_step": timeline[0]["step"] if timeline else None,
        "clocks_sentence": cross_text.clocks_sentence(report),
        "arrivals_table": cross_tables.arrivals_table(report),
    }


def _facts(report: Report) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    run, step = report.run, report.summary.get("step_time_ms") or {}
    missing, steps = run.get("ranks_missing") or [], run.get("steps") or []
    median = number(step.get("median"))
    facts = [
        ("Ranks", Cell(f"{len(run.get('ranks_present') or [])} of {run.get('world_size')}")),
        ("Ranks missing", Cell(ranks_text(missing), css="bad") if missing else Cell("none")),
        ("Hosts", word(len(run["hosts"])) if run.get("hosts") else word(None)),
        ("Device", word(run.get("device"))),
        ("Backend", word(run.get("backend"))),
        ("Strategy", word(run.get("strategy"))),
        ("torch", word(run.get("torch_version"))),
        ("NCCL", word(run.get("nccl_version"))),
        ("Steps", Cell(f"{len(steps)} ({ranks_text(steps, 4)})") if steps else word(None)),
        ("Step, median", _unit(median)),
        ("p5 – p95", _unit(number(step.get("p5")), number(step.get("p95")))),
        ("Without profiler", _unit(number(report.summary.get("unprofiled_step_time_ms")))),
    ]
    slowdown = report.summary.get("profiler_slowdown")
    if slowdown is not None:
        facts.append(("Profiler's cost", Cell(f"×{slowdown:.2f}", "profiled ÷ unprofiled step")))
    return facts


def _unit(*cells: Cell) -> Cell:
    if any(cell.css == "unknown" for cell in cells):
        return word(None)
    return Cell(" – ".join(cell.text for cell in cells) + " ms")


def _damage(report: Report) -> list[str]:
    return [f"Rank {row['rank']}: {row['damage']}" for row in report.ranks if row.get("damage")]
