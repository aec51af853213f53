"""Tables of one run in the units of report.json: kernels, calls that block, HTA's own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import add, attrgetter
from typing import Any

import numpy as np
from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.across.rank_times import Passes, RankTimes
from traceops.across.replay.what_if import WORK_SHARED
from traceops.compute.model import KernelWork, OperatorTime, RankCompute, judged_rank
from traceops.core.arrays import Int, median, percentiles
from traceops.core.capture_failure import timed_before_first
from traceops.core.documents import copied
from traceops.core.units import stored
from traceops.measure.flops import Precision, RankFlops, WhyNoFlops, peak_of
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.pipeline.run_info import asked_for_later
from traceops.report.inventory import (
    CallUse,
    CollectiveUse,
    ComputeRows,
    Inventory,
    KernelUse,
    LossRow,
    OperatorKernel,
    OperatorRow,
    OperatorUse,
    RoofRows,
)
from traceops.report.rows import ExpertsRow, ExpertTimesRow, PassRow, Run, StepImbalance, UnprofiledStep
from traceops.report.summary import Flops, Summary
from traceops.report.tables import BlockingCallRow, CopyRow, KernelRow
from traceops.traces.discover import Discovery
from traceops.traces.run_manifest import ended_cupti, manifest_ranks

MOST_ROWS = 500  # of kernels, and of operators


def inventory(run: CrossRank) -> Inventory:
    """Kernels, operators, collectives and blocking calls, most time first. Counts and milliseconds are of one step, the
    mean over all ranks and their steps."""
    summaries = [times.summary for times in run.ranks]
    own = [summary.inventory for summary in summaries]
    steps = max(sum(len(times.duration) for times in run.ranks), 1)
    places = _places(summaries)
    of_kernel = ("name", "kind", "operator")
    kernels = _mean_step((rank.kernels for rank in own), of_kernel, {"ms_per_step": "device_ns"}, steps)
    of_operator = {"host_ms_per_step": "host_ns", "device_ms_per_step": "device_ns"}
    operators = _mean_step((rank.operators for rank in own), ("name", "shapes"), of_operator, steps)
    of_collective = ("op", "group_size", "dtype", "elements", "bytes")
    collectives = _mean_step(
        (rank.collectives for rank in own), of_collective, {"kernel_ms_per_step": "kernel_ns"}, steps
    )
    calls = (summary.host.blocking for summary in summaries)
    blocking = _mean_step(calls, ("call", "operator"), {"ms_per_step": "total_ms"}, steps, a_ms=1.0)
    return Inventory(
        kernels=tuple(KernelUse(**row, place=places[tuple(map(row.get, of_kernel))]) for row in kernels),
        operators=tuple(OperatorUse(**row) for row in operators),
        collectives=tuple(CollectiveUse(**row) for row in collectives),
        blocking_calls=tuple(CallUse(**row) for row in blocking),
    )


def _mean_step(
    ranks: Iterable[Iterable[Any]], kind: tuple[str, ...], times: Mapping[str, str], steps: int, a_ms: float = 1e6
) -> list[dict[str, Any]]:
    """A row for uses that are alike in the fields `kind`, most time first: these fields, count and times of one step.
    times: by the row's field that of a use, of which `a_ms` are a millisecond."""
    kind_of, spent_by = attrgetter(*kind), attrgetter("count", *times.values())
    sums: dict[Any, tuple[float, ...]] = {}
    for uses in ranks:
        for use in uses:
            own = spent_by(use)
            known = sums.get(key := kind_of(use))
            sums[key] = own if known is None else tuple(map(add, known, own))
    rows = []
    for key, (count, *spent) in sums.items():
        ms = [stored(each / a_ms / steps) for each in spent]
        shown = dict(zip((*kind, *times), (*key, *ms), strict=True))
        rows.append((sum(ms), {**shown, "count_per_step": stored(count / steps)}))
    return [row for _, row in sorted(rows, key=lambda row: -row[0])[:MOST_ROWS]]


def _places(summaries: Iterable[RankSummary]) -> dict[Any, float]:
    """Where in the step each kernel is launched on average, from 0 (first) to 1 (last)."""
    sums: dict[Any, tuple[float, int]] = {}
    for summary in summaries:
        for use in summary.inventory.kernels:
            key = use.name, use.kind, use.operator
            place, count = sums.get(key, (0.0, 0))
            sums[key] = (place + use.place * use.count, count + use.count)
    return {same: stored(place / max(count, 1)) for same, (place, count) in sums.items()}


