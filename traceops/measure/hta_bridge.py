"""The only module that imports HTA: our columns in, the answers of HTA's own code for one rank out."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import warnings
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from traceops.core.errors import UsageError
from traceops.measure.hta_tables import KERNEL_WAIT_US, NO_ACTIVITY, Columns, HtaTables, number_ids
from traceops.traces.model import RankTrace

if TYPE_CHECKING:
    import pandas as pd

# HTA went on under another name with 0.6; both bring the package `hta`.
DISTRIBUTIONS = ("HolisticTraceAnalysis", "traceinsight")


def tables_by_hta(rank: int, trace: RankTrace) -> HtaTables:
    """What `hta_tables` computes, by HTA's own code; an analysis that fails costs its own table only.

    A trace without device rows gives no tables: HTA raises or answers NaN there.
    """
    if not (trace.events.stream >= 0).any():
        return HtaTables(failed=NO_ACTIVITY)
    frames, failed = hta_frames(rank, trace)
    if "launches" in frames:
        frames["launches"] = _launch_summary(frames["launches"])
    return HtaTables(**{name: _plain(frame) for name, frame in frames.items()}, failed=failed)


def hta_frames(rank: int, trace: RankTrace) -> tuple[dict[str, pd.DataFrame], tuple[tuple[str, str], ...]]:
    """HTA's tables by the names that `HtaTables` has for them, and the analyses that raised with their errors."""
    hta_trace = to_hta(rank, trace)
    frames: dict[str, pd.DataFrame] = {}
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' future warnings about HTA's own code
        for name, analysis in _ANALYSES.items():
            try:
                frames |= analysis(hta_trace, rank)
            except Exception as error:
                failed.append((name, f"{type(error).__name__}: {error}"[:200]))
    return frames, tuple(failed)


def to_hta(rank: int, trace: RankTrace) -> Any:
    """An `hta.common.trace.Trace` with one rank, cut to the rows its analyses read, filtered as HTA filters.

    HTA drops the last profiler step and device rows whose launch it did not keep.
    """
    import pandas as pd
    from hta.common.trace import Trace, transform_correlation_to_index
    from hta.common.trace_symbol_table import TraceSymbolTable

    logging.getLogger("hta").setLevel(logging.ERROR)

    events = trace.events
    steps = np.array(["ProfilerStep" in name for name in events.names], dtype=bool)
    rows = np.flatnonzero((events.stream != -1) | (events.correlation != -1) | steps[events.name])
    table = TraceSymbolTable()
    table.add_symbols([*events.names, *events.cats])
    ids = table.get_sym_id_map()
    name_ids = np.array([ids[name] for name in events.names], dtype=np.int64)
    cat_ids = np.array([ids[cat] for cat in events.cats], dtype=np.int64)
    start_ns = int(events.ts.min())
    ts = (events.ts[rows] - start_ns) / 1000.0
    dur = events.dur[rows] / 1000.0
    key, _ = number_ids(events.correlation[rows], events.stream[rows] >= 0)
    # HTA marks a missing launch with index 0 and then reads event 0 as the launch: let there be none.
    index = events.index[rows] + 1
    frame = pd.DataFrame(
        {
            "index": index,
            "cat": cat_ids[events.cat[rows]],
            "name": name_ids[events.name[rows]],
            "pid": events.pid[rows],
            "tid": events.tid[rows],
            "ts": ts,
            "dur": dur,
            "end": ts + dur,
            "stream": events.stream[rows],
            "correlation": np.where(key < 0, -1, events.correlation[rows]),
        },
        index=index,
    )
    transform_correlation_to_index(frame, table)
    result = Trace.__new__(Trace)  # its constructor looks for files
    result.traces = {rank: frame}
    result.meta_data = {rank: {}}
    result.trace_files = {rank: trace.path}
    result.symbol_table = table
    result.is_parsed = True
    result.align_and_filter_trace()
    kept = result.traces[rank].set_index("index", drop=False)
    kept.index.names = [None]
    result.traces[rank] = _frame_by_name()(kept)
    return result


