"""Every step of the whole training on all ranks, and which of them are like the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceops.across.occasions import OwnTimes, with_occasions
from traceops.across.rhythms import in_rhythm
from traceops.across.run_steps import Floats, Mask, Share, WholeRun, step_of_ranks
from traceops.across.step_times import device_ms, is_known, only_queued, single, tells_pace, took_ms
from traceops.core.step_log import RECORDED, SKIPPED
from traceops.measure.host_places import host_times
from traceops.measure.loader_work import loader_work, loads_itself
from traceops.measure.typical import FAR
from traceops.traces.observed import Observed

_NORMAL, _SPREADS = 1.4826, 5.0  # as in measure/typical.py
_FELT = 0.05  # of a step
_PART = 0.2  # of what a step takes longer: less is no reason
_LEAST_STEPS = 8
_MANY = 0.25  # of the steps: odd by what the collector and the compiler tell themselves
# Steps for which input comes late, of all steps, and what they take beyond the others, of the time: a loader whose
# workers deliver at the same time gives so many batches at once, then none, in all of the training.
_BY_TURNS, _BY_TURNS_PCT, _BY_TURNS_TIMES = 0.05, 20.0, 4
_ODD = 2  # steps that may be odd: the next shortest is none
START = 20  # steps: a run has begun by then


def whole_run(observed: Sequence[Observed], by_calls: bool = False) -> WholeRun | None:
    """Of the ranks that were observed; None where too few steps were timed to tell which is typical.

    by_calls: a step is a call of the model, as of an inference.
    """
    ranks = sorted((one for one in observed if len(one.steps)), key=lambda one: one.rank)
    if not ranks:
        return None
    first = min(one.first for one in ranks)
    last = max(one.first + len(one.steps) for one in ranks)
    if last - first > 1 << 28:
        return None
    numbers = np.arange(first, last)
    shape = (len(ranks), len(numbers))
    hosts, devices = np.full(shape, np.nan), np.full(shape, np.nan)
    garbage, compiled = np.zeros(shape), np.zeros(shape)
    recorded, singles = np.zeros(len(numbers), dtype=bool), np.zeros(shape, dtype=bool)
    skipped = 0
    places = [slice(one.first - first, one.first - first + len(one.steps)) for one in ranks]
    for row, (one, at) in enumerate(zip(ranks, places, strict=True)):
        hosts[row, at] = took_ms(one.steps, None)
        singles[row, at] = single(one.steps)
        garbage[row, at] = one.steps["gc_us"] / 1e3
        compiled[row, at] = one.steps["compile_us"] / 1e3
        recorded[at] |= (one.steps["flags"] & RECORDED) > 0
        skipped = max(skipped, int(((one.steps["flags"] & SKIPPED) > 0).sum()))
    on_device, queued, partly = True, np.zeros(shape, dtype=bool), hosts.copy()
    for row, (one, at) in enumerate(zip(ranks, places, strict=True)):
        device = device_ms(one.steps, hosts[:, at])
        on_device &= is_known(one.steps, device)
        devices[row, at] = took_ms(one.steps, device)
        partly[row, at] = np.where(np.isnan(device), hosts[row, at], device)
        queued[row, at] = only_queued(one.steps) & np.isnan(device)
    alone = ~recorded & (numbers > first)
    on_device = on_device and tells_pace(devices[:, alone], hosts[:, alone])
    took = devices if on_device else hosts
    if queued.any() and not on_device:
        took = np.where(queued, np.nan, partly)
    step = step_of_ranks(took)
    timed = ~recorded & ~np.isnan(step)
    timed[0] = False  # it holds the program's start
    if timed.sum() < _LEAST_STEPS:
        return None
    like = np.zeros(len(numbers), dtype=bool)
    like[timed] = _like_others(step[timed], (garbage.max(axis=0) + compiled.max(axis=0))[timed])

    def divided(like: Mask) -> tuple[WholeRun, OwnTimes]:
        start = _start(timed, like)
        typical = float(step[like].mean())
        own = {one.rank: _own(one, like, first) for one in ranks}
        work = {one.rank: loader_work(one, own[one.rank]) for one in ranks}

        def shares(part: Floats) -> dict[int, Share]:
            held = timed & ~start
            return {
                one.rank: _share(part[row], took[row], held, singles[row] if on_device else None)
                for row, one in enumerate(ranks)
            }

        found = WholeRun(
            ranks=tuple(one.rank for one in ranks),
            numbers=numbers,
            took_ms=took,
            timed=timed,
            like=like,
            start=tuple(int(number) for number in numbers[start]),
            typical_ms=typical,
            total_ms=float(step[timed].sum()),
            garbage=shares(garbage),
            compiled=shares(compiled),
            skipped=skipped,
            looks={one.rank: len(one.samples) for one in ranks},
            on_device=on_device,
            host={one.rank: host_times(one, own[one.rank], typical) for one in ranks},
            loaders={rank: one for rank, one in work.items() if one is not None},
            host_ms=_host_ms(hosts[:, timed]),
        )
        parts = OwnTimes(ranks, found, garbage, compiled, by_calls)
        return with_occasions(found, parts, timed & ~like & ~start), parts

    found, parts = divided(like)
    rhythm = in_rhythm(found.step_ms, timed & ~_start(timed, like), parts.functions())
    if (like & rhythm).any() and (like & ~rhythm).sum() >= _LEAST_STEPS:
        like &= ~rhythm
        found, _ = divided(like)
    late = None if any(loads_itself(one) for one in ranks) else _by_turns(found)
    return found if late is None else replace(divided(like | late)[0], in_time_ms=found.typical_ms)


def _host_ms(hosts: Floats) -> float:
    """hosts: rank by step, ms."""
    return float(np.nanmax(np.sort(hosts, axis=1)[:, min(_ODD, hosts.shape[1] - 1)]))


def _by_turns(run: WholeRun) -> Mask | None:
    """The steps for which input comes late, where they are a part of what the training always does.

    Most are looked at seldom or never: steps that nothing was seen in, and that take no longer, are such too.
    """
    by_cause = {one.cause: one for one in run.occasions}
    late, unseen = by_cause.get("input"), by_cause.get("unknown")
    often = late is not None and len(late.steps) >= _BY_TURNS * run.timed.sum()
    if late is None or not often or late.times < _BY_TURNS_TIMES or late.share_pct < _BY_TURNS_PCT:
        return None
    found = np.isin(run.numbers, late.steps)
    if unseen is not None and unseen.share_pct <= late.share_pct:
        longest = float(run.step_ms[found].max())
        found |= np.isin(run.numbers, unseen.steps) & (run.step_ms <= longest)
    return found


def _start(timed: Mask, like: Mask) -> Mask:
    """Steps from the beginning on until the first that is like the others."""
    start = np.zeros(len(timed), dtype=bool)
    for at in np.flatnonzero(timed)[:START].tolist():
        if like[at]:
            break
        start[at] = True
    return start


def _own(one: Observed, steps: Mask, first: int) -> Mask:
    return steps[one.first - first : one.first - first + len(one.steps)]


def _like_most(steps: Floats) -> Mask:
    """As `typical_steps`, but by what the shorter half spreads by: a third of odd steps would stretch the whole's."""
    middle = float(np.median(steps))
    spread = _NORMAL * float(np.median(middle - steps[steps <= middle]))
    return np.asarray(steps <= max(FAR * middle, middle + _SPREADS * spread))