def step_counts(times: RankTimes) -> list[dict[str, Any]]:
    """What one rank launched in each of its steps; bytes are None where a collective's size is not known."""
    own = times.summary.inventory
    names = ("kernels", "collectives", "collective_bytes", "blocking_calls")
    sizes = [None if size < 0 else size for size in own.step_bytes.tolist()]
    columns = (own.step_kernels.tolist(), own.step_collectives.tolist(), sizes, own.step_blocking.tolist())
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def unprofiled_steps(found: Discovery, ranks: Sequence[RankSummary]) -> tuple[UnprofiledStep, ...]:
    """The steps timed without the profiler: rank, index among them, milliseconds. Between windows torch's profiler
    stays in a process with a GPU, and slows hosts. Behind the last it may be ended."""
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


# Passes of an inference server as rows of its report.


def pass_rows(run: CrossRank) -> tuple[PassRow, ...]:
    """report.json's passes: a row a kind."""
    return tuple(_row(passes, run.split) for passes in run.passes)


def _row(passes: Passes, split: bool) -> PassRow:
    device = [one.device_end - one.device_start for one in passes.passes]
    busy = [100.0 * one.busy / max(long, 1) for one, long in zip(passes.passes, device, strict=True)]
    graphs = known_median(one.graphs for one in passes.passes)
    return PassRow(
        kind=passes.kind,
        count=max(Counter(passes.of_rank).values()),
        requests=known_median(one.requests for one in passes.passes),
        tokens=known_median(one.tokens for one in passes.passes),
        device_ms=ms_of(median(device)),
        device_p95_ms=ms_of(percentiles(np.array(device), (95,))[0]),
        busy_pct=stored(median(busy)),
        host_ms=ms_of(median([one.host_end - one.host_start for one in passes.passes])),
        graphs=graphs,
        between_ms=_of_known(passes.between),
        scheduling_ms=_of_known(passes.scheduling),
        waiting_ms=ms_of(median(passes.waiting)) if split else None,
        transfer_ms=ms_of(median(passes.transfer)) if split else None,
        unmatched_ms=ms_of(median(passes.unmatched)),
    )


def _of_known(ns: Int) -> float | None:
    known = ns[ns >= 0]
    return ms_of(median(known)) if len(known) else None


def known_median(values: Iterable[float | None]) -> float | None:
    """Of the values that are known, as stored; None without any."""
    known = [value for value in values if value is not None]
    return stored(median(known)) if known else None


def ms_of(ns: Any) -> float:
    """Nanoseconds as the milliseconds that are stored."""
    return stored(float(ns) / 1e6)


# The experts of a run as rows of its report.


def expert_rows(run: CrossRank) -> tuple[ExpertsRow, ...]:
    """report.json's experts: a row for each group of ranks that shares them."""
    rows = []
    for own in run.experts:
        reference = run.reference(own.ranks)
        saved = None if run.replay is None else run.replay.what_if.saved_ns(WORK_SHARED)
        rows.append(
            ExpertsRow(
                ranks=own.ranks,
                layers=own.layers,
                imbalance=stored(own.mean_imbalance),
                imbalance_by_step=tuple(StepImbalance(step=step, share=stored(n)) for step, n in own.imbalance),
                dispatch_ms=stored(own.dispatch_ns / 1e6),
                combine_ms=stored(own.combine_ns / 1e6),
                dispatch_gbs=None if own.dispatch_gbs is None else stored(own.dispatch_gbs),
                combine_gbs=None if own.combine_gbs is None else stored(own.combine_gbs),
                reference_gbs=None if reference is None else stored(reference.busbw_gbs),
                even_saves_ms=None if saved is None else stored(max(saved, 0.0) / 1e6),
                times=tuple(
                    ExpertTimesRow(
                        rank=times.rank,
                        layer=times.layer,
                        received_bytes=round(times.received),
                        compute_ms=stored(times.compute / 1e6),
                    )
                    for times in own.times
                ),
            )
        )
    return tuple(rows)


_TOLD: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp16", "fp64": "fp64"}  # fp32 may run as tf32


def with_speed(summary: Summary, run: Run, ranks: CrossRank) -> Summary:
    """The summary with samples, tokens and operations a second, as far as they are known."""
    if not (step_ms := summary.own_step_ms):
        return summary
    counted = [times.summary.flops for times in ranks.ranks]
    devices = {times.summary.meta.device for times in ranks.ranks}
    flops = flops_of(run, counted, next(iter(devices)) if len(devices) == 1 else None, step_ms)
    if any(times.summary.kernels_lost for times in ranks.ranks):  # the steps are the host's, not the device's
        flops = replace(flops, tflops_per_s=None, mfu_pct=None)
    return replace(
        summary,
        samples_per_s=_rate(run.samples_per_step, step_ms),
        tokens_per_s=_rate(run.tokens_per_step, step_ms),
        flops=flops,
    )


