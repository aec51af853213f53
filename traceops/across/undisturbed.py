"""The undisturbed step: where it goes by the light window, brought to the time that a step takes without recording."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.groups import Ranks
from traceops.across.light_groups import groups_of
from traceops.across.plain_step import PlainStep, StepsBefore
from traceops.core.intervals import Intervals, merge, subtract, union
from traceops.core.rank_text import who
from traceops.measure.light import LightActivity
from traceops.measure.profiler_cost import SLOWED
from traceops.measure.summary import RankSummary
from traceops.measure.typical import usual_steps

# Light ÷ undisturbed step, or the other way round, from which the one is no measure of the other.
_FAR = {"cupti": 1.25, "torch": 1.5}


@dataclass(frozen=True)
class UndisturbedRank:
    """One rank's undisturbed step, ms by bucket; they add up to the step, unless the device is busy for longer.

    wait, transfer: exposed communication; unmatched: of which waiting cannot be told from transfer. least_wait: of
    waiting, what is left where all that the light window cost was waiting. unseen: where the light window's own steps
    are shorter, what the step takes beyond them.
    """

    rank: int
    light_ms: float
    compute_ms: float
    transfer_ms: float
    wait_ms: float
    unmatched_ms: float
    memory_ms: float
    idle_ms: float
    least_wait_ms: float
    unseen_ms: float = 0.0

    @property
    def busy_ms(self) -> float:
        """In which the device worked: no waiting, and nothing idle."""
        return self.compute_ms + self.transfer_ms + self.unmatched_ms + self.memory_ms


@dataclass(frozen=True)
class Undisturbed:
    """The undisturbed step of a run.

    step_ms: without any recording. light_ms: in the light window, the median over ranks. steps: of the light window
    that were taken. source: 'cupti' or 'torch'. behind_ms: a step behind the windows, where it is longer than before.
    before: the steps that step_ms is the mean of, None where all that were not recorded count.
    """

    step_ms: float
    light_ms: float
    source: str
    steps: int
    ranks: tuple[UndisturbedRank, ...]
    behind_ms: float | None = None
    before: StepsBefore | None = None

    @property
    def stretched(self) -> float:
        """Light ÷ undisturbed step: what even the light window cost, and what the profiler left behind."""
        return self.light_ms / self.step_ms

    @property
    def scaled(self) -> bool:
        """Whether idle time and waiting are an estimate, scaled down from a light window that cost much itself."""
        return self.stretched >= SLOWED

    def of(self, rank: int) -> UndisturbedRank | None:
        """The rank's, None where it has no light window."""
        return next((one for one in self.ranks if one.rank == rank), None)


def undisturbed(
    lights: Sequence[LightActivity],
    summaries: Sequence[RankSummary],
    plain: PlainStep | None,
    copies_ms: Mapping[int, float] | None = None,
) -> tuple[Undisturbed | None, str | None]:
    """Of the ranks' light windows, or why nothing can be said. plain: a typical step without recording.

    copies_ms: by rank, in a recorded step.
    """
    own = {light.rank: light for light in lights}
    if not own or plain is None or plain.ms <= 0:
        return None, None if not own else "no step was timed without recording"
    steps = {light.steps for light in own.values()}
    if len(steps) > 1:
        return None, "the ranks' light windows are not of the same steps"
    if len({light.source for light in own.values()}) > 1:
        torch = [rank for rank, light in sorted(own.items()) if light.source == "torch"]
        return None, f"it is CUPTI's on some ranks and torch's, which disturbs more, on {who(torch)}"
    took = np.array([light.step_ms for light in own.values()])
    like = usual_steps(np.median(took, axis=0))
    waits = _waits(own, summaries)
    ranks = [_light_ledger(light, like, waits[rank]) for rank, light in sorted(own.items())]
    light_ms = float(np.median([one.light_ms for one in ranks]))
    source = next(iter(own.values())).source
    if max(light_ms / plain.near_ms, plain.near_ms / light_ms) > _FAR.get(source, 1.0):
        return None, (
            f"a step of the light window takes {light_ms:.1f} ms, one without recording {plain.near_ms:.1f}: "
            "one is no measure of the other"
        )
    # A device that works for as long as the step was slower itself behind the windows, whatever its host did.
    by_host = all(one.idle_ms + one.wait_ms >= one.light_ms - plain.ms for one in ranks)
    if by_host and plain.far_apart:
        return None, (
            f"steps behind the recorded ones take {plain.near_ms:.1f} ms, and {plain.ms:.1f} before them: whether the "
            "profiler made them longer or the training itself is not known"
        )
    step_ms = plain.ms if by_host else plain.near_ms if plain.far_apart else plain.whole_ms
    if not plain.all_count:
        # The profiler may be in the longer ones: a light step that is shorter is one all the same.
        step_ms = min(step_ms, light_ms)
    brought = tuple(_brought_to(one, step_ms, copies_ms or {}) for one in ranks)
    behind_ms, before = (plain.behind_ms, plain.before) if by_host else (None, None)
    return Undisturbed(step_ms, light_ms, source, int(like.sum()), brought, behind_ms, before), None


