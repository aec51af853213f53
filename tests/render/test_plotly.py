"""plotly.js as it comes with traceops: the file that its README tells of, and enough to draw every figure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plotly_schema import TRACE_TYPES
from sample_captures import with_level
from sample_comparison import sample_comparison
from sample_doctor import healthy
from sample_report import sample_report

from traceops.baseline.history import histories, samples_of
from traceops.baseline.store import Problem, save, scan
from traceops.core.installation import bundled
from traceops.render.comparison.html import render_comparison_html
from traceops.render.doctor.html import render_doctor_html
from traceops.render.history.html import render_history_html
from traceops.render.report.html import render_html
from traceops.render.writers.html import plotly_js, plotly_js_source

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
