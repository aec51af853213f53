"""What the average rank runs in a step, and the steps without the profiler: what comparing two runs needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.report.rows import (
    CallUse,
    CollectiveUse,
    Inventory,
    KernelUse,
    OperatorUse,
    UnprofiledStep,
)
from traceops.traces.discover import Discovery

MOST_ROWS = 500  # of kernels, and of operators

Row = TypeVar("Row")


def inventory(run: CrossRank) -> Inventory:
    """Kernels, operators, collectives and blocking calls, most time first.

    Counts and milliseconds are of one step, the mean over all ranks and their steps.
    """
    places = _places(run)
    kernels = _uses(
        run,
        lambda times: times.summary.inventory.kernels,
        ("name", "kind", "operator"),
        ("ms_per_step", lambda use: float(use.device_ns)),
        make=lambda **use: KernelUse(place=places[use["name"], use["kind"], use["operator"]], **use),
    )
    operators = _uses(
        run,
        lambda times: times.summary.inventory.operators,
        ("name", "shapes"),
        ("host_ms_per_step", lambda use: float(use.host_ns)),
        ("device_ms_per_step", lambda use: float(use.device_ns)),
        make=OperatorUse,
    )
    collectives = _uses(
        run,
        lambda times: times.summary.inventory.collectives,
        ("op", "group_size", "dtype", "elements", "bytes"),
        ("kernel_ms_per_step", lambda use: float(use.kernel_ns)),
        make=CollectiveUse,
    )
    calls = _uses(
        run,
        lambda times: times.summary.host.blocking,
        ("call", "operator"),
        ("ms_per_step", lambda use: float(use.total_ms) * 1e6),
        make=CallUse,
    )
    return Inventory(kernels=kernels, operators=operators, collectives=collectives, blocking_calls=calls)


def _uses(
    run: CrossRank,
    uses: Callable[[RankTimes], Iterable[Any]],
    named: tuple[str, ...],
    *spent_ns: tuple[str, Callable[[Any], float]],
    make: Callable[..., Row],
) -> tuple[Row, ...]:
    """Uses with the same attributes `named` in one row; `spent_ns` are their times by the name of the column."""
    steps = max(sum(len(times.duration) for times in run.ranks), 1)
    name_of = attrgetter(*named)
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    spent: dict[tuple[Any, ...], list[float]] = {}
    for times in run.ranks:
        for use in uses(times):
            same = name_of(use)
            counts[same] += use.count
            before = spent.get(same) or [0.0] * len(spent_ns)
            spent[same] = [ns + more(use) for ns, (_, more) in zip(before, spent_ns, strict=True)]
    rows = [
        (
            [round(ns / 1e6 / steps, 6) for ns in spent[same]],
            dict(zip(named, same, strict=True)),
            round(count / steps, 4),
        )
        for same, count in counts.items()
    ]
    rows.sort(key=lambda row: -sum(row[0]))
    columns = [column for column, _ in spent_ns]
    return tuple(
        make(**same, count_per_step=count, **dict(zip(columns, ms, strict=True)))
        for ms, same, count in rows[:MOST_ROWS]
    )


def _places(run: CrossRank) -> dict[Hashable, float]:
    """Where in the step each kernel is launched on average, from 0 (first) to 1 (last)."""
    sums: dict[Hashable, tuple[float, int]] = {}
    for times in run.ranks:
        for use in times.summary.inventory.kernels:
            place, count = sums.get((use.name, use.kind, use.operator), (0.0, 0))
            sums[use.name, use.kind, use.operator] = (place + use.place * use.count, count + use.count)
    return {same: round(place / max(count, 1), 3) for same, (place, count) in sums.items()}


def step_counts(times: RankTimes) -> list[dict[str, int | None]]:
    """What one rank launched in each of its steps; bytes are None where a collective's size is not known."""
    own = times.summary.inventory
    return [
        {
            "kernels": kernels,
            "collectives": collectives,
            "collective_bytes": None if nbytes < 0 else nbytes,
            "blocking_calls": blocking,
        }
        for kernels, collectives, nbytes, blocking in zip(
            own.step_kernels.tolist(),
            own.step_collectives.tolist(),
            own.step_bytes.tolist(),
            own.step_blocking.tolist(),
            strict=True,
        )
    ]


def unprofiled_steps(found: Discovery) -> tuple[UnprofiledStep, ...]:
    """The steps timed before the profiler started: rank, index among them, milliseconds."""
    rows = []
    for entry in found.manifest.get("ranks") or ():
        rank, durations = entry.get("rank"), entry.get("unprofiled_step_ms")
        if isinstance(rank, int) and isinstance(durations, list):
            rows += [
                UnprofiledStep(rank=rank, index=index, duration_ms=float(ms))
                for index, ms in enumerate(durations)
                if isinstance(ms, (int, float)) and not isinstance(ms, bool) and 0 < ms < float("inf")
            ]
    return tuple(rows)


def peak_memory(found: Discovery) -> dict[int, tuple[int | None, int | None]]:
    """Rank -> most bytes its tensors held, and most that the allocator held of the device; None if unknown."""
    known = {}
    for entry in found.manifest.get("ranks") or ():
        if isinstance(entry.get("rank"), int):
            known[entry["rank"]] = (
                _bytes(entry.get("peak_memory_bytes")),
                _bytes(entry.get("peak_reserved_bytes")),
            )
    return known


def _bytes(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
