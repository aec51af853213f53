"""Out of memory on a real GPU is told with its cause: too large, another process, in pieces (docs/crashes.md)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from crash_cases import RECORDED
from crashes import recorded_outcomes, rows

PAGE = Path(__file__).parents[1] / "docs" / "crashes.md"


def test_each_is_told_as_planted_and_as_the_page_says() -> None:
    found = recorded_outcomes()
    assert [(one.planted.name, one.verdict, one.missing) for one in found] == [
        (planted.name, "right", "") for planted in RECORDED
    ]
    table = "\n".join(rows(found, most=400))
    assert table in PAGE.read_text(), "run: python benchmarks/crashes.py recorded"
