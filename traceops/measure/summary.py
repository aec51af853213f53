"""The map: everything that needs one rank only, from a trace file to a compact summary."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.compute.measure import measure_compute
from traceops.compute.model import RankCompute
from traceops.core.arrays import Int, numbered, uniques
from traceops.core.errors import FileError
from traceops.core.words import StepsBy
from traceops.measure.activity import COMM, COMPUTE, Activity, find_activity
from traceops.measure.copies import RankCopies, measure_copies
from traceops.measure.detail import measure_detail
from traceops.measure.exchanges import find_exchanges
from traceops.measure.flops import NOT_COUNTED, RankFlops, measure_flops
from traceops.measure.host import (
    AnomalyChecks,
    HeldLaunches,
    HostTime,
    HostWork,
    measure_anomaly,
    measure_held,
    measure_host,
    measure_host_work,
)
from traceops.measure.host_places import StackTime, stack_times
from traceops.measure.hta_tables import HtaAgreement, HtaTables, compare_tables, hta_tables
from traceops.measure.inventory import KernelStats, RankInventory, measure_inventory, measure_kernels
from traceops.measure.launched import find_launched
from traceops.measure.ledger import (
    Breakdown,
    RankLedger,
    breakdown_of,
    find_lane,
    ledger_of,
    measure_beside,
    measure_breakdown,
    why_failed,
)
from traceops.measure.phases import BackwardSync, InferencePass, find_passes, find_phases, measure_backward_sync
from traceops.measure.program import HELD_UP_NS, RankProgram, measure_program
from traceops.measure.steps import StepBounds, find_steps
from traceops.traces.discover import TraceFile
from traceops.traces.kineto import load_trace, why_foreign
from traceops.traces.memory_events import read_memory_events
from traceops.traces.model import CommArgs, Events, Frames, RankTrace, TraceMeta


class CommEvents(Struct, frozen=True):
    """One rank's collectives in start order (ns); `args[i]` is None where the trace says nothing of it. `parts` to
    `weights_apart` are of sends and receives, as in Exchanges; `phase` is of all, as in `find_phases`, and `slowed`
    too, as in `measure_beside`."""

    start: Int
    end: Int
    step: Int  # position in the rank's steps, see StepBounds.of_activity
    stream: Int
    name: tuple[str, ...]
    args: tuple[CommArgs | None, ...]
    parts: tuple[tuple[CommArgs, ...], ...]
    before: NDArray[np.int8]
    after: NDArray[np.int8]
    stage: Int
    micro_batch: Int
    weights_apart: bool
    phase: NDArray[np.int8]
    slowed: Int


class RankSummary(Struct, frozen=True):
    """What the reduce needs of one rank; small whatever the trace's size."""

    rank: int
    path: str
    meta: TraceMeta
    damage: tuple[str, ...]
    event_count: int
    on_gpu: bool
    compute_stream: int
    step_numbers: Int
    step_edges: Int
    empty_steps: tuple[int, ...]
    ledger: RankLedger
    comm: CommEvents
    program: RankProgram
    breakdown: Breakdown
    kernels: tuple[KernelStats, ...]
    inventory: RankInventory
    host: HostTime
    backward: BackwardSync
    hta: HtaTables
    copies: RankCopies  # between host and device
    # Whether what gloo exchanges waits for the GPU, so that it is not the host's own data, beside NCCL's collectives or
    # alone.
    exchanges_of_gpu: bool
    kernels_lost: bool = False  # kernels were launched, and the trace holds none of them
    gpu_calls: bool = False  # calls of its runtime were recorded
    unrecorded_gpu: bool = False  # its memory events lie on a GPU, of which the trace holds nothing else
    through_host: bool = False  # gloo exchanges what is on the GPU: no collective runs there, and hosts wait for it
    hta_agreement: HtaAgreement | None = None  # None where HTA's own code was not asked
    passes: tuple[InferencePass, ...] = ()  # of an inference server
    captures_graphs: bool = False  # most kernels were launched into a graph that was being captured
    steps_by: StepsBy = "profiler"  # what told where steps begin, and the name of it
    step_mark: str = ""
    flops: RankFlops = NOT_COUNTED
    detail: bytes = b""  # what each step consists of, to draw it; see measure/detail.py
    # Of the process that was recorded; None where the trace tells of none, or of several.
    pid: int | None = None
    stacks: tuple[StackTime, ...] = ()  # of a trace with stacks: where the host was
    anomaly: AnomalyChecks | None = None  # None where autograd does not look for NaN
    held: tuple[HeldLaunches, ...] = ()  # what the host was in long while its device waited for launches
    compute: RankCompute | None = None  # None where no GPU ran
    host_work: HostWork | None = None  # what the host computes itself meanwhile
    incomplete: bool = False  # some of every step may be missing, see RankTrace
    untimed: int = 0  # events without a valid time
    recorded_ns: int = 0  # from the first event to the end of the last
    catches_up_ns: int = 0  # what the first step holds beside its own, see StepBounds

    @property
    def exchanges_on_host(self) -> bool:
        """Whether a backend's threads on the host run the collectives, and not the device."""
        return self.through_host or not self.on_gpu

    @property
    def numbered_steps(self) -> set[int]:
        """The numbers of its steps; none where steps are not marked."""
        return {number for number in self.step_numbers.tolist() if number >= 0}

    def steps_of_comm(self) -> list[int | None]:
        """What `step_number` says of each of `comm`."""
        inside = (self.comm.step >= 0) & (self.comm.step < len(self.step_numbers))
        numbers = self.step_numbers.take(np.where(inside, self.comm.step, 0)).tolist()
        return [number if known else None for number, known in zip(numbers, inside.tolist(), strict=True)]

    def step_number(self, position: int) -> int | None:
        """The number of the step that launched the collective at this position of `comm`; None outside all."""
        step = int(self.comm.step[position])
        return int(self.step_numbers[step]) if 0 <= step < len(self.step_numbers) else None


