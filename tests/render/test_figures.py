"""Figures: their data, and the SVG drawn of them."""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from typing import Any

import plotly.graph_objects as go
import pytest
from changed import replace
from html_page import TABLES, Page
from plotly_schema import drawn
from sample_comparison import sample_comparison
from sample_doctor import healthy
from sample_report import HOSTILE, LATE, sample_report, with_tables

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.units import digits_text, us_text
from traceops.measure.ledger import BUCKETS, IDLE_BUCKETS
from traceops.render.comparison.html import render_comparison_html
from traceops.render.doctor.html import render_doctor_html
from traceops.render.document import AlignedSteps, Mark, StepLane
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
from traceops.render.report.figures import (
    MOST_STEPS,
    distribution_figure,
    idle_figure,
    laid_out,
    ledger_figure,
    steps_figure,
)
from traceops.render.report.html import describe, render_html
from traceops.render.report.rank_groups import groups_of, shown_ranks
from traceops.render.report.terms import TERMS
from traceops.render.svg.figure import TYPES, plot_of
from traceops.render.svg.marks import lanes_plot, shades_of
from traceops.render.svg.plot import (
    Dot,
    Note,
    Picture,
    Plot,
    Rectangle,
    Segment,
    Shape,
    axis_of,
    nice_ticks,
    number_as,
    titles,
)
from traceops.report.model import Report
from traceops.report.summary import Summary
from traceops.report.tables import Tables, TimelineRow


def test_ledger_has_every_bucket_in_the_ledgers_order_and_its_own_colour() -> None:
    figure = drawn(ledger_figure(sample_report()))
    assert tuple(bar.meta for bar in figure.data) == BUCKETS
    assert len({bar.marker.color for bar in figure.data}) == len(BUCKETS)
    idle_input = next(bar for bar in figure.data if bar.meta == "idle_input")
    assert list(idle_input.x) == [0.0, 30.0, 0.0, 0.0]
    assert list(idle_input.y) == ["rank 0", "rank 1", "rank 2", "rank 3"]


def test_legend_names_only_what_some_rank_spends_time_in() -> None:
    figure = drawn(ledger_figure(sample_report()))
    assert {bar.meta for bar in figure.data if bar.showlegend} == {
        "compute",
        "comm_transfer",
        "comm_wait",
        "idle_input",
        "idle_gap",
    }


def test_unknown_stays_unknown() -> None:
    report = sample_report(1)
    report = replace(report, ranks=(replace(report.ranks[0], comm_wait_ms=None),))
    waiting = next(bar for bar in drawn(ledger_figure(report)).data if bar.meta == "comm_wait")
    assert list(waiting.x) == [None]


def test_idle_has_the_idle_buckets_only() -> None:
    assert tuple(bar.meta for bar in drawn(idle_figure(sample_report())).data) == IDLE_BUCKETS


def test_steps_grid_is_ranks_by_steps_and_even_steps_look_even() -> None:
    report = sample_report(ranks=2, steps=3)
    heat = drawn(steps_figure(report)).data[0]
    assert [list(line) for line in heat.z] == [[53.0, 54.0, 55.0]] * 2
    assert heat.zmin <= 0.8 * 54 and heat.zmax >= 1.2 * 54
    *steps, missing = report.steps
    heat = drawn(steps_figure(replace(report, steps=tuple(steps)))).data[0]
    assert heat.z[missing.rank][-1] is None


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_up_to_64_ranks_all_are_shown(ranks: int) -> None:
    report = sample_report(ranks)
    assert shown_ranks(report) == list(range(ranks))
    assert len(drawn(ledger_figure(report)).data[0].y) == ranks


def test_beyond_64_ranks_kinds_are_shown_and_all_are_in_the_distribution() -> None:
    report = sample_report(1024)
    shown = shown_ranks(report)
    assert len(shown) == len(set(shown)) == 3
    assert LATE in shown and 0 in shown  # findings name them: a row of their own
    groups = groups_of(report)
    assert sorted(rank for group in groups for rank in group.ranks) == list(range(1024))
    assert list(drawn(ledger_figure(report)).data[0].y) == ["rank 0", "rank 1", f"rank {shown[2]} and 1021 alike"]
    boxes = {box.y[0]: box for box in drawn(distribution_figure(report)).data}
    box = boxes[TERMS["idle_input"].label]
    assert (box.lowerfence[0], box.median[0], box.upperfence[0]) == (0.0, 0.0, 30.0)


def test_steps_of_very_many_ranks_are_a_line_each_and_outliers_are_named() -> None:
    figure = drawn(steps_figure(sample_report(256, steps=4)))
    assert len(figure.data[0].y) == 256 and len(figure.data[0].z) == 256
    names = list(figure.layout.yaxis.ticktext)
    assert f"rank {LATE}" in names and len(names) <= 21
    assert figure.layout.height <= 500


