"""Which step exposed transfer is a part of: the recorded one, or the one without the profiler where that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traceops.across.communication import exposed_shares
from traceops.across.cross_rank import CrossRank
from traceops.across.undisturbed import Undisturbed
from traceops.core.findings import Evidence
from traceops.core.step_words import StepWords
from traceops.core.units import ms_text, stored
from traceops.rules.plain_cure import RECORDED

_UNMATCHED = 0.2  # of the exposed communication of a light window: beyond that it does not tell transfer from waiting
_IN_TIME_PCT = 3.0  # of the step: a device that is idle for less does not wait for its host


@dataclass(frozen=True)
class Basis:
    """The step, ms, and its exposed transfer, ms, median over ranks. shares: percent of the step by rank.

    recorded_ms: the exposed transfer of the recorded steps, where the step is the undisturbed one, else None. in_time:
    whether no device waits for its host in it, though hosts may be late in the recorded steps. left_ms: what is sure
    to be left of it beyond the time that its hosts need, None where nobody timed them.
    """

    step_ms: float
    exposed_ms: float
    shares: Mapping[int, float]
    recorded_ms: float | None = None
    recorded_step_ms: float = 0.0
    in_time: bool = False
    left_ms: float | None = None

    @property
    def pct(self) -> float:
        """The transfer's part of the step."""
        return float(np.median(list(self.shares.values())))

    def of_step(self, words: StepWords) -> str:
        """'each 82.4 ms step'."""
        return words.each_of(f"{ms_text(self.step_ms)} ms")

    @property
    def note(self) -> str:
        """Whose step it is, as a sentence behind a space; '' of the recorded one."""
        if self.recorded_ms is None:
            return ""
        return (
            f" That is of a step without the profiler, by the light window; the traces show {self.recorded_ms:.2f} of "
            f"{self.recorded_step_ms:.2f} ms."
        )

    def evidence(self, words: StepWords) -> tuple[Evidence, ...]:
        """The same as numbers."""
        if self.recorded_ms is None:
            return ()
        recorded = Evidence(RECORDED, stored(self.recorded_ms), words.unit("ms"))
        return Evidence("step", stored(self.step_ms), "ms"), recorded


def basis_of(run: CrossRank, undisturbed: Undisturbed | None, host_ms: float | None) -> Basis | None:
    """None without a step. host_ms: what hosts were seen to need for a step at most, without the profiler."""
    shares = exposed_shares(run)
    if not shares:
        return None
    recorded = float(np.median([times.mean_ms("comm_transfer") for times in run.ranks]))
    if undisturbed is None or not _tells(undisturbed, run):
        return Basis(run.step_ms, recorded, shares)
    step = undisturbed.step_ms
    exposed = {one.rank: one.transfer_ms for one in undisturbed.ranks}
    idle = max(one.idle_ms for one in undisturbed.ranks)
    return Basis(
        step,
        float(np.median(list(exposed.values()))),
        {rank: 100 * ms / step for rank, ms in exposed.items()},
        recorded,
        run.step_ms,
        100 * idle / step < _IN_TIME_PCT,
        None if host_ms is None else max(step - host_ms, 0.0),
    )


def _tells(undisturbed: Undisturbed, run: CrossRank) -> bool:
    """Whether the light window has all ranks, and tells transfer from waiting."""
    if {one.rank for one in undisturbed.ranks} != {times.summary.rank for times in run.ranks}:
        return False
    unmatched = sum(one.unmatched_ms for one in undisturbed.ranks)
    exposed = unmatched + sum(one.transfer_ms + one.wait_ms for one in undisturbed.ranks)
    return unmatched <= _UNMATCHED * exposed
