"""What HTA itself answers, with its own loader, and how far our answers lie from that."""

import contextlib
import gzip
import io
import json
import logging
import os
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # read when hta is imported

TABLES = ("temporal", "overlap", "idle", "kernel_types", "kernels", "launches", "queue_length")


def hta_analysis(paths):
    """HTA's TraceAnalysis of {rank: absolute path}, without what it prints."""
    from hta.trace_analysis import TraceAnalysis

    logging.getLogger("hta").setLevel(logging.CRITICAL)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        return TraceAnalysis(trace_files={rank: str(path) for rank, path in paths.items()})


def hta_answers(path, rank=0):
    """(table -> frame, table -> error) for one rank."""
    analysis = hta_analysis({rank: path})
    calls = {
        "temporal": lambda: {"temporal": analysis.get_temporal_breakdown(visualize=False)},
        "overlap": lambda: {"overlap": analysis.get_comm_comp_overlap(visualize=False)},
        "idle": lambda: {"idle": analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)[0]},
        "kernels": lambda: dict(
            zip(("kernel_types", "kernels"), analysis.get_gpu_kernel_breakdown(visualize=False), strict=True)
        ),
        "launches": lambda: {"launches": analysis.get_cuda_kernel_launch_stats(ranks=[rank], visualize=False)[rank]},
        "queue_length": lambda: {"queue_length": analysis.get_queue_length_summary(ranks=[rank])},
    }
    answers, errors = {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, call in calls.items():
            try:
                answers |= call()
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
    queues = answers.get("queue_length")
    if queues is not None:
        queues.columns = [statistic for _, statistic in queues.columns]
        answers["queue_length"] = queues.reset_index()
    return answers, errors


def differences(theirs, ours):
    """Largest difference of each numeric column, inf where rows, columns, texts or counts differ at all."""
    if theirs is None or ours is None:
        return {} if theirs is ours else {"a table": np.inf}
    if sorted(theirs.columns) != sorted(ours.columns) or len(theirs) != len(ours):
        return {"shape": np.inf}
    keys = [column for column in KEYS if column in theirs.columns]
    theirs, ours = (table.sort_values(keys, kind="stable").reset_index(drop=True) for table in (theirs, ours))
    result = {}
    for column in theirs.columns:
        one, other = theirs[column].to_numpy(), ours[column].to_numpy()
        if column in EXACT or one.dtype == object:
            result[column] = 0.0 if (one == other).all() else np.inf
        elif len(one):
            both_missing = np.isnan(one.astype(float)) & np.isnan(other.astype(float))
            result[column] = float(np.where(both_missing, 0.0, np.abs(one.astype(float) - other.astype(float))).max())
    return result


KEYS = ("rank", "stream", "idle_category", "kernel_type", "name", "correlation", "quantity")
EXACT = (*KEYS, "count")


def write_rebased(path, target):
    """Write the trace anew without what HTA gets wrong: times from zero, event 0 not an activity.

    A float of µs loses digits of large times, and a kernel without a launch is joined with event 0.
    """
    raw = json.loads(read_bytes(path), parse_float=Decimal)
    raw["traceEvents"] = events = [{"ph": "M", "name": "first"}, *raw["traceEvents"]]
    zero = min(int(event["ts"]) for event in events if event.get("ph") == "X")
    for event in events:
        if "ts" in event:
            event["ts"] = float(event["ts"] - zero)
    target.write_text(json.dumps(raw, default=float))
    return target


def read_bytes(path):
    data = Path(path).read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
