"""The rows of the whole run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from traceops.across.plain_step import PlainStep
from traceops.across.run_steps import WholeRun
from traceops.across.undisturbed import Undisturbed
from traceops.pipeline.observed_run import ObservedRun
from traceops.report.undisturbed import (
    CuptiStayedRow,
    LightWindowRankRow,
    LightWindowRow,
    StepsBeforeRow,
    UndisturbedRankRow,
    UndisturbedRows,
)
from traceops.report.whole_run import EndedRow, HostRow, MachineRow, OccasionRow, OwnProfilerRow, StepsRow, WholeRunRows
from traceops.traces.run_manifest import cupti_stayed, own_profilers

MOST_PIECES = 1000
MOST_RANKS = 64
MOST_PLACES = 12
MOST_STEPS = 256


def _ended(seen: ObservedRun) -> EndedRow | None:
    """Null where all ranks made as many steps."""
    least, most = min(seen.ended.values(), default=0), max(seen.ended.values(), default=0)
    if least == most:
        return None
    first = sorted(rank for rank, steps in seen.ended.items() if steps == least)
    return EndedRow(least=least, most=most, first=tuple(first[:MOST_RANKS]))


def whole_run_rows(seen: ObservedRun, plain: PlainStep | None, manifest: Mapping[str, Any]) -> WholeRunRows | None:
    """None where the run was not observed."""
    run = seen.whole
    if run is None:
        return None
    recorded = int((~np.isnan(run.step_ms) & ~run.timed).sum()) - 1  # the first step is not timed either
    longer = None if plain is None else plain.longer
    return WholeRunRows(
        steps=int(run.timed.sum()),
        typical_steps=run.typical_steps,
        typical_ms=_rounded(run.typical_ms),
        before_ms=None if longer is None else _rounded(longer.before_ms),
        behind_ms=None if longer is None else _rounded(longer.behind_ms),
        recorded_steps=max(recorded, 0),
        start_steps=len(run.start),
        skipped_steps=run.skipped,
        ended_after=_ended(seen),
        clock="device" if run.on_device else "host",
        early_window=seen.early,
        looks=sum(run.looks.values()),
        input_by_turns=run.by_turns,
        own_profiler=_own_profiler(run, manifest),
        occasions=tuple(
            OccasionRow(
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
        hosts=tuple(_hosts(run)),
        machine=_machine(seen),
        timeline=tuple(_timeline(run)),
    )


def _own_profiler(run: WholeRun, manifest: Mapping[str, Any]) -> OwnProfilerRow | None:
    """Of the first rank whose script profiled itself."""
    told = next(iter(own_profilers(manifest)), None)
    if told is None:
        return None
    took = run.step_ms[(run.numbers >= told.first) & (run.numbers <= told.last) & ~run.timed]
    took = took[~np.isnan(took)]
    all_of_them = told.steps == told.last - told.first + 1 and len(took) == told.steps
    return OwnProfilerRow(
        first=told.first,
        last=told.last,
        steps=told.steps,
        step_ms=_rounded(float(np.median(took))) if all_of_them else None,
        where=told.where,
    )


def undisturbed_rows(undisturbed: Undisturbed, recorded_ms: float, manifest: Mapping[str, Any]) -> UndisturbedRows:
    """The undisturbed step, beside a recorded one of `recorded_ms`."""
    stayed = () if undisturbed.behind_ms is None else cupti_stayed(manifest)
    return UndisturbedRows(
        source=undisturbed.source,
        step_ms=_rounded(undisturbed.step_ms),
        light_ms=_rounded(undisturbed.light_ms),
        recorded_ms=_rounded(recorded_ms),
        behind_ms=None if undisturbed.behind_ms is None else _rounded(undisturbed.behind_ms),
        light_steps=undisturbed.steps,
        before=None
        if undisturbed.before is None
        else StepsBeforeRow(
            count=undisturbed.before.count,
            least_ms=_rounded(undisturbed.before.least_ms),
            most_ms=_rounded(undisturbed.before.most_ms),
        ),
        ranks=tuple(
            UndisturbedRankRow(
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
        stayed=tuple(CuptiStayedRow(ranks=one.ranks, why_not=one.why_not) for one in stayed),
        windows=tuple(
            LightWindowRow(
                first=look.steps[0],
                last=look.steps[1],
                ranks=tuple(
                    LightWindowRankRow(
                        rank=rank, comm_wait_ms=_rounded(look.wait_ms[rank]), idle_ms=_rounded(look.idle_ms[rank])
                    )
                    for rank in look.idle_ms
                ),
            )
            for look in undisturbed.looks
        ),
    )


def _hosts(run: WholeRun) -> Iterator[HostRow]:
    for rank, own in list(run.host.items())[:MOST_RANKS]:
        for one in own[:MOST_PLACES]:
            yield HostRow(
                rank=rank, function=one.place.function, file=one.place.file, line=one.place.line,
                text=one.place.text, ms=_rounded(one.ms), looks=one.looks, waits=one.waits,
            )  # fmt: skip


def _machine(seen: ObservedRun) -> tuple[MachineRow, ...]:
    return tuple(
        MachineRow(
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
            others_on_gpu=tuple(one.pid for one in use.on_gpu),
        )
        for use in seen.machine
    )


def _timeline(run: WholeRun) -> Iterator[StepsRow]:
    """Pieces of equally many steps; a piece that holds a recorded step says so."""
    size = -(-len(run.numbers) // MOST_PIECES)
    for row, rank in list(enumerate(run.ranks))[:MOST_RANKS]:
        for begin in range(1, len(run.numbers), size):
            took = run.took_ms[row, begin : begin + size]
            known = took[~np.isnan(took)]
            if len(known):
                yield StepsRow(
                    rank=rank,
                    first=int(run.numbers[begin]),
                    last=int(run.numbers[min(begin + size, len(run.numbers)) - 1]),
                    median_ms=_rounded(float(np.median(known))),
                    most_ms=_rounded(float(known.max())),
                    recorded=bool((~run.timed[begin : begin + size]).any()),
                )


def _rounded(value: float) -> float:
    return round(float(value), 3)


def _known(value: float | None) -> float | None:
    return None if value is None else _rounded(value)
