"""How long a rank's device is idle for a cause, as far as a step without the profiler leaves room for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.across.loading import cores_of_rank, has_workers, loading_need, slowest_other, told_workers
from traceops.across.rank_times import RankTimes
from traceops.across.run_steps import WholeRun
from traceops.across.run_use import recorded_waits
from traceops.across.undisturbed import Undisturbed
from traceops.core.arrays import mean_ms
from traceops.core.claims import Claim, reason, restated
from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Evidence, Finding, Severity, severity_of
from traceops.core.units import stored
from traceops.core.words import WINDOW, StepWords
from traceops.measure.host_places import BUSY_PCT, LoaderWork, loader_work
from traceops.measure.ledger import IDLE_BUCKETS
from traceops.rules.inputs import Inputs
from traceops.rules.shared import WAITS_PCT, room_ms, work_ms


class WorkersNeeded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many DataLoader workers per rank load in time: `count`, or that to `most`. rest: the step without waiting for
    them. load: what one process loads the batches of a step in, where another process does. recording: what of the rest
    may be the profiler's. cores: of a rank, where they are too few."""

    rest: float
    load: float | None = None
    recording: float | None = None
    count: int | None = None
    most: int | None = None
    now: int = 0
    cores: float | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Long operators or calls of the host; without `what` the trace shows at most the range `inside`."""

    ms: float
    what: str | None = None
    inside: str | None = None


class Turns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two ranks whose hosts are the latest: in these steps, or in the light window and the traces."""

    rank: int
    other: int
    steps: tuple[int, int] | None = None
    other_steps: tuple[int, int] | None = None


class Idles(Claim, frozen=True, kw_only=True):
    """Ranks that idle for one cause, `all_ranks` or several or one; `rank` is the worst of them. profiler: what of it
    is the profiler's, or how that is known. recorded: what the traces show. plain: the step without the profiler that
    all of it is a part of. few: the steps that have nearly all of it, of `of`."""

    family = "idle"
    ranks: tuple[int, ...]
    all_ranks: bool = False
    several: bool = False
    rank: int
    ms: float
    step: float
    pct: float
    plain: float | None = None
    profiler: str = ""
    recorded: float | None = None
    recorded_step: float | None = None
    few: int | None = None
    of: int | None = None


class OutsideTorch(Claim, frozen=True, kw_only=True):
    """A training on the CPU: the main thread of its rank is outside torch's operators."""

    family = "idle"
    kind = "outside_torch"
    rank: int
    ms: float
    step: float
    pct: float


class HostBound(Idles, frozen=True, kw_only=True):
    """The host launches late. own: what of it the profiler cannot explain, which costs the host `cost` at most. first:
    what of it is in one long thing. for_memory: most of it is in calls that take memory of the driver or give it
    back."""

    own: float | None = None
    cost: float | None = None
    slowdown: float | None = None
    turns: Turns | None = None
    optimizer: str = ""
    optimizer_ms: float | None = None
    first: Held | None = None
    for_memory: bool = False
    computes: float | None = None
    computes_in: str = ""


class InputBound(Idles, frozen=True, kw_only=True):
    """Ranks wait for their input. workers: what those of the worst rank's loader do, where more may not help.
    slow_rank: another rank whose loader takes as long, `slow_ms`. core_pct: of the worst rank's steps for a core.
    unseen: the trace has no kernels, so something may run meanwhile. read, stored: MB a second that the rank and its
    workers read in the run, and from storage; little: next to nothing. place: where from."""

    read: float | None = None
    stored: float | None = None
    little: float | None = None
    place: str | None = None
    in_time: float | None = None
    need: WorkersNeeded | None = None
    workers: str = ""
    workers_idle_pct: float | None = None
    workers_busy_pct: float | None = None
    busiest_pct: float | None = None
    seen_workers: int | None = None
    core_ms: float | None = None
    core_pct: float | None = None
    slow_rank: int | None = None
    slow_ms: float | None = None
    unseen: bool = False


class BlockedOnDevice(Idles, frozen=True, kw_only=True):
    """The host blocks on the device. copies_pct: after copies. reads: for NaN, by autograd."""

    copies_pct: float | None = None
    reads: float | None = None
    reads_ms: float | None = None


