"""Captures for the tests of baselines: small report.json objects with the times that a test asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from traceops.measure.ledger import BUCKETS
from traceops.report.rows import Run

START_NS = 1_790_000_000 * 10**9
DAY_NS = 86_400 * 10**9
RUN: dict[str, Any] = {
    "name": "run", "world_size": 4, "ranks_present": [0, 1, 2, 3], "ranks_missing": [], "hosts": ["a"],
    "device": "NVIDIA H100 80GB HBM3", "backend": "nccl", "torch_version": "2.9.0", "nccl_version": "2.28.9",
    "strategy": "pytorch_fsdp2", "steps": [3, 4], "samples_per_step": 32,
    "training": {"strategy": "pytorch_fsdp2", "config": {
        "model": "gpt", "layers": 8, "dim": 1024, "seq_len": 512, "batch_size": 8, "grad_accum": 1,
        "precision": "bf16",
    }},
}  # fmt: skip


def commit_of(day: int) -> str:
    """A commit for each day, whose first digits say which."""
    return f"{day:07x}".ljust(40, "a")


def capture(
    day: float = 0, step_ms: float = 50.0, *, unprofiled: int = 8, commit: str | None = None, **run: Any
) -> dict[str, Any]:
    """The report of a capture on a day, of that day's commit where none is given, with steps of `step_ms`."""
    git = {"commit": commit or commit_of(int(day)), "branch": "main", "dirty": False}
    own = {**RUN, "started_ns": START_NS + int(day * DAY_NS), "git": git, **run}
    return {
        "schema_version": 1,
        "run": own,
        "summary": {"step_time_ms": {"median": 1.1 * step_ms}},
        "ranks": [{"rank": rank, "peak_memory_bytes": 30 * 10**9 + rank} for rank in range(4)],
        "steps": [
            {"rank": rank, "step": step, "duration_ms": 1.1 * step_ms, **dict.fromkeys(BUCKETS, 1.0)}
            for rank in range(4)
            for step in (3, 4)
        ],
        "unprofiled_steps": [
            {"rank": rank, "index": index, "duration_ms": step_ms} for rank in range(4) for index in range(unprofiled)
        ],
        "collectives": [],
        "findings": [],
    }


def run_of(report: dict[str, Any]) -> Run:
    """What the report says of the run."""
    return msgspec.convert(report["run"], Run)


def with_level(levels: Sequence[float], noise_pct: float = 1.0, seed: int = 0) -> list[dict[str, Any]]:
    """A capture a day at each of these step times, with noise."""
    noise = np.random.default_rng(seed).normal(0.0, noise_pct / 100.0, len(levels))
    return [
        capture(day, level * (1.0 + own)) for day, (level, own) in enumerate(zip(levels, noise.tolist(), strict=True))
    ]
