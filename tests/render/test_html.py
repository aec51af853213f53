"""summary.html as its readers and browsers take it: parsed, not matched against a stored page."""

from __future__ import annotations

import base64
import hashlib
import json
import marshal
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
from changed import replace
from html_page import TABLES, Page
from jinja2 import Environment, Template
from plotly_schema import TRACE_TYPES
from sample_captures import with_level
from sample_comparison import sample_comparison
from sample_doctor import healthy
from sample_report import HOSTILE, LATE, sample_report

from traceops.baseline.history import histories, samples_of
from traceops.baseline.store import Problem, save, scan
from traceops.core.findings import Check
from traceops.core.installation import bundled
from traceops.core.rank_text import ranks_text
from traceops.core.text import short_name
from traceops.measure.ledger import BUCKETS
from traceops.render.cells import Column, build_table, number, size
from traceops.render.comparison.html import render_comparison_html
from traceops.render.doctor.html import render_doctor_html
from traceops.render.history.html import render_history_html
from traceops.render.report.card import card_of
from traceops.render.report.html import describe, render_html
from traceops.render.writers.html import environment, plotly_js, plotly_js_source, script_json
from traceops.report.summary import Summary
from traceops.report.tables import Tables
from traceops.rules.registry import RULES


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render_html(sample_report(), plotlyjs="inline"))


def test_elements_nest(page: Page) -> None:
    assert page.mismatched == [] and page.open == []


def test_sections_stand_in_reading_order(page: Page) -> None:
    order = [attributes["id"] for attributes in page.all("section")]
    assert order == [
        "findings", "lateness", "what-if", "ledger", "path", "timeline", "steps", "idle", "collectives", "kernels",
        "blocking", "hta", "checks", "definitions",
    ]  # fmt: skip
    assert card_of(sample_report()).headline in page.text()


def test_every_finding_is_there_with_evidence_and_advice(page: Page) -> None:
    shown = [a["data-rule"] for a in page.all("article")]
    assert shown == ["TO-I002", "TO-I001"]
    text = page.text()
    assert f"advice {HOSTILE}" in text and f"message {HOSTILE}" in text
    assert "30.00 ms per step" in text


@pytest.mark.parametrize(("slowdown", "told"), [(1.45, True), (0.97, True), (0.51, False)])
def test_steps_that_were_longer_before_the_profiler_are_no_cost_of_it(slowdown: float, told: bool) -> None:
    report = sample_report()
    summary = replace(report.summary, unprofiled_step_time_ms=10.42, profiler_slowdown=slowdown)
    text = Page(render_html(replace(report, summary=summary))).text()
    assert "10.42 ms" in text and ("Profiler's cost" in text) is told


def test_what_came_from_a_trace_stays_text(page: Page) -> None:
    assert page.all("img") == []
    assert page.all("b") and not any("onerror" in attributes for _, attributes in page.elements)
    assert len(page.all("script")) == 4 and page.scripts().count(TABLES) == 1
    assert HOSTILE in page.text()


def test_chart_data_cannot_leave_its_script_and_is_json(page: Page) -> None:
    data = page.scripts()[0]
    assert not set("<>&/\u2028\u2029") & set(data)
    charts = json.loads(data)
    assert set(charts) == {
        "ledger", "steps", "idle", "lateness", "what-if", "path", "timeline", "arrivals", "bandwidth",
    }  # fmt: skip
    assert [bar["meta"] for bar in charts["ledger"]["data"]] == list(BUCKETS)
    assert json.loads(script_json({"a": HOSTILE})) == {"a": HOSTILE}


def test_inline_page_asks_for_nothing_from_outside(page: Page) -> None:
    for tag, attributes in page.elements:
        for key in ("src", "href", "action", "srcset", "poster", "data"):
            value = attributes.get(key) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, key, value)
    style = "".join(data for path, data in page.texts if path[-1:] == ("style",))
    assert "url(" not in style and "@import" not in style
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "http" not in policy and "default-src 'none'" in policy


