"""Reports for the tests of comparisons: real ones, and small ones with the numbers that a test asks for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from traceops.compare import ComparedCapture
from traceops.compare.capture import capture_of
from traceops.core.documents import json_bytes
from traceops.measure.ledger import BUCKETS

DATA = Path(__file__).parents[1] / "data" / "reports"
START_NS = 1_790_000_000 * 10**9
RANKS = 2


def real(name: str) -> ComparedCapture:
    """A report of a real run, see tests/data/README.md."""
    path = DATA / f"{name}.report.gz"
    return capture_of(json.loads(gzip.decompress(path.read_bytes())), str(path))


def made(
    unprofiled: Sequence[float] = (),
    profiled: Sequence[float] = (100.0,) * 8,
    *,
    at: float = 0.0,
    buckets: dict[str, float] | None = None,
    counts: dict[str, int | None] | None = None,
    peak: int | None = 10**9,
    inventory: dict[str, list[dict[str, Any]]] | None = None,
    findings: Sequence[dict[str, Any]] = (),
    collectives: Sequence[dict[str, Any]] = (),
    name: str | None = None,
    **run: Any,
) -> ComparedCapture:
    """A capture of two ranks that began `at` seconds; what `buckets` leave of a step is compute."""
    buckets = {**dict.fromkeys(BUCKETS, 0.0), **(buckets or {})}
    steps = [
        {
            "rank": rank, "step": 10 + number, "duration_ms": ms,
            **buckets, "compute": ms - sum(buckets.values()) + buckets["compute"],
            "kernels": 500, "collectives": 10, "collective_bytes": 10**8, "blocking_calls": 0, **(counts or {}),
        }
        for rank in range(RANKS)
        for number, ms in enumerate(profiled)
    ]  # fmt: skip
    report = {
        "schema_version": 1,
        "run": {
            "name": name or f"run_{at:g}", "world_size": RANKS, "device": "NVIDIA H200", "device_type": "cuda",
            "training": {"strategy": "pytorch_ddp", "config": {"layers": 8, "batch_size": 4, "precision": "bf16"}},
            "started_ns": START_NS + int(at * 1e9), "environment": {"NCCL_DEBUG": "WARN"}, "samples_per_step": 8,
            **run,
        },
        "summary": {},
        "ranks": [{"rank": rank, "peak_memory_bytes": peak} for rank in range(RANKS)],
        "steps": steps,
        "unprofiled_steps": [
            {"rank": rank, "index": index, "duration_ms": ms}
            for rank in range(RANKS)
            for index, ms in enumerate(unprofiled)
        ],
        "collectives": list(collectives),
        "inventory": inventory or {},
        "findings": list(findings),
    }  # fmt: skip
    return capture_of(json.loads(json_bytes(report)), f"profile/{report['run']['name']}")


def edited(capture: ComparedCapture, edit: Callable[[dict[str, Any]], None]) -> ComparedCapture:
    """The capture with another report: `edit` changes the object that report.json holds."""
    report = to_builtins(capture.report)
    edit(report)
    return capture_of(report, capture.info.path)


def kernel(name: str, count: float, ms: float, operator: str = "aten::mm", place: float = 0.5) -> dict[str, Any]:
    return {"name": name, "kind": "compute", "operator": operator, "count_per_step": count,
            "ms_per_step": ms, "place": place}  # fmt: skip


def collective(count: float, nbytes: int, ms: float = 1.0, op: str = "allreduce") -> dict[str, Any]:
    return {"op": op, "group_size": RANKS, "dtype": "Float", "elements": nbytes // 4, "bytes": nbytes,
            "count_per_step": count, "kernel_ms_per_step": ms}  # fmt: skip
