"""Which steps of a run are unlike the others: long on all ranks, or made long by what one of them did besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.steps import FAR, far_beyond, typical_steps
from traceops.measure.summary import RankSummary

MORE_WORK = 1.2  # times the kernels of a typical step: other work runs
_FELT = 0.5  # of what a rank does more in a step: the others wait for that in the next one; of a long step: its cause
_ALONE = 0.3  # of the steps: so many without any communication
_FEWEST_SHARED = 2  # steps that all ranks recorded, so that the others are left out
_SHARED = 0.25  # of the median rank's steps, for the same


def unlike_steps(
    ranks: Sequence[RankSummary],
    waits: Mapping[int, Int],
    usual_ms: Sequence[float] = (),
    transfers: Mapping[int, Int] | None = None,
) -> tuple[int, ...]:
    """Numbers of the steps that are no measure of the others, in order [docs/metrics.md, the typical step].

    `waits` is what each rank waits for others in each of its steps, ns, `transfers` what it then exchanges. A step is
    unlike the others where its median over ranks takes far longer than most; where a rank's own time makes it as long,
    though the others, already in the next step, wait for that rank there; and where they do so. Where ranks communicate
    in few steps, these are part of each round, and only the ranks' own times without communication tell: those of the
    slowest rank, whom the others wait for.
    """
    steps = {number for summary in ranks for number in summary.step_numbers.tolist()}
    numbers = sorted(steps)
    at = {number: i for i, number in enumerate(numbers)}
    durations, own, waited = (np.full((len(ranks), len(numbers)), np.nan) for _ in range(3))
    in_few = _meet_in_few(ranks, at)
    for row, summary in enumerate(ranks):
        place = [at[number] for number in summary.step_numbers.tolist()]
        wait = waits[summary.rank]
        durations[row, place] = summary.ledger.duration
        own[row, place] = summary.ledger.duration - wait - (transfers or {}).get(summary.rank, 0) * in_few
        waited[row, place] = wait
    if not numbers:
        return ()
    if in_few:
        durations = own
    took = np.nanmax(durations, axis=0) if in_few else np.nanmedian(durations, axis=0)
    rare = _rare_in_run(took, usual_ms)
    unlike = ~typical_steps(took) | _with_more_work(took, _kernels(ranks, at)) | rare
    if len(numbers) > 1:
        # Each rank against itself: a slow rank is as slow in every step.
        more = np.nanmax(np.minimum(_beyond(own), _beyond(durations)), axis=0)
        alone = ~typical_steps(float(np.median(took)) + more)
        alone_in_run = rare & (more >= _FELT * (took - np.median(took)))
        more_waiting = np.nanmax(np.minimum(_beyond(waited), _beyond(durations)), axis=0)
        echo = np.concatenate(([False], (alone | alone_in_run)[:-1] & (more_waiting[1:] >= _FELT * more[:-1])))
        unlike |= alone | echo
    return tuple(number for number, odd in zip(numbers, unlike.tolist(), strict=True) if odd)


def unshared_steps(ranks: Sequence[RankSummary]) -> tuple[int, ...]:
    """Numbers of the steps that some ranks did not record, where enough are left; in them nothing can be matched."""
    recorded = [set(summary.step_numbers.tolist()) for summary in ranks]
    if len(recorded) < 2:
        return ()
    shared = set.intersection(*recorded)
    usual = float(np.median([len(own) for own in recorded]))
    if len(shared) < max(_FEWEST_SHARED, _SHARED * usual):
        return ()
    return tuple(sorted(set.union(*recorded) - shared))


def _meet_in_few(ranks: Sequence[RankSummary], at: Mapping[int, int]) -> bool:
    """Whether no rank communicates in a good part of the steps, as in post-local SGD, though they do in others."""
    meets = np.zeros(len(at), dtype=bool)
    for summary in ranks:
        step = summary.comm.step[(summary.comm.step >= 0) & (summary.comm.step < len(summary.step_numbers))]
        meets[[at[number] for number in summary.step_numbers[np.unique(step)].tolist()]] = True
    return bool(meets.any()) and float(meets.mean()) <= 1 - _ALONE


def _kernels(ranks: Sequence[RankSummary], at: Mapping[int, int]) -> NDArray[np.float64]:
    """Kernels in each step, the median over ranks."""
    counts = np.full((len(ranks), len(at)), np.nan)
    for row, summary in enumerate(ranks):
        counts[row, [at[number] for number in summary.step_numbers.tolist()]] = summary.inventory.step_kernels
    middle: NDArray[np.float64] = np.nanmedian(counts, axis=0)
    return middle


def _with_more_work(took: NDArray[np.float64], kernels: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Steps that are far longer than most, and in which more runs: an evaluation in every second or third one.

    There are too many of them for the spread of all steps to show. So most steps must run as many kernels, and these
    are held against the spread of those.
    """
    usual = float(np.median(kernels))
    like = (kernels <= MORE_WORK * usual) & (usual <= MORE_WORK * kernels)
    if 2 * int(like.sum()) <= len(like):
        return np.zeros(len(took), dtype=bool)
    return (kernels > MORE_WORK * usual) & far_beyond(took, took[like])


def _rare_in_run(took: NDArray[np.float64], usual_ms: Sequence[float]) -> NDArray[np.bool_]:
    """Steps (ns) that take far longer than the longest typical one of the whole run.

    Recording makes steps longer, and so it makes that one: as much as the lower median of the recorded steps is beyond
    the median of those. So most recorded steps are never left out.
    """
    if not len(usual_ms):
        return np.zeros(len(took), dtype=bool)
    lower = np.sort(took)[(len(took) - 1) // 2]
    slower = max(1.0, float(lower) / (1e6 * float(np.median(usual_ms))))
    rare: NDArray[np.bool_] = took > FAR * slower * 1e6 * float(np.max(usual_ms))
    return rare


def _beyond(ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each rank (row) has in a step beyond its median step."""
    more: NDArray[np.float64] = ns - np.nanmedian(ns, axis=1, keepdims=True)
    return more
