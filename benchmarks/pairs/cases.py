"""Runs of several ranks (programs/): what is planted in each, and what a report must and must not say.

cases.jsonl is the table, in two samples (4 and 5), each written before anything was analysed. Half of each was set
aside: not read before the causes that the other half showed were fixed. Costs are measured by the same program without
the trouble (runs.py --alone), and stand in `costs.RANK.json` beside the program's clock (programs/costs.py).

The rules:

- The first sentence is right if it is true and names the largest trouble, by what its fix saves of the whole run. It is
  right in part if it is true and names the other one, or the right rank or event with a wrong or missing cause.
- A trouble is named if a finding on the terminal has its rank (or "all") and its cause; where a function of the script
  causes it, also that function or its line. Evaluations and saves count with their function or a line that reaches it.
- Every sentence on the terminal is read. A false one makes a fault of its own, whatever the first sentence is.
- In a healthy run the first sentence is right if it accuses no rank, input, evaluation or save. That ranks share cores,
  that steps are short beside their transfer, and what could not be judged is true on the machine of these runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.records import read_records


class Way(Enum):
    """How a run is recorded."""

    RUN = "run"  # traceops run
    SCHEDULE = "schedule"  # the script's own profiler, with a schedule
    WINDOW = "window"  # … with one window


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """options and plant: what makes it; due: what must be named."""

    due: str
    options: tuple[str, ...] = ()
    plant: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """troubles: in the order of their cost where it is certain; never: what would be false. aside: read last."""

    name: str
    sample: int
    program: str
    ranks: int
    way: Way
    options: tuple[str, ...] = ()
    steps: int = 40
    troubles: tuple[Trouble, ...] = ()
    never: str
    aside: bool = False


CASES = read_records(Path(__file__).with_name("cases.jsonl"), Case)
