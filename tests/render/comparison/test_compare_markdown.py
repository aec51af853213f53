"""compare.md as GitHub reads it: parsed as Markdown with tables, its text searched for what would take effect."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from changed import replace
from markdown_it import MarkdownIt
from markdown_it.token import Token
from sample_comparison import HOSTILE, STEP, many_changes, sample_comparison, single_captures, waived

from traceops.compare.model import Comparison, ComparisonVerdict, Explanation
from traceops.render.comparison.markdown import (
    LIMIT,
    SUMMARY_LIMIT,
    announce,
    marker,
    render_markdown,
    workflow_commands,
)
from traceops.render.writers.markdown import code, prose, table

ALL = (
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
@pytest.mark.parametrize("comparison", ALL)
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
@pytest.mark.parametrize("comparison", ALL)
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
    for word in ("what is left", "kernels a step", "aten::item", "head\\_1", "9 times of 10", "OMP_NUM_THREADS"):
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
