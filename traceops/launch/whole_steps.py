"""Which ranks recorded a step whole, and what schedule would have let them."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.capture.manifest import RankManifest
from traceops.core.capture_failure import ShorterSchedule, shorter_schedule


def has_whole_steps(rank: RankManifest) -> bool:
    """Whether a rank's traces hold a step from its beginning to its end."""
    whole = not rank.windows or any(window.steps for window in rank.windows)
    return bool(rank.traces) and whole


def would_fit(ranks: Sequence[RankManifest]) -> ShorterSchedule | None:
    """What would have recorded steps of ranks that finished before their schedule did; None where that is not why."""
    if not ranks or any(rank.status != "finished" for rank in ranks):
        return None
    return shorter_schedule(ranks[0].schedule, min(rank.steps for rank in ranks))
