"""The undisturbed step: where it goes by the light windows, brought to the time that a step takes without recording."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.groups import Ranks, group_of, only_group
from traceops.across.plain_step import PlainStep, StepsBefore
from traceops.core.arrays import Int, Intervals, Mask, median, merge, subtract, union, uniques
from traceops.core.claims import reason
from traceops.measure.recording import SLOWED
from traceops.measure.steps import usual_steps
from traceops.measure.summary import RankSummary

if TYPE_CHECKING:
    from traceops.measure.light import LightActivity

_MESSAGES = ("send", "recv")


def groups_of(light: LightActivity, summary: RankSummary, world: Ranks) -> list[Ranks | None]:
    """Of each collective, its group; None where it cannot be told, and for sends and receives. A rank of one group has
    no choice. Else the stream tells, where all on it are of one group; else the place in the step, where a step of the
    full window has as many, on the same streams in the same order."""
    # Step, stream and group of each collective of the full window, in order
    default, comm = only_group(summary, world), summary.comm
    known = []
    for step, stream, name, args in zip(comm.step.tolist(), comm.stream.tolist(), comm.name, comm.args, strict=True):
        op = "" if args is None or args.op is None else args.op.lower()
        message = any(word in op for word in _MESSAGES) or ("sendrecv" in name.lower() and "all_to_all" not in op)
        known.append((step, stream, None if message else group_of(args, default)))
    everywhere = {group for _, _, group in known}
    if len(everywhere) == 1:
        return [next(iter(everywhere))] * len(light.name)
    of_stream: dict[int, set[Ranks | None]] = defaultdict(set)
    for _, stream, group in known:
        of_stream[stream].add(group)
    by_place = _by_place(light, known)
    found: list[Ranks | None] = []
    for at, stream in enumerate(light.stream.tolist()):
        own = of_stream.get(stream, set())
        found.append(next(iter(own)) if len(own) == 1 else by_place[at])
    return found


def _by_place(light: LightActivity, known: Sequence[tuple[int, int, Ranks | None]]) -> list[Ranks | None]:
    """Of each collective the group of the one that stands at its place in a step of the full window."""
    none: list[Ranks | None] = [None] * len(light.name)
    patterns: dict[int, list[tuple[int, Ranks | None]]] = defaultdict(list)
    for step, stream, group in known:
        patterns[step].append((stream, group))
    inner = [patterns[step] for step in sorted(patterns) if step >= 0]
    if not inner or not light.by_step or any(pattern != inner[0] for pattern in inner[1:]):
        return none
    streams, groups = zip(*inner[0], strict=True)
    in_order = light.start.argsort(kind="stable")
    step_of = light.edges.searchsorted(light.start[in_order], side="right")
    found = none.copy()
    for step in uniques(step_of).tolist():
        own = in_order[step_of == step]
        if light.stream[own].tolist() == list(streams):
            for at, group in zip(own.tolist(), groups, strict=True):
                found[at] = group
    return found


class LightRank(Struct, frozen=True):
    """One rank's light or undisturbed step, ms by bucket; they add up to it, unless the device is busy for longer.
    wait, transfer: exposed communication; unmatched: of which waiting cannot be told from transfer. least_wait: of
    waiting, what is left where all that the light window cost was waiting. unseen: where the light window's own steps
    are shorter, what the step takes beyond them."""

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
        return median([one.light_ms for one in self.ranks])

    @property
    def look(self) -> LightLook:
        return LightLook(
            (self.steps[0], self.steps[-1]),
            {one.rank: one.wait_ms for one in self.ranks},
            {one.rank: one.idle_ms for one in self.ranks},
        )


def light_window(own: Mapping[int, LightActivity], summaries: Sequence[RankSummary]) -> LightWindow:
    took = np.array([light.step_ms for light in own.values()])
    like = usual_steps(median(took, axis=0))
    waits = _waits(own, summaries)
    ranks = tuple(_light_ledger(light, like, waits[rank]) for rank, light in sorted(own.items()))
    return LightWindow(next(iter(own.values())).steps, ranks, int(like.sum()))


class _Split(Struct, frozen=True):
    """When collectives ran: until their last member came, from then on, and where that cannot be told."""

    wait: Intervals
    transfer: Intervals
    unmatched: Intervals


def _light_ledger(light: LightActivity, like: Mask, split: _Split) -> LightRank:
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
        if (light := lights.get(summary.rank)) is None:
            continue
        for at, group in enumerate(groups_of(light, summary, world)):
            if group is not None:
                members[group][summary.rank].append(at)
    alone = {rank: np.full(len(light.name), -1, np.int64) for rank, light in lights.items()}
    for group, own in members.items():
        # Members are matched where all ran the same collectives in the same order.
        names = {tuple(lights[rank].name[at] for at in places) for rank, places in own.items()}
        if set(own) != set(group) or len(group) < 2 or len(names) > 1:
            continue
        lasted = np.array([(lights[rank].end - lights[rank].start)[own[rank]] for rank in group])
        for rank in group:
            alone[rank][own[rank]] = lasted.min(axis=0)
    return {rank: _split(light, alone[rank]) for rank, light in lights.items()}


def _split(light: LightActivity, transfer: Int) -> _Split:
    known = transfer >= 0
    came = light.end - np.where(known, transfer, 0)
    return _Split(
        union(light.start[known], came[known]),
        union(came[known], light.end[known]),
        union(light.start[~known], light.end[~known]),
    )


# Hosts that are late by turns: of hosts alike, now the one is the latest and now the other.


class HostTurns(Struct, frozen=True):
    """Two light windows in which another rank's device has the least to do. steps: the first and the last of each."""

    rank: int
    steps: tuple[int, int]
    other: int
    other_steps: tuple[int, int]


