"""A document says the same in every format, nothing in it is markup, and every format writes each product."""

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
import sample_doctor
import sample_hang
from changed import replace
from html_page import TABLES
from sample_report import sample_report

from traceops.core.errors import InputError
from traceops.core.facts import Fact, fact_of, label_of
from traceops.core.files import FORMATS
from traceops.core.findings import Check, Evidence, Finding
from traceops.core.rule import JudgedBy
from traceops.pipeline.analyze import analyze
from traceops.render.cells import Cell, Column, Table, build_table
from traceops.render.doctor.html import write_doctor
from traceops.render.document import (
    Chart,
    Checks,
    Code,
    Document,
    Facts,
    FindingBlock,
    Heading,
    Headline,
    Section,
    Span,
    TableBlock,
    Term,
    Terms,
    bold,
    code,
    fold,
    items,
    soft,
    spans,
    text,
)
from traceops.render.files import write_diagnosis, write_report
from traceops.render.finding_blocks import evidence_table, not_used
from traceops.render.runs.files import write_runs
from traceops.render.writers.csv import CSV_FILES, render_csv_files
from traceops.render.writers.html import write_html
from traceops.render.writers.markdown import FoldedPart, folded, size
from traceops.render.writers.terminal import write_terminal
from traceops.report.document import report_of, to_json_object
from traceops.report.rows import RankRow
from traceops.report.tables import Tables
from traceops.rules.docs import rules_markdown
from traceops.rules.registry import BY_ID, RULES
from traceops.rules.validity import MISSING_RANKS
from traceops.schemas import schema_path
from traceops.words.catalogue import texts

HOSTILE = "<script>alert(1)</script> @someone `x` |"
TABLE = build_table("Times", (Column("name", "Name", number=False), Column("ms", "ms")), [{"name": HOSTILE, "ms": 1.5}])
FINDING = Finding(
    "TO-X001",
    "error",
    "high",
    "Too slow",
    HOSTILE,
    (Evidence(Fact.OTHER, 3.5, "ms", subject="time"),),
    (1,),
    advice="Wait.",
)
BLOCKS = (
    text("One ", bold("two"), " ", code(HOSTILE), Span(" three", "", "#part")),
    soft("soft words"),
    Heading("Inside"),
    items(["first", text("second ", bold("b"))]),
    items(["1st"], ordered=True),
    not_used([("file.json", "is empty")]),
    TableBlock(TABLE),
    Facts((("Ranks", Cell("4")),)),
    Terms((Term("Dot", "One capture", "dot", "#123456"),)),
    Code(("export A=1",), "Lines"),
    Checks("What each rule says", (Check("TO-X001", "fired", HOSTILE),), {"TO-X001": "Too slow"}),
    FindingBlock(FINDING, TABLE),
    fold("More", text("folded words"), open=True),
)


def document(*blocks, charts=()):
    return Document(
        "Title",
        spans("name ", Span(HOSTILE, "name")),
        "traceops test",
        Headline("error", HOSTILE),
        (),
        (Section("part", "A part", (*blocks, *charts), "Part"),),
        "the end",
    )


