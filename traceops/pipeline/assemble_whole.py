"""The rows of the whole run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from traceops.across.cross_rank import CrossRank
from traceops.across.links import overall_busbw
from traceops.across.match import Collective
from traceops.across.plain_step import PlainStep
from traceops.across.run_steps import WholeRun
from traceops.across.run_use import HELD, RESERVED, STEP, MemoryUse
from traceops.across.undisturbed import Undisturbed
from traceops.core.arrays import median, uniques
from traceops.core.units import stored
from traceops.core.words import KINDS_OF_MEMORY
from traceops.measure.host_places import own_overhead
from traceops.measure.ledger import BUCKETS
from traceops.pipeline.observed_run import ObservedRun
from traceops.report import step_times
from traceops.report.rows import (
    HostSummary,
    MemoryByKind,
    MemoryInStep,
    MemoryLine,
    MemoryMaker,
    MemoryOverTime,
    MemoryRank,
    MemoryRecorded,
    MemoryRows,
    MemoryStep,
    MemoryStepPeak,
    RankRow,
)
from traceops.traces.observed import Observed
from traceops.traces.run_manifest import cupti_stayed, own_profilers

if TYPE_CHECKING:
    from traceops.measure.step_memory import StepMemory
    from traceops.traces.memory_snapshot import DeviceSnapshot

# The hosts of a run as rows of its report: what their ranks do, and what goes on inside and between hosts.


def host_rows(run: CrossRank, ranks: Sequence[RankRow]) -> tuple[HostSummary, ...]:
    """A row a host, by its first rank; none where all ranks are on one host, or hosts are not named."""
    of_host: dict[str, list[RankRow]] = defaultdict(list)
    for row in ranks:
        if row.host is None:
            return ()
        of_host[row.host].append(row)
    if len(of_host) < 2:
        return ()
    parts = _parts(run, {row.rank: host for host, rows in of_host.items() for row in rows})
    return tuple(_row(host, rows, run, parts[host]) for host, rows in of_host.items())


class _HostCollectives:
    """Collectives that a host takes part in, inside it or not: ns of its ranks together, and all of them."""

    def __init__(self) -> None:
        self.wait_ns = self.transfer_ns = 0
        self.collectives: dict[int, Collective] = {}


def _parts(run: CrossRank, host_of: dict[int, str]) -> dict[str, tuple[_HostCollectives, _HostCollectives]]:
    """Of each host what lies inside, and what reaches another one; of recorded steps."""
    edges = {times.summary.rank: times.summary.step_edges for times in run.ranks}
    comm = {times.summary.rank: times.summary.comm for times in run.ranks}
    parts: dict[str, tuple[_HostCollectives, _HostCollectives]] = defaultdict(
        lambda: (_HostCollectives(), _HostCollectives())
    )
    for number, collective in enumerate(run.matching.collectives):
        away = len({host_of.get(rank) for rank in collective.group}) > 1
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            start, end = (int(times[position]) for times in (comm[rank].start, comm[rank].end))
            if not edges[rank][0] <= start < edges[rank][-1]:
                continue
            part = parts[host_of[rank]][away]
            part.wait_ns += wait
            part.transfer_ns += end - start - wait
            part.collectives[number] = collective
    return parts


def _row(
    host: str, rows: Sequence[RankRow], run: CrossRank, parts: tuple[_HostCollectives, _HostCollectives]
) -> HostSummary:
    steps = sum(row.steps for row in rows)  # of all its ranks: ns over it is the average rank's, a step
    per = {
        f"{name}_{kind}_ms": stored(getattr(part, f"{kind}_ns") / steps / 1e6) if run.split and steps else None
        for name, part in zip(("inside", "between"), parts, strict=True)
        for kind in ("wait", "transfer")
    }
    inside, between = (overall_busbw(list(part.collectives.values())) for part in parts)
    return HostSummary(
        host=host,
        ranks=tuple(row.rank for row in rows),
        step_ms=_of_all(fmean, [row.typical_step_ms for row in rows]),
        **{f"{bucket}_ms": _of_all(fmean, [row.bucket_ms(bucket) for row in rows]) for bucket in BUCKETS},
        **per,
        inside_busbw_gbs=inside,
        between_busbw_gbs=between,
        caused_wait_ms=_of_all(sum, [row.caused_wait_ms for row in rows]),
        late_share=_of_all(sum, [row.late_share for row in rows]),
        peak_memory_bytes=max((row.peak_memory_bytes for row in rows if row.peak_memory_bytes), default=None),
    )


def _of_all(combine: Callable[[Sequence[float]], float], values: Sequence[float | None]) -> float | None:
    """None where one of the values is not known."""
    known = [value for value in values if value is not None]
    return stored(combine(known)) if known and len(known) == len(values) else None


MOST_RANKS, MOST_POINTS, MOST_LINES, MOST_MOMENTS = 64, 300, 20, 200


def memory_rows(
    uses: Sequence[MemoryUse], snapshots: Mapping[int, DeviceSnapshot], recorded: tuple[int, StepMemory] | None
) -> MemoryRows | None:
    """None where no rank told more than its peaks, which are in the table of ranks. recorded: the rank whose trace has
    memory events, and what they say."""
    if not any(len(use.looks) or use.held for use in uses) and not snapshots and recorded is None:
        return None
    return MemoryRows(
        ranks=tuple(_rank(use, snapshots.get(use.rank)) for use in uses),
        steps=tuple(_steps(uses)),
        over_time=_over_time(snapshots),
        recorded=None if recorded is None else recorded_memory(*recorded),
    )


def recorded_memory(rank: int, found: StepMemory) -> MemoryRecorded:
    """Peaks of all steps, and the course of the one with the highest."""
    most = max(found.steps, key=lambda step: sum(step.held))
    moments = np.linspace(most.first, most.stop - 1, min(MOST_MOMENTS, most.stop - most.first))
    chosen = uniques(moments.astype(np.int64), np.array([most.at]))
    return MemoryRecorded(
        rank=rank,
        device=found.device,
        steps=tuple(
            MemoryStepPeak(
                step=step.step,
                at_ms=_ms(int(found.ts[step.at]), step.begin),
                peak_bytes=sum(step.held),
                held=_by_kind(step.held),
                makers=tuple(
                    MemoryMaker(
                        operator=one.operator, kind=KINDS_OF_MEMORY[one.kind], held_bytes=one.bytes, blocks=one.blocks
                    )
                    for one in step.makers
                ),
            )
            for step in found.steps
        ),
        in_step=MemoryInStep(
            step=most.step,
            at_ms=tuple(_ms(ns, most.begin) for ns in found.ts[chosen].tolist()),
            held=tuple(_by_kind(row) for row in found.held[chosen].tolist()),
        ),
    )


def _by_kind(held: Sequence[int]) -> MemoryByKind:
    return MemoryByKind(**dict(zip(KINDS_OF_MEMORY, held, strict=True)))


def _ms(ns: int, begin: int) -> float:
    return stored(max(ns - begin, 0) / 1e6)


def _rank(use: MemoryUse, snapshot: DeviceSnapshot | None) -> MemoryRank:
    lines = () if snapshot is None else snapshot.at_peak[:MOST_LINES]
    return MemoryRank(
        rank=use.rank,
        capacity_bytes=use.capacity,
        peak_bytes=use.peak,
        reserved_bytes=use.reserved,
        between_steps_bytes=use.held.get("allocated"),
        parameters_bytes=use.held.get("parameters"),
        gradients_bytes=use.held.get("gradients"),
        optimizer_state_bytes=use.held.get("optimizer_state"),
        grows_bytes=None if use.growth is None else stored(use.growth.per_step),
        lines=tuple(MemoryLine(line=own.place, held_bytes=own.bytes, blocks=own.blocks) for own in lines),
    )


def _steps(uses: Sequence[MemoryUse]) -> Iterator[MemoryStep]:
    for use in [use for use in uses if len(use.looks)][:MOST_RANKS]:
        for row in use.looks[:: -(-len(use.looks) // MOST_POINTS)].tolist():
            yield MemoryStep(rank=use.rank, step=row[STEP], held_bytes=row[HELD], reserved_bytes=row[RESERVED])


def _over_time(snapshots: Mapping[int, DeviceSnapshot]) -> MemoryOverTime | None:
    if not (known := {rank: one for rank, one in snapshots.items() if one.over_time is not None}):
        return None
    rank = max(known, key=lambda one: known[one].peak)
    found = known[rank].over_time
    assert found is not None
    return MemoryOverTime(rank=rank, lines=found.places, moments=found.moments, held_bytes=found.held, peak=found.peak)


# A flame graph a rank, from looks at its host: a file for https://www.speedscope.app.

_RUNNER = (
    "/traceops/capture/as_script.py", "/traceops/capture/script.py", "/traceops/capture/run_as_main.py",
    "<frozen runpy>",
)  # fmt: skip


def flame_file(rank: int) -> str:
    """Its name in the report's folder."""
    return f"flame.rank_{rank}.speedscope.json"


