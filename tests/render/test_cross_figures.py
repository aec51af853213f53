"""The data of the figures that compare ranks, without drawing them."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest
from changed import replace
from plotly_schema import drawn
from sample_report import HOSTILE, LATE, sample_report, with_tables

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.render.report.cross_figures import (
    MOST_KINDS,
    MOST_RUNS,
    arrivals_figure,
    bandwidth_figure,
    critical_path_figure,
    lateness_figure,
    thinned,
    timeline_figure,
    what_if_figure,
)
from traceops.render.report.figures import MOST_STEPS
from traceops.render.report.terms import TERMS
from traceops.report.model import Report
from traceops.report.summary import Summary
from traceops.report.tables import Tables, TimelineRow

FIGURES = (lateness_figure, arrivals_figure, bandwidth_figure, what_if_figure, critical_path_figure, timeline_figure)


def bars(figure: go.Figure) -> dict[str, Any]:
    return {bar.meta: bar for bar in figure.data if bar.type == "bar"}


def test_lateness_is_ranks_by_steps_and_says_why_and_what_the_rank_waited_itself() -> None:
    heat = drawn(lateness_figure(sample_report(3, steps=2))).data[0]
    assert [list(line) for line in heat.z] == [[0.0, 0.0], [23.0, 24.0], [0.0, 0.0]]
    assert heat.hovertext[LATE][0] == "GPU 19.000, Unknown 1.000 ms; it waited 0.000 ms itself"
    assert heat.hovertext[0][0] == "it waited 20.000 ms itself"


def test_waiting_of_less_than_a_tenth_of_the_step_stays_pale() -> None:
    report = sample_report(2)
    rows = tuple(replace(row, caused_wait_ms=0.01) for row in report.tables.lateness)
    report = with_tables(report, lateness=rows)
    assert drawn(lateness_figure(report)).data[0].zmax == 5.0


def test_many_ranks_and_steps_are_thinned() -> None:
    report = sample_report(200, steps=MOST_STEPS + 5)
    heat = drawn(lateness_figure(report)).data[0]
    assert list(heat.y) == ["rank 0", f"rank {LATE}", "rank 100 and 197 alike"]
    assert len(heat.x) == MOST_STEPS and heat.x[-1] == f"step {MOST_STEPS + 7}"


def test_arrivals_reach_from_p50_to_p95_and_name_who_comes_last() -> None:
    report = sample_report()
    report = with_tables(report, arrivals=report.tables.arrivals * MOST_KINDS)
    bar, medians = drawn(arrivals_figure(report)).data
    assert (bar.base[0], bar.x[0], medians.x[0]) == (20.0, 5.0, 20.0)
    assert bar.text[0].strip() == f"rank {LATE}: 100 %"
    assert len(bar.y) == MOST_KINDS


def test_bandwidth_is_over_size_on_a_log_axis_with_a_colour_a_kind() -> None:
    figure = drawn(bandwidth_figure(sample_report()))
    assert [list(points.x) for points in figure.data] == [[1_000_000, 33_000_000]] * 2
    assert list(figure.data[0].y) == [1.0, 33.0]
    assert len({points.marker.color for points in figure.data}) == 2
    assert figure.layout.xaxis.type == "log"
    low, high = figure.layout.xaxis.range
    assert low < 6 and high > 7.5 and high - low >= 1
    assert list(figure.layout.xaxis.ticktext) == ["1 MB", "2 MB", "5 MB", "10 MB", "20 MB"]


def test_bandwidth_leaves_out_unknown_sizes_and_joins_rare_kinds() -> None:
    report = sample_report()
    row = report.tables.bandwidth[0]
    rows = (*(replace(row, op=f"op{n}") for n in range(20)), replace(row, bytes=None))
    report = with_tables(report, bandwidth=rows)
    figure = drawn(bandwidth_figure(report))
    assert figure.data[-1].name == "12 other kinds"
    assert sum(len(points.x) for points in figure.data) == 20


def test_reference_bandwidth_is_a_line_where_it_was_missed() -> None:
    report = sample_report()
    assert not drawn(bandwidth_figure(report)).layout.shapes
    evidence = (Evidence(Fact.REFERENCE, 350.0, "GB/s"),)
    slow = Finding("TO-C001", "error", "high", "Title", "Message", evidence)
    figure = drawn(bandwidth_figure(replace(report, findings=(slow,))))
    assert figure.layout.shapes[0].y0 == 350.0


def test_what_if_is_sorted_by_saving_beside_the_measured_step() -> None:
    report = sample_report()
    row = report.what_if[0]
    rows = (
        replace(row, change="a", predicted_step_time_ms=49.9, saved_pct=0.2),
        replace(row, change="b", predicted_step_time_ms=20.0, saved_pct=60.0),
        replace(row, change="c", predicted_step_time_ms=55.0, saved_pct=-10.0),
    )
    report = replace(report, what_if=rows)
    figure = drawn(what_if_figure(report))
    assert list(figure.layout.yaxis.ticktext) == ["b", "a", "c"]
    assert list(figure.data[0].x) == [20.0, 49.9, 55.0]
    assert list(figure.data[0].text) == ["saves 60.0 %", "saves 0.2 %", "costs 10.0 %"]
    assert figure.layout.shapes[0].x0 == 50.0
    worth, not_worth, _ = figure.data[0].marker.color
    assert worth != not_worth


def test_path_has_a_lane_a_rank_and_pieces_by_kind() -> None:
    figure = drawn(critical_path_figure(sample_report()))
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1"]
    pieces = bars(figure)
    assert set(pieces) == {"compute", "transfer", "idle_host", "idle_dependency"}
    assert (pieces["compute"].x[0], pieces["idle_dependency"].x[0]) == (38.0, 2.0)
    assert pieces["idle_dependency"].base[0] == pieces["compute"].base[0] + 38.0
    assert pieces["transfer"].marker.color == TERMS["comm_transfer"].colour
    assert (pieces["transfer"].base[0], pieces["transfer"].x[0], pieces["transfer"].y[0]) == (40.0, 5.0, 1)
    assert pieces["compute"].hovertext[0] == "rank 1: Compute 38.000, Idle: dependency 2.000 ms"
    jump = figure.data[0]
    assert list(jump.x) == [45.0, 45.0, None] and list(jump.y) == [1, 0, None]


def test_timeline_is_a_row_a_rank_on_one_time_axis_in_the_ledgers_colours() -> None:
    figure = drawn(timeline_figure(sample_report(3)))
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1", "rank 2"]
    waiting = bars(figure)["comm_wait"]
    assert list(waiting.y) == [0, 2]
    assert list(waiting.base) == [25.0, 25.002] and list(waiting.x) == [20.0, 20.0]
    assert waiting.marker.color == TERMS["comm_wait"].colour
    assert figure.layout.xaxis.range == (0, pytest.approx(50.002))


def test_timeline_of_many_ranks_shows_one_of_each_kind() -> None:
    figure = drawn(timeline_figure(sample_report(200)))
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", f"rank {LATE}", "rank 100 and 197 alike"]


def test_very_many_runs_are_thinned_and_cover_the_same_time() -> None:
    kinds = ("compute", "compute", "idle_gap", "comm_wait")
    runs = [
        TimelineRow(step=3, rank=0, kind=kinds[n % 4], start_ms=0.01 * n, duration_ms=0.01)
        for n in range(2 * MOST_RUNS)
    ]
    few = thinned(runs, 100)
    assert len(few) <= 100
    assert sum(row.duration_ms for row in few) == pytest.approx(0.01 * 2 * MOST_RUNS)
    assert {row.kind for row in few} == {"compute"}
    assert thinned(runs[:5], 100) == runs[:5]
    report = sample_report(1)
    report = with_tables(report, timeline=tuple(runs))
    assert sum(len(bar.x) for bar in drawn(timeline_figure(report)).data) <= MOST_RUNS


@pytest.mark.parametrize("figure", FIGURES)
def test_names_from_a_trace_are_no_markup(figure: Any) -> None:
    text = drawn(figure(sample_report())).to_json()
    assert "<img" not in text and "</script" not in text and "<b>" not in text
    assert HOSTILE not in text


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_nothing_to_show_is_no_crash(figure: Any, ranks: int) -> None:
    report: Report = replace(sample_report(ranks), tables=Tables(), what_if=(), summary=Summary())
    assert drawn(figure(report)).layout.height >= 150