def _latest(look: LightLook) -> int | None:
    """The rank whose device is idle for longest; None without ranks."""
    return max(look.idle_ms, key=lambda rank: (look.idle_ms[rank], -rank), default=None)


# Light ÷ undisturbed step, or the other way round, from which the one is no measure of the other.
_FAR = {"cupti": 1.25, "torch": 1.5}


class Undisturbed(Struct, frozen=True):
    """The undisturbed step of a run. step_ms: without any recording. light_ms: in the light windows, the median over
    ranks. steps: of the light windows that were taken. source: 'cupti' or 'torch'. behind_ms: a step behind the
    windows, where it is longer than before. before: the steps that step_ms is the mean of, None where all that were not
    recorded count. looks: the light windows that all of this is the mean of."""

    step_ms: float
    light_ms: float
    source: str
    steps: int
    ranks: tuple[LightRank, ...]
    behind_ms: float | None = None
    before: StepsBefore | None = None
    looks: tuple[LightLook, ...] = ()

    @property
    def stretched(self) -> float:
        """Light ÷ undisturbed step: what even the light window cost, and what the profiler left behind."""
        return self.light_ms / self.step_ms

    @property
    def light(self) -> str:
        """What it is of, in words."""
        return "the light windows" if len(self.looks) > 1 else "the light window"

    @property
    def scaled(self) -> bool:
        """Whether idle time and waiting are an estimate, scaled down from a light window that cost much itself."""
        return self.stretched >= SLOWED

    def turns(self, least_pct: float) -> HostTurns | None:
        """Two light windows in which another host is the latest, by `least_pct` of the step or more; None without."""
        least_ms = least_pct / 100 * self.step_ms
        for one, other in combinations(self.looks, 2):
            late, then = _latest(one), _latest(other)
            if late is None or then is None:
                continue
            if min(one.idle_ms[late] - one.idle_ms[then], other.idle_ms[then] - other.idle_ms[late]) >= least_ms > 0:
                return HostTurns(late, one.steps, then, other.steps)
        return None

    def of(self, rank: int) -> LightRank | None:
        """The rank's, None where it has no light window."""
        return next((one for one in self.ranks if one.rank == rank), None)


