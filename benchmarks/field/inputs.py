"""The public inputs: where each is from, what is true of it, and what may be said of it. inputs.jsonl is the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.records import read_records


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file, or several of one job, that somebody published.

    origin: `owner/repo@commit` with `paths` in it; or `owner/repo#number`, an issue whose text was saved as `paths`.
    sha256: of the file, of several files one after the other by name.
    truth: written down before traceops ran on it. right, abstains: patterns of the verdict (of the fabric: of
    everything printed), spaces made one. never: a pattern that may match nowhere.
    held: set aside while the other half was judged and fixed. wave: 1 is the first search, 2 to 5 are later ones, 6 to
    24 samples drawn by rules (samples.md). root: a pattern of what the first sentence should name, if it is judged.
    """

    name: str
    kind: str
    command: Literal["analyze", "diagnose", "doctor", "memory"]
    origin: str
    paths: tuple[str, ...]
    sha256: str
    truth: str
    right: str = ""
    abstains: str = ""
    never: str = ""
    held: bool = False
    wave: int = 1
    root: str = ""


INPUTS = read_records(Path(__file__).with_name("inputs.jsonl"), Input)
