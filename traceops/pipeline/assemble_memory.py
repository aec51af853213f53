"""The rows of a run's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traceops.across.memory_use import HELD, RESERVED, STEP, MemoryUse
from traceops.core.units import stored
from traceops.measure.step_memory import KINDS, StepMemory
from traceops.report.memory import (
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
)
from traceops.traces.memory_snapshot import DeviceSnapshot

MOST_RANKS, MOST_POINTS, MOST_LINES, MOST_MOMENTS = 64, 300, 20, 200


def memory_rows(
    uses: Sequence[MemoryUse], snapshots: Mapping[int, DeviceSnapshot], recorded: tuple[int, StepMemory] | None
) -> MemoryRows | None:
    """None where no rank told more than its peaks, which are in the table of ranks.

    recorded: the rank whose trace has memory events, and what they say.
    """
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
    chosen = np.union1d(moments.astype(np.int64), [most.at])
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
                    MemoryMaker(operator=one.operator, kind=KINDS[one.kind], held_bytes=one.bytes, blocks=one.blocks)
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
    return MemoryByKind(**dict(zip(KINDS, held, strict=True)))


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
    known = {rank: one for rank, one in snapshots.items() if one.over_time is not None}
    if not known:
        return None
    rank = max(known, key=lambda one: known[one].peak)
    found = known[rank].over_time
    assert found is not None
    return MemoryOverTime(rank=rank, lines=found.places, moments=found.moments, held_bytes=found.held, peak=found.peak)