def test_only_the_pages_own_scripts_are_admitted_whatever_a_trace_holds() -> None:
    page = Page(render_html(sample_report(hostile="<b>plotly.js comes here</b>"), plotlyjs="inline"))
    data, library, tables, own = page.scripts()
    assert tables == TABLES
    assert (
        json.loads(data)["ledger"]
        and library.startswith("/**\n* plotly.js (cartesian - minified) v")
        and "newPlot" in own
    )
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in (library, tables, own)]
    assert policy is not None
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes and "'unsafe-inline'" not in policy.split(";")[1]


def test_numbers_that_are_not_finite_are_null_in_chart_data() -> None:
    assert script_json({"x": [1.5, float("nan"), np.int64(3)]}) == '{"x":[1.5,null,3]}'


def test_cdn_page_is_small_and_pins_the_library() -> None:
    text = render_html(sample_report(), plotlyjs="cdn")
    assert len(text) < 300_000
    (source,) = [a for a in Page(text).all("script") if a.get("src")]
    assert re.fullmatch(r"https://cdn\.plot\.ly/plotly-cartesian-\d[\d.]*\.min\.js", source["src"] or "")
    assert (source["integrity"] or "").startswith("sha256-")


def test_other_plotlyjs_is_refused() -> None:
    with pytest.raises(ValueError, match="none, inline, cdn"):
        render_html(sample_report(), plotlyjs="directory")


def test_unknown_is_a_dash_that_says_so(page: Page) -> None:
    dashes = [a for tag, a in page.elements if tag in ("td", "dd") and "unknown" in (a.get("class") or "")]
    assert len(dashes) > 5 and all(a["title"] == "not known" for a in dashes)
    assert number(None) == number(float("nan"))
    assert number(None).text == "–" and number(0.0).text == "0"


def test_header_cells_have_a_scope(page: Page) -> None:
    assert page.all("th") and all(a.get("scope") in ("col", "row") for a in page.all("th"))


def test_missing_ranks_and_unevaluated_rules_are_said(page: Page) -> None:
    text = page.text()
    assert "4 of 5" in text
    assert f"{len(RULES)} not evaluated" in text


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_any_number_of_ranks(ranks: int) -> None:
    page = Page(render_html(sample_report(ranks), plotlyjs="cdn"))
    assert page.mismatched == []
    charts = json.loads(page.scripts()[0])
    assert len(charts["ledger"]["data"][0]["y"]) == ranks


def test_1024_ranks_stay_a_page() -> None:
    text = render_html(sample_report(1024, steps=20), plotlyjs="inline")
    assert len(text) < 8_000_000
    page = Page(text)
    charts = json.loads(page.scripts()[0])
    assert {"ledger", "distribution"} <= set(charts)
    assert "Of 1024 ranks, those whose steps differ by less than 5 % are one row" in page.text()
    assert f"rank {LATE}" in charts["ledger"]["data"][0]["y"]


def test_sections_that_prove_the_card_are_open_and_the_others_say_their_number_in_a_line() -> None:
    sections = {one.id: one for one in describe(sample_report()).sections}
    assert sections["findings"].brief is None
    folded = {id: one for id, one in sections.items() if one.brief is not None}
    assert {id for id, one in folded.items() if one.open} == {"timeline", "idle"}
    assert not folded["definitions"].open and not folded["kernels"].open
    assert re.fullmatch(r"\d+ fired, \d+ clear, \d+ not evaluated", folded["checks"].brief or "")
    assert (folded["timeline"].brief or "").endswith(f"{len(sample_report().ranks)} ranks")


def test_every_chart_has_its_place_and_every_link_its_section(page: Page) -> None:
    drawn = {(a.get("id") or "").removeprefix("chart-") for a in page.all("div") if a.get("class") == "chart"}
    assert drawn == set(json.loads(page.scripts()[0]))
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert all((a["href"] or "")[1:] in ids for a in page.all("a"))


def test_what_compares_ranks_is_said_in_words_too(page: Page) -> None:
    text = page.text()
    assert "of the path runs through rank 1's computation" in text
    assert "straggler slowdown S = 1.67" in text and "within 0.27 %" in text
    assert "Clocks agree within 9.33 µs" in text


