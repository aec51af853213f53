"""The figures' data, without drawing them."""

from __future__ import annotations

import pytest
from changed import replace
from plotly_schema import drawn
from sample_report import LATE, sample_report

from traceops.measure.ledger import BUCKETS, IDLE_BUCKETS
from traceops.render.report.figures import distribution_figure, idle_figure, ledger_figure, steps_figure
from traceops.render.report.rank_groups import groups_of, shown_ranks
from traceops.render.report.terms import TERMS


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