def _brought_to(light: UndisturbedRank, step_ms: float, copies_ms: Mapping[int, float]) -> UndisturbedRank:
    """Recording costs hosts, and the device's work takes as long without: what is too much was idle, or waiting.

    It slows all hosts alike, and so also that by which one is later than the others: idle time and waiting shrink by
    the same factor. Which of both the undisturbed step has more of is therefore an estimate, but not their sum.
    Where the light window's steps are the shorter ones, nothing is made up: what is in the others' longer time is not
    known.
    But a copy to pageable memory lasts for as long as its host needs for the pages: 16 MiB took 10 ms in one light
    window, and 1 in other steps. What copies took longer than the recorded ones goes first.
    """
    cost = light.light_ms - step_ms
    if cost <= 0:
        return replace(light, unseen_ms=-cost)
    copied = max(min(light.memory_ms - copies_ms.get(light.rank, light.memory_ms), cost), 0.0)
    free, cost = light.idle_ms + light.wait_ms, cost - copied
    left = max(free - cost, 0.0) / free if free > 0 else 0.0
    return replace(
        light,
        memory_ms=light.memory_ms - copied,
        wait_ms=left * light.wait_ms,
        idle_ms=left * light.idle_ms,
        least_wait_ms=max(light.wait_ms - cost, 0.0),
    )


@dataclass(frozen=True)
class _Split:
    """When collectives ran: until their last member came, from then on, and where that cannot be told."""

    wait: Intervals
    transfer: Intervals
    unmatched: Intervals


def _light_ledger(light: LightActivity, like: NDArray[np.bool_], split: _Split) -> UndisturbedRank:
    """A rank's light step, each instant in the first bucket whose condition holds, as in the step ledger."""
    transfer = subtract(split.transfer, light.compute)
    wait = subtract(subtract(split.wait, light.compute), transfer)
    unmatched = subtract(subtract(subtract(split.unmatched, light.compute), transfer), wait)
    memory = subtract(subtract(light.memory, light.compute), merge(transfer, wait, unmatched))
    begin, end = light.edges[:-1], light.edges[1:]
    keep = like if light.by_step else np.ones(1, dtype=bool)
    length = (end - begin)[keep]
    step_ms = float(length.mean()) / 1e6 if light.by_step else float(light.step_ms[like].mean())
    parts = [
        step_ms * float(one.within(begin, end)[keep].sum()) / float(length.sum())
        for one in (light.compute, transfer, wait, unmatched, memory)
    ]
    compute_ms, transfer_ms, wait_ms, unmatched_ms, memory_ms = parts
    idle_ms = max(step_ms - sum(parts), 0.0)
    return UndisturbedRank(
        light.rank, step_ms, compute_ms, transfer_ms, wait_ms, unmatched_ms, memory_ms, idle_ms, wait_ms
    )


def _waits(lights: Mapping[int, LightActivity], summaries: Sequence[RankSummary]) -> dict[int, _Split]:
    """Each rank's collectives, split. Members leave one together: its last member takes the transfer alone."""
    world = tuple(sorted(lights))
    members: dict[Ranks, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for summary in summaries:
        light = lights.get(summary.rank)
        if light is None:
            continue
        for at, group in enumerate(groups_of(light, summary, world)):
            if group is not None:
                members[group][summary.rank].append(at)
    alone = {rank: np.full(len(light.name), -1, np.int64) for rank, light in lights.items()}
    for group, own in members.items():
        if set(own) != set(group) or len(group) < 2 or not _same(lights, own):
            continue
        lasted = np.array([(lights[rank].end - lights[rank].start)[own[rank]] for rank in group])
        for rank in group:
            alone[rank][own[rank]] = lasted.min(axis=0)
    return {rank: _split(light, alone[rank]) for rank, light in lights.items()}


def _same(lights: Mapping[int, LightActivity], own: Mapping[int, list[int]]) -> bool:
    """Whether all members ran the same collectives in the same order."""
    names = {tuple(lights[rank].name[at] for at in places) for rank, places in own.items()}
    return len(names) == 1


def _split(light: LightActivity, transfer: NDArray[np.int64]) -> _Split:
    known = transfer >= 0
    came = light.end - np.where(known, transfer, 0)
    return _Split(
        union(light.start[known], came[known]),
        union(came[known], light.end[known]),
        union(light.start[~known], light.end[~known]),
    )
