"""A change of a run: what it makes of its traces, and what has to come out.

The same; the same of other ranks (permuted); less and nothing new; of the peers only; or what a person has to read.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from benchmarks.metamorphic.traces import Event, Trace, Traces

Expected = Literal["same", "permuted", "less", "peers", "read"]


Make = Callable[[Traces, random.Random], "Changed | None"]


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


SECOND = 1_000_000  # µs


@dataclass(frozen=True)
class Changed:
    """ranks: what each rank is called now. without: ranks of which nothing may be said. named: a file to name."""

    run: Traces
    ranks: dict[int, int] | None = None
    without: tuple[int, ...] = ()
    named: str = ""


@dataclass(frozen=True)
class Change:
    """One change. None of `make`: it does not apply to this run."""

    name: str
    expected: Expected
    make: Make


def copied(run: Traces) -> Traces:
    """Events and their arguments anew, so that they may be changed."""
    return Traces(
        [replace(t, document=copy.deepcopy(t.document), events=[_anew(e) for e in t.events]) for t in run.traces],
        dict(run.beside),
    )


def _anew(event: Event) -> Event:
    args = event.get("args")
    return {**event, "args": dict(args)} if isinstance(args, dict) else dict(event)


def each(run: Traces, change: Callable[[Trace], None]) -> Changed:
    run = copied(run)
    for trace in run.traces:
        change(trace)
    return Changed(run)


def moved(events: Iterable[Event], by: Decimal) -> None:
    for event in events:
        if isinstance(event.get("ts"), (int, float, Decimal)):
            event["ts"] = Decimal(str(event["ts"])) + by