def flops_of(run: Run, counted: Sequence[RankFlops], device: str | None, step_ms: float) -> Flops:
    """Operations of all ranks a step: counted from shapes, else as the training says; ranks without a trace as others.
    `device`: what all ranks run on, None where that is not one kind."""
    world = run.world_size or len(counted)
    known = [(one.model, one.recomputed) for one in counted if one.model is not None]
    whole = len(known) == len(counted) > 0
    told = run.flops_per_step
    why: WhyNoFlops | None = None
    if whole:
        model = sum(own for own, _ in known) / len(known) * world
    elif told is not None:
        model = told
    else:
        why = Counter(one.why for one in counted if one.why is not None).most_common(1)[0][0] if counted else None
        return Flops(why=why or "no_products", device=device)
    precision = _precision(run, counted)
    peak = peak_of(device, precision)
    each = model / world / (step_ms / 1e3)
    return Flops(
        per_step=model,
        recomputed_per_step=sum(again for _, again in known) / len(known) * world if whole else None,
        counted_from="shapes" if whole else "training",
        tflops_per_s=stored(each / 1e12),
        precision=precision,
        device=device,
        peak_tflops=None if peak is None else peak[0],
        peak_source=None if peak is None else peak[1],
        mfu_pct=None if peak is None else stored(100.0 * each / 1e12 / peak[0]),
    )


def _precision(run: Run, counted: Sequence[RankFlops]) -> Precision | None:
    """As the kernels' names tell on every rank, else as the training says."""
    seen = {one.precision for one in counted}
    if len(seen) == 1 and (only := next(iter(seen))) is not None:
        return only
    if seen - {None}:
        return None
    config = (run.training or {}).get("config")
    return _TOLD.get(str(config.get("precision"))) if isinstance(config, dict) else None


def _rate(a_step: float | None, step_ms: float) -> float | None:
    return None if a_step is None else stored(1e3 * a_step / step_ms)


def kernel_rows(run: CrossRank) -> tuple[KernelRow, ...]:
    """Kernels over all ranks, most time first, with the rank that spends most on each."""
    merged: dict[tuple[str, str], list[tuple[int, Any]]] = defaultdict(list)
    for times in run.ranks:
        for kernel in times.summary.kernels:
            merged[kernel.name, kernel.kind].append((times.summary.rank, kernel))
    total = sum(kernel.total_us for same in merged.values() for _, kernel in same) or 1.0
    steps = max(sum(len(times.duration) for times in run.ranks), 1)
    ranks = len(run.ranks)
    judged = _judged(run)
    works = {} if judged is None else {one.name: one for one in judged[1].unpacked().kernels}
    rows = []
    for (name, kind), same in merged.items():
        longest = max((kernel for _, kernel in same), key=lambda kernel: kernel.max_us)
        totals = [kernel.total_us for _, kernel in same]
        spent, most = sum(totals), max(totals)
        count = sum(kernel.count for _, kernel in same)
        rows.append(
            KernelRow(
                name=name,
                kind=kind,
                count=count,
                share_pct=stored(100.0 * spent / total),
                ms_per_step=stored(spent / 1000.0 / steps),
                mean_us=stored(spent / count),
                min_us=min(kernel.min_us for _, kernel in same),
                max_us=longest.max_us,
                ranks=len(same),
                worst_rank=same[totals.index(most)][0],
                worst_rank_total_ms=stored(most / 1000.0),
                least_rank_total_ms=stored(min(totals) / 1000.0) if len(same) == ranks else 0.0,
                grid=longest.grid,
                **_work(works.get(name)),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.share_pct))


def _work(one: KernelWork | None) -> dict[str, Any]:
    """What KernelRow has of a kernel's work."""
    if one is None:
        return {}
    if one.known_ns <= 0:
        return {"operator": one.operator, "cause": one.cause}
    return {
        "operator": one.operator,
        "flops": one.flops,
        "bytes": one.bytes,
        "attainable_ms": ms_of(one.attainable_ns),
        "efficiency_pct": stored(min(100 * one.attainable_ns / one.known_ns, 100.0)),
        "cause": one.cause,
    }


def blocking_rows(run: CrossRank) -> tuple[BlockingCallRow, ...]:
    return tuple(
        BlockingCallRow(
            rank=times.summary.rank,
            call=call.call,
            operator=call.operator,
            count=call.count,
            total_ms=stored(call.total_ms),
            idle_ms=stored(times.mean(call.idle_ns) / 1e6),
        )
        for times in run.ranks
        for call in times.summary.host.blocking
    )