class HiddenLoading(Claim, frozen=True, kw_only=True):
    """Loading that costs time only once the late ranks are fixed. loading: what workers need for a step's batches."""

    family = "idle"
    kind = "hidden_loading"
    ranks: tuple[int, ...]
    late: tuple[int, ...]
    ms: float
    step: float
    pct: float
    rank: int
    loading: float | None = None
    rest: float | None = None


_LEAST_STEPS = 3
_NEARLY = 0.9  # of it


class Idle(Struct, frozen=True):
    """Idle time of one rank in one bucket, ms per step; `step_ms` is the step that it is a part of. `recorded_ms` is
    what the trace shows, `ms` what of it a step without the profiler has room for. `wait_ms`: in that step, for other
    ranks, where the light window tells."""

    times: RankTimes
    ms: float
    step_ms: float
    recorded_ms: float
    light: bool = False  # whether the light window tells how long the device is idle
    wait_ms: float = 0.0
    in_time_ms: float | None = None  # of input that is late in every few steps: the mean of the others
    seen_ms: float = 0.0  # in which looks at the host see it wait for input, see seen_waiting_ms
    by_looks: bool = False  # whether these tell how long it is

    @property
    def pct(self) -> float:
        return 100.0 * self.ms / self.step_ms

    @property
    def recorded_pct(self) -> float:
        return 100.0 * self.recorded_ms / self.times.step_ms

    @property
    def bounded(self) -> bool:
        """Whether it is not what the trace shows: the step without the profiler has no room for all of it."""
        return self.light or self.by_looks or self.ms < self.recorded_ms


def idle_of(
    times: RankTimes,
    bucket: str,
    unprofiled_ms: float | None,
    undisturbed: Undisturbed | None,
    host_share: float,
    seen_input_ms: float = 0.0,
) -> Idle:
    """A rank's idle time in a bucket, as far as a step without the profiler leaves room for it. The device's own work
    takes as long without the profiler; the host's does not. Where there is a light window, it shows how long the device
    is idle: no cause of that can take longer. Input is claimed as recorded (TO-I002), so the host has no more than what
    that leaves, or what the looks at the host leave that saw it wait for input in the other steps. host_share: of idle
    time, as recorded. seen_input_ms: see seen_waiting_ms."""
    for_input = max(times.mean_ms("idle_input"), seen_input_ms)
    recorded, step = times.mean_ms(bucket), times.step_ms
    own = None if undisturbed is None or not times.summary.on_gpu else undisturbed.of(times.summary.rank)
    if undisturbed is not None and own is not None:
        # The host's part of it: a rank that waited in the recorded steps may starve in others, and the other way round.
        most = min(recorded, own.idle_ms)
        if bucket == "idle_host":
            most = min(own.idle_ms * host_share, max(own.idle_ms - for_input, 0.0))
        seen = min(seen_input_ms, own.idle_ms)  # no longer than the device is idle
        return Idle(times, most, undisturbed.step_ms, recorded, light=True, wait_ms=own.wait_ms, seen_ms=seen)
    if not unprofiled_ms or not times.summary.on_gpu or unprofiled_ms >= step:
        return Idle(times, recorded, step, recorded)
    room = room_ms(times, unprofiled_ms)
    if bucket == "idle_host":
        room -= for_input
    return Idle(times, min(recorded, max(room, 0.0)), unprofiled_ms, recorded, seen_ms=seen_input_ms)


def few_steps(times: RankTimes, bucket: str) -> int | None:
    """In how many of the typical steps nearly all of a bucket lies, where those are few; None where they are not. A
    window of a few steps holds one in which the loss is read, or none: how often that comes it does not tell."""
    took = times.buckets[bucket][times.typical].astype(np.float64)
    if len(took) < _LEAST_STEPS or not took.any():
        return None
    long = took > took.mean() / 2
    few = 2 * long.sum() < len(took) and took[long].sum() >= _NEARLY * took.sum()
    return int(long.sum()) if few else None


