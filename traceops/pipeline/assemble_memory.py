"""The rows of a run's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traceops.across.memory_use import HELD, RESERVED, STEP, MemoryUse
from traceops.report.memory import MemoryLine, MemoryOverTime, MemoryRank, MemoryRows, MemoryStep
from traceops.traces.memory_snapshot import DeviceSnapshot

MOST_RANKS, MOST_POINTS, MOST_LINES = 64, 300, 20


def memory_rows(uses: Sequence[MemoryUse], snapshots: Mapping[int, DeviceSnapshot]) -> MemoryRows | None:
    """None where no rank told more than its peaks, which are in the table of ranks."""
    if not any(len(use.looks) or use.held for use in uses) and not snapshots:
        return None
    return MemoryRows(
        ranks=tuple(_rank(use, snapshots.get(use.rank)) for use in uses),
        steps=tuple(_steps(uses)),
        over_time=_over_time(snapshots),
    )


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
        grows_bytes=None if use.growth is None else round(use.growth.per_step, 1),
        lines=tuple(MemoryLine(line=own.place, held_bytes=own.bytes, blocks=own.blocks) for own in lines),
    )


def _steps(uses: Sequence[MemoryUse]) -> Iterator[MemoryStep]:
    for use in [use for use in uses if len(use.looks)][:MOST_RANKS]:
        for row in use.looks[:: -(-len(use.looks) // MOST_POINTS)].tolist():
            yield MemoryStep(
                rank=use.rank, step=row[STEP], held_bytes=row[HELD], reserved_bytes=row[RESERVED]
            )


def _over_time(snapshots: Mapping[int, DeviceSnapshot]) -> MemoryOverTime | None:
    known = {rank: one for rank, one in snapshots.items() if one.over_time is not None}
    if not known:
        return None
    rank = max(known, key=lambda one: known[one].peak)
    found = known[rank].over_time
    assert found is not None
    return MemoryOverTime(
        rank=rank, lines=found.places, moments=found.moments, held_bytes=found.held, peak=found.peak
    )
