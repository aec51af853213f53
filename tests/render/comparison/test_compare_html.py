"""compare.html as its readers and browsers take it: parsed, not matched against a stored page."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from changed import replace
from html_page import TABLES, Page
from plotly_schema import drawn
from sample_comparison import EXPOSED, KERNELS, MEMORY, STEP, many_changes, sample_comparison, single_captures, waived
from sample_comparison import UNKNOWN as NOT_KNOWN

from traceops.compare.model import Change, Comparison, ComparisonVerdict, MetricChange
from traceops.compare.sentence import headline
from traceops.core.text import one_line
from traceops.render.comparison import text
from traceops.render.comparison.figures import interval_figure, steps_figure, waterfall_figure
from traceops.render.comparison.html import describe, render_comparison_html
from traceops.render.comparison.terminal import print_comparison
from traceops.render.comparison.text import side_names
from traceops.render.document import Answer

ALL = (
    *(sample_comparison(verdict) for verdict in ("regression", "improvement", "no_regression", "inconclusive")),
    single_captures(),
    waived(),
    many_changes(),
)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render_comparison_html(sample_comparison(), plotlyjs="inline"))


@pytest.mark.parametrize("comparison", ALL)
def test_pages_nest_and_what_came_from_a_trace_stays_text(comparison: Comparison) -> None:
    text = render_comparison_html(comparison, plotlyjs="cdn")
    shown = Page(text)
    assert shown.mismatched == [] and shown.open == []
    assert shown.all("img") == [] and len(shown.all("script")) == 4 and TABLES in shown.scripts()
    assert not any("onerror" in attributes for _, attributes in shown.elements)
    assert headline(comparison)[0] in shown.text() and "\x1b" not in shown.text()
    assert len(text) < 5_000_000  # with 100 names of 4,000 characters
    ids = [a.get("id") for _, a in shown.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    assert all((a["href"] or "")[1:] in ids for a in shown.all("a"))
    assert all(a.get("scope") in ("col", "row") for a in shown.all("th"))
    drawn = {(a.get("id") or "").removeprefix("chart-") for a in shown.all("div") if a.get("class") == "chart"}
    assert drawn == set(json.loads(shown.scripts()[0]))


def test_sections_stand_in_reading_order(page: Page) -> None:
    assert [a["id"] for a in page.all("section")] == ["metrics", "why", "changes", "findings", "steps", "method"]
    assert [a["data-rule"] for a in page.all("article")] == ["TO-R001", "TO-I003", "TO-I002", "TO-O001"]
    for said in ("+5.2 % (+3.9 to +6.6)", "9 times of 10", "what is left", "all_reduce", "db015ac012 + changes"):
        assert said in page.text()


def test_inline_page_asks_for_nothing_from_outside(page: Page) -> None:
    for tag, attributes in page.elements:
        for key in ("src", "href", "action", "srcset", "poster", "data"):
            value = attributes.get(key) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, key, value)
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "http" not in policy and "default-src 'none'" in policy


def test_cdn_page_pins_the_library_and_another_source_is_refused() -> None:
    text = render_comparison_html(single_captures(), plotlyjs="cdn")
    assert len(text) < 100_000
    [source] = [a for a in Page(text).all("script") if a.get("src")]
    assert re.fullmatch(r"https://cdn\.plot\.ly/plotly-cartesian-\d[\d.]*\.min\.js", source["src"] or "")
    assert (source["integrity"] or "").startswith("sha256-")
    with pytest.raises(ValueError, match="inline, cdn"):
        render_comparison_html(single_captures(), plotlyjs="directory")


def test_the_least_comparison_is_a_page_without_empty_sections() -> None:
    shown = Page(render_comparison_html(single_captures(), plotlyjs="cdn"))
    assert [a["id"] for a in shown.all("section")] == ["metrics", "findings", "method"]
    assert "Nothing regressed" in shown.text() and "a standard deviation of 0.8 % was assumed" in shown.text()


def test_waterfall_leads_from_base_to_head() -> None:
    figure = waterfall_figure(sample_comparison())
    assert figure is not None
    figure = drawn(figure)
    bar, ends = figure.data
    assert list(ends.x) == [60.1, 63.2]
    at = ends.x[0]
    for left, width in zip(bar.base, bar.x, strict=True):
        assert left == pytest.approx(at)
        at += width
    assert at == pytest.approx(ends.x[1])
    assert list(bar.y)[:2] == ["compute", "idle: host blocked"]
    low, high = figure.layout.xaxis.range
    assert low < min(ends.x) and high > max(left + width for left, width in zip(bar.base, bar.x, strict=True))


def test_intervals_and_limits_stand_where_the_metrics_say() -> None:
    comparison = sample_comparison()
    rate = replace(comparison.metrics[0], metric="throughput", label="throughput", better="higher")
    figure = interval_figure(replace(comparison, metrics=(*comparison.metrics, rate)))
    assert figure is not None
    dots, limits = drawn(figure).data
    first = list(dots.y).index("step time")
    assert dots.x[first] + dots.error_x.array[first] == pytest.approx(6.6)
    assert dots.x[first] - dots.error_x.arrayminus[first] == pytest.approx(3.9)
    assert dict(zip(limits.y, limits.x, strict=True)) == {
        "step time": 5.0, "exposed communication": 2.0, "throughput": -5.0
    }  # fmt: skip


def test_steps_stand_in_the_order_they_were_taken() -> None:
    comparison = sample_comparison()
    figure = steps_figure(comparison)
    assert figure is not None
    figure = drawn(figure)
    assert list(figure.layout.xaxis.ticktext) == ["base 1", "head 1", "base 2", "head 2", "base 3", "head 3"]
    dots = [trace for trace in figure.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in dots) == len(comparison.steps)
    captures = tuple(replace(capture, started_ns=None) for capture in comparison.base.captures)
    unknown = steps_figure(replace(comparison, base=replace(comparison.base, captures=captures)))
    assert unknown is not None
    assert [tick.split()[0] for tick in drawn(unknown).layout.xaxis.ticktext] == ["base"] * 3 + ["head"] * 3


def test_many_steps_are_thinned_out() -> None:
    comparison = sample_comparison()
    figure = steps_figure(replace(comparison, steps=comparison.steps * 500))
    assert figure is not None
    assert sum(len(trace.x) for trace in drawn(figure).data if trace.mode == "markers") <= 4100


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_works_offline_in_a_browser(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "compare.html"
    path.write_bytes(render_comparison_html(sample_comparison(), plotlyjs="inline"))
    said: list[str] = []
    context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    tab.on("console", lambda message: said.append(message.text) if message.type != "log" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    tab.goto(path.as_uri())
    for chart in ("intervals", "waterfall", "steps"):
        tab.wait_for_selector(f"#chart-{chart}[data-drawn]")
    too_wide = tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert said == [] and not too_wide


def test_the_page_opens_with_both_steps_as_bars_and_why() -> None:
    document = describe(sample_comparison())
    answer = next(block for block in document.intro if isinstance(block, Answer))
    base, head = answer.costs
    assert (base.look, head.look) == ("now", "worse") and head.ms > base.ms
    assert next(iter(answer.lines))[0] == "Why" and "Confidence" in dict(answer.lines)
    assert "→" in document.title and document.title.split(" → ")[0].startswith("base ")


def test_a_side_is_called_by_its_captures_where_it_has_no_name_of_its_own() -> None:
    comparison = sample_comparison()
    named = msgspec.structs.replace(
        comparison,
        base=msgspec.structs.replace(comparison.base, label="base"),
        head=msgspec.structs.replace(comparison.head, label="head"),
    )
    assert side_names(named) == ("base_1, base_2 …", "head_1, head_2 …")
    same = msgspec.structs.replace(named, head=named.base)
    assert side_names(same) == ("base_1, base_2 … (base)", "base_1, base_2 … (head)")


def printed(comparison: Comparison, written: Path | None = None, *, verbose: bool = False) -> str:
    file = io.StringIO()
    print_comparison(comparison, file, written, verbose=verbose)
    return file.getvalue()


@pytest.mark.parametrize(
    ("comparison", "mark"),
    [
        (sample_comparison("regression"), "✖"),
        (sample_comparison("inconclusive"), "▲"),
        (sample_comparison("improvement"), "✔"),
        (single_captures(), "✔"),
        (many_changes(), "✖"),
    ],
)
def test_the_verdict_is_the_first_line_and_lines_are_short(comparison: Comparison, mark: str) -> None:
    lines = printed(comparison, Path("reports/x/compare.html")).splitlines()
    assert lines[0].startswith(f"{mark} ") and lines[-1] == "Report: reports/x/compare.html"
    assert max(map(len, lines)) <= 110 and len(lines) < 160


def test_metrics_reasons_and_changes_are_in_order() -> None:
    text = printed(sample_comparison(hostile="plain"), verbose=True)
    order = [
        "+5.2 % (+3.9 to +6.6)", "✖ regression, limit 5 %", "compute", "9 times of 10", "Why, in ms per step:",
        " 1. +2.10 ms: 1 new kernel: plain", "Kernels, changed: 2", "0 → 2", "Operators, changed: 1", "Environment",
        "not set", "New findings:", "TO-I003", "Findings that are gone:", "TO-O001", "Outlier step", "Warning: plain",
        "Note: plain",
    ]  # fmt: skip
    at = [text.index(piece) for piece in order]
    assert at == sorted(at)


@pytest.mark.parametrize("verdict", ["regression", "inconclusive", "improvement", "no_regression"])
def test_the_card_has_at_most_25_lines_and_counts_what_it_leaves_out(verdict: ComparisonVerdict) -> None:
    lines = printed(sample_comparison(verdict, hostile="plain"), Path("compare.html")).splitlines()
    assert len(lines) <= 25
    assert "Changed: 2 kernels, 1 operator, 1 collective, 1 blocking call, 1 variable." in lines
    assert any("TO-I003" in line for line in lines) and not any("0 → 2" in line for line in lines)


def test_an_inconclusive_card_has_its_values_once_besides_the_table() -> None:
    first, details = headline(sample_comparison("inconclusive"))
    assert "60.11 ms → 63.24 ms" in first and "→" not in details and "-2.0 to +12.0 %" in details


def test_many_changes_are_counted() -> None:
    text = printed(many_changes(40), verbose=True)
    assert "Kernels, changed: 42" in text and "… 36 more in the report" in text


def test_what_is_waived_or_forced_is_said() -> None:
    assert "▲ waived until 2027-01-31" in printed(waived())
    forced = replace(single_captures(), refusals=("world size 2 against 4",))
    assert "▲ Compared although they differ: world size 2 against 4" in printed(forced)


@pytest.mark.slow
def test_nothing_steers_the_terminal_or_the_runner() -> None:
    for width in range(40, 120):  # wherever the line breaks
        change = Change("operator", "new", "x" * width + "::error::bad", "", 1.0, 2.0, 1.0, 2.0, "##[add-mask]y")
        sample = sample_comparison()
        sample = replace(sample, sentence="x" * width + "::warning::bad", changes=(change, *sample.changes))
        text = printed(sample, verbose=True)
        assert all(char.isprintable() or char == "\n" for char in text)
        assert "##[" not in text
        assert not [line for line in text.splitlines() if line.lstrip().startswith(("::error", "::warning"))]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (STEP, "+5.2 % (+3.9 to +6.6)"),
        (EXPOSED, "+0.03 % of step (-0.40 to +0.50)"),
        (KERNELS, "+2 (+0.17 %)"),
        (MEMORY, "+4.1 kB (+0.01 %)"),
        (NOT_KNOWN, "–"),
        (replace(STEP, low_pct=None), "+5.2 %"),
        (replace(STEP, change_pct=-0.0004, low_pct=-0.001, high_pct=0.001), "0.00 % (0.00 to 0.00)"),
        (replace(STEP, change_pct=float("nan"), change=None), "–"),
        (replace(KERNELS, change=0.0, change_pct=0.0), "0"),
        (replace(KERNELS, base=0.0, head=3.0, change=3.0, change_pct=None), "+3"),
    ],
)
def test_a_change_has_its_sign_its_unit_and_its_interval(metric: MetricChange, said: str) -> None:
    assert text.effect_text(metric) == said


def test_both_sides_have_the_same_decimals() -> None:
    assert (text.base_text(STEP), text.head_text(STEP)) == ("60.11 ms", "63.24 ms")
    assert (text.base_text(KERNELS), text.head_text(KERNELS)) == ("1204", "1206")
    assert text.base_text(replace(KERNELS, base=1204.5)) == "1204"
    assert text.base_text(replace(STEP, base=9.0, head=120.0)) == "9.0 ms"
    assert (text.base_text(NOT_KNOWN), text.head_text(NOT_KNOWN)) == ("–", "120 GB/s")


def test_what_would_have_been_found_is_a_sentence_part() -> None:
    assert text.found_text(STEP, 0.9) == "a change of 1.6 % would have been found 9 times of 10"
    assert text.found_text(STEP, 0.95).endswith("95 times of 100")
    assert text.found_text(replace(STEP, mde_pct=None), 0.9) == ""


def test_a_gated_metric_that_could_not_be_judged_is_not_called_ungated() -> None:
    open_one = replace(KERNELS, threshold_pct=10.0, reason="not known for base")
    assert text.outcome_text(open_one) == "not judged"
    assert text.outcome_text(KERNELS) == "not gated"


def test_a_waived_regression_says_until_when_and_why() -> None:
    metric = waived().metrics[0]
    assert text.outcome_text(metric) == "waived until 2027-01-31"
    assert text.reason_text(metric).endswith("waived: needed for the new loss")
    already = replace(metric, reason="waived until 2027-01-31: needed for the new loss")
    assert text.reason_text(already) == already.reason


def test_parts_of_the_step_that_moved_come_beside_the_gated_metrics() -> None:
    comparison = sample_comparison()
    assert [metric.metric for metric in text.movers(comparison)] == ["compute", "idle_sync"]
    gated = replace(comparison.metrics[2], threshold_pct=1.0)
    assert [m.metric for m in text.movers(replace(comparison, metrics=(gated,)))] == []


def test_changes_that_cost_most_come_first_and_a_renamed_one_has_both_names() -> None:
    ordered = text.important_first(sample_comparison(hostile="x").changes)
    assert [change.status for change in ordered[:2]] == ["new", "changed"]
    renamed = next(change for change in ordered if change.status == "renamed")
    assert text.change_name(renamed) == "gemm_f32 → gemm_tf32 x"
    assert text.milliseconds_text(next(c for c in ordered if c.kind == "blocking_call")) == ""


def test_one_line_holds_no_character_that_steers() -> None:
    said = one_line("a\x1b[31m\nb\u202e\x00\u2028c", 100)
    assert said == "a\ufffd[31m b\ufffd\ufffd c"
    assert len(one_line("x" * 999, 20)) == 20


def test_a_cost_that_the_words_name_is_not_said_twice() -> None:
    reason = sample_comparison(hostile="x").explanations[1]
    assert text.cost_text(reason) == "+0.90 ms:"
    assert text.cost_text(replace(reason, text="blocked +0.90 ms per step")) == ""
    assert text.cost_text(replace(reason, ms=-0.9, text="blocked -0.90 ms per step")) == ""


def test_how_it_was_compared_names_captures_commits_and_what_is_missing() -> None:
    said = dict(text.method(sample_comparison(hostile="x")))
    assert said["Base"] == "3 captures of base x, 60 steps, commits db015ac012, db015ac012 + changes"
    assert said["step time, sensitivity"].startswith("a change of 1.6 %")
    assert said["Setting seed"] == "1"
    nowhere = replace(sample_comparison(), metrics=(replace(NOT_KNOWN, head=None),))
    assert dict(text.method(nowhere))["Not known on either side"] == "bus bandwidth"


@pytest.mark.parametrize(
    ("started_ns", "said"), [(None, "–"), (1 << 62, "2116-02-20 23:53 UTC"), (10**30, "–"), (0, "1970-01-01 00:00 UTC")]
)
def test_a_time_no_calendar_has_is_not_known(started_ns: int | None, said: str) -> None:
    assert text.started_text(started_ns) == said