def _like_others(steps: Floats, told: Floats) -> Mask:
    """Which steps are typical. told: what the collector and the compiler took in each, on the rank where it was most.

    Where these make many steps odd, more than half may be, and no step tells which are like most. Without that time
    most are alike again, and typical are those that had next to none of it.
    """
    free = np.maximum(steps - told, 0.0)
    made_odd = told > _PART * float(np.median(free))
    if float(made_odd.mean()) < _MANY:
        return _like_most(steps)
    like = _like_most(free) & ~made_odd
    return like if like.sum() >= _LEAST_STEPS else _like_most(steps)


def _share(part: Floats, took: Floats, timed: Mask, singles: Mask | None) -> Share:
    """singles: steps of which the device's own time is known; None where steps are timed by the host."""
    known = timed & ~np.isnan(took)
    whole = float(took[known].sum())
    felt = known & (part >= _FELT * took)
    shown = 1.0 if singles is None else _shown(part, took, felt, known & singles)
    return Share(100 * shown * float(part[known].sum()) / whole if whole else 0.0, int(felt.sum()))


def _shown(part: Floats, took: Floats, felt: Mask, singles: Mask) -> float:
    """How much of what a host spends is in the device's steps: nothing where so much is queued meanwhile.

    1 where too few steps tell. What comes at a step's end is in the next one.
    """
    behind = felt | np.concatenate([[False], felt[:-1]])
    at = np.flatnonzero(felt[:-1] & singles[:-1] & singles[1:])
    without = took[singles & ~behind]
    if min(len(at), len(without)) < _LEAST_STEPS:
        return 1.0
    more = float((took[at] + took[at + 1]).sum()) - 2 * len(at) * float(without.mean())
    return min(max(more / float(part[at].sum()), 0.0), 1.0)
