"""Writes a simulated run as torch.profiler would have: one kineto trace a rank."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest.mock import patch

from traceops.measure.flops import NOT_COUNTED
from traceops.measure.hta_tables import HtaTables
from traceops.measure.ledger import Breakdown
from traceops.measure.summary import RankSummary, summarize
from traceops.traces.discover import discover

from .cpu_rows import cpu_rows
from .gpu_rows import gpu_rows
from .rows import Clock, metadata_row, row
from .truth import RankTruth, SimulatedRun


@dataclass(frozen=True)
class TraceStyle:
    """What the traces say.

    Without `metadata` they are as older torch and NCCL wrote them: no arguments of collectives, no groups. With
    `seq` every collective carries its sequence number. `shuffle_names` is a seed for group names that differ
    between ranks even within a group; else groups of different ranks share names, as torch's meshes do.
    """

    metadata: bool = True
    seq: bool = False
    compressed: bool = False
    shuffle_names: int | None = None
    missing: tuple[int, ...] = ()


def write_traces(run: SimulatedRun, folder: Path, style: TraceStyle = TraceStyle()) -> list[Path]:
    """Write rank_<r>.pt.trace.json, or .json.gz, of every rank that is not missing; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in run.ranks:
        if rank.rank in style.missing:
            continue
        text = _trace(run, rank, style).encode()
        path = folder / f"rank_{rank.rank}.pt.trace.json{'.gz' if style.compressed else ''}"
        path.write_bytes(gzip.compress(text, 1, mtime=0) if style.compressed else text)
        paths.append(path)
    return paths


_SHOWN_ONLY = {
    "hta_tables": HtaTables(),
    "measure_breakdown": Breakdown(None, None, None, None, "traceops"),
    "measure_flops": NOT_COUNTED,
    "measure_detail": b"",
}


def summaries(run: SimulatedRun, style: TraceStyle = TraceStyle(), *, tables: bool = True) -> list[RankSummary]:
    """What the map makes of the run's traces, in the order of the ranks.

    Without tables it is sooner done, and has nothing that only HTA's tables, the page's timeline and comparisons show.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_traces(run, Path(folder), style)
        [window] = discover(folder).windows
        if tables:
            return [summarize(file) for file in window.files]
        with ExitStack() as left_out:
            for name, nothing in _SHOWN_ONLY.items():
                left_out.enter_context(patch(f"traceops.measure.summary.{name}", return_value=nothing))
            return [summarize(file) for file in window.files]


def group_names(run: SimulatedRun, rank: int, style: TraceStyle) -> dict[str, str]:
    """What this rank calls its group under each key."""
    others = [groups.key for groups in run.program.groups if groups.key != "world"]
    names = [str(number) for number in range(1, len(others) + 1)]
    if style.shuffle_names is not None:
        choice = Random(f"{style.shuffle_names}/{rank}")
        names = choice.sample([str(number) for number in range(1, len(others) + 3)], len(others))
    return {"world": "0", **dict(zip(others, names, strict=True))}


def _trace(run: SimulatedRun, rank: RankTruth, style: TraceStyle) -> str:
    start = rank.on_clock(rank.window_start)
    clock = Clock(rank, (start // 10**9 - rank.rank % 3) * 10**9)
    names = group_names(run, rank.rank, style)
    meta = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank.rank % 8, "name": "NVIDIA H200"}] if run.program.device == "cuda" else [],
        "distributedInfo": _distributed(run, rank.rank, names, style),
        "host_name": f"host{rank.host}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": clock.base,
    }
    rows = gpu_rows if run.program.device == "cuda" else cpu_rows
    numbers = names if style.metadata else None
    events = [*_step_rows(rank, clock), *rows(run, rank, clock, numbers, style.seq), *_close(rank, clock)]
    return json.dumps(meta)[:-1] + ', "traceEvents": [\n' + ",\n".join(events) + "\n]}\n"


def _distributed(run: SimulatedRun, rank: int, names: dict[str, str], style: TraceStyle) -> dict[str, object]:
    program = run.program
    backend = "nccl" if program.device == "cuda" and not program.through_host else "gloo"
    info: dict[str, object] = {"backend": backend, "rank": rank, "world_size": run.world}
    if style.metadata:
        own = {groups.key: groups for groups in run.program.groups}
        config = [
            {
                "pg_name": name,
                "pg_desc": own[key].description if key in own else "default_pg",
                "backend_config": f"{program.device}:{backend}",
                "pg_size": len(members),
                "ranks": members,
            }
            for key, name in names.items()
            for members in [list(own[key].members(rank, run.world) if key in own else range(run.world))]
        ]
        info |= {"pg_count": len(config), "pg_config": config}
        info |= {"nccl_version": "2.28.9"} if backend == "nccl" else {}
    return info


def _step_rows(rank: RankTruth, clock: Clock) -> Iterator[str]:
    yield metadata_row("process_name", clock, clock.pid, 0, '{"name": "python"}')
    for number, start, end in rank.marks:
        yield row("user_annotation", f"ProfilerStep#{number}", clock.pid, clock.pid, clock, start, end)


def _close(rank: RankTruth, clock: Clock) -> Iterator[str]:
    yield row(
        "Trace", "PyTorch Profiler (0)", '"Spans"', '"PyTorch Profiler"', clock, rank.window_start, rank.window_end,
        '"Op count": 0',
    )  # fmt: skip
