"""Whether another optimizer, which is within some steps only, is why recorded steps take longer, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceops.across.core_waits import beyond_peers, core_waits
from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.core.units import percent_text
from traceops.rules.inputs import Inputs
from traceops.traces.step_kinds import StepKinds, step_kinds

_NOT_ITS = ("comm_wait", "idle_input")  # what no optimizer's work grows
_MOST = 0.5  # of what these steps take longer


@dataclass(frozen=True)
class SecondKind:
    """kinds: of the run's steps. left: the part of what these take longer that the other optimizer does not explain."""

    kinds: StepKinds
    left: float

    @property
    def explains(self) -> bool:
        """Whether it is the other optimizer for the most part."""
        return self.left <= _MOST

    @property
    def said(self) -> str:
        """Two kinds of steps, and what else makes these long."""
        kinds = self.kinds
        told = f" Steps are of two kinds: {kinds.another} runs in {kinds.count} of {kinds.steps} only."
        if not self.explains:
            told += (
                f" That is not all: {percent_text(100 * self.left)} of what these take longer is waiting for a rank or "
                "for input."
            )
        return told


def second_kind(inputs: Inputs, recorded: int) -> SecondKind | None:
    """None where the unlike steps, of so many recorded ones, do not come as another optimizer does."""
    kinds, run = step_kinds(inputs.manifest), inputs.run
    if kinds is None or not kinds.may_be(run.unlike, recorded):
        return None
    longer = float(np.mean([_grows(times, run.unlike, times.duration) for times in run.ranks]))
    own = min(_own(times, run.unlike) for times in run.ranks)
    left = longer - own - _held_ns(inputs)
    return SecondKind(kinds, min(max(left / longer, 0.0), 1.0) if longer > 0 else 0.0)


def _own(times: RankTimes, steps: tuple[int, ...]) -> float:
    """What the rank itself does more in these steps, ns."""
    others = sum(_grows(times, steps, times.buckets[name]) for name in _NOT_ITS)
    return _grows(times, steps, times.duration) - others


def _grows(times: RankTimes, steps: tuple[int, ...], took: np.typing.NDArray[np.int64]) -> float:
    odd = np.isin(times.summary.step_numbers, steps)
    return float((took[odd] - float(took[times.typical].mean())).sum()) if times.typical.any() else 0.0


def _held_ns(inputs: Inputs) -> float:
    """What a rank without a GPU waits for a core in these steps beyond its peers: the machine's doing."""
    run: CrossRank = inputs.run
    if any(times.summary.on_gpu for times in run.ranks):
        return 0.0
    waits, ranks = core_waits(inputs.observed), [times.summary.rank for times in run.ranks]
    more = [beyond_peers(waits, rank, [o for o in ranks if o != rank], run.unlike) for rank in ranks]
    return float(max(own.sum() for own in more))
