"""The only module that imports HTA: our columns in, the answers of HTA's own code out."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from traceops.core.errors import UsageError
from traceops.measure.hta_tables import KERNEL_WAIT_US, NO_ACTIVITY, SEQUENCE_COLUMNS, Columns, HtaTables, number_ids
from traceops.traces.kineto import load_trace
from traceops.traces.model import Events, RankTrace

if TYPE_CHECKING:
    import pandas as pd

# HTA went on under another name with 0.6; both bring the package `hta`.
DISTRIBUTIONS = ("HolisticTraceAnalysis", "traceinsight")


def tables_by_hta(rank: int, trace: RankTrace, more: bool = False) -> HtaTables:
    """What `hta_tables` computes, by HTA's own code; an analysis that fails costs its own table only. A trace without
    device rows gives none of them: HTA raises or answers NaN there. `more`: also the tables that only HTA has."""
    frames, failed = hta_frames(rank, trace) if (trace.events.stream >= 0).any() else ({}, NO_ACTIVITY)
    if more:
        only_htas, why_not = _answers(_ONLY_HTAS, functools.cache(lambda: _loaded({rank: trace}, exact=True)), rank)
        frames, failed = frames | only_htas, failed + why_not
    if "launches" in frames:
        # HTA's rows, one per launch (thousands), folded to one per quantity, in µs.
        columns = ["cpu_duration", "gpu_duration", "launch_delay"]
        described = frames["launches"][columns].describe(percentiles=[0.05, 0.5, 0.95])
        folded: pd.DataFrame = described.T.reset_index(names="quantity")
        frames["launches"] = folded
    return HtaTables(**{name: _plain(frame) for name, frame in frames.items()}, failed=failed)


def hta_frames(rank: int, trace: RankTrace) -> tuple[dict[str, pd.DataFrame], tuple[tuple[str, str], ...]]:
    """HTA's tables by the names that `HtaTables` has for them, and the analyses that raised with their errors."""
    return _answers(_ANALYSES, functools.cache(lambda: to_hta(rank, trace)), rank)


def _answers(
    analyses: Mapping[str, Callable[[Any, int], dict[str, pd.DataFrame]]], trace: Callable[[], Any], rank: int
) -> tuple[dict[str, pd.DataFrame], tuple[tuple[str, str], ...]]:
    frames: dict[str, pd.DataFrame] = {}
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' future warnings about HTA's own code
        for name, analysis in analyses.items():
            try:
                frames |= analysis(trace(), rank)
            except Exception as error:
                failed.append((name, f"{type(error).__name__}: {error}"[:200]))
    return frames, tuple(failed)


def to_hta(rank: int, trace: RankTrace) -> Any:
    """An `hta.common.trace.Trace` with one rank, cut to the rows its analyses read, filtered as HTA filters. HTA drops
    the last profiler step and device rows whose launch it did not keep."""
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


# Arguments that only HTA's own reader keeps: waits between streams, and hardware counters.
_OF_HTAS_READER = frozenset({"cuda_sync", "cuda_profiler_range"})


def hta_analysis(paths: Mapping[int, str]) -> Any:
    """HTA's own `TraceAnalysis` of all ranks, on frames from our loader with the rows and columns of HTA's reader.
    paths: the trace of each rank. Python frames of `with_stack` are left out. Raises UsageError without HTA, InputError
    for a trace that cannot be read."""
    preload("run.hta")
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = _loaded(paths)
    return analysis


def _loaded(given: Mapping[int, str | RankTrace], *, exact: bool = False) -> Any:
    """HTA's traces. exact: times are not rounded to whole µs, as HTA does, which fails where events then end early."""
    logging.getLogger("hta").setLevel(logging.ERROR)
    loaded = _our_trace()(given, exact)
    loaded.load_traces()
    loaded.traces = {rank: _frame_by_name()(frame) for rank, frame in loaded.traces.items()}
    return loaded


