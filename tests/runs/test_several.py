"""`traceops analyze` of several runs: a report each, one table, and what cannot be read told beside the others."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import jsonschema
import pytest
from run_folders import failed_run, run_of

from traceops.cli import main
from traceops.schemas import schema_path

TRAINING = {"samples_per_step": 8, "tokens_per_step": 512}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("several")
    run_of(root / "profile" / "slow", training=TRAINING, unprofiled_step_ms=200.0)
    run_of(root / "profile" / "fast", training=TRAINING, unprofiled_step_ms=50.0)
    failed_run(root / "profile" / "oom")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert main(["analyze", "profile", "-q"]) == 0
    return root


def test_each_run_has_its_report_and_all_a_table(profile: Path) -> None:
    assert sorted(path.name for path in (profile / "reports").iterdir()) == [
        "fast", "runs.csv", "runs.html", "runs.json", "slow",
    ]  # fmt: skip
    table = json.loads((profile / "reports" / "runs.json").read_text())
    jsonschema.Draft202012Validator(json.loads(schema_path("runs").read_text())).validate(table)
    fast, oom, slow = table["runs"]
    assert (fast["name"], fast["report"], fast["problem"]) == ("fast", "fast", "")
    assert (fast["step_ms"], fast["samples_per_s"], fast["tokens_per_s"]) == (50.0, 160.0, 10240.0)
    assert slow["samples_per_s"] == 40.0 and not slow["step_profiled"]
    assert "the program failed before its first step ended" in oom["problem"] and oom["report"] is None
    report = json.loads((profile / "reports" / "fast" / "report.json").read_text())
    assert report["summary"]["samples_per_s"] == 160.0 and report["run"]["tokens_per_step"] == 512
    assert sum(ms for ms in fast["ledger_ms"].values() if ms) == pytest.approx(fast["recorded_step_ms"], rel=0.1)


def test_the_page_says_who_is_fastest_and_leads_to_the_reports(profile: Path) -> None:
    page = (profile / "reports" / "runs.html").read_text()
    assert "fast is fastest with 160.0 samples/s, 300 % more than slow. 1 of 3 runs has no report." in page
    assert 'href="./fast/summary.html"' in page and "linear-gradient(to right, #0072B2" in page
    assert page.count("<script") == 1 and "<script>// Tables:" in page
    rows = list(csv.DictReader((profile / "reports" / "runs.csv").open()))
    assert [row["name"] for row in rows] == ["fast", "oom", "slow"] and rows[0]["compute_ms"]


def test_terminal_names_every_run_and_strict_counts_the_bad_one(profile, monkeypatch, capsys) -> None:
    monkeypatch.chdir(profile)
    assert main(["analyze", "profile/*", "--format", "json", "--strict"]) == 3
    said = capsys.readouterr().out
    assert "samples/s" in said and "✖ oom: " in said and "Runs: reports/runs.json" in said


def test_reports_of_runs_with_one_name_do_not_collide(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("profile/x", "other/x"):
        run_of(tmp_path / place)
    assert main(["analyze", "profile/x", "--format", "json", "-q"]) == 0
    assert main(["analyze", "other/x", "--format", "json", "-q"]) == 0
    assert main(["analyze", "profile/x", "--format", "json", "-q"]) == 0
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("reports/**/report.json")}
    assert found == {"reports/x/report.json", "reports/other/x/report.json"}


def test_names_from_anywhere_do_no_harm(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("<b>\x1b[31m", "javascript:alert(1)"):
        run_of(tmp_path / "profile" / name)
    for name in ("=1+1", os.fsdecode(b"\xff")):
        failed_run(tmp_path / "profile" / name)
    assert main(["analyze", "profile"]) == 0
    said = capsys.readouterr().out
    assert "\x1b[31m" not in said and "=1+1: " in said
    page = (tmp_path / "reports" / "runs.html").read_text()
    assert 'href="./%3Cb%3E%1B%5B31m/summary.html"' in page and "<b>\x1b" not in page
    assert 'href="./javascript%3Aalert%281%29/summary.html"' in page
    assert "'=1+1" in (tmp_path / "reports" / "runs.csv").read_text()


def test_nothing_usable_among_several_is_an_error_that_names_all(tmp_path, capsys) -> None:
    for name in ("a", "b"):
        failed_run(tmp_path / name)
    assert main(["analyze", str(tmp_path), "-o", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert "none of 2 runs can be analysed" in said and "  a: " in said and "  b: " in said


def test_the_report_opens_with_samples_a_second(profile, monkeypatch, capsys) -> None:
    monkeypatch.chdir(profile)
    assert main(["analyze", "profile/slow", "--format", "json"]) == 0
    assert "40.00 samples/s, 2560 tokens/s" in capsys.readouterr().out.splitlines()[0]