def flame_graph(observed: Observed) -> str | None:
    """The text of that file; None where nobody looked."""
    if not len(observed.samples):
        return None
    weights = np.bincount(observed.samples[:, 1], observed.samples[:, 2], len(observed.stacks))
    samples, took = [], []
    for stack in weights.nonzero()[0].tolist():
        if own_overhead(observed, stack):
            continue
        samples.append([n for n in observed.stacks[stack] if not observed.frames[n].file.endswith(_RUNNER)])
        took.append(round(float(weights[stack]) / 1e3, 3))
    frames = [{"name": frame.function, "file": frame.file, "line": frame.line} for frame in observed.frames]
    profile = {
        "type": "sampled", "name": f"rank {observed.rank}", "unit": "milliseconds", "startValue": 0,
        "endValue": round(sum(took), 3), "samples": samples, "weights": took,
    }  # fmt: skip
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "traceops",
            "name": f"rank {observed.rank}: the host outside of recorded steps",
            "shared": {"frames": frames},
            "profiles": [profile],
        },
        separators=(",", ":"),
    )


MOST_PIECES = 1000
MOST_LISTED_RANKS = 64
MOST_PLACES = 12
MOST_STEPS = 256


def whole_run_rows(
    seen: ObservedRun, plain: PlainStep | None, manifest: Mapping[str, Any]
) -> step_times.WholeRunRows | None:
    """None where the run was not observed."""
    if (run := seen.whole) is None:
        return None
    recorded = int((~np.isnan(run.step_ms) & ~run.timed).sum()) - 1  # the first step is not timed either
    longer = None if plain is None else plain.longer
    least, most = min(seen.ended.values(), default=0), max(seen.ended.values(), default=0)
    first = sorted(rank for rank, steps in seen.ended.items() if steps == least)
    rounds = None
    if seen.rounds is not None:
        phases = [
            step_times.PhaseRow(where=one.place.said, ms=_rounded(one.ms), pct=_rounded(one.pct), trains=one.trains)
            for one in seen.rounds.phases
        ]
        made = seen.rounds
        rounds = step_times.RoundsRow(steps=made.steps, ms=_rounded(made.ms), count=made.count, phases=tuple(phases))
    return step_times.WholeRunRows(
        steps=int(run.timed.sum()),
        typical_steps=run.typical_steps,
        typical_ms=_rounded(run.typical_ms),
        before_ms=None if longer is None else _rounded(longer.before_ms),
        behind_ms=None if longer is None else _rounded(longer.behind_ms),
        recorded_steps=max(recorded, 0),
        start_steps=len(run.start),
        skipped_steps=run.skipped,
        ended_after=None
        if least == most
        else step_times.EndedRow(least=least, most=most, first=tuple(first[:MOST_LISTED_RANKS])),
        clock="device" if run.on_device else "host",
        early_window=seen.early,
        looks=sum(run.looks.values()),
        input_by_turns=run.by_turns,
        own_profiler=_own_profiler(run, manifest),
        rounds=rounds,
        occasions=tuple(
            step_times.OccasionRow(
                cause=one.cause,
                where=None if one.place is None else one.place.said,
                times=one.times,
                more_ms=_rounded(one.more_ms / one.times),
                share_pct=_rounded(one.share_pct),
                ranks=one.ranks,
                steps=one.steps[:MOST_STEPS],
            )
            for one in run.occasions
        ),
        hosts=tuple(
            step_times.HostRow(
                rank=rank,
                function=one.place.function,
                file=one.place.file,
                line=one.place.line,
                text=one.place.text,
                ms=_rounded(one.ms),
                looks=one.looks,
                waits=one.waits,
            )
            for rank, own in list(run.host.items())[:MOST_LISTED_RANKS]
            for one in own[:MOST_PLACES]
        ),
        machine=_machine(seen),
        timeline=tuple(_timeline(run)),
    )