@functools.cache
def _our_trace() -> Any:
    from hta.common.trace import Trace
    from hta.common.trace_symbol_table import TraceSymbolTable
    from hta.configs.parser_config import ParserConfig

    class OurTrace(Trace):  # type: ignore[misc]
        """HTA's traces of a job, read by our loader."""

        def __init__(self, given: Mapping[int, str | RankTrace], exact: bool) -> None:
            # HTA's own looks for files in a folder.
            self._exact = exact
            self._read = {rank: one for rank, one in given.items() if not isinstance(one, str)}
            self.trace_files = {rank: one if isinstance(one, str) else one.path for rank, one in given.items()}
            self.trace_path = str(Path(min(self.trace_files.values())).parent)
            self.traces: dict[int, pd.DataFrame] = {}
            self.meta_data: dict[int, dict[str, Any]] = {}
            self.min_ts, self.is_parsed = 0, False
            self.symbol_table, self.parser_config = TraceSymbolTable(), ParserConfig.get_default_cfg()

        def parse_traces(self, *args: Any, **options: Any) -> None:
            read = {rank: self._read.get(rank) or load_trace(path) for rank, path in self.trace_files.items()}
            if any(_OF_HTAS_READER & set(trace.events.cats) for trace in read.values()):
                super().parse_traces(*args, **options)
                return
            starts = [int(trace.events.ts.min()) // 1000 * 1000 for trace in read.values() if len(trace.events)]
            for rank, trace in read.items():
                self.symbol_table.add_symbols([*trace.events.names, *trace.events.cats])
                self.traces[rank] = _frame_of_reader(
                    trace.events, self.symbol_table, min(starts, default=0), self._exact
                )
                self.meta_data[rank] = {"distributedInfo": {"rank": rank, "world_size": trace.meta.world_size}}

    return OurTrace


def _frame_of_reader(events: Events, table: Any, zero_ns: int, exact: bool) -> pd.DataFrame:
    """The frame that HTA's reader makes: times in µs since `zero_ns`, rounded to whole ones if not `exact`."""
    import pandas as pd
    from hta.common.trace import transform_correlation_to_index
    from hta.configs.env_options import disable_ns_rounding

    ids = table.get_sym_id_map()
    ts, dur = (events.ts - zero_ns) / 1000.0, events.dur / 1000.0
    if not (exact or disable_ns_rounding()) and ((events.ts % 1000).any() or (events.dur % 1000).any()):
        end = np.floor(ts + dur)
        ts = np.ceil(ts).astype(np.int64)
        dur = end - ts
    copies = np.array(["memcpy" in cat.lower() or "memset" in cat.lower() for cat in events.cats], dtype=bool)
    of_copy = copies[events.cat] & (events.shape >= 0) if len(copies) else np.zeros(len(events), dtype=bool)
    sizes = np.array([int(text) if text.isdecimal() else -1 for text in events.shapes] or [-1], dtype=np.int64)
    bytes_ = np.where(of_copy, sizes[events.shape], -1)
    of_host = events.stream < 0

    def texts(column: NDArray[np.int32], names: tuple[str, ...]) -> NDArray[np.object_]:
        return np.array([*names, "-1"], dtype=object)[np.where(of_host, column, -1)]

    frame = pd.DataFrame(
        {
            "index": events.index,
            "cat": np.array([ids[cat] for cat in events.cats], dtype=np.int64)[events.cat],
            "name": np.array([ids[name] for name in events.names], dtype=np.int64)[events.name],
            "pid": events.pid, "tid": events.tid, "ts": ts, "dur": dur, "end": ts + dur,
            "stream": events.stream, "correlation": events.correlation, "bytes": bytes_,
            "memory_bw_gbps": np.where(bytes_ >= 0, bytes_ / np.maximum(events.dur, 1), 0.0),
            "wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1,
            "input_dims": texts(events.shape, events.shapes), "input_type": texts(events.types, events.type_lists),
            "input_strides": texts(events.strides, events.stride_lists), "external_id": events.external,
        },
        index=events.index,
    )  # fmt: skip
    transform_correlation_to_index(frame, table)
    # As HTA's add_iteration, which looks at every step for every event: an event of the host is in the step around its
    # start, one of the device in that of its launch.
    iteration = np.full(len(frame), -1, dtype=np.int64)
    starts = frame["ts"].to_numpy()
    for name in np.flatnonzero([name.startswith("ProfilerStep") for name in events.names]):
        if number := re.match(r"ProfilerStep\s*#\s*(\d+)", events.names[name]):
            for row in np.flatnonzero((events.name == name) & of_host):
                iteration[of_host & (starts >= starts[row]) & (starts < starts[row] + dur[row])] = int(number[1])
    launch = frame["index_correlation"].to_numpy()
    at = np.searchsorted(events.index, launch)
    device = (events.stream > 0) & (launch > 0)
    iteration[device] = iteration[at[device]]
    frame["iteration"] = iteration
    return frame


def _plain(frame: pd.DataFrame) -> Columns:
    return {
        str(column): [
            None if isinstance(value, float) and not math.isfinite(value) else value for value in frame[column].tolist()
        ]
        for column in frame
    }


def _hta(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"hta.analyzers.{module}"), name)


def _breakdown() -> Any:
    return _hta("breakdown_analysis", "BreakdownAnalysis")


def _kernels(trace: Any, rank: int) -> dict[str, Any]:
    found = _breakdown().get_gpu_kernel_breakdown(trace, visualize=False, include_memory_kernels=True)
    return dict(zip(("kernel_types", "kernels"), found, strict=True))