def in_time_ms(idle: Sequence[Idle], run: CrossRank, undisturbed: Undisturbed, saved: float) -> float | None:
    """What the undisturbed step gains with all launches in time, ms. saved: what the recorded one gains, by the replay.
    The device's work is left, and what ranks wait for besides their hosts: of the time in which the busiest device does
    not work, the same part as the replay leaves of it in the recorded step. None where that one has no such time."""
    room = undisturbed.step_ms - max(one.busy_ms for one in undisturbed.ranks)
    if room <= 0:
        return 0.0  # the busiest device works all the time, whatever hosts do
    recorded = run.step_ms - max(work_ms(times) for times in run.ranks)
    if recorded <= 0:
        return None
    part = min(saved / recorded, 1.0)
    return min(room * part, max(one.ms + one.wait_ms for one in idle))


def host_share(ranks: Sequence[RankTimes]) -> float:
    """What part of all idle time is the host's, as recorded; all of it where nothing is idle."""
    idle = sum(times.mean_ms(bucket) for times in ranks for bucket in IDLE_BUCKETS)
    return sum(times.mean_ms("idle_host") for times in ranks) / idle if idle > 0 else 1.0


_MOST = 0.5  # of the lateness


def recording_ms(times: RankTimes) -> float:
    """About the most of a step's late launches that recording causes, ms; 0 where the trace has nothing of a host.
    The device's wait for one long operator or call is not among it: that is one event, but for a graph's launch. Nor
    for what is not recorded, unless that may be the profiler's own step, or Python functions."""
    if not times.summary.on_gpu:
        return 0.0
    silent = times.summary.steps_by != "profiler" and not times.summary.meta.with_stack
    own = [one for one in times.summary.held if (silent or not one.unseen) and "GraphLaunch" not in one.name]
    held = sum(mean_ms(one.idle_ns[times.typical]) for one in own)
    return min(times.recording_ms, max(times.mean_ms("idle_host") - held, 0.0))


def measured(inputs: Inputs) -> bool:
    """Whether the run itself shows what its steps take without the profiler."""
    return any(known is not None for known in (inputs.slowdown, inputs.unprofiled_ms, inputs.undisturbed))


def certain_severity(worst: Idle, bounds: tuple[float, float, float], seen: Severity) -> Severity | None:
    """How severe the lateness is that recording cannot explain; None where that is no judgement of what is seen.
    Nothing is certain beyond a warning. Where most of the lateness may be recording, and the rest alone is less severe
    than all of it, a remark about the rest would be a clean bill for what nobody knows."""
    cost = recording_ms(worst.times)
    left, step = worst.ms - cost, worst.step_ms - cost
    found = severity_of(100.0 * left / step, *bounds) if left > 0 else None
    found = "warning" if found == "error" else found
    return None if found != seen and cost > _MOST * worst.ms else found


def may_be_recording(run: CrossRank, worst: Idle) -> str:
    """Why the rule is not evaluated."""
    cost, late = recording_ms(worst.times), worst.ms
    part = "all" if cost >= late else "most" if cost > _MOST * late else "part"
    known = None if part == "all" else cost
    return reason("idle", "recording", part=part, late=late, cost=known, window=run.unit == "window")


_LEAST_LOOKS = 20  # at a host that waits for input


def seen_waiting_ms(times: RankTimes, whole: WholeRun | None) -> float:
    """What looks at the host see it wait for input in a typical step that is not recorded, the device idle meanwhile.
    Recording makes the host late for its loader, and what the workers do meanwhile it need not wait for. Of the time in
    the loader the device is idle for the part that is recorded. 0 where it was seen there too seldom."""
    if whole is None:
        return 0.0
    loading = [one for one in whole.host.get(times.summary.rank, ()) if one.does == "input"]
    took = times.loading_ms
    if not took or sum(one.looks for one in loading) < _LEAST_LOOKS:
        return 0.0
    return sum(one.ms for one in loading) * min(times.mean_ms("idle_input") / took, 1.0)


