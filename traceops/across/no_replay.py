"""Why the steps of a run are not replayed."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank
from traceops.core.words import NoReplay


def no_replay(run: CrossRank) -> NoReplay | None:
    """The reason; None where they are."""
    if run.what_if is not None:
        return None
    if len(run.ranks) < 2:
        return "other_ranks_missing" if run.world > 1 else "one_rank"
    if not run.matching.events:
        return "no_collectives"
    return "no_common_step" if run.split else "nothing_matched"
