"""The files of a comparison: JSON, SARIF, JUnit and CSV by schema or a real reader, compare.md as GitHub reads it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import junitparser
import pytest
from changed import replace
from markdown_it import MarkdownIt
from markdown_it.token import Token
from sample_comparison import HOSTILE, KERNELS, STEP, many_changes, sample_comparison, single_captures, waived

from traceops.compare.model import Comparison, ComparisonVerdict, Explanation
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
from traceops.render.comparison.markdown import (
    LIMIT,
    SUMMARY_LIMIT,
    announce,
    marker,
    render_markdown,
    workflow_commands,
)
from traceops.render.writers.markdown import code, prose, table
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


COMMENTS = (
    *(sample_comparison(verdict) for verdict in ("regression", "improvement", "no_regression", "inconclusive")),
    single_captures(),
    waived(),
    many_changes(),
)
OURS = re.compile(r"</?(details|summary|sub|span|code)>|<!-- traceops-compare[\w:.-]* -->")
TAKES_EFFECT = re.compile(r"@\w|#\d|GH-\d|://|www\.|(?<!:):tada:", re.IGNORECASE)


def parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def inlines(tokens: list[Token]) -> list[list[Token]]:
    return [token.children or [] for token in tokens if token.type == "inline"]


def plain(text: str) -> str:
    """On one line, what cannot be shown replaced."""
    return "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))


def tables(tokens: list[Token]) -> list[list[int]]:
    """The number of cells in each row of each table."""
    found: list[list[int]] = []
    for token in tokens:
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append(0)
        elif token.type in ("th_open", "td_open"):
            found[-1][-1] += 1
    return found


def shown(children: list[Token], in_code: bool) -> str:
    """What a reader sees of a paragraph or cell: inside code spans and elements, or outside them."""
    inside, said = False, ""
    for child in children:
        if child.type == "html_inline":
            inside = child.content == "<code>" if "code" in child.content else inside
        elif child.type == "code_inline":
            said += child.content if in_code else ""
        elif inside == in_code:
            said += child.content
    return said


@pytest.mark.slow
@pytest.mark.parametrize("comparison", COMMENTS)
def test_every_comment_is_markdown_in_which_only_our_own_marks_take_effect(comparison: Comparison) -> None:
    text = render_markdown(comparison)
    tokens = parsed(text)
    assert tokens[0].type == "html_block" and tokens[0].content.splitlines()[0] == marker()
    html = [t.content for t in tokens if t.type == "html_block"]
    html += [child.content for children in inlines(tokens) for child in children if child.type == "html_inline"]
    # (a summary's own words are ours: they follow its tag in the same block)
    assert all(OURS.sub("", piece).count("<") == 0 for piece in html)
    kinds = {child.type for children in inlines(tokens) for child in children}
    assert kinds <= {"text", "text_special", "softbreak", "code_inline", "html_inline", "strong_open", "strong_close"}
    assert not {"heading_open", "fence", "code_block", "blockquote_open", "ordered_list_open"} & {
        t.type for t in tokens
    }
    assert not [s for children in inlines(tokens) if TAKES_EFFECT.search(s := shown(children, in_code=False))]
    for rows in tables(tokens):
        assert len(set(rows)) == 1
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.slow
@pytest.mark.parametrize("comparison", COMMENTS)
def test_every_comment_fits_into_what_github_takes(comparison: Comparison) -> None:
    size = len(render_markdown(comparison).encode())
    assert size <= LIMIT < 65_536
    assert len(render_markdown(comparison, limit=LIMIT // 2).encode()) <= LIMIT // 2


@pytest.mark.slow
def test_what_does_not_fit_is_cut_by_importance_and_said() -> None:
    comparison = many_changes()
    text = render_markdown(comparison)
    rows = re.findall(r"^\| (?:new|renamed) \|.*?(\d{5})</code>", text, re.MULTILINE)
    assert rows[:3] == ["04999", "04998", "04997"]
    [left_out] = re.findall(r"^(\d+) more in compare_changes\.csv", text, re.MULTILINE)
    assert int(left_out) + len(rows) == sum(change.kind == "kernel" for change in comparison.changes)
    assert "How it was compared" in text and "Operators, changed (1)" in text


def test_the_verdict_stands_first_and_only_what_decides_is_not_folded() -> None:
    text = render_markdown(sample_comparison(hostile="plain"))
    overview, _, folded = text.partition("<details>")
    lines = overview.splitlines()
    assert lines[:2] == ["<!-- traceops-compare -->", "**❌ Regression: step time 60.11 ms → 63.24 ms (+5.2 %)**"]
    assert "95 % interval: +3.9 to +6.6 %" in overview
    assert "| step time | 60.11 ms | 63.24 ms | +5.2 % | +3.9 to +6.6 % | ❌ regression (limit 5 %) |" in lines
    assert "- **+2.10 ms:** 1 new kernel: plain" in lines
    assert overview.count("\n- **+") + overview.count("\n- **-") == 3 and len(tables(parsed(overview))) == 1
    assert len(lines) < 20
    for word in ("what is left", "kernels per step", "aten::item", "head\\_1", "9 times of 10", "OMP_NUM_THREADS"):
        assert word in folded and word not in overview


@pytest.mark.parametrize(
    ("verdict", "mark"), [("regression", "❌"), ("inconclusive", "⚠️"), ("improvement", "✅"), ("no_regression", "✅")]
)
def test_each_verdict_has_its_mark(verdict: ComparisonVerdict, mark: str) -> None:
    assert render_markdown(sample_comparison(verdict)).splitlines()[1].startswith(f"**{mark} ")


def test_what_is_open_or_waived_is_explained_at_once() -> None:
    undecided = render_markdown(sample_comparison("inconclusive", "plain")).partition("<details>")[0]
    assert "- **step time** is inconclusive: 4 steps are too few" in undecided
    accepted = render_markdown(waived()).partition("<details>")[0]
    assert "waived until 2027-01-31" in accepted and "needed for the new loss" in accepted
    forced = replace(single_captures(), refusals=("world size 2 against 4",))
    assert "**Compared although they differ:** world size 2 against 4" in render_markdown(forced)


def test_several_comparisons_have_a_comment_each() -> None:
    assert marker() == "<!-- traceops-compare -->"
    assert marker("h200 ddp") == "<!-- traceops-compare:h200-ddp -->"
    assert marker("a--> <b>") == "<!-- traceops-compare:a-b -->"
    assert render_markdown(single_captures(), name="x").startswith(marker("x") + "\n")


@pytest.mark.parametrize(
    "name", ["a|b", "a`b", "``a``", "a\\|b", "|", "`", "\\", "f<T>(x*)", "a_b_c", "$x$", " a ", HOSTILE, "é → ü"]
)
def test_a_name_survives_in_a_code_span_of_a_table(name: str) -> None:
    tokens = parsed("\n".join(table(("name", "n"), [[code(name, 400), "1"]])))
    assert tables(tokens) == [[2, 2]]
    cell = inlines(tokens)[2]
    assert shown(cell, in_code=False) == ""
    assert shown(cell, in_code=True) == plain(name)


@pytest.mark.parametrize(
    "said",
    ["# h", "1. x", "2) x", "- x", "+ x", "=====", "> x", "    x", "|a|b|", "***", "![i](x)", "~~~", "&lt;", HOSTILE],
)
def test_words_are_shown_as_they_are_written(said: str) -> None:
    for text in (prose(said), f"- {prose(said)}", *table(("a",), [[prose(said)]])[-1:]):
        tokens = parsed(text if text[0] != "|" else "\n".join(table(("a",), [[prose(said)]])))
        visible = shown(inlines(tokens)[-1], in_code=False).replace("\u200b", "")
        assert visible == plain(said)
        assert {t.type for t in tokens} <= {
            "paragraph_open", "paragraph_close", "inline", "bullet_list_open", "bullet_list_close", "list_item_open",
            "list_item_close", "table_open", "table_close", "thead_open", "thead_close", "tbody_open", "tbody_close",
            "tr_open", "tr_close", "th_open", "th_close", "td_open", "td_close",
        }  # fmt: skip


def test_a_gated_metric_that_nobody_knows_takes_no_row() -> None:
    nowhere = replace(STEP, metric="peak_memory", label="peak memory", base=None, head=None)
    text = render_markdown(single_captures(metrics=(STEP, nowhere)))
    assert "| peak memory |" not in text and "Not known on either side: peak memory" in text


def test_many_reasons_show_three() -> None:
    reasons = tuple(Explanation("other", f"reason {n}", 9.0 - n) for n in range(9))
    overview, _, folded = render_markdown(single_captures(explanations=reasons)).partition("<details>")
    assert "reason 2" in overview and "reason 3" not in overview and "reason 8" in folded


def test_tags_are_written_as_entities() -> None:
    assert prose("<b> & @all #1") == "&lt;b&gt; &amp; @&#8203;all #&#8203;1"
    assert code("f<T>(x)") == "`f<T>(x)`" and code("a|<b>") == "<code>a&#124;&#60;b&#62;</code>"


def read_back(line: str) -> tuple[str, str, str]:
    """Kind, title and message, unescaped as actions/runner does; the line must be one command."""
    match = re.fullmatch(r"::(error|warning|notice) title=([^:,\r\n]*)::([^\r\n]*)", line)
    assert match is not None, line
    kind, title, message = match.groups()
    for escaped, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        title = title.replace(escaped, char)
        if char not in ":,":
            message = message.replace(escaped, char)
    return kind, title, message


def said(comparison: Comparison) -> list[tuple[str, str, str]]:
    return [read_back(line) for line in workflow_commands(comparison)]


def test_a_regression_is_an_error_and_the_verdict_a_notice() -> None:
    notice, error = said(sample_comparison(hostile="100% :: a, b"))
    assert notice == ("notice", "traceops compare", "Step time regressed by 5.2 %. 100% :: a, b")
    assert error[:2] == ("error", "step time regressed")
    assert error[2].startswith("60.11 ms → 63.24 ms, +5.2 % (+3.9 to +6.6), limit 5 %. it grew")


def test_titles_with_colons_and_commas_stay_titles() -> None:
    named = replace(STEP, label="idle: input, 100 %")
    assert said(single_captures(metrics=(named,)))[1][1] == "idle: input, 100 % regressed"


@pytest.mark.parametrize(
    ("comparison", "kinds"),
    [
        (sample_comparison("inconclusive"), ["notice", "warning"]),
        (sample_comparison("no_regression"), ["notice"]),
        (waived(), ["notice"]),
        (single_captures(metrics=(STEP,) * 50), ["notice", *["error"] * 9]),
        (many_changes(10), ["notice", "error"]),
    ],
)
def test_each_outcome_has_its_kind(comparison: Comparison, kinds: list[str]) -> None:
    assert [kind for kind, _, _ in said(comparison)] == kinds


def test_nothing_happens_outside_github(tmp_path: Path) -> None:
    stdout, summary = io.StringIO(), tmp_path / "summary.md"
    for environ in ({}, {"GITHUB_ACTIONS": "false"}):
        announce(sample_comparison(), {**environ, "GITHUB_STEP_SUMMARY": str(summary)}, stdout)
    assert stdout.getvalue() == "" and not summary.exists()


def test_the_summary_is_appended_to_what_is_there(tmp_path: Path) -> None:
    stdout, summary = io.StringIO(), tmp_path / "summary.md"
    summary.write_text("before\n")
    announce(single_captures(), {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}, stdout, name="x")
    assert summary.read_text(encoding="utf-8") == f"before\n{render_markdown(single_captures(), name='x')}\n"
    assert [read_back(line)[0] for line in stdout.getvalue().splitlines()] == ["notice"]


def test_a_summary_that_github_would_refuse_is_not_written_and_said(tmp_path: Path) -> None:
    full = tmp_path / "summary.md"
    full.write_text("x" * (SUMMARY_LIMIT - 100))
    for path in (full, tmp_path / "missing" / "summary.md"):
        stdout = io.StringIO()
        announce(single_captures(), {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(path)}, stdout)
        kind, title, message = read_back(stdout.getvalue().splitlines()[-1])
        assert (kind, title) == ("warning", "No job summary") and str(path) in message
    assert full.stat().st_size == SUMMARY_LIMIT - 100
