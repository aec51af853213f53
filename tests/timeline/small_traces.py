"""Builds small traces whose every time is known, and writes timelines of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timeline_reading import Timeline, read_timeline

from traceops.timeline import Timeline as Written
from traceops.timeline import write_timeline
from traceops.traces.discover import discover

Event = dict[str, Any]
HOST, DEVICE = 4000, 0  # process ids, which all ranks share
BASE = 1_700_000_000_000_000_000


def x(name: str, ts: float, dur: float, **fields: Any) -> Event:
    """A slice on the host unless the fields say otherwise; µs."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": HOST, "tid": 1, "ts": ts, "dur": dur, **fields}


def launch(ts: float, correlation: int, dur: float = 5.0) -> list[Event]:
    """A kernel launch on the host with the start of its arrow."""
    call = x("cudaLaunchKernel", ts, dur, cat="cuda_runtime", args={"correlation": correlation})
    return [call, {**arrow("s", ts, correlation), "pid": HOST, "tid": 1}]


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> list[Event]:
    """A kernel with the end of its arrow."""
    args = {"stream": stream, "correlation": correlation, **args}
    run = x(name, ts, dur, cat="kernel", pid=DEVICE, tid=stream, args=args)
    return [run, {**arrow("f", ts, correlation), "pid": DEVICE, "tid": stream, "bp": "e"}]


def arrow(phase: str, ts: float, number: Any) -> Event:
    """One end of an arrow."""
    return {"ph": phase, "id": number, "cat": "ac2g", "name": "ac2g", "ts": ts}


def all_reduce(ts: float, dur: float, correlation: int, ranks: Sequence[int], sequence: int) -> list[Event]:
    """A collective's kernel: 250,000 floats, which are 1.0 MB."""
    return kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ts,
        dur,
        correlation,
        19,
        **{
            "Collective name": "allreduce",
            "In msg nelems": 250_000,
            "Out msg nelems": 250_000,
            "dtype": "Float",
            "Group size": len(ranks),
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(ranks)),
            "Seq": sequence,
        },
    )


def metadata(labels: str = "GPU 0") -> list[Event]:
    """Names as kineto writes them, of one device that is used and one that is not."""
    return [
        {"ph": "M", "name": name, "pid": pid, "tid": 0, "ts": 0.5, "args": args}
        for pid, label, order in ((HOST, "CPU", HOST), (DEVICE, labels, 5000000), (1, "GPU 1", 5000001))
        for name, args in (
            ("process_name", {"name": "python"}),
            ("process_labels", {"labels": label}),
            ("process_sort_index", {"sort_index": order}),
        )
    ] + [{"ph": "M", "name": "thread_name", "pid": DEVICE, "tid": 7, "ts": 0.5, "args": {"name": "stream 7 "}}]


def training(rank: int, ranks: Sequence[int] = (0, 1), late_us: float = 0.0) -> list[Event]:
    """Three steps of 1000 µs, numbers 4 to 6; in each a kernel, and a collective that ends for all at +900.

    Kernels run 300 µs behind their launch, and end after the step on the host does.
    """
    events = metadata(f"GPU {rank}")
    for step in range(3):
        at = 1000.0 + 1000.0 * step
        number = 10 * step
        events.append(x(f"ProfilerStep#{step + 4}", at, 800.0, cat="user_annotation"))
        events.append(x("aten::mm", at + 10, 40.0))
        events += launch(at + 20, number) + launch(at + 100, number + 1)
        events += kernel("gemm", at + 320, 200.0 + late_us, number)
        events += all_reduce(at + 520 + late_us, 380.0 - late_us, number + 1, ranks, step)
    return events


def write_trace(path: Path, events: list[Event] | str, rank: int, world: int, base: int | None = BASE) -> Path:
    """A trace file; its zero stands behind the events, as kineto has it. `events` may be the list's JSON."""
    text = events if isinstance(events, str) else json.dumps(events)
    head = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": world, "backend": "nccl"}}
    tail = {} if base is None else {"baseTimeNanoseconds": base}
    body = json.dumps(head)[:-1] + ', "traceEvents": ' + text + ", " + json.dumps({"x": 1, **tail})[1:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(body.encode()) if path.suffix == ".gz" else body.encode())
    return path


def write_run(folder: Path, traces: Sequence[list[Event] | str], bases: Sequence[int | None] = ()) -> list[Path]:
    """A folder with a trace a rank."""
    return [
        write_trace(folder / f"rank_{rank}.json", events, rank, len(traces), bases[rank] if bases else BASE)
        for rank, events in enumerate(traces)
    ]


def timeline_of(path: Path, output: Path, **options: Any) -> tuple[Timeline, Written]:
    """Write the timeline of a run's last window and read it back."""
    found = discover(str(path))
    written = write_timeline(found, found.windows[-1], output, **options)
    assert [file.name for file in output.parent.iterdir() if file.name.startswith(".")] == []
    return read_timeline(output), written
