"""Out of memory on a real GPU has its cause: too large, another process, in pieces (crashes/RESULTS.md)."""

from __future__ import annotations

from benchmarks import ROOT
from benchmarks.crashes.cases import RECORDED
from benchmarks.crashes.runs import recorded_outcomes, rows

PAGE = ROOT / "benchmarks" / "crashes" / "RESULTS.md"


def test_each_is_told_as_planted_and_as_the_page_says() -> None:
    found = recorded_outcomes()
    assert [(one.planted.name, one.verdict, one.missing) for one in found] == [
        (planted.name, "right", "") for planted in RECORDED
    ]
    table = "\n".join(rows(found, most=400))
    assert table in PAGE.read_text(), "run: python -m benchmarks.crashes.runs recorded"
