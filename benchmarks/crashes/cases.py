"""The crashes that runs.py plants, with what is true of each; written before the first look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.records import read_records

MISMATCH, HOST, DIED = "TO-H002", "TO-H001", "TO-H004"


@dataclass(frozen=True)
class Planted:
    """One crash of train.py.

    kinds: what the conclusion may call it (kinds of crashes, or rules of hangs). fix: a word without which the advice
    is none. line: its own line can be told. ranks: who may be named, the planted one unless said. needs: what machine.
    at: file and line as the script was when it ran, where that is not the line marked now.
    small_shm: /dev/shm of 8 MB. alone: no other job at the same time. options: of `traceops run`.
    """

    name: str
    kinds: tuple[str, ...]
    fix: str = ""
    line: bool = True
    ranks: tuple[tuple[int, ...], ...] = ((1,),)
    needs: Literal["any", "cpu", "gpu"] = "any"
    says: str = ""
    small_shm: bool = False
    alone: bool = False
    options: tuple[str, ...] = ()
    at: str = ""


# Every second one is set aside: no rule was written with it in sight before it was scored once.
PLANTED = read_records(Path(__file__).with_name("planted.jsonl"), Planted)
ASIDE = frozenset(planted.name for planted in PLANTED[1::2])
# Planted on 2 H200 by benchmarks/verdicts/faults.py, in archives of tests/data/faults: read again, and not planted by
# runs.py. Rules had seen other messages of the kind before; nothing was set aside.
RECORDED = read_records(Path(__file__).with_name("recorded.jsonl"), Planted)
