"""What is true of each recorded trace, and what may and may not be said of it: written before any was made.

truths.jsonl is the table, in four samples. Some patterns demanded too much and were changed when the traces were read.
Numbers are compared with what was measured with the traces (truths.jsonl of FOLDER): a step to 3 % of the recorded one,
a step that a fix would give to 15 % of the fixed program's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import read_records


@dataclass(frozen=True, kw_only=True)
class Expected:
    """truth: by construction. right, abstains: patterns of what is printed from the first mark on; never: one that may
    match nowhere. troubles: what is planted; none in a sound program. aside: in the half that is read last."""

    name: str
    sample: int
    truth: str
    right: str
    abstains: str = r"Not judged"
    never: str
    troubles: tuple[str, ...] = ()
    aside: bool = False


EXPECTED = read_records(Path(__file__).with_name("truths.jsonl"), Expected)