def undisturbed(
    lights: Sequence[LightActivity],
    summaries: Sequence[RankSummary],
    plain: PlainStep | None,
    copies_ms: Mapping[int, float] | None = None,
    later: Sequence[Sequence[LightActivity]] = (),
) -> tuple[Undisturbed | None, str | None]:
    """Of the ranks' light windows, or why nothing can be said. plain: a typical step without recording. copies_ms: by
    rank, in a recorded step. later: more windows of the same ranks; one that is not of the same steps on all of them
    does not count. No window does whose step is far from that without recording."""
    if not (own := {light.rank: light for light in lights}):
        return None, None
    if plain is None or plain.ms <= 0:
        return None, reason("validity", "no_plain_step")
    if (unlike := _unlike_ranks(own)) is not None:
        return None, unlike
    source = next(iter(own.values())).source
    first = light_window(own, summaries)
    windows = []
    for window in (first, *_alike(later, own, summaries)):
        apart = max(window.light_ms / plain.near_ms, plain.near_ms / window.light_ms)
        if apart <= _FAR.get(source, 1.0):
            windows.append(window)
    if not windows:
        return None, reason("validity", "light_far_off", light=first.light_ms, plain=plain.near_ms)
    ranks = [_mean([window.ranks[at] for window in windows], windows) for at in range(len(own))]
    light_ms = median([one.light_ms for one in ranks])
    # A device that works for as long as the step was slower itself behind the windows, whatever its host did.
    by_host = all(one.idle_ms + one.wait_ms >= one.light_ms - plain.ms for one in ranks)
    if by_host and plain.far_apart:
        return None, reason("validity", "longer_after", after=plain.near_ms, before=plain.ms)
    step_ms = _step_beside(plain, light_ms, by_host=by_host)
    brought = tuple(_brought_to(one, step_ms, copies_ms or {}) for one in ranks)
    behind_ms, before = (plain.behind_ms, plain.before) if by_host else (None, None)
    steps_taken, looks = sum(window.count for window in windows), tuple(window.look for window in windows)
    return Undisturbed(step_ms, light_ms, source, steps_taken, brought, behind_ms, before, looks), None


def _unlike_ranks(own: Mapping[int, LightActivity]) -> str | None:
    """Why the ranks' light windows are no one window; None where they are."""
    if len({light.steps for light in own.values()}) > 1:
        return reason("validity", "light_of_other_steps")
    if len({light.source for light in own.values()}) > 1:
        torch = [rank for rank, light in sorted(own.items()) if light.source == "torch"]
        return reason("validity", "light_of_two_sources", ranks=torch)
    return None


def _step_beside(plain: PlainStep, light_ms: float, *, by_host: bool) -> float:
    """What a step takes without recording, ms. by_host: whether hosts alone may be what made light steps longer."""
    step_ms = plain.ms if by_host else plain.near_ms if plain.far_apart else plain.whole_ms
    # The profiler may be in the longer ones: a light step that is shorter is one all the same.
    return step_ms if plain.all_count else min(step_ms, light_ms)


def _alike(
    later: Sequence[Sequence[LightActivity]], first: Mapping[int, LightActivity], summaries: Sequence[RankSummary]
) -> Iterator[LightWindow]:
    """The later windows that are of the ranks of the first one, by the same source, and of the same steps on all."""
    for lights in later:
        own = {light.rank: light for light in lights}
        sources = {light.source for light in [*own.values(), *first.values()]}
        if set(own) == set(first) and len({light.steps for light in own.values()}) == 1 and len(sources) == 1:
            yield light_window(own, summaries)


def _mean(one: Sequence[LightRank], windows: Sequence[LightWindow]) -> LightRank:
    """One rank's step over all usual steps of these windows."""
    weights = [window.count for window in windows]
    means = {
        name: float(np.average([getattr(rank, name) for rank in one], weights=weights))
        for name in LightRank.__struct_fields__
        if name != "rank"
    }
    return LightRank(rank=one[0].rank, **means)


def _brought_to(light: LightRank, step_ms: float, copies_ms: Mapping[int, float]) -> LightRank:
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
