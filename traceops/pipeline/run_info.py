"""What is known about the run as a whole: from its manifest, or else from what its traces say."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from traceops.across.plain_step import PlainStep, steps_before
from traceops.across.run_steps import WholeRun
from traceops.core.arrays import median
from traceops.core.capture_failure import steps_needed, timed_before_first
from traceops.core.documents import redact_fields
from traceops.core.rank_text import first_ranks, runs_without
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.report.rows import MOST_MISSING, Git, Run
from traceops.traces.discover import Discovery
from traceops.traces.model import TraceMeta
from traceops.traces.run_manifest import is_step_time
from traceops.traces.windows import host_in_name

_FIRST_EPOCH_NS = 10**18  # 2001: before it, times are no Unix times


def run_block(discovery: Discovery, ranks: Sequence[RankSummary]) -> Run:
    """The `run` object of report.json; null where neither manifest nor traces say."""
    manifest = discovery.manifest
    metas = [summary.meta for summary in ranks]
    present = [summary.rank for summary in ranks]
    world = world_size(discovery, ranks)
    missing = runs_without(world, present) if world > len(present) else ()
    hosts = manifest.get("hosts") or sorted(filter(None, set(rank_hosts(discovery, ranks).values())))
    steps, argv = sorted(numbered_steps(ranks)), manifest.get("argv")
    on_gpu = any(summary.on_gpu for summary in ranks)
    ran_on_gpu = on_gpu or any(own.kernels_lost or own.unrecorded_gpu for own in ranks)  # whose work no trace holds
    run = Run(
        name=manifest.get("name") or discovery.name,
        world_size=world,
        ranks_present=tuple(present),
        ranks_missing=first_ranks(missing, MOST_MISSING),
        ranks_missing_runs=missing,
        hosts=tuple(hosts),
        device=_first(metas, "device") or _device_name(manifest) or (None if ran_on_gpu else "cpu"),
        device_type="cuda" if on_gpu else "cpu",
        backend=manifest.get("backend") or _first(metas, "backend"),
        torch_version=manifest.get("torch_version") or _first(metas, "torch_version"),
        nccl_version=manifest.get("nccl_version") or _first(metas, "nccl_version"),
        strategy=manifest.get("strategy"),
        steps=tuple(steps),
        training=manifest.get("training") or {},
        samples_per_step=samples_per_step(manifest),
        tokens_per_step=_told(manifest, "tokens_per_step"),
        flops_per_step=_told(manifest, "flops_per_step"),
        environment=_dict(manifest, "environment"),
        git=_git(manifest),
        cuda_version=_text(manifest, "cuda_version"),
        driver_version=_text(manifest, "driver_version"),
        command=tuple(map(str, argv)) if isinstance(argv, list) else (),
        options=_dict(manifest, "options"),
        started_ns=_started_ns(discovery, ranks),
    )
    return redact_fields(run)  # a run.json of an earlier version, or of somebody else, may hold secrets


def _git(manifest: dict[str, Any]) -> Git | None:
    told = _dict(manifest, "git")
    commit, branch, dirty = (told.get(key) for key in ("commit", "branch", "dirty"))
    if not told:
        return None
    return Git(
        commit=commit if isinstance(commit, str) else None,
        branch=branch if isinstance(branch, str) else None,
        dirty=dirty if isinstance(dirty, bool) else None,
    )


def samples_per_step(manifest: dict[str, Any]) -> float | None:
    """Samples of all ranks together: as the training says, else from what each rank told `step()`."""
    if (told := _told(manifest, "samples_per_step")) is not None:
        return told
    counts = []
    for entry in manifest.get("ranks") or ():
        samples, steps = entry.get("samples"), entry.get("steps")
        if not isinstance(samples, int) or not isinstance(steps, int) or samples <= 0 or steps <= 0:
            return None
        counts.append(samples / steps)
    return sum(counts) or None


def _told(manifest: dict[str, Any], key: str) -> float | None:
    """A positive number that the training told of itself."""
    training = manifest.get("training")
    told = training.get(key) if isinstance(training, dict) else None
    if isinstance(told, (int, float)) and not isinstance(told, bool) and 0 < told < 1e300:
        return float(told)
    return None


def _started_ns(discovery: Discovery, ranks: Sequence[RankSummary]) -> int | None:
    """When the run began, Unix ns: by its manifest, else by its traces; None where those count from 0."""
    told = discovery.manifest.get("started_ns")
    if isinstance(told, int) and not isinstance(told, bool) and 0 < told < 1 << 62:
        return told
    job = discovery.job_of([summary.path for summary in ranks])
    first = job[0].started_ns if job else 0
    return first if first > _FIRST_EPOCH_NS else None


def _dict(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    value = manifest.get(key)
    return value if isinstance(value, dict) else {}


def _text(manifest: dict[str, Any], key: str) -> str | None:
    value = manifest.get(key)
    return value if isinstance(value, str) else None


def world_size(discovery: Discovery, ranks: Sequence[RankSummary]) -> int:
    """Ranks of the job: from the manifest, the traces, or of several as many as the highest says. A trace alone whose
    rank is above 0 says nothing of others."""
    known = discovery.manifest.get("world_size")
    if isinstance(known, int) and known > 0:
        return known
    inside = [summary.meta.world_size for summary in ranks if summary.meta.world_size]
    return max(inside, default=max(summary.rank for summary in ranks) + 1 if len(ranks) > 1 else 1)


def rank_hosts(discovery: Discovery, ranks: Sequence[RankSummary]) -> dict[int, str | None]:
    """The host that each rank ran on: as run.json says, or its trace, or the name of the file."""
    hosts = {summary.rank: summary.meta.host or host_in_name(summary.path, summary.pid) for summary in ranks}
    for entry in reversed(discovery.manifest.get("ranks") or ()):
        if isinstance(entry, dict) and isinstance(entry.get("rank"), int) and entry.get("host"):
            hosts[entry["rank"]] = str(entry["host"])
    return hosts


def own_gpus(manifest: dict[str, Any]) -> bool | None:
    """Whether each rank had a GPU to itself, as run.json says; None where it does not say that of all ranks."""
    entries = [entry for entry in manifest.get("ranks") or () if isinstance(entry, dict)]
    devices = [entry["device"] for entry in entries if isinstance(entry.get("device"), dict)]
    told = [device["uuid"] for device in devices if isinstance(device.get("uuid"), str)]
    if len(set(told)) < len(told):
        return False
    whole = len(told) == len(entries) > 0 and len(entries) >= (manifest.get("world_size") or 0)
    return True if whole else None


def rank_host(discovery: Discovery, summary: RankSummary) -> str | None:
    """The host a rank ran on."""
    return rank_hosts(discovery, [summary])[summary.rank]


def _first(metas: Sequence[TraceMeta], field: str) -> Any:
    return next((value for meta in metas if (value := getattr(meta, field)) is not None), None)


def _device_name(manifest: dict[str, Any]) -> str | None:
    for entry in manifest.get("ranks") or ():
        device = entry.get("device") if isinstance(entry, dict) else None
        if isinstance(device, dict) and device.get("name"):
            return str(device["name"])
    return None


# run.json as it tells of one of several windows: what the profiler cost there, and not in all of them together.


def of_own_window(
    manifest: dict[str, Any], window: Collection[int], whole: WholeRun | None, *, on_gpu: bool
) -> dict[str, Any]:
    """`manifest` with the step times of the window with these steps, and of those right before it.

    The schedule's windows count together, with the steps that it times before the first; before each where no profiler
    stays behind a window, which is so without GPUs. One that was asked for later lies among other steps: the median of
    both is neither's, nor are the steps of the beginning those that it would have without the profiler.
    """
    ranks = manifest.get("ranks") or ()
    end = steps_needed(manifest.get("schedule"))
    counts = [len(entry["windows"]) for entry in ranks if isinstance(entry.get("windows"), list)]
    if not window or end is None or max(counts, default=0) < 2:
        return manifest
    is_later = asked_for_later(manifest, window)
    own = {
        number: ms
        for rank, entry in enumerate(ranks)
        for number, ms in _profiled(rank, entry)
        if (number[1] in window if is_later else number[1] < end)
    }
    told = {
        **manifest,
        "profiled_steps": sorted({number for _, number in own}),
        "profiled_step_ms": statistics.median(own.values()) if own else None,
    }
    if is_later:
        return told | _before(ranks, window, whole)
    early = timed_before_first(manifest.get("schedule"))
    return told | _median_of_first(ranks, early) if on_gpu and early is not None else told


def without_profiler_ms(
    manifest: dict[str, Any], window: Collection[int], whole: WholeRun | None, plain: PlainStep | None
) -> float | None:
    """The step without the profiler that is told everywhere, ms: the typical one of the whole run, where that is known.
    Of steps before the first window where torch's profiler slows those behind it, and of those right before a window
    that was asked for later. manifest: of this window."""
    told = manifest.get("unprofiled_step_ms")
    known = float(told) if isinstance(told, (int, float)) and is_step_time(told) else None
    if whole is None or asked_for_later(manifest, window):
        return known
    return whole.typical_ms if plain is None or plain.before is None else plain.ms


def asked_for_later(manifest: dict[str, Any], window: Collection[int]) -> bool:
    """Whether the window with these steps lies behind all of the schedule's."""
    end = steps_needed(manifest.get("schedule"))
    return end is not None and bool(window) and min(window) >= end