def test_ranks_can_be_chosen() -> None:
    assert list(drawn(ledger_figure(sample_report(), [2, 0, 99])).data[0].y) == ["rank 2", "rank 0"]


def test_a_host_name_is_no_markup_in_hover_texts() -> None:
    where = drawn(ledger_figure(sample_report())).data[0].customdata[0]
    assert "<" not in where and "&lt;/script&gt;" in where


def test_no_steps_no_crash() -> None:
    report = sample_report(2, steps=0)
    assert len(drawn(steps_figure(report)).data[0].x or ()) == 0


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


def of(plot: Plot, kind: type) -> list[Any]:
    return [mark for mark in plot.marks if isinstance(mark, kind)]


def test_stacked_bars_begin_where_the_last_one_ends_and_unknown_ones_are_left_out() -> None:
    plot = plot_of(ledger_figure(sample_report()))
    bars = of(plot, Rectangle)
    first = [bar for bar in bars if bar.y == bars[0].y]
    assert len(first) == 3 and first[0].x == 0
    for left, right in itertools.pairwise(first):
        assert right.x == pytest.approx(left.x + left.width, abs=0.01)
    assert first[1].width / first[0].width == pytest.approx(3 / 15, rel=0.01)
    assert [row.text for row in plot.rows] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert [entry.text for entry in plot.legend] == [
        "Compute", "Transfer", "Waiting for ranks", "Idle: input", "Idle: gaps",
    ]  # fmt: skip
    assert {bar.pattern for bar in bars} == {"", "slash"}
    assert "Waiting for ranks: 30.000 ms" in next(bar.title for bar in bars if bar.pattern)


def test_heat_maps_are_one_colour_whose_strength_is_the_value() -> None:
    plot = plot_of(lateness_figure(sample_report(3, steps=2)))
    cells = of(plot, Rectangle)
    assert len(cells) == 6 and len({cell.colour for cell in cells}) == 1
    assert [cell.opacity for cell in cells[:2]] == [0.04, 0.04] and cells[3].opacity > 0.7
    assert [note.text for note in of(plot, Note)] == ["0", "0", "23", "24", "0", "0"]
    assert [tick.text for tick in plot.ticks] == ["step 3", "step 4"]


def test_many_cells_are_one_picture_and_many_bars_few_paths() -> None:
    (picture,) = of(plot_of(steps_figure(sample_report(64, steps=50))), Picture)
    png = base64.b64decode(picture.href.removeprefix("data:image/png;base64,"))
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", png[16:24]) == (50, 64)
    data = png[png.index(b"IDAT") + 4 : png.index(b"IEND") - 8]
    lines = zlib.decompress(data)
    assert len(lines) == 64 * (1 + 25) and set(lines[::26]) == {0}
    shades = shades_of([[0.0, 5.0, 10.0, None, 99.0]], 0.0, 10.0)
    assert shades.tolist() == [[1, 8, 15, 0, 15]]
    timeline = plot_of(timeline_figure(sample_report(4)))
    assert len(of(timeline, Rectangle)) == len(sample_report(4).tables.timeline)


def test_bars_are_in_the_order_of_their_axis_and_say_what_they_save() -> None:
    plot = plot_of(what_if_figure(sample_report()))
    assert any("saves 60.0 %" in note.text for note in of(plot, Note))
    assert any("now 50 ms" in note.text for note in of(plot, Note))
    assert HOSTILE[:44] in plot.rows[0].text


def test_a_text_beside_a_bar_is_not_cut_where_the_page_is_narrow() -> None:
    """'rank 0 last i' was what a page of 400 px showed of it."""
    bar = {"type": "bar", "orientation": "h", "y": [0, 1], "base": [0.0, 0.0], "x": [74.0, 20.0], "width": 0.5,
           "text": ["rank 0 last in 100 %"] * 2, "textposition": "outside", "marker": {"color": "#123456"}}  # fmt: skip
    long, short = of(plot_of(laid_out([bar], 2, pixels=20, xaxis={"range": [0, 100]}, yaxis={})), Note)
    assert (long.anchor, round(long.x), long.dx) == ("end", 74, -6)
    assert (short.anchor, round(short.x), short.dx) == ("start", 20, 6)


@pytest.mark.parametrize("left, right, anchor", [(50, 90, "end"), (10, 50, "start"), (40, 60, "middle")])
def test_what_is_said_of_a_mark_begins_or_ends_with_it_where_its_middle_has_no_room(
    left: float, right: float, anchor: str
) -> None:
    """'Compute: 102 ms in this step (rank 1: 14.3 ms)' lost its end on a page of 400 px."""
    mark = Mark(left, right, "Compute: 102 ms in this step", "#123456")
    steps = AlignedSteps("a", "", (StepLane("rank 0", (), (mark,)),), 100.0, ())
    [note] = of(lanes_plot(steps), Note)
    assert note.anchor == anchor


