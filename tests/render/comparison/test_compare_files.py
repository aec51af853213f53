"""The files of a comparison that programs read: JSON, SARIF, JUnit and CSV, each by its schema or a real reader."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import junitparser
import pytest
from changed import replace
from sample_comparison import HOSTILE, KERNELS, STEP, many_changes, sample_comparison, single_captures, waived

from traceops.compare.model import Comparison
from traceops.core.errors import InputError
from traceops.render.comparison import FILES, FORMATS, write_comparison
from traceops.render.comparison.exports import (
    CHANGE_COLUMNS,
    FALLBACK_FILE,
    METRIC_COLUMNS,
    location,
    render_comparison_csv,
    render_comparison_json,
    render_junit,
    render_sarif,
)
from traceops.schemas import schema_path

SCHEMA = json.loads(schema_path("compare").read_text())
SARIF = json.loads((Path(__file__).parents[2] / "data/sarif/sarif-2.1.0-rtm.5.json").read_text())
ALL = (
    *(sample_comparison(verdict) for verdict in ("regression", "improvement", "no_regression", "inconclusive")),
    single_captures(),
    waived(),
    many_changes(40),
)


def results(comparison: Comparison, **options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(render_sarif(comparison, **options))["runs"][0]["results"]
    return found


def suite(comparison: Comparison) -> Any:
    [found] = junitparser.JUnitXml.fromstring(render_junit(comparison).encode())
    return found


@pytest.mark.parametrize("comparison", ALL)
def test_json_keeps_its_contract(comparison: Comparison) -> None:
    jsonschema.validate(json.loads(render_comparison_json(comparison)), SCHEMA)


def test_json_schema_is_valid_and_refuses_a_wrong_comparison() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    wrong = json.loads(render_comparison_json(sample_comparison()))
    del wrong["metrics"][0]["mde_pct"]
    with pytest.raises(jsonschema.ValidationError, match="mde_pct"):
        jsonschema.validate(wrong, SCHEMA)


def test_json_shares_its_checks_with_the_report() -> None:
    report = json.loads(schema_path("report").read_text())["$defs"]
    assert all(SCHEMA["$defs"][name] == report[name] for name in ("Tool", "Check", "Finding", "Evidence"))


def test_json_holds_what_python_has_types_for() -> None:
    held = json.loads(render_comparison_json(waived()))
    assert held["metrics"][0]["waiver"]["until"] == held["settings"]["until"] == "2027-01-31"
    assert held["metrics"][0]["samples"] == {"base": 60, "head": 60}
    assert [c["delta_ms"] for c in held["changes"] if c["kind"] == "blocking_call"] == [None]
    odd = replace(single_captures(), settings={"where": PurePosixPath("a/b"), "which": {"y", "x"}, "nan": float("nan")})
    assert json.loads(render_comparison_json(odd))["settings"] == {"where": "a/b", "which": ["x", "y"], "nan": None}


@pytest.mark.parametrize("comparison", ALL)
def test_sarif_is_valid_against_the_standards_schema(comparison: Comparison) -> None:
    document = json.loads(render_sarif(comparison, name="a name/b"))
    jsonschema.validate(document, SARIF, cls=jsonschema.Draft4Validator)
    [run] = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules[0] == "TO-R001" and len(rules) == len(set(rules))
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert run["automationDetails"]["id"] == "traceops-compare/a%20name%2Fb/"


def test_sarif_has_regressions_and_new_findings_where_code_scanning_can_show_them() -> None:
    found = results(sample_comparison())
    assert [(r["ruleId"], r["level"]) for r in found] == [
        ("TO-R001", "error"),
        ("TO-I003", "error"),
        ("TO-I002", "note"),
    ]
    for result in found:
        [place] = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "runners/train.py"
        assert place["physicalLocation"]["region"] == {"startLine": 1}
    assert "](" not in found[0]["message"]["text"]
    rule = json.loads(render_sarif(sample_comparison()))["runs"][0]["tool"]["driver"]["rules"][1]
    assert "What to do: Keep values on the device" in rule["help"]["text"]
    assert results(waived())[0]["ruleId"] == "TO-I003"


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["train.py"], "train.py"),
        (["-u", "src/train model.py", "x.py"], "src/train model.py"),
        (["/home/me/train.py"], FALLBACK_FILE),
        (["../train.py"], FALLBACK_FILE),
        (["-m", "my.training"], FALLBACK_FILE),
        (["a\nb.py"], FALLBACK_FILE),
        (None, FALLBACK_FILE),
    ],
)
def test_sarif_points_to_the_script_if_it_lies_in_the_repository(command: list[str] | None, file: str) -> None:
    sample = sample_comparison()
    comparison = replace(sample, head=replace(sample.head, run={"command": command}))
    assert location(comparison) == file
    uri = results(comparison)[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == file.replace(" ", "%20")


def test_sarif_tells_alerts_apart_and_knows_them_on_the_next_commit() -> None:
    def prints(comparison: Comparison) -> list[str]:
        return [r["partialFingerprints"]["primaryLocationLineHash"] for r in results(comparison)]

    first, sample = prints(sample_comparison()), sample_comparison()
    later = replace(
        sample,
        new_findings=tuple(replace(f, message="other numbers", ranks=(5,), impact_ms=9.9) for f in sample.new_findings),
    )
    assert len(set(first)) == 3 and prints(later) == first
    twice = replace(sample, new_findings=sample.new_findings[:1] * 2)
    assert len(set(prints(twice))) == 3


def test_sarif_says_what_was_said_beside_the_verdict() -> None:
    forced = replace(single_captures(), refusals=("world size",), warnings=("torch",), notes=("few steps",))
    [invocation] = json.loads(render_sarif(forced))["runs"][0]["invocations"]
    said = [(n["level"], n["message"]["text"]) for n in invocation["toolExecutionNotifications"]]
    assert said == [("warning", "world size"), ("warning", "torch"), ("note", "few steps")]


@pytest.mark.parametrize("comparison", ALL)
def test_junit_counts_what_it_holds(comparison: Comparison) -> None:
    found = suite(comparison)
    cases = list(found)
    assert found.name == "traceops compare" and found.tests == len(cases) > 0
    kinds = [[type(result) for result in case.result] for case in cases]
    assert found.failures == kinds.count([junitparser.Failure])
    assert found.skipped == kinds.count([junitparser.Skipped])
    regressed = sum(metric.outcome == "regression" for metric in comparison.gated)
    assert found.failures == regressed
    assert {p.name: p.value for p in found.properties()}["verdict"] == comparison.verdict


def test_junit_fails_skips_and_passes_for_the_reason_it_gives() -> None:
    unknown = replace(KERNELS, threshold_pct=10.0, base=None, reason="not known for base")
    failed = list(suite(single_captures(metrics=(STEP, unknown))))
    assert isinstance(failed[0].result[0], junitparser.Failure) and failed[0].name == "step time"
    assert failed[0].result[0].message == "step time +5.2 % (+3.9 to +6.6)"
    assert "60.11 ms → 63.24 ms" in failed[0].result[0].text
    assert isinstance(failed[1].result[0], junitparser.Skipped)
    assert failed[1].result[0].message == "not judged: not known for base"
    [undecided] = list(suite(single_captures(metrics=(replace(STEP, outcome="inconclusive", reason="few steps"),))))
    assert undecided.result[0].message == "inconclusive: few steps"
    accepted = next(iter(suite(waived())))
    assert accepted.is_passed and "waived until 2027-01-31" in accepted.system_out
    [nothing] = list(suite(single_captures(metrics=(KERNELS,))))
    assert "no metric is gated" in nothing.result[0].message


def test_junit_has_no_character_that_xml_lacks_and_keeps_the_rest() -> None:
    text = render_junit(sample_comparison())
    assert not {"\x00", "\x0b", "\x1b"} & set(text)
    assert "</script><img src=x onerror=alert(1)>" in (ET.fromstring(text).findtext("testsuite/system-out") or "")
    assert suite(sample_comparison()).timestamp == "2026-11-21T10:51:31"


def test_csv_has_a_row_a_metric_and_a_change_and_no_formulas() -> None:
    files = render_comparison_csv(sample_comparison(hostile="=cmd() \x00"))
    metrics = list(csv.DictReader(io.StringIO(files["compare_metrics.csv"])))
    assert tuple(metrics[0]) == METRIC_COLUMNS
    assert (
        metrics[0]["metric"] == "step_time" and metrics[0]["base_samples"] == "60" and metrics[0]["waived_until"] == ""
    )
    assert metrics[-1]["base"] == "" and metrics[-1]["reason"] == "'=cmd() \ufffd"
    changes = list(csv.DictReader(io.StringIO(files["compare_changes.csv"])))
    assert tuple(changes[0]) == CHANGE_COLUMNS
    assert [change["delta_ms"] for change in changes] == ["2.1", "0.9", "-0.2", "0.1", "", ""]
    accepted = next(csv.DictReader(io.StringIO(render_comparison_csv(waived())["compare_metrics.csv"])))
    assert (accepted["waived_until"], accepted["waiver_limit_pct"]) == ("2027-01-31", "8.0")


def test_every_format_is_written_and_an_earlier_comparisons_files_go(tmp_path: Path) -> None:
    (tmp_path / "summary.html").write_text("of the report")
    written = write_comparison(sample_comparison(), tmp_path, FORMATS, plotlyjs="cdn")
    assert {path.name for path in written} == set(FILES) and written[0].name == "compare.html"
    assert all(path.stat().st_size > 200 for path in written)
    write_comparison(sample_comparison(), tmp_path, ("md",), name="x")
    assert {path.name for path in tmp_path.iterdir()} == {"compare.md", "summary.html"}
    assert (tmp_path / "compare.md").read_text(encoding="utf-8").startswith("<!-- traceops-compare:x -->")


def test_a_lone_surrogate_stops_no_format(tmp_path: Path) -> None:
    write_comparison(sample_comparison(hostile="bad \ud800 name"), tmp_path, plotlyjs="cdn")
    json.loads((tmp_path / "compare.sarif").read_text(encoding="utf-8"))
    assert junitparser.JUnitXml.fromfile(str(tmp_path / "compare.junit.xml")).failures == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        write_comparison(single_captures(), tmp_path / "file", ("json",))


def test_hostile_names_stay_in_every_data_file() -> None:
    assert HOSTILE in json.loads(render_comparison_json(sample_comparison()))["sentence"]
    changes = csv.DictReader(io.StringIO(render_comparison_csv(sample_comparison())["compare_changes.csv"]))
    assert any("| `a` ``b`` \\| @all" in change["name"] for change in changes)