def _queue_length(trace: Any, rank: int) -> dict[str, Any]:
    if (table := _hta("trace_counters", "TraceCounters").get_queue_length_summary(trace, ranks=[rank])) is None:
        return {}
    table.columns = [statistic for _, statistic in table.columns]
    return {"queue_length": table.reset_index()}


_Analysis = Callable[[Any, int], dict[str, Any]]
_ANALYSES: dict[str, _Analysis] = {
    "temporal breakdown": lambda trace, rank: {"temporal": _breakdown().get_temporal_breakdown(trace, visualize=False)},
    "communication-computation overlap": lambda trace, rank: {
        "overlap": _hta("communication_analysis", "CommunicationAnalysis").get_comm_comp_overlap(trace, visualize=False)
    },
    "idle time breakdown": lambda trace, rank: {
        "idle": _breakdown().get_idle_time_breakdown(
            trace, consecutive_kernel_delay=KERNEL_WAIT_US, rank=rank, visualize=False
        )[0]
    },
    "kernel breakdown": _kernels,
    "launch statistics": lambda trace, rank: {
        "launches": _hta("cuda_kernel_analysis", "CudaKernelAnalysis").cuda_kernel_launch_stats(
            trace, ranks=[rank], visualize=False
        )[rank]
    },
    "queue length": _queue_length,
}


_MOST_OPERATORS = 6
_LEAST_KERNELS = 3  # the least length of a sequence, HTA's own


def _sequences(trace: Any, rank: int) -> dict[str, Any]:
    """The sequences of kernels that HTA finds below the operators that take most of the GPU's time."""
    import pandas as pd
    from hta.analyzers import cuda_kernel_analysis as theirs
    from hta.common.trace_call_graph import CallGraph

    graph = CallGraph(trace, ranks=[rank])  # its columns go to the frame: what runs below each operator
    frame, names = trace.get_trace(rank), trace.symbol_table.get_sym_table()
    operators = frame[(frame["num_kernels"] >= _LEAST_KERNELS) & frame["cat"].map(names.__getitem__).eq("cpu_op")]
    taking = operators.groupby("name").agg(
        calls=("name", "size"), spent=("kernel_dur_sum", "sum"), depth=("depth", "min")
    )
    # Of operators that only wrap each other the outermost stands for all.
    taking = taking.sort_values(["spent", "depth"], ascending=[False, True]).drop_duplicates(["calls", "spent"])

    class Search(theirs.CudaKernelAnalysis):  # type: ignore[misc]
        # Without the copy of the trace in which HTA marks what it found.
        @classmethod
        def _overlay_frequent_patterns_with_trace(cls, *_: Any) -> dict[str, Any]:
            return {}

    trace.write_raw_trace = lambda *_: None
    with patch.object(theirs, "CallGraph", lambda *_, **__: graph), TemporaryDirectory() as folder:  # made once
        found = [
            Search.get_frequent_cuda_kernel_sequences(trace, names[name], folder, rank=rank, visualize=False)
            for name in taking.index[:_MOST_OPERATORS]
        ]
    if not found:
        return {}
    every = pd.concat(found).drop_duplicates("pattern")
    return {"sequences": every.sort_values(SEQUENCE_COLUMNS[2], ascending=False, kind="stable")}


def _counters(trace: Any, rank: int) -> dict[str, Any]:
    """Hardware counters by operator and kernel: HTA's row a kernel folded to a row a kind, with the means."""
    from hta.analyzers.cupti_counter_analysis import CuptiCounterAnalysis
    from hta.configs.parser_config import ParserConfig

    if CuptiCounterAnalysis.cuda_profiler_cat not in trace.symbol_table.get_sym_id_map():
        return {}
    if not (found := CuptiCounterAnalysis.get_counter_data_with_operators(trace, ranks=[rank])):
        return {}
    known = {arg.name for arg in ParserConfig.get_default_args()}
    counters = sorted(arg.name for arg in trace.parser_config.args if arg.name not in known)
    kinds = found[0].groupby(["top_level_op", "bottom_level_op", "name"], sort=False)
    return {"counters": kinds.agg(count=("dur", "size")).join(kinds[counters].mean()).reset_index()}


_ONLY_HTAS = {"frequent kernel sequences": _sequences, "hardware counters": _counters}


def preload(asked: str = "--hta") -> None:
    """Import what the analyses need, so that processes forked later share it. Raises UsageError where HTA, or a module
    that HTA imports, is not installed; `asked` is what needs it."""
    try:
        for name in ("breakdown_analysis", "communication_analysis", "cuda_kernel_analysis", "trace_counters"):
            importlib.import_module(f"hta.analyzers.{name}")
    except ImportError as error:
        raise UsageError(
            f"{asked} runs HTA's own code, which is not installed ({error}): pip install HolisticTraceAnalysis "
            "'pandas<3' psutil PyYAML (traceops's extra [hta]); traceops has the same tables without HTA"
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
