"""What the average rank runs in a step, and the steps without the profiler: what comparing two runs needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.traces.discover import Discovery

MOST_ROWS = 500  # of kernels, and of operators


def inventory(run: CrossRank) -> dict[str, list[dict[str, Any]]]:
    """Kernels, operators, collectives and blocking calls, most time first.

    Counts and milliseconds are of one step, the mean over all ranks and their steps.
    """
    steps = max(sum(len(times.duration) for times in run.ranks), 1)

    def rows(
        uses: Callable[[RankTimes], Iterable[Any]], named: tuple[str, ...], **spent_ns: Callable[[Any], float]
    ) -> list[dict[str, Any]]:
        """Uses with the same attributes `named` together; `spent_ns` are their times by the name of the column."""
        name_of, getters = attrgetter(*named), tuple(spent_ns.values())
        counts: dict[tuple[Any, ...], int] = defaultdict(int)
        spent: dict[tuple[Any, ...], list[float]] = {}
        for times in run.ranks:
            for use in uses(times):
                same = name_of(use)
                counts[same] += use.count
                before = spent.get(same) or [0.0] * len(getters)
                spent[same] = [ns + more(use) for ns, more in zip(before, getters, strict=True)]
        made = [
            {
                **dict(zip(named, same, strict=True)),
                "count_per_step": round(count / steps, 4),
                **{
                    f"{column}_per_step": round(ns / 1e6 / steps, 6)
                    for column, ns in zip(spent_ns, spent[same], strict=True)
                },
            }
            for same, count in counts.items()
        ]
        return sorted(made, key=lambda row: -sum(v for k, v in row.items() if k.endswith("ms_per_step")))

    device_ns, kernel_ns, host_ns = attrgetter("device_ns"), attrgetter("kernel_ns"), attrgetter("host_ns")
    kernels = rows(lambda times: times.summary.inventory.kernels, ("name", "kind", "operator"), ms=device_ns)
    _add_places(run, kernels)
    return {
        "kernels": kernels[:MOST_ROWS],
        "operators": rows(
            lambda times: times.summary.inventory.operators,
            ("name", "shapes"),
            host_ms=host_ns,
            device_ms=device_ns,
        )[:MOST_ROWS],
        "collectives": rows(
            lambda times: times.summary.inventory.collectives,
            ("op", "group_size", "dtype", "elements", "bytes"),
            kernel_ms=kernel_ns,
        )[:MOST_ROWS],
        "blocking_calls": rows(
            lambda times: times.summary.host.blocking,
            ("call", "operator"),
            ms=lambda call: call.total_ms * 1e6,
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