def _median_of_first(ranks: Collection[dict[str, Any]], early: int) -> dict[str, Any]:
    """The median of the steps that each rank timed before any window; nothing without them."""
    told = (entry.get("unprofiled_step_ms") for entry in ranks)
    times = [ms for own in told if isinstance(own, list) for ms in own[:early] if is_step_time(ms)]
    return {"unprofiled_step_ms": float(statistics.median(times))} if times else {}


def _before(ranks: Collection[dict[str, Any]], window: Collection[int], whole: WholeRun | None) -> dict[str, Any]:
    at = np.zeros(0, dtype=np.int64) if whole is None else steps_before(whole, window)
    times = {} if whole is None else dict(zip(whole.ranks, whole.took_ms[:, at].tolist(), strict=True))
    return {
        "unprofiled_step_ms": median(whole.step_ms[at]) if whole is not None and len(at) else None,
        "ranks": [
            {**entry, "unprofiled_step_ms": [ms for ms in times.get(entry.get("rank", -1), ()) if ms > 0]}
            for entry in ranks
        ],
    }


def _profiled(rank: int, entry: dict[str, Any]) -> list[tuple[tuple[int, int], float]]:
    numbers, times = entry.get("profiled_steps"), entry.get("profiled_step_ms")
    if not isinstance(numbers, list) or not isinstance(times, list):
        return []
    return [
        ((rank, number), float(ms))
        for number, ms in zip(numbers, times, strict=False)
        if isinstance(number, int) and isinstance(ms, (int, float)) and not isinstance(ms, bool)
    ]
