"""How often the workers of each rank's data loader give a batch, which no step is shorter than."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from traceops.across.run_steps import WholeRun
from traceops.measure.loader_work import LoaderWork
from traceops.measure.summary import RankSummary

_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter")
# Times as busy as the workers are together: what differs less is chance, of some dozens of looks.
_APART = 1.5


def has_workers(summary: RankSummary) -> bool:
    """Whether a DataLoader that the rank waits for has worker processes."""
    return bool(_WORKERS.search(" ".join(summary.host.input_names)))


def loader_paces(ranks: Sequence[RankSummary], whole: WholeRun | None) -> dict[int, float]:
    """By rank: what the workers of its loader take for the batches of a step, ms, as far as they were looked at.

    They are at work for so much of a step, and while a late rank is waited for they have loaded ahead and rest.
    """
    if whole is None:
        return {}
    return {
        summary.rank: _busy_pct(whole.loaders[summary.rank]) / 100 * whole.typical_ms
        for summary in ranks
        if summary.rank in whole.loaders and has_workers(summary)
    }


def slowest_other(paces: Mapping[int, float], ranks: Sequence[int]) -> tuple[int, float] | None:
    """The rank beside these whose loader takes longest for the batches of a step, and how long, ms; None without one.

    With the input of these ranks alone in time, no step is shorter.
    """
    others = {rank: ms for rank, ms in paces.items() if rank not in ranks}
    slowest = max(others, key=lambda rank: (others[rank], -rank), default=None)
    return None if slowest is None else (slowest, others[slowest])


def _busy_pct(work: LoaderWork) -> float:
    """Of the workers' time. Batches come in order, so one that is far busier than all together holds them up."""
    return work.busiest_pct if work.busiest_pct > _APART * work.busy_pct else work.busy_pct


def without_pace(ranks: Sequence[RankSummary], paces: Mapping[int, float]) -> tuple[int, ...]:
    """Ranks whose loader has workers of which nobody knows how fast they are."""
    return tuple(summary.rank for summary in ranks if has_workers(summary) and summary.rank not in paces)
