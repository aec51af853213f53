"""Figures laid out for SVG: every mark of a figure is there, where its value lies."""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from typing import Any

import pytest
from html_page import TABLES, Page
from sample_comparison import sample_comparison
from sample_doctor import healthy
from sample_report import HOSTILE, sample_report

from traceops.core.units import digits_text, us_text
from traceops.render.comparison.html import render_comparison_html
from traceops.render.doctor.html import render_doctor_html
from traceops.render.document import AlignedSteps, Mark, StepLane
from traceops.render.report.cross_figures import lateness_figure, timeline_figure, what_if_figure
from traceops.render.report.figures import distribution_figure, idle_figure, laid_out, ledger_figure, steps_figure
from traceops.render.report.html import describe, render_html
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
