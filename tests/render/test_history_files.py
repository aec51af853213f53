"""history.html, history.json and history.csv as their readers take them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from html_page import TABLES, Page
from plotly_schema import drawn
from sample_captures import capture, commit_of, with_level

from traceops.baseline.history import histories, samples_of
from traceops.baseline.store import Problem, save, scan
from traceops.render.history.html import FILES, write_history
from traceops.schemas import schema_path

SCHEMA = json.loads(schema_path("history").read_text())
HOSTILE = "</script><img src=x onerror=alert(1)>\u2028'\"&<b>"


def written(folder: Path, saved: list[tuple[dict[str, Any], str]], plotlyjs: str = "cdn") -> Path:
    """The folder with the history of these captures, each saved under a name."""
    store = str(folder / "store")
    for report, name in saved:
        save(store, report, name=name, source=f"profile/{name}")
    problems = [Problem(HOSTILE, HOSTILE)]
    found = histories(samples_of(scan(store, None, problems), problems))
    paths = write_history(found, problems, HOSTILE, folder / "out", plotlyjs)
    assert [path.name for path in paths] == list(FILES)
    return folder / "out"


def page_of(folder: Path) -> Page:
    shown = Page((folder / "history.html").read_text(encoding="utf-8"))
    assert shown.mismatched == [] and shown.open == []
    ids = [attributes.get("id") for _, attributes in shown.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert all((a["href"] or "")[1:] in ids for a in shown.all("a"))
    return shown


def test_a_change_is_said_drawn_and_in_the_files(tmp_path: Path) -> None:
    out = written(tmp_path, [(report, "gpt") for report in with_level([50.0] * 15 + [55.0] * 10)])
    shown = page_of(out)
    label = commit_of(15)[:7]
    assert f" % since commit {label} (2026-10-06); 2 more changes below." in shown.text()
    charts = json.loads(shown.scripts()[0])
    assert all(drawn(chart).data for chart in charts.values())
    assert set(charts) == {f"0-{trend['metric']}" for trend in document(out)["keys"][0]["trends"]}
    step = charts["0-step_time"]
    assert len(step["data"][-1]["x"]) == 25 and commit_of(24)[:12] in step["data"][-1]["hovertext"][24]
    (mark,) = step["layout"]["annotations"]
    assert mark["text"].endswith(f"since {label}") and step["layout"]["shapes"][0]["x0"] == 14.5
    (key,) = document(out)["keys"]
    (change,) = key["trends"][0]["changes"]
    assert (change["since_commit"], change["last_commit_before"]) == (commit_of(15), commit_of(14))
    assert change["text"] in shown.text().replace("Step time", "step time") and change["p"] <= 0.02
    rows = list(csv.DictReader((out / "history.csv").open(encoding="utf-8")))
    assert [row["commit"] for row in rows] == [commit_of(day) for day in range(25)]
    assert float(rows[3]["step_time"]) == key["trends"][0]["values"][3]


def document(out: Path) -> dict[str, Any]:
    """The object of history.json, which is as published."""
    value: dict[str, Any] = json.loads((out / "history.json").read_text(encoding="utf-8"))
    jsonschema.validate(value, SCHEMA)
    return value


def test_one_capture_says_that_there_is_nothing_to_compare(tmp_path: Path) -> None:
    out = written(tmp_path, [(capture(), "gpt")])
    assert "no other to compare it with yet" in page_of(out).text()
    assert [len(key["commits"]) for key in document(out)["keys"]] == [1]


def test_a_capture_without_any_time_is_listed(tmp_path: Path) -> None:
    bare = {**capture(unprofiled=0), "steps": [], "ranks": []}
    text = page_of(written(tmp_path, [(bare, "gpt"), (bare, "gpt")])).text()
    assert "hold no times" in text and "Captures (2)" in text


def test_several_keys_have_a_section_each_and_an_overview(tmp_path: Path) -> None:
    out = written(tmp_path, [(capture(day), name) for day in range(3) for name in ("one", "two")])
    shown = page_of(out)
    assert [a["id"] for a in shown.all("section")] == ["keys", "key-0", "key-1", "problems", "definitions"]
    assert "one · 4 ranks" in shown.text() and "two · 4 ranks" in shown.text()


def test_what_came_from_a_store_stays_text(tmp_path: Path) -> None:
    git = {"commit": HOSTILE, "branch": HOSTILE, "dirty": False}
    hostile = {"git": git, "device": HOSTILE, "strategy": HOSTILE, "name": HOSTILE}
    reports = [capture(day, 50.0 + 5 * (day > 8), **hostile) for day in range(16)]
    for day, report in enumerate(reports):
        report["run"]["git"] = {**git, "commit": f"{day:02d}<b>{HOSTILE}"}
    shown = page_of(written(tmp_path, [(report, HOSTILE) for report in reports]))
    assert shown.all("img") == [] and not any("onerror" in a for _, a in shown.elements)
    assert len(shown.all("script")) == 4 and TABLES in shown.scripts()
    assert shown.text().count(HOSTILE) > 5
    charts = json.loads(shown.scripts()[0])
    shown_by_plotly = json.dumps([[c["data"], c["layout"]] for c in charts.values()])
    assert "<b>" not in shown_by_plotly and "&lt;b&gt;" in shown_by_plotly


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_draws_fits_and_says_nothing_in_a_browser(browser: Any, tmp_path: Path, width: int) -> None:
    reports = with_level([50.0] * 15 + [55.0] * 10)
    reports[3]["run"]["git"]["commit"] = HOSTILE
    out = written(tmp_path, [(report, name) for report in reports for name in ("gpt", HOSTILE)], "inline")
    said: list[str] = []
    tab = browser.new_context(offline=True, viewport={"width": width, "height": 900}).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto((out / "history.html").as_uri())
    tab.wait_for_function(
        "document.querySelectorAll('.chart').length == document.querySelectorAll('.chart[data-drawn]').length"
    )
    assert tab.locator(".chart .scatterlayer").count() == 12
    assert not tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert said == []