def waits_for_input(idle: Sequence[Idle], whole: WholeRun | None) -> list[Idle]:
    """The same ranks, with no more of it than the steps leave in which input is in time. These tell what a step takes
    then, and its host with it: what a few recorded steps show leaves the device's time. Where there are none, and looks
    at the host see it wait longer than the recorded steps do, that is what it waits."""
    found = []
    for one in idle:
        if whole is None or whole.in_time_ms is None:
            seen = min(one.seen_ms, room_ms(one.times, one.step_ms)) if one.seen_ms else 0.0
            found.append(replace(one, ms=seen, by_looks=True) if seen > one.recorded_ms else one)
        else:
            late_ms = max(one.step_ms - whole.in_time_ms, 0.0)
            found.append(replace(one, ms=late_ms, in_time_ms=whole.in_time_ms) if late_ms < one.ms else one)
    return found


# What TO-I002 says of data loading: the time in it, and how many workers would load in time.

_AS_SLOW = 0.5  # of the step


def loading_evidence(times: RankTimes, words: StepWords) -> tuple[Evidence, ...]:
    """The time in data loading, device busy or not, and what it was seen as."""
    rank, names = times.summary.rank, times.summary.host.input_names
    if not names:  # loading begins outside the marked steps
        return ()
    return (
        Evidence(Fact.TIME_IN_DATA_LOADING, stored(times.loading_ms), words.unit("ms"), rank=rank),
        Evidence(Fact.SEEN_AS, ", ".join(names)[:200], rank=rank),
    )


def workers_needed(
    times: RankTimes,
    saved: float | None,
    manifest: Mapping[str, Any],
    words: StepWords,
    *,
    step_ms: float | None = None,
    recording_ms: float = 0.0,
) -> tuple[WorkersNeeded | None, tuple[Evidence, ...]]:
    """How many workers would load in time, for the claim and as numbers; nothing where no DataLoader is behind it.
    step_ms: the step that `saved` is of, None for the recorded one. recording_ms: about what of the rest of the step
    may be the profiler's: without it more workers keep up."""
    rank = times.summary.rank
    need = loading_need(
        times, saved, told_workers(manifest), cores_of_rank(manifest, rank), step_ms=step_ms, recording_ms=recording_ms
    )
    if need is None or words is WINDOW or times.typical.sum() < 2:  # one may hold the first batches alone: no pace
        return None, ()
    certain = need.most_workers == need.workers
    loaded = Evidence(Fact.LOADING_BY_ONE_PROCESS, stored(need.load_ms), "ms", rank=rank, subject=words.a)
    claimed = WorkersNeeded(
        rest=stored(need.rest_ms),
        load=stored(need.load_ms) if need.now else None,  # else the rank loads itself, and its waiting is said
        recording=None if certain else stored(recording_ms),
        count=need.workers,
        most=None if certain else need.most_workers,
        now=need.now,
        cores=stored(need.cores) if need.cores and need.workers + 1 > need.cores else None,
    )
    return claimed, (loaded,)


def slow_loader(run: CrossRank, ranks: Sequence[int], step_ms: float) -> tuple[int, float] | None:
    """Another rank, whose loader is about as slow as those of these ranks, and what it takes; None without one."""
    if (slowest := slowest_other(run.loading_ms, ranks)) is None or slowest[1] < _AS_SLOW * step_ms:
        return None
    return slowest[0], min(slowest[1], step_ms)


class NextBatch(Struct, frozen=True):
    """What is known of a rank that waits for the next batch of a loader with workers. core_ms: what it waits for a core
    in each recorded step, 0 where that is not known. work: what the workers do, None where they were looked at too
    seldom. waits_ms: for its next batch."""

    rank: int
    waits_ms: float
    core_ms: float
    work: LoaderWork | None

    @property
    def idle_workers(self) -> bool:
        """Whether each of its workers is seen to have nothing to do most of the time."""
        return self.work is not None and self.work.busiest_pct < BUSY_PCT

    @property
    def wants_a_core(self) -> bool:
        """Whether it waits for a core as long as for its next batch, so that one may be all of the other."""
        return self.core_ms >= self.waits_ms

    @property
    def not_loading(self) -> bool:
        """Whether its loader is in time, and the rank itself gets no core to take the batch."""
        return self.idle_workers and self.wants_a_core

    @property
    def unsure(self) -> bool:
        """Whether nothing tells if its workers are late, or it gets no core."""
        return self.work is None and self.wants_a_core


