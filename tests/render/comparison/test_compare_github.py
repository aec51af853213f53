"""What a comparison tells GitHub Actions: workflow commands, read back as the runner reads them, and the summary."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from changed import replace
from sample_comparison import STEP, many_changes, sample_comparison, single_captures, waived

from traceops.compare.model import Comparison
from traceops.render.comparison.markdown import SUMMARY_LIMIT, announce, step_summary, workflow_commands


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
    assert summary.read_text(encoding="utf-8") == f"before\n{step_summary(single_captures(), name='x')}\n"
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
