"""What a simulated run did, to the ns: the truth that an analysis of its traces is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .faults import ClockShift, Fault
from .program import Collective, Program

Kind = Literal["compute", "comm", "memory"]
HostKind = Literal["work", "input", "sync"]
Int = NDArray[np.int64]

EPOCH_NS = 1_790_000_000_123_456_789  # when every simulation begins, ns since 1970


@dataclass(slots=True)  # nobody changes one; frozen, it takes three times as long to make
class Activity:
    """One interval on a stream, true time in ns; `launch` and `launch_end` bound the host call that launched it.

    `collective` is its position in the run's collectives, -1 for other kinds. Without a GPU the main thread is
    the stream "compute", and an operator launches itself.
    """

    stream: int
    name: str
    start: int
    end: int
    launch: int
    launch_end: int
    kind: Kind
    step: int
    label: str = ""
    op: str = ""
    collective: int = -1
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class HostRow:
    """What the host did beside launching, true time in ns."""

    kind: HostKind
    name: str
    start: int
    end: int


@dataclass(frozen=True)
class CollectiveTruth:
    """One collective, true time in ns; `arrival`, `end` and `wait` are in the order of `members`."""

    op: Collective
    members: tuple[int, ...]
    sequence: int  # within its group, from the start of the run
    step: int
    arrival: tuple[int, ...]
    end: tuple[int, ...]
    transfer_ns: int  # of the member whose end the jitter moves least: none

    @property
    def wait(self) -> tuple[int, ...]:
        """ns each member waited for the last."""
        last = max(self.arrival)
        return tuple(last - arrival for arrival in self.arrival)

    @property
    def last_rank(self) -> int:
        """The member that arrived last."""
        return self.members[int(np.argmax(self.arrival))]


@dataclass(frozen=True)
class RankTruth:
    """One rank, true time in ns.

    `edges` of the device steps, n + 1 for n profiled steps [METRICS, the step ledger]; where the device had run dry
    before the first, that begins with its annotation. The profiler of this rank sees the end of what is not done at
    `window_start`, and what is launched before `window_end`; a shifted window shifts no edges.
    """

    rank: int
    host: int
    activities: tuple[Activity, ...]  # in launch order
    host_rows: tuple[HostRow, ...]
    step_numbers: tuple[int, ...]
    host_steps: tuple[tuple[int, int], ...]
    edges: Int
    window_start: int
    window_end: int
    offset_ns: int = 0
    drift_ppm: float = 0.0

    def on_clock(self, ns: int) -> int:
        """What this rank's clock shows at a true time."""
        return ns + self.offset_ns + round((ns - EPOCH_NS) * self.drift_ppm / 1e6)

    @property
    def recorded(self) -> tuple[Activity, ...]:
        """The activities in its trace."""
        return tuple(a for a in self.activities if a.end > self.window_start and a.launch < self.window_end)

    @property
    def marks(self) -> tuple[tuple[int, int, int], ...]:
        """Number, start and end of the step annotations in its trace, cut where the window begins and ends."""
        return tuple(
            (number, max(start, self.window_start), min(end, self.window_end))
            for number, (start, end) in zip(self.step_numbers, self.host_steps, strict=True)
            if end > self.window_start and start < self.window_end
        )


@dataclass(frozen=True)
class SimulatedRun:
    """A program that was run, and all that happened."""

    program: Program
    world: int
    faults: tuple[Fault, ...]
    seed: int
    ranks: tuple[RankTruth, ...]
    collectives: tuple[CollectiveTruth, ...] = field(repr=False)

    def members(self, group: str, rank: int) -> tuple[int, ...]:
        """The group under this key that a rank is in."""
        own = next(groups for groups in self.program.groups if groups.key == group)
        return own.members(rank, self.world)


def step_durations(run: SimulatedRun) -> Int:
    """ns of each rank's device steps, ranks × profiled steps."""
    return np.array([np.diff(rank.edges) for rank in run.ranks])


def step_time(run: SimulatedRun) -> float:
    """Mean device step of the run, ns."""
    return float(step_durations(run).mean())


def trace_edges(run: SimulatedRun, rank: int) -> Int:
    """Edges of the device steps as far as this rank's trace can tell, on its own clock.

    What the window missed counts to no step; where everything launched before it had ended, the first step
    begins with its annotation. Without a GPU the annotations themselves are the edges.
    """
    truth = run.ranks[rank]
    marks = truth.marks
    if run.program.device == "cpu":
        edges = [start for _, start, _ in marks] + [marks[-1][2]]
    else:
        ends: list[list[int]] = [[] for _ in range(len(marks) + 1)]
        for activity in truth.recorded:
            before = activity.step < marks[0][0] or activity.launch < truth.window_start
            ends[0 if before else activity.step - marks[0][0] + 1].append(activity.end)
        edges = [max(ends[0], default=marks[0][1])]
        for own in ends[1:]:
            edges.append(max([edges[-1], *own]))
    return np.array([truth.on_clock(edge) for edge in edges], dtype=np.int64)


def exposed_wait(run: SimulatedRun, rank: int) -> Int:
    """ns of each profiled step in which this rank computes nothing and every collective it runs waits for a member.

    True time, between the true edges [METRICS, the step ledger: comm_wait]. A plain sweep over the moments at which
    something changes.
    """
    truth = run.ranks[rank]
    changes: list[tuple[int, int, int]] = []  # moment, which counter, by how much
    for activity in truth.activities:
        if activity.kind == "compute":
            changes += [(activity.start, 0, 1), (activity.end, 0, -1)]
        elif activity.kind == "comm":
            turn = max(run.collectives[activity.collective].arrival)
            changes += [(activity.start, 1, 1), (turn, 1, -1), (turn, 2, 1), (activity.end, 2, -1)]
    changes += [(int(edge), 3, 1) for edge in truth.edges]
    running = [0, 0, 0, 0]  # computing, waiting, transferring, edges passed
    waited = np.zeros(len(truth.step_numbers), dtype=np.int64)
    before = 0
    for moment, counter, by in sorted(changes):
        if running[1] and not running[0] and not running[2] and 0 < running[3] <= len(waited):
            waited[running[3] - 1] += moment - before
        running[counter] += by
        before = moment
    return waited


def clock_of(faults: tuple[Fault, ...], rank: int, host: int) -> tuple[int, float]:
    """Offset (ns) and drift (ppm) of one rank's clock."""
    own = [f for f in faults if isinstance(f, ClockShift) and (f.rank == rank or (f.host == host))]
    return round(sum(f.offset_us for f in own) * 1000), sum(f.drift_ppm for f in own)
