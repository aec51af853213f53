"""What the capture adds to a trace of torch's profiler, beside what torch writes."""

from __future__ import annotations

# The rank's collectives as torch's flight recorder has them, in the order of their calls: lists of RECORDED.
COLLECTIVES = "traceopsCollectives"
RECORDED = ("name", "group", "description", "sequence", "elements_in", "elements_out", "dtype", "created_ns")