class Seen(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_says_every_block_and_escapes_all_of_it():
    seen = Seen(write_html(document(*BLOCKS)).decode())
    said = " ".join(" ".join(seen.words).split())
    for words in ("One two", "soft words", "Inside", "first", "second b", "1st", "is empty", "Times", "Ranks", "Dot",
                  "export A=1", "Too slow", "folded words", "the end", HOSTILE):  # fmt: skip
        assert words in said.replace("  ", " "), words
    assert [tag for tag, _ in seen.tags].count("script") == 1 and TABLES in seen.words
    assert ("a", {"href": "#part"}) in seen.tags
    assert [attrs["id"] for tag, attrs in seen.tags if tag == "section"] == ["part"]


def test_only_a_page_with_a_chart_has_scripts():
    chart = Chart("ledger", "Bars", {"data": [], "layout": {}})
    plain, charted = document(*BLOCKS), document(fold("Behind", chart), charts=(chart,))
    assert plain.charts == {} and list(charted.charts) == ["ledger"]
    tags = [tag for tag, _ in Seen(write_html(charted, plotlyjs="cdn").decode()).tags]
    assert tags.count("script") == 3
    with pytest.raises(ValueError, match="plotlyjs"):
        write_html(charted, plotlyjs="else")


def test_the_terminal_has_the_same_words():
    out = io.StringIO()
    write_terminal(BLOCKS, out)
    said = out.getvalue()
    for words in ("One two", "soft words", "Inside", "- first", "- second b", "1. 1st", "Ranks: 4", "export A=1",
                  "✖ TO-X001 Too slow.", "→ Wait.", "folded words"):  # fmt: skip
        assert words in said, words


def test_a_log_gets_lines_broken_at_words_and_what_is_copied_whole():
    out = io.StringIO()
    blocks = (
        text("word " * 30, look="level-error", indent=(2, 6)),
        text(""),
        Code(("export PATH=" + "x" * 90 + " a–b",), look="bold"),
        TableBlock(Table("", (Column("a", "a–b", css="nowrap"),), ((Cell("1–2", css="level-error"),),))),
    )
    write_terminal(blocks, out, widths=(40, 50))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("  word") and lines[1].startswith("      word")
    assert max(map(len, lines[:4])) <= 50 and lines[4] == ""
    assert lines[5:] == ["export PATH=" + "x" * 90 + " a–b", "a-b", "1-2"]


def test_markdown_keeps_to_its_bytes():
    rows = tuple(f"- row {number} with <b>words</b>" for number in range(40))
    part = FoldedPart("A part", (), rows, len(rows), more="report.json")
    short = folded(part, 300)
    assert size(short) <= 300 and short[-1] == "</details>" and "more in report.json." in "\n".join(short)
    assert folded(part, 10) == []


def test_a_process_is_named_by_a_number_that_can_be_pasted():
    """The page said "28 593 mypy", and the terminal "pid 28593"."""
    evidence = [Evidence(Fact.PID, 28593, "mypy, 41 % of a core"), Evidence(Fact.KERNELS, 28593, "a step")]
    table = evidence_table(BY_ID["TO-W002"].finding("warning", "high", "x.", evidence))
    told = [cell.text for row in table.rows for cell in row if "28" in cell.text]
    assert told == ["28593 mypy, 41 % of a core", "28\u202f593 a step"]


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
    jsonschema.validate(to_json_object(analyze(DATA / name)), SCHEMA)


def test_schema_refuses_a_wrong_report(report):
    wrong = to_json_object(report)
    del wrong["steps"][0]["idle_gap"]
    with pytest.raises(jsonschema.ValidationError, match="idle_gap"):
        jsonschema.validate(wrong, SCHEMA)


def test_not_a_number_becomes_null(report):
    odd = replace(report, summary=replace(report.summary, overlap_pct=float("nan")))
    assert to_json_object(odd)["summary"]["overlap_pct"] is None


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


def test_every_fact_has_a_label_and_every_label_a_fact():
    assert set(texts("facts")) == {fact.value for fact in Fact}
    assert set(texts("facts", "earlier")) <= set(texts("facts"))


@pytest.mark.parametrize("fact", [fact for fact in Fact if label_of(fact) and label_of(fact, "X") != "X"])
def test_a_label_is_understood_where_the_fact_is_not_said(fact: Fact):
    subject = "a kernel" if "{subject}" in texts("facts")[fact.value] else ""
    found, about = fact_of(label_of(fact, subject))
    assert label_of(found, about) == label_of(fact, subject)
    assert about == subject


def test_labels_of_earlier_reports_become_facts():
    report = to_json_object(sample_report())
    finding = {"rule": "TO-S001", "severity": "error", "confidence": "high", "title": "t", "message": "m"}
    evidence = [{"metric": "waiting for it", "value": 3.5}, {"metric": "grew: gemm", "value": 1.0}]
    report["findings"] = [{**finding, "evidence": [*evidence, {"metric": "of another version", "value": 1}]}]
    read = report_of(report, "report.json").findings[0]
    assert read.number(Fact.WAITING_FOR_IT) == 3.5
    assert read.evidence[1] == Evidence(Fact.GREW, 1.0, subject="gemm")
    assert read.evidence[2].metric == "of another version"