def _own_profiler(run: WholeRun, manifest: Mapping[str, Any]) -> step_times.OwnProfilerRow | None:
    """Of the first rank whose script profiled itself."""
    if (told := next(iter(own_profilers(manifest)), None)) is None:
        return None
    took = run.step_ms[(run.numbers >= told.first) & (run.numbers <= told.last) & ~run.timed]
    took = took[~np.isnan(took)]
    all_of_them = told.steps == told.last - told.first + 1 and len(took) == told.steps
    return step_times.OwnProfilerRow(
        first=told.first,
        last=told.last,
        steps=told.steps,
        step_ms=_rounded(median(took)) if all_of_them else None,
        where=told.where,
    )


def undisturbed_rows(
    undisturbed: Undisturbed, recorded_ms: float, manifest: Mapping[str, Any]
) -> step_times.UndisturbedRows:
    """The undisturbed step, beside a recorded one of `recorded_ms`."""
    stayed = () if undisturbed.behind_ms is None else cupti_stayed(manifest)
    return step_times.UndisturbedRows(
        source=undisturbed.source,
        step_ms=_rounded(undisturbed.step_ms),
        light_ms=_rounded(undisturbed.light_ms),
        recorded_ms=_rounded(recorded_ms),
        behind_ms=None if undisturbed.behind_ms is None else _rounded(undisturbed.behind_ms),
        light_steps=undisturbed.steps,
        before=None
        if undisturbed.before is None
        else step_times.StepsBeforeRow(
            count=undisturbed.before.count,
            least_ms=_rounded(undisturbed.before.least_ms),
            most_ms=_rounded(undisturbed.before.most_ms),
        ),
        ranks=tuple(
            step_times.UndisturbedRankRow(
                rank=one.rank,
                light_ms=_rounded(one.light_ms),
                compute_ms=_rounded(one.compute_ms),
                comm_transfer_ms=_rounded(one.transfer_ms),
                comm_wait_ms=_rounded(one.wait_ms),
                comm_unmatched_ms=_rounded(one.unmatched_ms),
                memory_ms=_rounded(one.memory_ms),
                idle_ms=_rounded(one.idle_ms),
                unseen_ms=_rounded(one.unseen_ms),
            )
            for one in undisturbed.ranks
        ),
        stayed=tuple(step_times.CuptiStayedRow(ranks=one.ranks, why_not=one.why_not) for one in stayed),
        windows=tuple(
            step_times.LightWindowRow(
                first=look.steps[0],
                last=look.steps[1],
                ranks=tuple(
                    step_times.LightWindowRankRow(
                        rank=rank, comm_wait_ms=_rounded(look.wait_ms[rank]), idle_ms=_rounded(look.idle_ms[rank])
                    )
                    for rank in look.idle_ms
                ),
            )
            for look in undisturbed.looks
        ),
    )


