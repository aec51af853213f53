"""run.json from the manifests of the ranks, and from what only the launcher knows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from traceops.capture.manifest import GitState, RankManifest, RunManifest
from traceops.core.capture_failure import CaptureFailure, by_cause, cause_text


def merge(
    ranks: list[RankManifest],
    *,
    name: str,
    command: list[str],
    argv: list[str],
    environment: dict[str, str],
    versions: dict[str, str | None],
    git: GitState | None,
    world_size: int | None = None,
    nnodes: int | None = None,
    started_ns: int | None = None,
    ended_ns: int | None = None,
    status: str = "running",
    exit_code: int | None = None,
    failed_rank: int | None = None,
    notes: Iterable[str] = (),
    failures: Iterable[CaptureFailure] = (),
) -> RunManifest:
    """run.json's content from the manifests of the ranks and what only the caller knows."""
    first = ranks[0] if ranks else None
    facts = first.facts if first else {}
    training = first.training if first else {}
    world = max([world_size or 1, *(rank.world_size for rank in ranks)])
    hosts = sorted({rank.host for rank in ranks})
    own = {rank.note for rank in ranks if rank.note}
    failed = {failure.rank: failure for failure in failures}
    failed |= {rank.rank: rank.failure for rank in ranks if rank.failure is not None}
    return RunManifest(
        name=name,
        command=command,
        argv=argv,
        strategy=training.get("strategy"),
        training=training,
        schedule=first.schedule if first else None,
        options=first.options if first else {},
        world_size=world,
        nnodes=max(nnodes or 1, len(hosts)),
        hosts=hosts,
        device=first.device["type"] if first else None,
        backend=facts.get("backend"),
        traceops_version=versions.get("traceops_version"),
        python_version=versions.get("python_version"),
        torch_version=facts.get("torch_version") or versions.get("torch_version"),
        cuda_version=facts.get("cuda_version"),
        hip_version=facts.get("hip_version"),
        nccl_version=facts.get("nccl_version"),
        driver_version=facts.get("driver_version"),
        environment=environment,
        git=git,
        started_ns=started_ns or min((r.started_ns for r in ranks if r.started_ns), default=None),
        ended_ns=ended_ns,
        status=status,
        exit_code=exit_code,
        failed_rank=failed_rank,
        steps=max((rank.steps for rank in ranks), default=None),
        profiled_steps=sorted({step for rank in ranks for step in rank.profiled_steps}),
        unprofiled_step_ms=_median(value for rank in ranks for value in rank.unprofiled_step_ms),
        profiled_step_ms=_median(value for rank in ranks for value in rank.profiled_step_ms),
        ranks=[_rank_entry(rank) for rank in ranks],
        ranks_missing=sorted(set(range(world)) - {rank.rank for rank in ranks}),
        notes=sorted({*own, *notes, *_failure_notes(failed.values())}),
        failures=[failed[rank].as_dict() for rank in sorted(failed)],
    )


def _rank_entry(rank: RankManifest) -> dict[str, Any]:
    shared = ("world_size", "schedule", "options", "training", "facts", "failure")
    return {key: value for key, value in asdict(rank).items() if key not in shared}


def _failure_notes(failures: Iterable[CaptureFailure]) -> list[str]:
    notes = []
    for ranks, failure in by_cause(list(failures)):
        who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        notes.append(f"{who}: the capture ended early: {cause_text(failure)}")
    return notes


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None