def _launch_summary(launches: pd.DataFrame) -> pd.DataFrame:
    """HTA's row a launch (thousands) folded to one row a quantity, in µs."""
    columns = ["cpu_duration", "gpu_duration", "launch_delay"]
    described = launches[columns].describe(percentiles=[0.05, 0.5, 0.95])
    folded: pd.DataFrame = described.T.reset_index(names="quantity")
    return folded


def _plain(frame: pd.DataFrame) -> Columns:
    return {
        str(column): [
            None if isinstance(value, float) and not math.isfinite(value) else value for value in frame[column].tolist()
        ]
        for column in frame
    }


def _temporal(trace: Any, rank: int) -> dict[str, Any]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    return {"temporal": BreakdownAnalysis.get_temporal_breakdown(trace, visualize=False)}


def _overlap(trace: Any, rank: int) -> dict[str, Any]:
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    return {"overlap": CommunicationAnalysis.get_comm_comp_overlap(trace, visualize=False)}


def _idle(trace: Any, rank: int) -> dict[str, Any]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    table, _ = BreakdownAnalysis.get_idle_time_breakdown(
        trace, consecutive_kernel_delay=KERNEL_WAIT_US, rank=rank, visualize=False
    )
    return {"idle": table}


def _kernels(trace: Any, rank: int) -> dict[str, Any]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    types, kernels = BreakdownAnalysis.get_gpu_kernel_breakdown(trace, visualize=False, include_memory_kernels=True)
    return {"kernel_types": types, "kernels": kernels}


def _launches(trace: Any, rank: int) -> dict[str, Any]:
    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis

    return {"launches": CudaKernelAnalysis.cuda_kernel_launch_stats(trace, ranks=[rank], visualize=False)[rank]}


def _queue_length(trace: Any, rank: int) -> dict[str, Any]:
    from hta.analyzers.trace_counters import TraceCounters

    table = TraceCounters.get_queue_length_summary(trace, ranks=[rank])
    if table is None:
        return {}
    table.columns = [statistic for _, statistic in table.columns]
    return {"queue_length": table.reset_index()}


_ANALYSES = {
    "temporal breakdown": _temporal,
    "communication-computation overlap": _overlap,
    "idle time breakdown": _idle,
    "kernel breakdown": _kernels,
    "launch statistics": _launches,
    "queue length": _queue_length,
}


def preload() -> None:
    """Import what the analyses need, so that processes forked later share it.

    Raises UsageError where HTA, or a module that HTA imports, is not installed.
    """
    try:
        for name in ("breakdown_analysis", "communication_analysis", "cuda_kernel_analysis", "trace_counters"):
            importlib.import_module(f"hta.analyzers.{name}")
    except ImportError as error:
        raise UsageError(
            f"--hta runs HTA's own code, which is not installed ({error}): pip install HolisticTraceAnalysis "
            "'pandas<3' psutil PyYAML (traceops's extra [hta]), or leave --hta out for the same tables without HTA"
        ) from error


@functools.cache
def installed_hta() -> str:
    """The distribution that brought `hta`, and its version: 'HolisticTraceAnalysis 0.5.0', '' where none is known."""
    found = []
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


@functools.cache
def _frame_by_name() -> Any:
    import pandas as pd

    class FrameByName(pd.DataFrame):
        """A frame that applies a function of a row's name once a name: HTA classifies kernels row by row."""

        @property
        def _constructor(self) -> Any:
            return FrameByName

        def apply(self, func: Any, axis: Any = 0, *args: Any, **options: Any) -> Any:  # type: ignore[override]
            if axis == 1 and list(self.columns) == ["name"] and len(self):
                return self["name"].map({name: func({"name": name}) for name in self["name"].unique()})
            return super().apply(func, axis, *args, **options)

    return FrameByName
