"""report.json against its published schema, the CSV files, and files written whole or not at all."""

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest
import sample_doctor
import sample_hang
from changed import replace

from traceops.core.errors import InputError
from traceops.core.file_formats import FORMATS
from traceops.core.rule import JudgedBy
from traceops.pipeline.analyze import analyze
from traceops.render import write_diagnosis, write_report
from traceops.render.doctor.html import write_doctor
from traceops.render.runs.files import write_runs
from traceops.render.writers.csv import CSV_FILES, render_csv_files
from traceops.report.document import render_json, to_json_object
from traceops.report.rows import RankRow
from traceops.report.tables import Tables
from traceops.rules.docs import rules_markdown
from traceops.rules.registry import RULES
from traceops.rules.validity import MISSING_RANKS
from traceops.schemas import schema_path

DATA = Path(__file__).parents[1] / "data"
SCHEMA = json.loads(schema_path("report").read_text())


@pytest.fixture(scope="module")
def report():
    return analyze(DATA / "slow_loader4")


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_schema_itself_is_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["slow_loader4", "hsdp4", "hta/pair", "hta/amd", "hta/cpu_only", "hta/ns"])
def test_report_json_keeps_its_contract(name):
    jsonschema.validate(json.loads(render_json(analyze(DATA / name))), SCHEMA)


def test_schema_refuses_a_wrong_report(report):
    wrong = to_json_object(report)
    del wrong["steps"][0]["idle_gap"]
    with pytest.raises(jsonschema.ValidationError, match="idle_gap"):
        jsonschema.validate(wrong, SCHEMA)


def test_not_a_number_becomes_null(report):
    odd = replace(report, summary=replace(report.summary, overlap_pct=float("nan")))
    assert json.loads(render_json(odd))["summary"]["overlap_pct"] is None


def test_csv_files_hold_what_the_report_holds(report):
    files = render_csv_files(report)
    assert set(files) <= set(CSV_FILES)
    summary = rows(files["summary.csv"])
    assert [int(row["rank"]) for row in summary] == [0, 1, 2, 3]
    assert float(summary[1]["idle_input_ms"]) == report.ranks[1].idle_input_ms
    assert [row["rule"] for row in rows(files["findings.csv"])] == [f.rule for f in report.findings]
    assert len(rows(files["steps.csv"])) == len(report.steps)


def test_unknown_is_an_empty_cell_and_formulas_are_quoted(report):
    odd = replace(report, ranks=(RankRow(rank=0, wait_ms=None, host="=cmd()"),))
    [row] = rows(render_csv_files(odd)["summary.csv"])
    assert (row["rank"], row["wait_ms"], row["host"]) == ("0", "", "'=cmd()")


def test_no_findings_still_write_the_columns(report):
    text = render_csv_files(replace(report, findings=()))["findings.csv"]
    assert text.startswith("rule,severity,confidence")


def test_writing_replaces_whole_files_and_leaves_others_alone(report, tmp_path):
    (tmp_path / "mine.csv").write_text("keep")
    (tmp_path / "blocking_calls.csv").write_text("of an earlier report")
    (tmp_path / "report.json").write_text("old")
    bare = replace(report, tables=Tables())
    write_report(bare, tmp_path, ("csv", "json"))
    assert (tmp_path / "mine.csv").read_text() == "keep"
    assert not (tmp_path / "blocking_calls.csv").exists()
    assert json.loads((tmp_path / "report.json").read_text())["schema_version"] == 2
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", FORMATS)
def test_all_that_takes_a_format_writes_it(report, tmp_path, name):
    """`--format` takes the same names in each command, which then shows the first file that was written."""
    assert write_report(report, tmp_path / "report", (name,))
    assert write_runs((), tmp_path / "runs", "no run", (name,))
    assert write_diagnosis(sample_hang.skipped(), (), tmp_path / "hang", (name,))
    assert write_doctor(sample_doctor.healthy(), tmp_path / "doctor", (name,))


def test_failed_write_leaves_the_old_file(report, tmp_path, monkeypatch):
    (tmp_path / "report.json").write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match="disk full"):
        write_report(report, tmp_path, ("json",))
    assert (tmp_path / "report.json").read_text() == "old"
    assert not list(tmp_path.glob(".*"))


def test_no_evidence_no_finding():
    with pytest.raises(ValueError, match="needs evidence"):
        MISSING_RANKS.finding("info", "high", "something", [])


def test_rules_are_unique_and_documented():
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.advice and rule.fires for rule in RULES if rule.judged_by is not JudgedBy.NOBODY)


def test_docs_of_the_rules_are_fresh():
    committed = (DATA.parents[1] / "docs/rules.md").read_text()
    assert committed == rules_markdown(), "run: python -m traceops.rules.docs > docs/rules.md"
