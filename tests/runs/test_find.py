"""Which runs a folder, a pattern or several paths hold."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace
from run_folders import failed_run, run_of

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.render.runs.files import figures_table, runs_verdict
from traceops.runs.find import find_runs, natural
from traceops.runs.row import FindingCount, RunsDocument
from traceops.schemas import schema_path


def make(root: Path, *files: str) -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def names(*paths: object) -> list[str]:
    return [place.name for place in find_runs([str(path) for path in paths]).runs]


def test_a_folder_of_runs_is_each_of_them_in_natural_order(tmp_path: Path) -> None:
    make(tmp_path, *(f"profile/run_{n}/run.json" for n in (10, 2, 1)))
    assert names(tmp_path / "profile") == ["run_1", "run_2", "run_10"]


def test_a_run_is_one_run_whatever_lies_in_it(tmp_path: Path) -> None:
    make(tmp_path, "a/run.json", "a/rank_0/x.pt.trace.json", "a/other/run.json")
    assert names(tmp_path / "a") == ["a"]


def test_traces_without_run_json_are_one_run(tmp_path: Path) -> None:
    make(tmp_path, "a/rank_0/x.pt.trace.json", "a/rank_1/x.pt.trace.json")
    assert names(tmp_path / "a") == ["a"]


def test_beside_runs_a_folder_of_traces_is_one_too_and_logs_are_none(tmp_path: Path) -> None:
    make(tmp_path, "a/run.json", "b/run.json", "c/rank_0.pt.trace.json", "logs/x.json", "d/readme.txt")
    assert names(tmp_path) == ["a", "b", "c"]


def test_the_only_run_of_a_folder_is_read_as_before(tmp_path: Path) -> None:
    make(tmp_path, "profile/a/run.json")
    assert [place.path for place in find_runs([str(tmp_path / "profile")]).runs] == [str(tmp_path / "profile")]


def test_names_are_never_the_same(tmp_path: Path) -> None:
    make(tmp_path, "profile/x/run.json", "other/x/run.json")
    assert names(tmp_path / "profile/x", tmp_path / "other/x") == ["other/x", "profile/x"]


def test_one_run_given_twice_is_one(tmp_path: Path) -> None:
    make(tmp_path, "p/x/run.json", "p/y/run.json")
    (tmp_path / "p" / "link").symlink_to("x")
    assert names(tmp_path / "p/x", tmp_path / "p/y", tmp_path / "p/link") == ["x", "y"]


def test_links_to_runs_elsewhere_are_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "elsewhere/a/run.json", "profile/b/run.json", "profile/c/run.json")
    (tmp_path / "profile" / "a").symlink_to(tmp_path / "elsewhere" / "a")
    assert names(tmp_path / "profile") == ["b", "c"]


def test_the_runs_of_a_series_of_two_sides_stay_with_compare(tmp_path: Path) -> None:
    make(tmp_path, "s/pairs.json", "s/base_1/run.json", "s/head_1/run.json")
    assert names(tmp_path / "s") == ["s"]


def test_patterns_that_the_shell_left_are_expanded(tmp_path: Path) -> None:
    make(tmp_path, "p/ddp_1/run.json", "p/ddp_2/run.json", "p/fsdp/run.json")
    assert names(tmp_path / "p" / "ddp_*") == ["ddp_1", "ddp_2"]
    with pytest.raises(InputError, match="matches nothing"):
        names(tmp_path / "p" / "zero*")


def test_natural_sorts_words_and_numbers() -> None:
    assert sorted(["a10", "a2", "b", "10", "9"], key=natural) == ["9", "10", "a2", "a10", "b"]


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
    assert "fast is fastest with 160.0 samples/s, 300\u00a0% more than slow. 1 of 3 runs has no report." in page
    assert 'href="./fast/summary.html"' in page and "linear-gradient(to right, #0072B2" in page
    assert page.count("<script") == 1 and "<script>// Tables:" in page
    rows = list(csv.DictReader((profile / "reports" / "runs.csv").open()))
    assert [row["name"] for row in rows] == ["fast", "oom", "slow"] and rows[0]["compute_ms"]


def test_the_run_that_has_a_problem_leads(profile: Path) -> None:
    read = msgspec.json.decode((profile / "reports" / "runs.json").read_bytes(), type=RunsDocument)
    found = {"slow": (FindingCount(rule="TO-S001", severity="error", count=1),)}
    rows = [replace(row, findings=found.get(row.name, ()), verdict="Rank 1 is late.") for row in read.runs]
    said = runs_verdict(rows)
    assert said.level == "error"
    assert said.sentence.startswith("slow: Rank 1 is late. fast is fastest with ")
    assert [row[0].text for row in figures_table(rows, linked=False).rows] == ["slow", "fast"]


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
