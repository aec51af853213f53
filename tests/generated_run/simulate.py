"""Runs a program on ranks that wait for each other, and keeps what happened when.

Every moment depends only on what comes earlier in the programs, so each rank is run in program order as far as
it can be and goes on when a collective it depends on has all its members.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from random import Random

from .faults import Fault, link_factor
from .program import Collective, Groups, Program
from .rank import Rank, Running
from .truth import CollectiveTruth, SimulatedRun


def simulate(
    program: Program, ranks: int, faults: Iterable[Fault] = (), seed: int = 0, ranks_per_host: int = 8
) -> SimulatedRun:
    """As `_simulate`, which keeps the last runs: many tests compare with the same healthy one."""
    return _simulate(program, ranks, tuple(faults), seed, ranks_per_host)


@lru_cache(maxsize=8)
def _simulate(program: Program, ranks: int, faults: tuple[Fault, ...], seed: int, ranks_per_host: int) -> SimulatedRun:
    """Run the program on this many ranks.

    Jitter depends on seed, rank and place in the program only, so the run without a fault is the same in all
    else: simulating it is the truth of what removing the fault would save. All ranks run the same program, so
    none can wait for one that never comes. Raises ValueError where the groups do not divide the ranks.
    """
    world = _World(program, ranks, faults, seed)
    runs = [Rank(world, rank) for rank in range(ranks)]
    paused = {run.rank: run.run() for run in runs}
    ready = list(range(ranks))
    while ready:
        rank = ready.pop()
        try:
            next(paused[rank]).waiting.append(rank)
        except StopIteration:
            del paused[rank]
        ready += world.released
        world.released.clear()
    assert not paused, f"ranks {sorted(paused)} wait for each other"
    return SimulatedRun(
        program=program,
        world=ranks,
        faults=faults,
        seed=seed,
        ranks=tuple(run.truth(run.rank // ranks_per_host) for run in runs),
        collectives=tuple(map(_truth, world.running)),
    )


class _World:
    """What the ranks share: the program and the collectives under way."""

    def __init__(self, program: Program, ranks: int, faults: tuple[Fault, ...], seed: int) -> None:
        self.program, self.ranks, self.faults, self.seed = program, ranks, faults, seed
        self.groups: dict[str, Groups] = {groups.key: groups for groups in program.groups}
        self.streams = program.streams
        self.running: list[Running] = []
        self.released: list[int] = []  # ranks whose collective has got its last member
        self._by_call: dict[tuple[str, tuple[int, ...], int], Running] = {}

    def call(self, op: Collective, members: tuple[int, ...], sequence: int, step: int) -> Running:
        """The collective that a member calls, the same for all of them."""
        key = (op.group, members if op.to else (members[0],), sequence)
        running = self._by_call.get(key)
        if running is None:
            us = self.groups[op.group].transfer_us(op, len(members))
            us *= link_factor(self.faults, op.group, members, step)
            us *= 1 + self.program.jitter * Random(f"{self.seed}/{key}").uniform(-1, 1)
            running = Running(op, members, len(self.running), sequence, step, round(us * 1000))
            self._by_call[key] = running
            self.running.append(running)
        return running

    def arrive(self, running: Running, rank: int, arrival: int, end_off: int) -> None:
        """A member's kernel starts; with the last of them the end is known."""
        running.arrival[rank] = arrival
        running.end_off[rank] = end_off
        if len(running.arrival) == len(running.members):
            end = max(running.arrival.values()) + running.transfer_ns
            running.ends = {member: end + off for member, off in running.end_off.items()}
            self.released += running.waiting


def _truth(running: Running) -> CollectiveTruth:
    assert running.ends is not None
    return CollectiveTruth(
        op=running.op,
        members=running.members,
        sequence=running.sequence,
        step=running.step,
        arrival=tuple(running.arrival[rank] for rank in running.members),
        end=tuple(running.ends[rank] for rank in running.members),
        transfer_ns=running.transfer_ns,
    )
