"""compare.html as its readers and browsers take it: parsed, not matched against a stored page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from changed import replace
from html_page import TABLES, Page
from plotly_schema import drawn
from sample_comparison import many_changes, sample_comparison, single_captures, waived

from traceops.compare.model import Comparison
from traceops.render.comparison.figures import interval_figure, steps_figure, waterfall_figure
from traceops.render.comparison.html import describe, render_comparison_html
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
    sentence = comparison.sentence.split("\n")[0].split("\x00")[0].replace("\x1b", "\ufffd").replace("\u202e", "\ufffd")
    assert sentence in shown.text() and "\x1b" not in shown.text()
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
    assert next(iter(answer.lines))[0] == "Why" and "How sure" in dict(answer.lines)
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