def test_200_ranks_show_each_kind_in_every_chart() -> None:
    text = render_html(sample_report(200, steps=50), plotlyjs="cdn")
    assert len(text) < 2_000_000
    charts = json.loads(Page(text).scripts()[0])
    rows = ["rank 0", f"rank {LATE}", "rank 100 and 197 alike"]
    assert charts["lateness"]["data"][0]["y"] == charts["timeline"]["layout"]["yaxis"]["ticktext"] == rows


def test_without_tables_that_compare_ranks_their_sections_are_left_out_and_why_is_said() -> None:
    tables = sample_report().tables
    kept = Tables(kernels=tables.kernels, blocking_calls=tables.blocking_calls)
    checks = (Check("TO-S001", "not_evaluated", "no collective could be matched across ranks"),)
    page = Page(render_html(replace(sample_report(), tables=kept, what_if=(), checks=checks), plotlyjs="cdn"))
    sections = {a["id"] for a in page.all("section")}
    assert not sections & {"what-if", "path", "timeline"}
    assert "Not evaluated: no collective could be matched across ranks." in page.text()
    assert not {"lateness", "path", "timeline"} & set(json.loads(page.scripts()[0]))
    one = Page(render_html(replace(sample_report(1), tables=kept, what_if=()), plotlyjs="cdn"))
    assert "lateness" not in {a["id"] for a in one.all("section")}


def test_empty_report_is_a_page_without_charts() -> None:
    report = sample_report(1)
    bare = replace(
        report, ranks=(), steps=(), collectives=(), findings=(), what_if=(), tables=Tables(), summary=Summary()
    )
    page = Page(render_html(bare, plotlyjs="cdn"))
    assert page.mismatched == [] and set(page.scripts()) == {TABLES}
    assert "no complete step" in page.text()


def test_lone_surrogates_do_not_stop_the_page() -> None:
    assert "bad ? name" in Page(render_html(sample_report(hostile="bad \ud800 name"), plotlyjs="cdn")).text()


def test_column_shares_its_decimals_and_marks_the_worst() -> None:
    column = Column("ms", "ms", worst="max")
    table = build_table("t", [column], [{"ms": 120.0}, {"ms": 0.04}, {"ms": 0}, {"ms": None}])
    cells = [row[0] for row in table.rows]
    assert [cell.text for cell in cells] == ["120.0", "<0.1", "0", "–"]
    assert [cell.css for cell in cells] == ["worst", "", "", "unknown"]


def test_nearly_equal_values_have_no_worst() -> None:
    table = build_table("t", [Column("ms", "ms", worst="max")], [{"ms": 100.0}, {"ms": 100.5}])
    assert all(row[0].css == "" for row in table.rows)


def test_bytes_and_ranks_for_people() -> None:
    assert size(33_603_584).text == "33.6 MB"
    assert size(512).text == "512 B"
    assert size(None).text == "–"
    assert ranks_text([7, 0, 1, 2, 9]) == "0–2, 7, 9"
    assert ranks_text(range(0, 100, 2), 2) == "0, 2 … (50 in all)"


def test_long_names_are_shortened_to_what_tells_kernels_apart() -> None:
    long = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
    )
    assert short_name(long) == "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul> >"
    assert short_name("aten::mm") == "aten::mm"
    assert len(short_name("x" * 5000)) <= 80


