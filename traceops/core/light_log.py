"""What a rank writes of its light windows: kernels, copies and memsets of a few steps, and nothing of the host.

``rank_<r>/light.bin.gz``, and of later ones ``light.2.bin.gz`` and so on, gzipped: `MAGIC`, one line of JSON, then a
`ROW` an activity. The line is an object:

    rank, source         'cupti', or 'torch' for its profiler recording the device alone
    steps, step_ms       numbers of the measured steps, and what each took by events on the device, ms
    mark_bytes           of the copies that we queue where the first step begins and where each ends; 0 without
    clocks               realtime, monotonic, time stamp counter and CUPTI's own clock, before and after: the rows
                         are on one of them, as torch's profiler may have given CUPTI another; empty: Unix ns
    names                of kernels, by the number in `name`
    discarded            activities that are missing
"""

from __future__ import annotations

import struct

LIGHT_FILE = "light.bin.gz"
LATER_LIGHT_FILES = ("light.2.bin.gz", "light.3.bin.gz", "light.4.bin.gz")
MAGIC = b"traceops light 1\n"
KERNEL, MEMCPY, MEMSET = 10, 1, 2  # as CUPTI numbers kinds of activities
NO_NAME = (1 << 32) - 1
# Begin and end; blocks of a kernel's grid, or bytes; name; stream; correlation id; kind; kind of copy; device.
ROW = struct.Struct("<QQQIIIBBBB")
FIELDS = (
    ("start", "<u8"), ("end", "<u8"), ("size", "<u8"), ("name", "<u4"), ("stream", "<u4"), ("correlation", "<u4"),
    ("kind", "u1"), ("detail", "u1"), ("device", "u1"), ("reserved", "u1"),
)  # fmt: skip