def summarize(
    file: TraceFile,
    with_hta: bool = False,
    ahead: bool = False,
    own_kernels: tuple[str, ...] = (),
    gpu: str = "",
    searched: int = 0,
) -> RankSummary:
    """Load one trace and measure it, HTA's analyses by HTA's own code on demand; `ahead` as in `load_trace`,
    `searched` as in `by_hta`, `own_kernels` as in `find_activity`. `gpu`: its name, whatever the trace says. Raises
    InputError where the file cannot be opened, or is no trace of torch's profiler."""
    trace = load_trace(file.path, ahead)
    if foreign := why_foreign(trace):
        raise FileError(file.path, foreign, ": ")
    events = trace.events
    hta = hta_tables(file.rank, events)  # first: it takes most memory, and the others hold on to what they find
    activity = find_activity(events, own_kernels, trace.meta.backend)
    if not (len(activity.row) or len(activity.host.steps[0])):
        raise FileError(file.path, _why_empty(trace, len(activity.host.launches)), ": ")
    steps = find_steps(events, activity, file.steps)
    lane = find_lane(events, activity, steps)
    comm: NDArray[np.int64] = (activity.kind == COMM).nonzero()[0]
    comm = comm[activity.start[comm].argsort(kind="stable")]
    # Where collectives run on the device too, they are the ones that are measured, and not what gloo exchanges.
    uses_gloo = trace.meta.backend == "gloo" or len(activity.host.exchanged) > 0
    through_host = activity.through_host or (activity.on_gpu and not len(comm) and uses_gloo)
    # Of the host's own events: those of a GPU have the device's number in the place of a pid.
    pids = uniques(events.pid[events.in_cats("cpu_op", "operator", "user_annotation")])
    summary = RankSummary(
        rank=file.rank,
        path=file.path,
        meta=trace.meta,
        damage=trace.damage,
        event_count=len(events),
        on_gpu=activity.on_gpu,
        compute_stream=_busiest_stream(events, activity),
        step_numbers=steps.number,
        step_edges=steps.edges,
        empty_steps=steps.empty,
        ledger=ledger_of(lane, steps),
        comm=_comm_events(events, activity, steps, comm),
        program=measure_program(events, activity, steps, lane, comm),
        breakdown=measure_breakdown(events, activity, steps, hta),
        kernels=measure_kernels(events, activity, steps),
        inventory=measure_inventory(events, activity, steps),
        host=measure_host(activity, steps, trace.meta, lane),
        backward=measure_backward_sync(events, activity, steps),
        hta=hta,
        copies=measure_copies(events, activity, steps, lane),
        exchanges_of_gpu=activity.on_gpu and len(activity.host.waits_of_exchanges) > 0,
        kernels_lost=activity.lost,
        gpu_calls=len(activity.host.launches) > 0,
        unrecorded_gpu=not activity.on_gpu and trace.meta.profile_memory and read_memory_events(file.path) is not None,
        through_host=through_host,
        passes=find_passes(events, activity),
        captures_graphs=activity.host.captures_graphs,
        steps_by=steps.by,
        step_mark=steps.mark,
        flops=measure_flops(events, activity, steps),
        detail=measure_detail(events, activity, steps),
        pid=int(pids[0]) if len(pids) == 1 and pids[0] > 0 else None,
        stacks=stack_times(trace.frames.long, activity.host, activity.host.held_up(HELD_UP_NS), lane, steps)
        if len(trace.frames)
        else (),
        anomaly=measure_anomaly(activity.host, steps),
        compute=measure_compute(find_launched(events, activity, steps, trace.frames), gpu or trace.meta.device)
        if activity.on_gpu and COMPUTE in activity.kind
        else None,
        held=measure_held(activity, steps, lane),
        host_work=measure_host_work(activity, steps, lane),
        incomplete=trace.incomplete,
        untimed=trace.untimed,
        recorded_ns=_recorded_ns(events, trace.frames),
        catches_up_ns=steps.catches_up_ns,
    )
    return by_hta(summary, trace, searched) if with_hta else summary


