"""Multi-rank traces with known truth: programs, faults, the simulation, and traces written from it."""

from .builders import Size, ddp, fsdp2, hsdp, tp_dp
from .faults import ClockShift, LateWindow, ShortWindow, SlowCompute, SlowCopy, SlowHost, SlowInput, SlowLink
from .mesh import Mesh
from .program import Collective, Compute, Groups, HostSync, HostWait, HostWork, Join, LoadInput, Memcpy, Program
from .simulate import simulate
from .traces import TraceStyle, summaries, write_traces
from .truth import (
    EPOCH_NS,
    Activity,
    CollectiveTruth,
    RankTruth,
    SimulatedRun,
    exposed_wait,
    step_durations,
    step_time,
    trace_edges,
)

__all__ = [
    "EPOCH_NS",
    "Activity",
    "ClockShift",
    "Collective",
    "CollectiveTruth",
    "Compute",
    "Groups",
    "HostSync",
    "HostWait",
    "HostWork",
    "Join",
    "LateWindow",
    "LoadInput",
    "Memcpy",
    "Mesh",
    "Program",
    "RankTruth",
    "ShortWindow",
    "SimulatedRun",
    "Size",
    "SlowCompute",
    "SlowCopy",
    "SlowHost",
    "SlowInput",
    "SlowLink",
    "TraceStyle",
    "ddp",
    "exposed_wait",
    "fsdp2",
    "hsdp",
    "simulate",
    "step_durations",
    "step_time",
    "summaries",
    "tp_dp",
    "trace_edges",
    "write_traces",
]
