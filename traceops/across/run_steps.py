"""All steps of a run, as the ranks' step logs tell them, and those that are unlike the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traceops.measure.host_places import CodePlace, FunctionTime
from traceops.measure.loader_work import LoaderWork

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_ENOUGH = 12  # steps of all ranks, to tell ranks that meet in few of them
_START = 8  # one in so many steps is the start
_APART = 1.5  # times the quickest rank's usual step: the slowest one's
_TOGETHER = 1.2  # times the least mean step of a rank: the longest of ranks that stay together


@dataclass(frozen=True)
class Occasion:
    """Steps that are unlike the others for one reason.

    cause: as in TO-W001; "unknown" where nothing shows one. place: the function of the program that is seen most, and
    its line; placed: how much is seen in that function, of what is seen in any. times: how often such steps came,
    neighbours being one time. more_ms: what they take beyond the typical step, all together. ranks: that do it.
    """

    cause: str
    place: CodePlace | None
    steps: tuple[int, ...]
    times: int
    more_ms: float
    share_pct: float
    ranks: tuple[int, ...]
    placed: float = 1.0


@dataclass(frozen=True)
class Share:
    """A part of a rank's time, percent, and in how many steps it took a twentieth or more."""

    pct: float
    steps: int


@dataclass(frozen=True)
class WholeRun:
    """All steps of a run.

    took_ms: rank by step, NaN where a rank has none; numbers: of the steps. timed: steps that no profiler was at, from
    the second on. like: of those, the typical ones. start: steps at the beginning that took longer. garbage,
    compiled: of each rank's time after them. on_device: by the GPU's timeline. loaders: of ranks whose loaders have
    workers that were looked at. in_time_ms: where input comes late in every few steps, the mean of the others, ms; the
    typical step is then the mean of all. host_ms: by the clock of its host, the third shortest of these steps on the
    slowest rank: a host that ran ahead needs no more.
    """

    ranks: tuple[int, ...]
    numbers: NDArray[np.int64]
    took_ms: Floats
    timed: Mask
    like: Mask
    start: tuple[int, ...]
    typical_ms: float
    total_ms: float
    occasions: tuple[Occasion, ...] = ()
    garbage: Mapping[int, Share] = field(default_factory=dict)
    compiled: Mapping[int, Share] = field(default_factory=dict)
    skipped: int = 0
    looks: Mapping[int, int] = field(default_factory=dict)
    on_device: bool = False
    host: Mapping[int, Sequence[FunctionTime]] = field(default_factory=dict)
    loaders: Mapping[int, LoaderWork] = field(default_factory=dict)
    in_time_ms: float | None = None
    host_ms: float | None = None

    @property
    def by_turns(self) -> bool:
        """Whether input comes late in every few steps, so that the typical step is the mean of all."""
        return self.in_time_ms is not None

    @property
    def typical_steps(self) -> int:
        """How many steps are like the others."""
        return int(self.like.sum())

    @property
    def usual_ms(self) -> Floats:
        """What each of these took."""
        return self.step_ms[self.like]

    @property
    def mean_ms(self) -> float:
        """The mean of all timed steps but those at the start, ms, typical or not."""
        return float(self.step_ms[self.timed & ~np.isin(self.numbers, self.start)].mean())

    @property
    def step_ms(self) -> Floats:
        """What each step took, of all ranks."""
        return step_of_ranks(self.took_ms)


def step_of_ranks(took: Floats) -> Floats:
    """Of each step the median over ranks, from rank by step; NaN where no rank has it.

    Ranks that meet in few steps (post-local SGD, DiLoCo) go on by themselves in most, and those that are early wait in
    the others. Then a step takes what it takes the rank that the others wait for.
    """
    known: Mask = np.asarray(~np.isnan(took).all(axis=0))
    slowest = _apart_in_most(took)
    if slowest is not None:
        return np.where(known & np.isnan(took[slowest]), _median(took, known), took[slowest])
    return _median(took, known)


def _apart_in_most(took: Floats) -> int | None:
    """The row of the slowest rank where others take far less in most steps, and as long as it over all of them."""
    shared: Mask = np.asarray(~np.isnan(took).any(axis=0))
    shared[: len(shared) // _START + 1] = False  # ranks begin one after the other
    if len(took) < 2 or shared.sum() < _ENOUGH:
        return None
    usual, mean = np.median(took[:, shared], axis=1), took[:, shared].mean(axis=1)
    slowest = int(usual.argmax())
    apart = usual[slowest] >= _APART * usual.min() and mean.max() <= _TOGETHER * mean.min()
    return slowest if apart else None


def _median(took: Floats, known: Mask) -> Floats:
    found = np.full(took.shape[1], np.nan)
    found[known] = np.nanmedian(took[:, known], axis=0)
    return found