def test_boxes_are_drawn_with_their_whiskers() -> None:
    plot = plot_of(distribution_figure(sample_report(128)))
    assert len(of(plot, Rectangle)) == len(plot.rows) >= 4
    assert any("least 0.000" in mark.title for mark in of(plot, Segment))


def test_points_lie_on_a_logarithmic_axis() -> None:
    figure = laid_out(
        [{"type": "scatter", "mode": "markers", "x": [10, 1000, None], "y": [0.0, 8.0, 4.0], "marker": {"size": 6}}],
        5, pixels=20, xaxis={"type": "log", "range": [1, 3]}, yaxis={"range": [0, 8]},
    )  # fmt: skip
    low, high = of(plot_of(figure), Dot)
    assert (low.x, high.x) == (0, 100) and low.y > high.y == 0


def test_very_many_points_are_one_path_of_dots() -> None:
    marker = {"size": 7, "color": "#123456"}
    trace = {"type": "scatter", "mode": "markers", "x": list(range(500)), "y": [1.0] * 500, "marker": marker}
    plot = plot_of(laid_out([trace], 5, pixels=20, xaxis={}, yaxis={}))
    (dots,) = of(plot, Shape)
    assert dots.path.count("h0") == 500 and (dots.width, dots.fill, dots.colour) == (7.0, False, "#123456")
    assert not of(plot, Dot)


def test_another_type_of_trace_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="pie"):
        plot_of({"data": [{"type": "pie"}], "layout": {}})
    assert set(TYPES) == {"bar", "box", "heatmap", "scatter"}


def test_a_figure_without_data_is_an_empty_plot() -> None:
    for figure in (idle_figure(sample_report(1, steps=0)), {"data": [], "layout": {}}):
        assert plot_of(figure).height > 0


def test_ticks_are_round_and_never_powers_of_ten() -> None:
    assert [text for _, text in nice_ticks(0, 57)] == ["0", "10", "20", "30", "40", "50"] or len(nice_ticks(0, 57)) > 2
    assert [text for _, text in nice_ticks(0, 0.003, 4)] == ["0.000", "0.001", "0.002", "0.003"]
    assert nice_ticks(0, 4e6, 5)[-1][1] == "4,000,000"
    assert nice_ticks(3, 3) == [(3, "3")]
    assert axis_of({"type": "category", "autorange": "reversed"}, ["a", "b"]).share("a") == pytest.approx(0.75)


def test_numbers_of_hover_texts() -> None:
    assert number_as(12345.678, ".3g") == "12,346" and number_as(12.345, ".3~g") == "12.3"
    assert number_as(0.0000123, ".3g") == "0.0000123" and digits_text(11600.0, 3) == "11,600"
    assert us_text(9.812) == "9.81 µs" and us_text(11_600) == "11.6 ms"
    assert number_as(0.5, ".3f") == "0.500" and number_as(None, ".3f") == "–"
    trace = {"hovertemplate": "%{y}: %{x:.2f}<br>%{customdata[1]}<extra>n</extra>", "customdata": [["a", "&lt;b"]]}
    assert titles(trace)(0, {"x": 1.0, "y": "r"}) == "r: 1.00\n<b"


@pytest.mark.parametrize(
    "made",
    [
        lambda: render_html(sample_report()),
        lambda: render_comparison_html(sample_comparison()),
        lambda: render_doctor_html(healthy()),
    ],
)
def test_a_page_shows_its_figures_without_a_script(made: Any) -> None:
    page = Page(made())
    assert page.mismatched == [] and page.open == []
    charts = [a for a in page.all("div") if a.get("class") == "chart"]
    assert charts and all(a["aria-label"] for a in charts)
    assert len([a for a in page.all("div") if a.get("class") == "plot"]) >= len(charts)
    assert set(page.scripts()) <= {TABLES} and len(page.all("script")) <= 1 and page.all("img") == []


def test_every_figure_of_a_report_is_drawn() -> None:
    for name, figure in describe(sample_report()).charts.items():
        assert plot_of(figure).marks, name


def test_labels_of_two_lines_do_not_run_into_each_other() -> None:
    layout = {"tickvals": [0, 1, 12, 24], "ticktext": [f"000000{n}<br>10-0{n}" for n in range(4)]}
    shown = [value for value, _ in axis_of(layout, list(range(25))).ticks]
    assert shown == [0.0, 12.0, 24.0]
    plain = {"tickvals": [0, 1, 12, 24], "ticktext": ["a", "b", "c", "d"]}
    assert len(axis_of(plain, list(range(25))).ticks) == 4