@pytest.mark.browser
def test_page_works_offline_in_a_browser(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "summary.html"
    path.write_bytes(render_html(sample_report(), plotlyjs="inline"))
    said: list[Any] = []
    asked: list[str] = []
    context = browser.new_context(offline=True, viewport={"width": 800, "height": 900})
    tab = context.new_page()
    tab.on("console", lambda message: said.append(message.text) if message.type != "log" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    tab.evaluate("document.querySelectorAll('details.part').forEach(fold => { fold.open = true; })")
    tab.wait_for_selector("#chart-idle[data-drawn]")
    tab.wait_for_selector("#chart-bandwidth[data-drawn]")
    drawn = tab.locator(".chart[data-drawn]").count()
    bars = tab.locator("#chart-ledger .bars .point path").count()
    tab.wait_for_selector("#chart-ledger .legend")
    too_wide = tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert bars >= 4 * 3
    assert drawn == 9
    assert not too_wide


@pytest.fixture
def compiled(monkeypatch, tmp_path) -> Path:
    """Where this process keeps byte code, ours in place of the packages' own folders."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    return tmp_path


def _template() -> Template:
    """As in a new process."""
    return environment.__wrapped__().get_template("_macros.html.j2")


def test_a_template_is_compiled_once_where_python_keeps_its_own_byte_code(compiled, monkeypatch):
    _template()
    (file,) = compiled.rglob("*.pyc")
    assert file.parent == compiled.joinpath(*bundled("templates").parts[1:])
    monkeypatch.setattr(Environment, "compile", lambda *_: pytest.fail("it was compiled again"))
    assert _template().module


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: bytes(32) + data[32:], lambda data: b""])
def test_damaged_and_outdated_byte_code_of_a_template_is_replaced(compiled, damage):
    _template()
    (file,) = compiled.rglob("*.pyc")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert _template().module
    assert file.read_bytes()[:32] == whole[:32]
    assert isinstance(marshal.loads(file.read_bytes()[32:]), CodeType)


def test_no_byte_code_is_written_where_python_writes_none(compiled, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert _template().module
    assert not list(compiled.rglob("*"))


README = bundled("templates", "plotly", "README.md").read_text(encoding="utf-8")


def history(folder: Path) -> bytes:
    store = str(folder / "store")
    for report in with_level([50.0] * 15 + [55.0] * 10):
        save(store, report, name="gpt", source="profile/gpt")
    problems: list[Problem] = []
    found = histories(samples_of(scan(store, None, problems), problems))
    return render_history_html(found, problems, store, plotlyjs="inline")


PAGES: dict[str, Callable[[Path], bytes]] = {
    "summary": lambda folder: render_html(sample_report(), plotlyjs="inline"),
    "compare": lambda folder: render_comparison_html(sample_comparison(), plotlyjs="inline"),
    "doctor": lambda folder: render_doctor_html(healthy(), plotlyjs="inline"),
    "history": history,
}


def test_the_bundle_is_the_one_that_its_readme_tells_of() -> None:
    library, _ = plotly_js()
    (digest,) = re.findall(r"`([0-9a-f]{64})`", README)
    assert hashlib.sha256(library).hexdigest() == digest
    assert f"{len(library):,}" in README
    (version,) = re.findall(r"plotly\.js (\d+\.\d+\.\d+)", README)
    assert plotly_js_source(library) == f"https://cdn.plot.ly/plotly-cartesian-{version}.min.js"


def test_the_bundle_can_stand_inside_a_script_element_and_keeps_its_licence() -> None:
    library, _ = plotly_js()
    assert b"</script" not in library.lower() and b"<!--" not in library
    assert b"Licensed under the MIT license" in library[:300]
    assert "MIT License" in bundled("templates", "plotly", "LICENSE").read_text(encoding="utf-8")


def test_the_readme_names_the_traces_that_figures_may_use() -> None:
    (named,) = re.findall(r"they use (.*?)\s+traces", README, re.S)
    assert set(re.findall(r"`(\w+)`", named)) == TRACE_TYPES


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_every_figure_of_a_page_is_drawn_as_it_was_meant_and_nothing_is_said(
    browser: Any, name: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.html"
    path.write_bytes(PAGES[name](tmp_path))
    said: list[str] = []
    tab = browser.new_context(offline=True, viewport={"width": 1000, "height": 900}).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(path.as_uri())
    tab.wait_for_function(
        "document.querySelectorAll('.chart').length == document.querySelectorAll('.chart[data-drawn]').length"
    )
    # plotly draws a trace of a type that it does not know as a scatter, and says nothing
    kinds = tab.evaluate(
        "[...document.querySelectorAll('.chart')].map(c => [c.data.map(t => t.type), c._fullData.map(t => t.type)])"
    )
    assert said == []
    assert kinds and all(given and drawn == given for given, drawn in kinds)
