"""A trace's steps by a few lines of pandas that know nothing of traceops: what its numbers are held against.

python -m benchmarks.field.pandas_ledger TRACE...
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DEVICE = ["kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"]
LAUNCHES = ["cuda_runtime", "cuda_driver", "runtime", "driver"]
STEP = r"ProfilerStep\s*#\s*\d+"
COMM = r"nccl|rccl|multimem_|dpsk::ep::|deep_ep|nvshmem|cross_device_reduce"
HALF_A_MICROSECOND = 0.0005  # in ms
NEVER = np.iinfo(np.int64).min
COLUMNS = ["step", "step_ms", "busy_ms", "exposed_ms", "memory_ms", "idle_ms"]


def read(path: Path) -> pd.DataFrame:
    """The complete events of a trace; `ts` and `end` are whole ns."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    document = json.loads(text.decode(errors="replace"), strict=False, parse_float=str)
    events = [e for e in document["traceEvents"] if e.get("ph") == "X"]
    frame = pd.DataFrame([{k: e.get(k) for k in ("cat", "name", "tid")} for e in events])
    frame["cat"] = frame["cat"].fillna("").str.lower()
    frame["name"] = frame["name"].astype(str)
    frame["ts"] = [_ns(e["ts"]) for e in events]
    frame["end"] = frame["ts"] + [_ns(e.get("dur", 0)) for e in events]
    arguments: list[dict[str, Any]] = [e.get("args") or {} for e in events]
    frame["id"] = [a.get("correlation", a.get("correlation id", -1)) for a in arguments]
    frame["stream"] = [str(a.get("stream")) for a in arguments]
    return frame


def _ns(microseconds: str | int) -> int:
    whole, _, part = str(microseconds).partition(".")
    if len(part) <= 3 and part.isdecimal():
        return int(whole) * 1000 + (int(part.ljust(3, "0")) if not whole.startswith("-") else -int(part.ljust(3, "0")))
    return round(Fraction(microseconds) * 1000)


def steps_of(path: Path) -> pd.DataFrame:
    """COLUMNS of each marked step on the GPU (of the one window where none is marked), in ms."""
    frame = read(path)
    device = frame[frame.cat.isin(DEVICE)].copy()
    if device.empty:
        return pd.DataFrame(columns=COLUMNS)
    calls = frame[frame.cat.isin(LAUNCHES) & (frame.id != -1)].sort_values("ts", kind="stable")
    launched = device.id.map(calls.drop_duplicates("id").set_index("id").ts)
    device["kind"] = np.where(device.cat.str.contains("mem"), "memory", "compute")
    device.loc[(device.kind == "compute") & device.name.str.contains(COMM, case=False), "kind"] = "comm"
    edges, numbers = _edges(frame, device, launched)
    spans = {kind: _union(device[device.kind == kind]) for kind in ("compute", "comm", "memory")}
    communicating = _union(device[device.kind.isin(["compute", "comm"])])
    everything = _union(device)
    rows = []
    for number, begin, end in zip(numbers, edges, edges[1:], strict=False):
        compute, both, busy = (_within(s, begin, end) for s in (spans["compute"], communicating, everything))
        ns = [end - begin, busy, both - compute, busy - both, end - begin - busy]
        rows.append([number, *(value / 1e6 for value in ns)])
    return pd.DataFrame(rows, columns=COLUMNS)


