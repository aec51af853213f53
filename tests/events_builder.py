"""Traces of a few events, written as rows of ns."""

import numpy as np

from traceops.traces.model import CommArgs, Events

MAIN, BACKWARD = 1, 2  # host threads


def build(rows):
    """Events from dicts with name, cat, ts, dur and, where they matter, tid, stream, correlation, comm."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    cats = list(dict.fromkeys(row["cat"] for row in rows))

    def column(key, default, dtype=np.int64):
        return np.array([row.get(key, default) for row in rows], dtype=dtype)

    return Events(
        index=np.arange(len(rows)),
        name=np.array([names.index(row["name"]) for row in rows], dtype=np.int32),
        cat=np.array([cats.index(row["cat"]) for row in rows], dtype=np.int32),
        ts=column("ts", 0), dur=column("dur", 0), pid=column("pid", 1), tid=column("tid", MAIN),
        stream=column("stream", -1), correlation=column("correlation", -1),
        external=column("external", -1), sequence=column("sequence", -1),
        **{name: column(name, -1, np.int32) for name in ("shape", "types", "strides", "concrete")},
        names=tuple(names), cats=tuple(cats), shapes=(), type_lists=(), stride_lists=(), concrete_lists=(),
        comm={i: CommArgs(row["comm"]) for i, row in enumerate(rows) if "comm" in row},
    )  # fmt: skip


def step(number, ts, dur, tid=MAIN):
    return {"name": f"ProfilerStep#{number}", "cat": "user_annotation", "ts": ts, "dur": dur, "tid": tid}


def kernel(ts, dur, launched=None, name="gemm", cat="kernel", stream=7, tid=MAIN, correlation=None):
    """A kernel, and in front of it the call that launched it at the given time."""
    correlation = ts + 1 if correlation is None else correlation
    row = {"name": name, "cat": cat, "ts": ts, "dur": dur, "stream": stream, "correlation": correlation, "tid": stream}
    called = "cudaMemcpyAsync" if cat == "gpu_memcpy" else "cudaLaunchKernel"
    return [row] if launched is None else [call(called, launched, 10, tid, correlation), row]


def call(name, ts, dur, tid=MAIN, correlation=-1):
    return {"name": name, "cat": "cuda_runtime", "ts": ts, "dur": dur, "tid": tid, "correlation": correlation}


def note(name, ts, dur, tid=MAIN, cat="user_annotation"):
    return {"name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid}
