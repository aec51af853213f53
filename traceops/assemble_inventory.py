"""What the average rank runs in a step, and the steps without the profiler: what comparing two runs needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from traceops.analyses.crossrank import CrossRank, RankTimes
from traceops.load.discover import Discovery

MOST_ROWS = 500  # of kernels, and of operators
_Use = TypeVar("_Use")


def inventory(run: CrossRank) -> dict[str, list[dict[str, Any]]]:
    """Kernels, operators, collectives and blocking calls, most time first.

    Counts and milliseconds are of one step, the mean over all ranks and their steps.
    """
    steps = max(sum(len(times.duration) for times in run.ranks), 1)

    def rows(
        uses: Callable[[RankTimes], Iterable[_Use]],
        key: Callable[[_Use], dict[str, Any]],
        spent_ns: Callable[[_Use], dict[str, float]],
        count: Callable[[_Use], int],
    ) -> list[dict[str, Any]]:
        counts: dict[Hashable, int] = defaultdict(int)
        spent: dict[Hashable, dict[str, float]] = {}
        keys: dict[Hashable, dict[str, Any]] = {}
        for times in run.ranks:
            for use in uses(times):
                named = key(use)
                same = tuple(named.values())
                keys[same] = named
                counts[same] += count(use)
                before = spent.get(same, {})
                spent[same] = {name: before.get(name, 0.0) + ns for name, ns in spent_ns(use).items()}
        made = [
            {
                **named,
                "count_per_step": round(counts[same] / steps, 4),
                **{f"{name}_per_step": round(ns / 1e6 / steps, 6) for name, ns in spent[same].items()},
            }
            for same, named in keys.items()
        ]
        return sorted(made, key=lambda row: -sum(v for k, v in row.items() if k.endswith("ms_per_step")))

    kernels = rows(
        lambda times: times.summary.inventory.kernels,
        lambda use: {"name": use.name, "kind": use.kind, "operator": use.operator},
        lambda use: {"ms": use.device_ns},
        lambda use: use.count,
    )
    _add_places(run, kernels)
    return {
        "kernels": kernels[:MOST_ROWS],
        "operators": rows(
            lambda times: times.summary.inventory.operators,
            lambda use: {"name": use.name, "shapes": use.shapes},
            lambda use: {"host_ms": use.host_ns, "device_ms": use.device_ns},
            lambda use: use.count,
        )[:MOST_ROWS],
        "collectives": rows(
            lambda times: times.summary.inventory.collectives,
            lambda use: {
                "op": use.op,
                "group_size": use.group_size,
                "dtype": use.dtype,
                "elements": use.elements,
                "bytes": use.bytes,
            },
            lambda use: {"kernel_ms": use.kernel_ns},
            lambda use: use.count,
        )[:MOST_ROWS],
        "blocking_calls": rows(
            lambda times: times.summary.host.blocking,
            lambda call: {"call": call.call, "operator": call.operator},
            lambda call: {"ms": call.total_ms * 1e6},
            lambda call: call.count,
        )[:MOST_ROWS],
    }


def _add_places(run: CrossRank, rows: list[dict[str, Any]]) -> None:
    """Where in the step each kernel is launched on average, from 0 (first) to 1 (last)."""
    sums: dict[Hashable, tuple[float, int]] = {}
    for times in run.ranks:
        for use in times.summary.inventory.kernels:
            place, count = sums.get((use.name, use.kind, use.operator), (0.0, 0))
            sums[use.name, use.kind, use.operator] = (place + use.place * use.count, count + use.count)
    for row in rows:
        place, count = sums[row["name"], row["kind"], row["operator"]]
        row["place"] = round(place / max(count, 1), 3)


def step_counts(times: RankTimes, position: int) -> dict[str, int | None]:
    """What one rank launched in one of its steps; bytes are null where a collective's size is not known."""
    own = times.summary.inventory
    nbytes = int(own.step_bytes[position])
    return {
        "kernels": int(own.step_kernels[position]),
        "collectives": int(own.step_collectives[position]),
        "collective_bytes": None if nbytes < 0 else nbytes,
        "blocking_calls": int(own.step_blocking[position]),
    }


def unprofiled_steps(found: Discovery) -> list[dict[str, Any]]:
    """The steps timed before the profiler started: rank, index among them, milliseconds."""
    rows = []
    for entry in found.manifest.get("ranks") or ():
        rank, durations = entry.get("rank"), entry.get("unprofiled_step_ms")
        if isinstance(rank, int) and isinstance(durations, list):
            rows += [
                {"rank": rank, "index": index, "duration_ms": float(ms)}
                for index, ms in enumerate(durations)
                if isinstance(ms, (int, float)) and not isinstance(ms, bool) and 0 < ms < float("inf")
            ]
    return rows


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