def _edges(frame: pd.DataFrame, device: pd.DataFrame, launched: pd.Series[Any]) -> tuple[list[int], list[int | None]]:
    """Step k ends with the last activity launched in steps up to k."""
    marks = frame[frame.name.str.match(STEP) & ~frame.cat.str.startswith("gpu")]
    marks = marks.drop_duplicates("ts").sort_values("ts", kind="stable")
    if marks.empty:
        return [int(device.ts.min()), int(device.end.max())], [None]
    order = device.ts.sort_values(kind="stable").index
    known = launched.notna().loc[order].groupby(device.stream.loc[order]).cummax()
    before = ~known.reindex(device.index) & bool(launched.notna().any())
    at = launched.fillna(device.ts)
    step = np.searchsorted(marks.ts.to_numpy(), at.to_numpy(), side="right") - 1
    step[(at >= marks.end.iloc[-1]).to_numpy()] = len(marks)
    step[before.to_numpy() & launched.isna().to_numpy()] = -1
    last = device.end.groupby(step).max().reindex(range(-1, len(marks)), fill_value=NEVER)
    if last[-1] == NEVER:
        last[-1] = marks.ts.iloc[0]
    edge = last.cummax()
    kept = edge.diff().iloc[1:] > 0
    numbers = [int(re.findall(r"\d+", name)[0]) for name in marks.name]
    edges = [int(edge.iloc[0]), *(int(e) for e in edge.iloc[1:][kept])]
    begin, end = int(marks.ts.iloc[0]), int(marks.end.iloc[0])
    if len(marks) == 1 and edges[:1] == [begin] and len(edges) == 2 and end - edges[1] > 20 * (edges[1] - begin):
        edges[1] = end  # an only step, nearly all of which lies behind its last activity
    return edges, [n for n, keep in zip(numbers, kept, strict=True) if keep] or [None]


def _union(frame: pd.DataFrame) -> pd.DataFrame:
    """The intervals in which at least one of these runs."""
    frame = frame.sort_values("ts", kind="stable")
    new = frame.ts > frame.end.cummax().shift(fill_value=NEVER)
    return frame.groupby(new.cumsum()).agg(ts=("ts", "min"), end=("end", "max"))


def _within(spans: pd.DataFrame, begin: int, end: int) -> int:
    return int((spans.end.clip(begin, end) - spans.ts.clip(begin, end)).sum())


def differing_steps(report: dict[str, Any], traces: Sequence[Path]) -> tuple[int, int]:
    """(Marked steps of a report.json with device activity, those of them that differ by a microsecond or more).

    traces: of the ranks in their order. Steps that traceops found by itself, without marks, are left out.
    """
    compared = differing = 0
    for rank, path in zip(sorted(row["rank"] for row in report["ranks"]), traces, strict=True):
        ours = {row["step"]: row for row in report["steps"] if row["rank"] == rank}
        for row in steps_of(path).to_dict("records"):
            told = ours.get(row["step"]) if row["step"] is not None else _only(ours)
            if told is None:
                continue
            compared += 1
            differing += any(
                abs(told_ms - row[name]) > HALF_A_MICROSECOND for name, told_ms in of_traceops(told).items()
            )
    return compared, differing


def waiting_of(traces: Sequence[Path]) -> list[float]:
    """What each rank waits in collectives a step, ms, where all ranks call the same ones in one order."""
    durations, steps = [], []
    for path in traces:
        frame = read(path).sort_values("ts", kind="stable")
        calls = frame[frame.cat.isin(LAUNCHES) & (frame.id != -1)].drop_duplicates("id").set_index("id").ts
        marks = frame[frame.name.str.match(STEP) & ~frame.cat.str.startswith("gpu")].ts
        steps.append(marks.nunique())
        called = frame[(frame.cat == "kernel") & frame.name.str.contains(COMM, case=False)]
        called = called[called.id.map(calls) >= marks.min()]  # not what was launched before the window
        durations.append((called.end - called.ts).reset_index(drop=True))
    table = pd.concat(durations, axis=1)
    if table.isna().any(axis=None):
        raise ValueError("the ranks do not call the same number of collectives")
    waiting = table.sub(table.min(axis=1), axis=0).sum() / 1e6
    return [float(ms) / count for ms, count in zip(waiting, steps, strict=True)]


def _only(steps: dict[Any, Any]) -> Any:
    return next(iter(steps.values())) if len(steps) == 1 else None


def of_traceops(step: dict[str, float]) -> dict[str, float]:
    """A step of report.json in the columns of `steps_of`."""
    exposed = sum(step[name] for name in ("comm_transfer", "comm_wait", "comm_unmatched"))
    idle = sum(value for name, value in step.items() if name.startswith("idle_"))
    busy = step["compute"] + exposed + step["memory"]
    return {
        "step_ms": step["duration_ms"],
        "busy_ms": busy,
        "exposed_ms": exposed,
        "memory_ms": step["memory"],
        "idle_ms": idle,
    }


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(argument, steps_of(Path(argument)).to_string(index=False), sep="\n")