def _machine(seen: ObservedRun) -> tuple[step_times.MachineRow, ...]:
    return tuple(
        step_times.MachineRow(
            rank=use.rank,
            host=use.host,
            cpu_pct=_known(use.cpu_pct),
            waited_pct=_known(use.waited_pct),
            faults=_known(use.faults),
            mhz=_known(use.mhz),
            most_mhz=None if use.gpu is None else _known(use.gpu.most_mhz),
            power_w=_known(use.power_w),
            limit_w=None if use.gpu is None else _known(use.gpu.limit_w),
            celsius=_known(use.celsius),
            lower_clock_pct=None if use.reasons is None else {n: _rounded(p) for n, p in use.reasons.items()},
            gpu_busy_pct=_known(use.gpu_busy_pct),
            host_cores=_known(use.host_cores),
            received_mbs=_megabytes(use.received),
            sent_mbs=_megabytes(use.sent),
            read_mbs=_megabytes(use.read),
            from_storage_mbs=_megabytes(use.from_storage),
            storage=None if use.storage is None else "{} ({})".format(*use.storage),
            others_on_gpu=tuple(one.pid for one in use.on_gpu),
        )
        for use in seen.machine
    )


def _megabytes(count: float | None) -> float | None:
    return _known(None if count is None else count / 1e6)


def _timeline(run: WholeRun) -> Iterator[step_times.StepsRow]:
    """Pieces of equally many steps; a piece that holds a recorded step says so."""
    size = -(-len(run.numbers) // MOST_PIECES)
    for row, rank in list(enumerate(run.ranks))[:MOST_LISTED_RANKS]:
        for begin in range(1, len(run.numbers), size):
            took = run.took_ms[row, begin : begin + size]
            known = took[~np.isnan(took)]
            if len(known):
                yield step_times.StepsRow(
                    rank=rank,
                    first=int(run.numbers[begin]),
                    last=int(run.numbers[min(begin + size, len(run.numbers)) - 1]),
                    median_ms=_rounded(median(known)),
                    most_ms=_rounded(float(known.max())),
                    recorded=bool(np.count_nonzero(~run.timed[begin : begin + size])),
                    mean_ms=_rounded(float(known.mean())) if run.by_turns and size > 1 else UNSET,
                )


def _rounded(value: float) -> float:
    return round(float(value), 3)


def _known(value: float | None) -> float | None:
    return None if value is None else _rounded(value)
