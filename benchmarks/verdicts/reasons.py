"""Why some sentences of sentences.md have no example of a real run: what they rest on, and what would give one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import read_records
from benchmarks.verdicts.kinds import Kind


@dataclass(frozen=True)
class Missing:
    """A kind of sentence without an example. reason: its source, and what it takes to make one."""

    of: str
    reason: str
    variant: str = ""


_MISSING = read_records(Path(__file__).with_name("reasons.jsonl"), Missing)
REASONS = {Kind(one.of, one.variant): one.reason for one in _MISSING}