def numbered_steps(ranks: Iterable[RankSummary]) -> set[int]:
    """The numbers of all their steps."""
    return {number for summary in ranks for number in summary.numbered_steps}


def _recorded_ns(events: Events, frames: Frames) -> int:
    """From the first event to the end of the last; Python outside of operators is in frames alone."""
    spans = [(one.ts.min(), (one.ts + one.dur).max()) for one in (events, frames) if len(one)]
    return int(max(end for _, end in spans) - min(start for start, _ in spans)) if spans else 0


def _why_empty(trace: RankTrace, calls: int) -> str:
    """What a trace is that holds no operator, no kernel and no step. calls: of the GPU's runtime."""
    if trace.damage:
        return f"{'; '.join(trace.damage)}; what can be read of it holds no operator, no kernel and no step"
    held = f"it holds {calls:,} calls of the GPU's runtime, but" if calls else "it holds"
    return f"{held} no operator, no kernel and no step: nothing ran while the profiler recorded; record training steps"


def by_hta(summary: RankSummary, trace: RankTrace, searched: int = 0) -> RankSummary:
    """The summary of this trace with HTA's tables by HTA's own code, and how they agree with those that it had.
    searched: events of a trace up to which HTA also gives what only HTA has."""
    from traceops.measure.hta_bridge import installed_hta, tables_by_hta  # imports pandas and HTA

    theirs = tables_by_hta(summary.rank, trace, summary.event_count <= searched)
    breakdown = summary.breakdown
    if breakdown.source == "hta":
        breakdown = breakdown_of(theirs) or replace(breakdown, source="traceops", why_not_hta=why_failed(theirs))
    agreement = compare_tables(summary.hta, theirs, installed_hta())
    return replace(summary, hta=theirs, hta_agreement=agreement, breakdown=breakdown)


def _comm_events(events: Events, activity: Activity, steps: StepBounds, comm: Int) -> CommEvents:
    rows = activity.row[comm]
    known = find_exchanges(events, activity, comm)
    return CommEvents(
        start=activity.start[comm],
        end=activity.end[comm],
        step=steps.of_activity[comm],
        stream=activity.lane_of(events, comm),
        name=tuple(events.names[i] for i in events.name[rows]),
        args=known.args,
        parts=known.parts,
        before=known.before,
        after=known.after,
        stage=known.stage,
        micro_batch=known.micro_batch,
        weights_apart=known.weights_apart,
        phase=find_phases(events, activity, steps, comm),
        slowed=measure_beside(events, activity, steps, comm),
    )


def _busiest_stream(events: Events, activity: Activity) -> int:
    """The stream (thread without a GPU) with most computation, -1 without any."""
    compute = activity.kind == COMPUTE
    lanes, which = numbered(activity.lane_of(events, compute.nonzero()[0]))
    if not len(lanes):
        return -1
    return int(lanes[np.argmax(np.bincount(which, weights=(activity.end - activity.start)[compute]))])
