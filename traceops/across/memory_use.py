"""What the ranks of a run held of their GPUs' memory: peaks, growth from step to step, what is reserved and unused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from traceops.measure.summary import RankSummary
from traceops.traces.memory_snapshot import Held
from traceops.traces.observed import Observed
from traceops.traces.run_manifest import ManifestRank

STEP, HELD, RESERVED, PIECES, MOST_HELD, MOST_RESERVED = range(6)  # columns of Observed.memory
_LEAST_LOOKS = 8
_LEAST_STEPS = 16
_EVEN = 0.35  # of the mean: what each quarter of the run adds at least, where something grows steadily


class Growth(Struct, frozen=True):
    """Bytes at the ends of steps that grow all through the run: by so many a step, from one to another.

    first, last: the least of the first and of the last quarter, at the end of first_step and last_step.
    """

    per_step: float
    first_step: int
    last_step: int
    first: int
    last: int


class MemoryUse(Struct, frozen=True):
    """Of one rank, bytes; None where nobody told.

    capacity: of its GPU. peak, reserved: most that tensors, and that the allocator, held. held: at the end of a step,
    by what it was (see ManifestRank). looks: rows of Observed.memory. pieces: the median share of what is reserved
    that lies free between blocks in use, at the ends of steps. retries, mallocs: requests that fitted only after the
    cache was emptied, and cudaMalloc calls a step, in the later part of the run. allocating_ms: a recorded step's
    calls to the driver for memory; calls: their number. stays: what stays by the line
    that made it, of a memory snapshot.
    """

    rank: int
    capacity: int | None = None
    peak: int | None = None
    reserved: int | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    looks: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 6), np.int64))
    growth: Growth | None = None
    pieces: float | None = None
    retries: int | None = None
    mallocs: float | None = None
    allocating_ms: float = 0.0
    calls: float = 0.0
    stays: tuple[Held, ...] = ()

    @property
    def unused(self) -> float | None:
        """The share of what is reserved that tensors never held at once; None where that is not known."""
        if self.peak is None or not self.reserved:
            return None
        return max(self.reserved - self.peak, 0) / self.reserved


def memory_use(
    told: Sequence[ManifestRank], observed: Sequence[Observed], ranks: Sequence[RankSummary]
) -> tuple[MemoryUse, ...]:
    """Of the ranks whose manifest, observer or trace tells something, in order."""
    of_rank = {own.rank: own for own in told}
    seen = {one.rank: one for one in observed}
    traced = {summary.rank: summary for summary in ranks}
    found = (
        _of_rank(rank, of_rank.get(rank), seen.get(rank), traced.get(rank))
        for rank in sorted({*of_rank, *seen, *traced})
    )
    return tuple(use for use in found if use.peak or len(use.looks) or use.calls or use.mallocs is not None)


def _of_rank(rank: int, own: ManifestRank | None, seen: Observed | None, summary: RankSummary | None) -> MemoryUse:
    own = own or ManifestRank(rank)
    looks = np.zeros((0, 6), np.int64) if seen is None else seen.memory
    calls, took = _allocating(summary)
    # The program may have set torch's own record back.
    peaks = (own.peak_memory_bytes, _most(looks, MOST_HELD))
    reserved = (own.peak_reserved_bytes, _most(looks, MOST_RESERVED))
    return MemoryUse(
        rank=rank,
        capacity=own.device_bytes,
        peak=max((size for size in peaks if size is not None), default=None) or None,
        reserved=max((size for size in reserved if size is not None), default=None) or None,
        held=own.held,
        looks=looks,
        growth=growth(looks),
        pieces=_pieces(looks),
        retries=_later(seen, 2),
        mallocs=_a_step(seen),
        allocating_ms=took,
        calls=calls,
    )


def growth(looks: NDArray[np.int64]) -> Growth | None:
    """Whether the least that tensors hold grows in each quarter of the run, evenly; None where it does not.

    The first eighth is left out: states are made and caches filled there. The least of a quarter, because what a
    step's end holds varies with its batch.
    """
    if not len(looks):
        return None
    span = looks[-1, STEP] - looks[0, STEP]
    later = looks[looks[:, STEP] >= looks[0, STEP] + span / 8]
    if len(later) < _LEAST_LOOKS or later[-1, STEP] - later[0, STEP] < _LEAST_STEPS:
        return None
    quarters = np.array_split(later, 4)
    least = np.array([quarter[:, HELD].min() for quarter in quarters], dtype=float)
    added = np.diff(least)
    mean = float(added.mean())
    if mean <= 0 or (added < _EVEN * mean).any():
        return None
    at = [float(quarter[int(quarter[:, HELD].argmin()), STEP]) for quarter in quarters]
    apart = at[-1] - at[0]
    if apart <= 0:
        return None
    return Growth(
        per_step=float(least[-1] - least[0]) / apart,
        first_step=int(at[0]),
        last_step=int(at[-1]),
        first=int(least[0]),
        last=int(least[-1]),
    )


def _most(looks: NDArray[np.int64], column: int) -> int | None:
    return int(looks[:, column].max()) if len(looks) else None


def _pieces(looks: NDArray[np.int64]) -> float | None:
    later = looks[len(looks) // 2 :]
    later = later[later[:, RESERVED] > 0]
    return float(np.median(later[:, PIECES] / later[:, RESERVED])) if len(later) else None


def _allocating(summary: RankSummary | None) -> tuple[float, float]:
    """Calls of a typical recorded step that take memory from the driver or give it back, and their ms."""
    if summary is None or not summary.on_gpu:
        return 0.0, 0.0
    own = summary.host.allocating
    return sum(call.usual for call in own), sum(call.usual_ms for call in own)


def _later_rows(seen: Observed | None) -> NDArray[np.int64]:
    """The allocator's counters in the later two thirds of the run: it has what it needs by then."""
    if seen is None or not len(seen.allocator):
        return np.zeros((0, 4), np.int64)
    rows = seen.allocator
    return rows[rows[:, 0] >= seen.first + len(seen.steps) / 3]


def _later(seen: Observed | None, column: int) -> int | None:
    rows = _later_rows(seen)
    return int(rows[-1, column] - rows[0, column]) if len(rows) > 1 else None


def _a_step(seen: Observed | None) -> float | None:
    rows = _later_rows(seen)
    if len(rows) < 2 or rows[-1, 0] <= rows[0, 0]:
        return None
    return float(rows[-1, 1] - rows[0, 1]) / float(rows[-1, 0] - rows[0, 0])
