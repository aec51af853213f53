"""What transfer costs a step."""

from __future__ import annotations

import numpy as np

from traceops.across.cross_rank import CrossRank


def exposed_pct(run: CrossRank) -> float | None:
    """Percent of the step that is transfer which nothing hides, median over ranks; None where not known."""
    if not run.split:
        return None
    shares = exposed_shares(run)
    return float(np.median(list(shares.values()))) if shares else None


def exposed_shares(run: CrossRank) -> dict[int, float]:
    """Percent of its steps that each rank spends in transfer which nothing hides; ranks without a step are left out."""
    shares = {times.summary.rank: times.share_pct("comm_transfer") for times in run.ranks}
    return {rank: share for rank, share in shares.items() if share is not None}
