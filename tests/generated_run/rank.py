"""One rank of a simulation: a host thread that launches in program order, streams that work off its launches."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import numpy as np

from .faults import Fault, LateWindow, ShortWindow, StepFaults
from .program import Collective, Compute, Groups, HostSync, HostWork, Join, LoadInput, Memcpy, Op, Program
from .truth import EPOCH_NS, Activity, HostRow, Kind, RankTruth, clock_of

BETWEEN_STEPS_US = 15.0  # the profiler's own step()
PROFILER_START_US = 300.0
START_SPREAD_US = 30.0  # processes start at different moments


@dataclass
class Running:
    """One collective while its members arrive; `ends` is None until all are there."""

    op: Collective
    members: tuple[int, ...]
    position: int
    sequence: int
    step: int
    transfer_ns: int
    arrival: dict[int, int] = field(default_factory=dict)
    end_off: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] | None = None
    waiting: list[int] = field(default_factory=list)


Moment = int | Running  # ns, or the end of a collective that may not be known yet
Wait = Generator[Running, None, None]


class World(Protocol):
    """What a rank sees of the others."""

    program: Program
    ranks: int
    faults: tuple[Fault, ...]
    seed: int
    groups: dict[str, Groups]
    streams: dict[str, int]

    def call(self, op: Collective, members: tuple[int, ...], sequence: int, step: int) -> Running: ...
    def arrive(self, running: Running, rank: int, arrival: int, end_off: int) -> None: ...


@dataclass(slots=True)
class _Launched:
    """An activity whose end may not be known yet."""

    op: Compute | Memcpy | Collective
    name: str
    kind: Kind
    start: int
    end: Moment
    launch: tuple[int, int]
    step: int


class Rank:
    """The state of one rank while it runs."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.program = world, rank, world.program
        self.on_gpu = world.program.device != "cpu"
        self.random = Random(f"{world.seed}/{rank}").random
        self.now = EPOCH_NS + round(self.random() * START_SPREAD_US * 1000)  # on the host
        self.free: dict[str, Moment] = {}  # stream -> when it has done all that was launched
        self.done: dict[str, Moment] = {}  # label -> when the latest of them is done
        self.communicators: dict[str, Moment] = {}  # one runs its collectives one after another
        self.members = {key: groups.members(rank, world.ranks) for key, groups in world.groups.items()}
        self.sequence: dict[tuple[str, tuple[int, ...]], int] = {}
        self.launched: list[_Launched] = []
        self.host_rows: list[HostRow] = []
        self.host_steps: list[tuple[int, int]] = []
        self.window_start = self.window_end = self.now

    def run(self) -> Wait:
        """Run the program; yields a collective whose end is needed before the next moment is known."""
        stage = self.members[self.program.staged].index(self.rank) if self.program.staged else 0
        for position, step in enumerate(self.program.numbers):
            self._spend(BETWEEN_STEPS_US)
            if step == self.program.first_step:
                self._spend(PROFILER_START_US)
                self.window_start = self.now - 50_000
            faults = StepFaults(self.world.faults, self.rank, step)
            began = self.now
            for op in self.program.ops(position, stage):
                waits = self._run(op, step, faults)
                if waits is not None:
                    yield from waits
            self.host_steps.append((began, self.now))
        self._spend(BETWEEN_STEPS_US)
        self.window_end = yield from self._latest(self.now, *self.free.values())

    def _run(self, op: Op, step: int, faults: StepFaults) -> Wait | None:
        """Run it, or return what goes on once the collectives that it waits for have all their members."""
        if isinstance(op, Compute):
            self.now += faults.host_ns(op.name, op.label)
            ns = self._ns(faults.compute_us(op.name, op.label, op.us))
            return self._launch(op, op.name, "compute", ns, step)
        if isinstance(op, Memcpy):
            self.now += faults.host_ns("Memcpy", op.label)
            us = 1.0 + op.bytes / self.program.copy_gbs / 1e3 + (faults.copy_us if op.kind == "HtoD" else 0.0)
            kind: Kind = "memory" if self.on_gpu else "compute"
            return self._launch(op, f"Memcpy {op.kind}", kind, self._ns(us), step)
        if isinstance(op, Collective):
            self.now += faults.host_ns(op.op, op.label)
            return self._enter(op, step) if len(self.members[op.group]) > 1 else None
        if isinstance(op, HostWork):
            began = self.now
            self._spend(op.us)
            self.host_rows.append(HostRow("work", op.name, began, self.now))
            return None
        if isinstance(op, LoadInput):
            began = self.now
            self._spend(op.us + faults.input_us)
            self.host_rows.append(HostRow("input", "data loading", began, self.now))
            return None
        if isinstance(op, Join) and self.on_gpu and not self.program.through_host:
            return self._join(op)
        if isinstance(op, HostSync):
            ends = [end for name, end in self.free.items() if op.stream in (None, name)]
            return self._block("cudaStreamSynchronize" if op.stream else "cudaDeviceSynchronize", ends)
        return self._block("cudaEventSynchronize", [self.done.get(op.label, 0)])

    def _join(self, op: Join) -> Wait:
        at = yield from self._latest(self.free.get(op.stream, 0), self.done.get(op.label, 0))
        self.free[op.stream] = at

    def _launch(self, op: Compute | Memcpy, name: str, kind: Kind, ns: int, step: int) -> Wait | None:
        if self.on_gpu:
            launch = self._call()
            ready, free = launch[0] + round(self.program.latency_us * 1000), self.free.get(op.stream, 0)
            start = self._known(ready, free)
            if start is None:
                return self._launch_later(op, name, kind, ns, step, launch, ready, free)
        else:
            start = self.now
            launch = (start, start + ns)
            self.now += ns + self._ns(self.program.launch_us)
        self._keep(_Launched(op, name, kind, start, start + ns, launch, step))
        return None

    def _launch_later(
        self, op: Compute | Memcpy, name: str, kind: Kind, ns: int, step: int, launch: tuple[int, int], ready: int,
        free: Moment,
    ) -> Wait:  # fmt: skip
        start = yield from self._latest(ready, free)
        self._keep(_Launched(op, name, kind, start, start + ns, launch, step))

    def _enter(self, op: Collective, step: int) -> Wait:
        """Arrive at a collective as soon as launch, stream, communicator and what it waits for allow."""
        members = self._members(op)
        sequence = self.sequence.get((op.group, members), 0)
        self.sequence[op.group, members] = sequence + 1
        running = self.world.call(op, members, sequence, step)
        launch = self._call()
        ready = launch[0 if self.on_gpu else 1] + round(self.program.latency_us * 1000)
        waits = [self.free.get(wait, self.done.get(wait, 0)) for wait in (op.stream, *op.waits)]
        # Messages of each pair and way have a communicator of their own.
        communicator = f"{op.group}{members}{op.stream}" if op.to else op.group
        moments = (ready, self.communicators.get(communicator, 0), *waits)
        arrival = self._known(*moments)
        if arrival is None:
            arrival = yield from self._latest(*moments)
        off = round(self.random() * self.program.end_jitter_us * 1000)
        self.communicators[communicator] = running
        self._keep(_Launched(op, op.op, "comm", arrival, running, launch, step))
        self.world.arrive(running, self.rank, arrival, off)

    def _members(self, op: Collective) -> tuple[int, ...]:
        """Who takes part; the sender first where two do."""
        group = self.members[op.group]
        if not op.to:
            return group
        other = group[group.index(self.rank) + op.to]
        return (self.rank, other) if op.op == "send" else (other, self.rank)

    def _keep(self, launched: _Launched) -> None:
        self.launched.append(launched)
        self.free[launched.op.stream] = launched.end
        if launched.op.label:
            self.done[launched.op.label] = launched.end

    def _block(self, name: str, events: list[Moment]) -> Wait:
        began = self.now
        self._spend(2.0)
        self.now = yield from self._latest(self.now, *events)
        self.host_rows.append(HostRow("sync", name, began, self.now))

    def _call(self) -> tuple[int, int]:
        """Start and end of a launch call, which costs the host time; it blocks where the device is far behind."""
        cost, began = self._ns(self.program.launch_us), self.now
        if self.on_gpu and len(self.launched) >= self.program.queue:
            self.now = max(self.now, self.launched[-self.program.queue].start)
        start = began + cost * 3 // 10
        end = self.now + cost * 3 // 10 + cost // 2
        self.now += cost
        return start, end

    def _known(self, *moments: Moment) -> int | None:
        """The latest, or None where it depends on a collective that has not all its members yet."""
        latest = 0
        for moment in moments:
            if isinstance(moment, Running):
                if moment.ends is None:
                    return None
                moment = moment.ends[self.rank]
            if moment > latest:
                latest = moment
        return latest

    def _latest(self, *moments: Moment) -> Generator[Running, None, int]:
        latest = 0
        for moment in moments:
            if isinstance(moment, Running):
                if moment.ends is None:
                    yield moment
                assert moment.ends is not None
                moment = moment.ends[self.rank]
            latest = max(latest, moment)
        return latest

    def _spend(self, us: float) -> None:
        self.now += self._ns(us)

    def _ns(self, us: float) -> int:
        return round(us * 1000 * (1 + self.program.jitter * (2 * self.random() - 1)))

    def truth(self, host: int) -> RankTruth:
        """What this rank did; to be asked when all ranks are done."""
        activities = tuple(map(self._activity, self.launched))
        offset, drift = clock_of(self.world.faults, self.rank, host)
        warmup = self.program.warmup
        own = [f for f in self.world.faults if isinstance(f, LateWindow | ShortWindow) and f.rank == self.rank]
        late = sum(f.launches for f in own if isinstance(f, LateWindow))
        lost = sum(f.launches for f in own if isinstance(f, ShortWindow))
        inside = [a.launch for a in activities if a.step >= self.program.first_step]
        marks = self.host_steps[warmup:]
        before = max((a.end for a in activities if a.step < self.program.first_step), default=0)
        ends = [[before if before > self.window_start else marks[0][0]], *([] for _ in marks)]
        for activity in activities[len(activities) - len(inside) :]:
            ends[activity.step - self.program.first_step + 1].append(activity.end)
        edges = np.maximum.accumulate([max(own, default=0) for own in ends])
        if not self.on_gpu:
            edges = np.array([start for start, _ in marks] + [marks[-1][1]])
        return RankTruth(
            rank=self.rank, host=host, activities=activities, host_rows=tuple(self.host_rows),
            step_numbers=self.program.numbers[warmup:], host_steps=tuple(marks), edges=edges.astype(np.int64),
            window_start=inside[min(late, len(inside) - 1)] if late else self.window_start,
            window_end=self._cut(activities, lost) if lost else self.window_end, offset_ns=offset, drift_ppm=drift,
        )  # fmt: skip

    def _cut(self, activities: tuple[Activity, ...], lost: int) -> int:
        """When a profiler stops that misses the last launches: with the step, if it misses all of it."""
        first = activities[-lost]
        begins = activities[-lost - 1].step < first.step
        return self.host_steps[first.step - self.program.numbers[0]][0] if begins else first.launch

    def _activity(self, launched: _Launched) -> Activity:
        op, end = launched.op, launched.end
        running = end if isinstance(end, Running) else None
        if isinstance(end, Running):
            assert end.ends is not None
            end = end.ends[self.rank]
        if running is not None:
            name, position = "", running.position
        else:
            name, position = op.op if isinstance(op, Compute) else "aten::copy_", -1
        return Activity(
            self.world.streams[op.stream], launched.name, launched.start, end, *launched.launch,
            launched.kind, launched.step, op.label, name, position, 0 if isinstance(op, Compute) else op.bytes,
        )  # fmt: skip
