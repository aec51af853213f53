"""What the average rank runs in a step, and the steps without the profiler: what comparing two runs needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.core.shorter_schedule import timed_before_first
from traceops.core.units import stored
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.pipeline.own_window import asked_for_later
from traceops.report.inventory import CallUse, CollectiveUse, Inventory, KernelUse, OperatorUse
from traceops.report.rows import UnprofiledStep
from traceops.traces.discover import Discovery
from traceops.traces.run_manifest import ended_cupti, manifest_ranks

MOST_ROWS = 500  # of kernels, and of operators


class _Counted(Protocol):
    """A use of something, `count` times."""

    @property
    def count(self) -> int: ...


Use = TypeVar("Use", bound=_Counted)
Kind = TypeVar("Kind", bound=Hashable)


def inventory(run: CrossRank) -> Inventory:
    """Kernels, operators, collectives and blocking calls, most time first.

    Counts and milliseconds are of one step, the mean over all ranks and their steps.
    """
    places = _places(run)
    own = [times.summary.inventory for times in run.ranks]
    steps = max(sum(len(times.duration) for times in run.ranks), 1)
    kernels = _mean_step(
        (rank.kernels for rank in own),
        lambda use: (use.name, use.kind, use.operator),
        lambda use: (use.device_ns,),
        steps,
    )
    operators = _mean_step(
        (rank.operators for rank in own),
        lambda use: (use.name, use.shapes),
        lambda use: (use.host_ns, use.device_ns),
        steps,
    )
    collectives = _mean_step(
        (rank.collectives for rank in own),
        lambda use: (use.op, use.group_size, use.dtype, use.elements, use.bytes),
        lambda use: (use.kernel_ns,),
        steps,
    )
    calls = _mean_step(
        (times.summary.host.blocking for times in run.ranks),
        lambda use: (use.call, use.operator),
        lambda use: (use.total_ms * 1e6,),
        steps,
    )
    return Inventory(
        kernels=tuple(
            KernelUse(
                name=name,
                kind=kind,
                operator=operator,
                count_per_step=count,
                ms_per_step=ms,
                place=places[name, kind, operator],
            )
            for (name, kind, operator), count, (ms,) in kernels
        ),
        operators=tuple(
            OperatorUse(
                name=name, shapes=shapes, count_per_step=count, host_ms_per_step=host_ms, device_ms_per_step=device_ms
            )
            for (name, shapes), count, (host_ms, device_ms) in operators
        ),
        collectives=tuple(
            CollectiveUse(
                op=op,
                group_size=group_size,
                dtype=dtype,
                elements=elements,
                bytes=nbytes,
                count_per_step=count,
                kernel_ms_per_step=ms,
            )
            for (op, group_size, dtype, elements, nbytes), count, (ms,) in collectives
        ),
        blocking_calls=tuple(
            CallUse(call=call, operator=operator, count_per_step=count, ms_per_step=ms)
            for (call, operator), count, (ms,) in calls
        ),
    )


def _mean_step(
    ranks: Iterable[Iterable[Use]],
    kind_of: Callable[[Use], Kind],
    spent_ns: Callable[[Use], tuple[float, ...]],
    steps: int,
) -> list[tuple[Kind, float, list[float]]]:
    """Each kind of use over all ranks, most time first: count and milliseconds of one of the `steps`."""
    counts: dict[Kind, int] = defaultdict(int)
    spent: dict[Kind, list[float]] = {}
    for uses in ranks:
        for use in uses:
            kind, own = kind_of(use), spent_ns(use)
            counts[kind] += use.count
            before = spent.get(kind) or [0.0] * len(own)
            spent[kind] = [ns + float(more) for ns, more in zip(before, own, strict=True)]
    rows = [
        (kind, stored(count / steps), [stored(ns / 1e6 / steps) for ns in spent[kind]])
        for kind, count in counts.items()
    ]
    return sorted(rows, key=lambda row: -sum(row[2]))[:MOST_ROWS]


def _places(run: CrossRank) -> dict[Hashable, float]:
    """Where in the step each kernel is launched on average, from 0 (first) to 1 (last)."""
    sums: dict[Hashable, tuple[float, int]] = {}
    for times in run.ranks:
        for use in times.summary.inventory.kernels:
            place, count = sums.get((use.name, use.kind, use.operator), (0.0, 0))
            sums[use.name, use.kind, use.operator] = (place + use.place * use.count, count + use.count)
    return {same: stored(place / max(count, 1)) for same, (place, count) in sums.items()}


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


def unprofiled_steps(found: Discovery, ranks: Sequence[RankSummary]) -> tuple[UnprofiledStep, ...]:
    """The steps timed without the profiler: rank, index among them, milliseconds.

    Between windows torch's profiler stays in a process with a GPU, and slows hosts. Behind the last it may be ended.
    """
    manifest, on_gpu = found.manifest, any(summary.on_gpu for summary in ranks)
    early = timed_before_first(manifest.get("schedule"))
    if asked_for_later(manifest, numbered_steps(ranks)):
        early = None if ended_cupti(manifest) else 0
    return tuple(
        UnprofiledStep(
            rank=own.rank, index=index, duration_ms=ms, behind_window=on_gpu and early is not None and index >= early
        )
        for own in manifest_ranks(found.manifest)
        for index, ms in enumerate(own.unprofiled_step_ms)
        if ms is not None
    )


def peak_memory(found: Discovery) -> dict[int, tuple[int | None, int | None]]:
    """Rank -> most bytes its tensors held, and most that the allocator held of the device; None if unknown."""
    return {own.rank: (own.peak_memory_bytes, own.peak_reserved_bytes) for own in manifest_ranks(found.manifest)}
