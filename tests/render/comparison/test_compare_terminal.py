"""A comparison on the terminal: the verdict first, and nothing from a trace steers the terminal or a CI runner."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from changed import replace
from sample_comparison import many_changes, sample_comparison, single_captures, waived

from traceops.compare.model import Change, Comparison
from traceops.render.comparison.terminal import print_comparison


def printed(comparison: Comparison, written: Path | None = None) -> str:
    file = io.StringIO()
    print_comparison(comparison, file, written)
    return file.getvalue()


@pytest.mark.parametrize(
    ("comparison", "mark"),
    [
        (sample_comparison("regression"), "✖"),
        (sample_comparison("inconclusive"), "▲"),
        (sample_comparison("improvement"), "✔"),
        (single_captures(), "✔"),
        (many_changes(), "✖"),
    ],
)
def test_the_verdict_is_the_first_line_and_lines_are_short(comparison: Comparison, mark: str) -> None:
    lines = printed(comparison, Path("reports/x/compare.html")).splitlines()
    assert lines[0].startswith(f"{mark} ") and lines[-1] == "Report: reports/x/compare.html"
    assert max(map(len, lines)) <= 110 and len(lines) < 160


def test_metrics_reasons_and_changes_are_in_order() -> None:
    text = printed(sample_comparison(hostile="plain"))
    order = [
        "+5.2 % (+3.9 to +6.6)", "✖ regression, limit 5 %", "compute", "9 times of 10", "Why, in ms a step:",
        " 1. +2.10 ms: 1 new kernel: plain", "Kernels, changed: 2", "0 → 2", "Operators, changed: 1", "Environment",
        "not set", "New findings:", "TO-I003", "Findings that are gone:", "TO-O001", "Outlier step", "Warning: plain",
        "Note: plain",
    ]  # fmt: skip
    at = [text.index(piece) for piece in order]
    assert at == sorted(at)


def test_many_changes_are_counted() -> None:
    text = printed(many_changes(40))
    assert "Kernels, changed: 42" in text and "… 36 more in the report" in text


def test_what_is_waived_or_forced_is_said() -> None:
    assert "▲ waived until 2027-01-31" in printed(waived())
    forced = replace(single_captures(), refusals=("world size 2 against 4",))
    assert "▲ Compared although they differ: world size 2 against 4" in printed(forced)


@pytest.mark.slow
def test_nothing_steers_the_terminal_or_the_runner() -> None:
    for width in range(40, 120):  # wherever the line breaks
        change = Change("operator", "new", "x" * width + "::error::bad", "", 1.0, 2.0, 1.0, 2.0, "##[add-mask]y")
        sample = sample_comparison()
        text = printed(replace(sample, sentence="x" * width + "::warning::bad", changes=(change, *sample.changes)))
        assert all(char.isprintable() or char == "\n" for char in text)
        assert "##[" not in text
        assert not [line for line in text.splitlines() if line.lstrip().startswith(("::error", "::warning"))]
