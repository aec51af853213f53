"""One light window of all ranks: where its usual steps go, as recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.across.groups import Ranks
from traceops.across.light_groups import groups_of
from traceops.core.arrays import Intervals, merge, subtract, union
from traceops.measure.light import LightActivity
from traceops.measure.steps import usual_steps
from traceops.measure.summary import RankSummary


class LightRank(Struct, frozen=True):
    """One rank's light or undisturbed step, ms by bucket; they add up to it, unless the device is busy for longer.

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


class LightLook(Struct, frozen=True):
    """One light window by itself. steps: the first and the last. wait_ms, idle_ms: a step, by rank."""

    steps: tuple[int, int]
    wait_ms: Mapping[int, float]
    idle_ms: Mapping[int, float]


class LightWindow(Struct, frozen=True):
    """One light window's ledger of each rank, as recorded, and of how many usual steps it is."""

    steps: tuple[int, ...]
    ranks: tuple[LightRank, ...]
    count: int

    @property
    def light_ms(self) -> float:
        return float(np.median([one.light_ms for one in self.ranks]))

    @property
    def look(self) -> LightLook:
        return LightLook(
            (self.steps[0], self.steps[-1]),
            {one.rank: one.wait_ms for one in self.ranks},
            {one.rank: one.idle_ms for one in self.ranks},
        )


def light_window(own: Mapping[int, LightActivity], summaries: Sequence[RankSummary]) -> LightWindow:
    took = np.array([light.step_ms for light in own.values()])
    like = usual_steps(np.median(took, axis=0))
    waits = _waits(own, summaries)
    ranks = tuple(_light_ledger(light, like, waits[rank]) for rank, light in sorted(own.items()))
    return LightWindow(next(iter(own.values())).steps, ranks, int(like.sum()))


class _Split(Struct, frozen=True):
    """When collectives ran: until their last member came, from then on, and where that cannot be told."""

    wait: Intervals
    transfer: Intervals
    unmatched: Intervals


def _light_ledger(light: LightActivity, like: NDArray[np.bool_], split: _Split) -> LightRank:
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
    return LightRank(light.rank, step_ms, compute_ms, transfer_ms, wait_ms, unmatched_ms, memory_ms, idle_ms, wait_ms)


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