def next_batch(inputs: Inputs, one: Idle) -> NextBatch | None:
    """Of a rank whose loader has workers; None where it loads by itself, or waits for something else."""
    if not has_workers(one.times.summary):
        return None
    rank = one.times.summary.rank
    if (observed := next((own for own in inputs.observed if own.rank == rank), None)) is None:
        return NextBatch(rank, one.recorded_ms, 0.0, None)
    wait = recorded_waits([observed]).get(rank)
    work = loader_work(observed) if inputs.whole is None else inputs.whole.loaders.get(rank)
    return NextBatch(rank, one.recorded_ms, 0.0 if wait is None else wait.ms, work)


def loading_ranks(inputs: Inputs, idle: Sequence[Idle], least_pct: float) -> tuple[list[Idle], str]:
    """The ranks that may wait for their loaders, and why the worst of the others that wait so long does not, or ''."""
    kept, spared = list[Idle](), list[NextBatch]()
    for one in idle:
        batch = next_batch(inputs, one) if one.pct >= least_pct else None
        if batch is not None and batch.not_loading:
            spared.append(batch)
        else:
            kept.append(one)
    worst = max(spared, key=lambda one: one.waits_ms, default=None)
    if worst is None or worst.work is None:
        return kept, ""
    pct = f"{100 - worst.work.busy_pct:.0f}"
    return kept, reason("idle", "no_core", rank=worst.rank, waits=worst.waits_ms, pct=pct, core=worst.core_ms)


def not_by_workers(batch: NextBatch | None) -> tuple[dict[str, Any], tuple[Evidence, ...]]:
    """What is claimed where more workers are not known to help, and its numbers; nothing where they may."""
    if batch is None:
        return {}, ()
    core = Evidence(Fact.WAITS_FOR_A_CORE, stored(batch.core_ms), "ms/recorded step", rank=batch.rank)
    if batch.idle_workers and batch.work is not None:
        busy = Evidence(Fact.LOADER_WORKERS_BUSY, round(batch.work.busy_pct, 1), "%", rank=batch.rank)
        return {"workers": "idle", "workers_idle_pct": stored(100 - batch.work.busy_pct)}, (busy,)
    if batch.work is not None and batch.work.one_busy:
        busiest = Evidence(Fact.BUSIEST_LOADER_WORKER, round(batch.work.busiest_pct, 1), "%", rank=batch.rank)
        facts = {
            "workers": "one_busy",
            "seen_workers": batch.work.processes,
            "busiest_pct": stored(batch.work.busiest_pct),
            "workers_busy_pct": stored(batch.work.busy_pct),
        }
        return facts, (busiest,)
    return ({"workers": "unsure", "core_ms": stored(batch.core_ms)}, (core,)) if batch.unsure else ({}, ())


def without_waiting(
    found: Finding, inputs: Inputs, idle: Sequence[Idle], worst: Idle, bounds: Sequence[float]
) -> Finding:
    """The finding of ranks that load by themselves, as severe as the most that waiting for a core leaves of any."""
    waits = dict.fromkeys((one.times.summary.rank for one in idle), 0.0)
    for one in idle:
        own = recorded_waits([own for own in inputs.observed if own.rank == one.times.summary.rank])
        wait = own.get(one.times.summary.rank)
        if wait is not None and wait.beside_pct >= WAITS_PCT and not has_workers(one.times.summary):
            waits[one.times.summary.rank] = wait.beside_pct
    rank = worst.times.summary.rank
    left = severity_of(max(one.pct - waits[one.times.summary.rank] for one in idle), *bounds) or "info"
    if not waits[rank] or SEVERITIES.index(left) >= SEVERITIES.index(found.severity):
        return found
    core = Evidence(Fact.WAITS_FOR_A_CORE, round(waits[rank], 1), "%", WAITS_PCT, rank)
    found = restated(found, InputBound, core_pct=stored(waits[rank]))
    return replace(found, severity=left, evidence=(*found.evidence, core))


def unsure_of_all(inputs: Inputs, idle: Sequence[Idle], least_pct: float) -> bool:
    """Whether nothing tells of any rank that waits so long if its workers are late, or it gets no core."""
    batches = [next_batch(inputs, one) for one in idle if one.pct >= least_pct]
    return bool(batches) and all(batch is not None and batch.unsure for batch in batches)
