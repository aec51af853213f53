"""What a late rank's own process does in most steps beside the program: compile again, or collect garbage."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from traceops.across.run_steps import WholeRun
from traceops.core.findings import Evidence
from traceops.core.units import ms_text, stored

_DOES = {
    "recompilation": ("torch.compile compiles again", "compiling again"),
    "garbage_collection": ("Python collects garbage", "collecting garbage"),
}
_IN_MOST = 0.5  # of the steps: else it is what makes single steps stand out


@dataclass(frozen=True)
class OwnTime:
    """ms a step, beyond the median peer. cause: as in TO-W001. doing: 'torch.compile compiles again'."""

    rank: int
    cause: str
    ms: float
    doing: str
    sentence: str

    @property
    def evidence(self) -> Evidence:
        return Evidence(_DOES[self.cause][1], stored(self.ms), "ms/step", rank=self.rank)


def in_each_step(run: WholeRun, ranks: Sequence[int]) -> OwnTime | None:
    """What takes most of the first of `ranks` in most steps, beyond its peers; None where nothing does."""
    rank, steps = ranks[0], int(run.timed.sum()) - len(run.start)
    found = []
    for cause, shares in (("recompilation", run.compiled), ("garbage_collection", run.garbage)):
        own, peers = shares.get(rank), [one.pct for other, one in shares.items() if other != rank]
        if own is None or not peers or own.steps < _IN_MOST * steps:
            continue
        ms = max(own.pct - statistics.median(peers), 0.0) / 100 * run.typical_ms
        doing, told = _DOES[cause]
        sentence = f"Rank {rank} spends {ms_text(ms)} ms a step {told}, beyond its peers"
        found.append(OwnTime(rank, cause, ms, doing, sentence))
    return max(found, key=lambda one: one.ms, default=None)
