"""All ranks together: the ledger with communication split, who waits, who is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceops.align.match import Matching, match_collectives, waits_by_rank
from traceops.analyses.ledger import BUCKETS
from traceops.intervals import intersect, subtract, union
from traceops.model import Int
from traceops.summary import RankSummary


@dataclass(frozen=True)
class RankTimes:
    """One rank's ledger, ns per bucket and step; waiting and transfer of all its collectives in the steps.

    `caused_wait_ns` is what the others waited in collectives this rank entered last.
    """

    summary: RankSummary
    duration: Int
    buckets: dict[str, Int]
    wait_ns: int | None
    transfer_ns: int | None
    caused_wait_ns: int | None


@dataclass(frozen=True)
class CrossRank:
    """The reduce's result, ranks in order; `split` says whether waiting could be told from transfer."""

    ranks: tuple[RankTimes, ...]
    matching: Matching
    split: bool


def measure_across(ranks: Sequence[RankSummary], world: int) -> CrossRank:
    """Match collectives and split each rank's communication [docs/metrics.md, wait and transfer]."""
    matching = match_collectives(ranks, tuple(range(world)))
    waits = waits_by_rank(matching, ranks)
    split = bool(matching.collectives)
    caused = dict.fromkeys(waits, 0)
    for collective in matching.collectives:
        if collective.last_rank is not None:
            caused[collective.last_rank] += sum(collective.wait_ns)
    times = []
    for summary in ranks:
        start, turn, end = waits[summary.rank]
        edges_start, edges_end = summary.step_edges[:-1], summary.step_edges[1:]
        exposed = summary.ledger.exposed
        transfer = union(turn, end)
        transferring = intersect(exposed, transfer)
        waiting = subtract(intersect(exposed, union(start, turn)), transfer)
        buckets = {name: ns for name, ns in summary.ledger.buckets.items() if name != "comm"}
        buckets["comm_transfer"] = transferring.within(edges_start, edges_end)
        buckets["comm_wait"] = waiting.within(edges_start, edges_end)
        buckets["comm_unmatched"] = (
            summary.ledger.buckets["comm"] - buckets["comm_transfer"] - buckets["comm_wait"]
        )
        inside = (start >= summary.step_edges[0]) & (start < summary.step_edges[-1])
        times.append(
            RankTimes(
                summary=summary,
                duration=summary.ledger.duration,
                buckets={name: buckets[name] for name in BUCKETS},
                wait_ns=int((turn - start)[inside].sum()) if split else None,
                transfer_ns=int((end - turn)[inside].sum()) if split else None,
                caused_wait_ns=caused[summary.rank] if split else None,
            )
        )
    return CrossRank(tuple(times), matching, split)


def mean_ms(ns: Int) -> float:
    """Mean over a rank's steps, ms."""
    return float(np.mean(ns)) / 1e6 if len(ns) else 0.0