def copy_rows(run: CrossRank) -> tuple[CopyRow, ...]:
    """Copies between host and device by rank and kind, the most exposed first."""
    rows = []
    for times in run.ranks:
        steps = max(len(times.duration), 1)
        for kind in times.summary.copies.kinds:
            size, gbs = kind.size, kind.gbs
            rows.append(
                copied(
                    CopyRow,
                    kind,
                    rank=times.summary.rank,
                    count=stored(int(kind.count.sum()) / steps),
                    bytes=size if size >= 0 else None,
                    exposed_ms=stored(float(kind.exposed_ns.sum()) / 1e6 / steps),
                    device_ms=stored(float(kind.device_ns.sum()) / 1e6 / steps),
                    host_ms=stored(float(kind.blocked_ns.sum()) / 1e6 / steps),
                    gbs=stored(gbs) if gbs is not None else None,
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.exposed_ms))


def hta_rows(ranks: Sequence[RankSummary]) -> dict[str, tuple[dict[str, Any], ...]]:
    """HTA's own tables, each rank's under each other, in HTA's columns."""
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for attribute, name in (
        ("temporal", "hta_temporal_breakdown"),
        ("overlap", "hta_overlap"),
        ("idle", "hta_idle_time_breakdown"),
        ("kernel_types", "hta_kernel_types"),
        ("kernels", "hta_kernels"),
        ("launches", "hta_launch_statistics"),
        ("queue_length", "hta_queue_length"),
        ("sequences", "hta_frequent_sequences"),
        ("counters", "hta_cupti_counters"),
    ):
        rows = [
            {"rank": own.rank} | dict(zip(table, values, strict=True))
            for own in ranks
            if (table := getattr(own.hta, attribute)) is not None
            for values in zip(*table.values(), strict=True)
        ]
        if rows:
            found[name] = tuple(rows)
    return found


def compute_rows(run: CrossRank) -> ComputeRows | None:
    """Of the rank that stands for all; None where none is, or nothing is known of what its kernels do."""
    judged = _judged(run)
    if judged is None or not (judged[1].has_shapes or judged[1].losses or judged[1].known_ns):
        return None
    rank, compute = judged
    efficiency = compute.efficiency
    return ComputeRows(
        rank=rank,
        busy_ms=ms_of(compute.busy_ns),
        attainable_ms=None if efficiency is None else ms_of(compute.busy_ns * efficiency),
        efficiency_pct=None if efficiency is None else stored(100 * efficiency),
        rates=compute.rates,
        bound=compute.bound,
        losses=tuple(
            LossRow(
                cause=loss.cause,
                device_ms=ms_of(loss.device_ns),
                device_ms_uncertain=ms_of(loss.more_ns),
                kernels_ms=ms_of(loss.ns),
                launches=stored(loss.launches),
                step_after_ms=(ms_of(loss.step_after_ns[0]), ms_of(loss.step_after_ns[1])),
                where=(*loss.operators, loss.place) if loss.place else loss.operators,
                sizes=loss.sizes,
            )
            for loss in compute.losses
        ),
        operators=tuple(_operator_row(one) for one in compute.unpacked().operators),
        gpu=compute.gpu,
        roofs=None
        if compute.roofs is None
        else RoofRows(
            half_tflops=stored(compute.roofs.half),
            tf32_tflops=stored(compute.roofs.tf32),
            float32_tflops=stored(compute.roofs.float32),
            float64_tflops=stored(compute.roofs.float64),
            memory_tbs=stored(compute.roofs.memory),
        ),
    )


def _judged(run: CrossRank) -> tuple[int, RankCompute] | None:
    """The rank whose kernels stand for all, with what is known of them."""
    known = {
        times.summary.rank: compute
        for times in run.ranks
        if (compute := times.summary.compute) is not None and not times.summary.captures_graphs
    }
    if not known:
        return None
    rank = judged_rank(known)
    return rank, known[rank]


def _operator_row(one: OperatorTime) -> OperatorRow:
    known = one.attainable_ns >= 0
    return copied(
        OperatorRow,
        one,
        calls=stored(one.calls),
        ms=ms_of(one.ns),
        flops=one.flops if known else None,
        bytes=one.bytes if one.bytes >= 0 else None,
        attainable_ms=ms_of(one.attainable_ns) if known else None,
        known_ms=ms_of(one.known_ns),
        kernels=tuple(
            OperatorKernel(name=kernel.name, launches=stored(kernel.launches), ms=ms_of(kernel.ns))
            for kernel in one.kernels
        ),
    )
