"""What a rank writes of every step of its training, and what it sees its host do: the formats of both files.

``rank_<r>/steps.bin``: `MAGIC`, one line of JSON (`rank`, `started_ns`: Unix time of the first step's begin, `first`:
its number, `core_waits`: whether Linux tells how long a thread wants for a core), then a `RECORD` a step.
``rank_<r>/observed.jsonl``: a JSON list a line, its kind first:

    ["f", function, file, first line, line, text of that line or null]   a frame; they are numbered from 0
    ["s", [frame, …]]                                                    a stack, outermost first; numbered from 0
    ["n", [frame, …]]                                                    frames with a line in a block without gradients
    ["t", [step, stack, µs, step, stack, µs, …]]                         samples: each stands for so many µs
    ["m", step, allocations, retries, frees]                             the CUDA allocator's counters until then
    ["b", step, tensors, reserved, pieces, most tensors, most reserved]  bytes of the GPU at this step's end: pieces
                                                                         lie free between blocks in use
    ["c", step, µs, function, file, line, reason]                        a compilation of torch.compile
    ["e", reason]                                                        why no more was observed

``rank_<r>/loader.<worker>.<pid>.jsonl``: frames, stacks and samples of a worker of one of its data loaders, in the same
form; their step is 0, because a worker does not know it. The times that they stand for follow each other without a
gap, from here on:

    ["w", ns]                                                            Unix time at which the looks begin
"""

from __future__ import annotations

import json
import struct
from typing import Any

STEPS_FILE = "steps.bin"
OBSERVED_FILE = "observed.jsonl"
LOADER_GLOB = "loader.*.*.jsonl"
MAGIC = b"traceops steps 1\n"
# Of one step: by the host's clock; on the GPU's own timeline (0: not known; see SPAN); in Python's garbage collector;
# in torch.compile; in the capture itself after the step, all µs; in which the training thread wanted a core and had
# none, in tenths of a ms (of recorded steps; 0 too where nothing tells, see `core_waits`); compilations; flags.
RECORD = struct.Struct("<IIIIIHBB")
FIELDS = (
    ("host_us", "<u4"), ("device_us", "<u4"), ("gc_us", "<u4"), ("compile_us", "<u4"), ("own_us", "<u4"),
    ("core_wait", "<u2"), ("compiles", "u1"), ("flags", "u1"),
)  # fmt: skip
MOST_US = (1 << 32) - 1
CORE_WAIT_NS = 100_000  # of one in `core_wait`
MOST_CORE_WAIT = (1 << 16) - 1
RECORDED = 1  # the profiler was at work, or the ranks were not yet together again after it
SKIPPED = 2  # a gradient scaler skipped the optimizer
EVENT = 4  # the GPU was asked for the time at this step's end
SPAN = 8  # `device_us` is of all steps behind the latest EVENT before this one, and of this step
FLAGS = RECORDED | SKIPPED | EVENT | SPAN  # one more needs another `MAGIC`


def split_log(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a `STEPS_FILE` and its whole records. Raises ValueError where it is none.

    Records of zeros at its end are none: a machine that loses its power leaves them, and no step takes no time.
    """
    header, _, body = raw[len(MAGIC) :].partition(b"\n")
    told = json.loads(header) if raw.startswith(MAGIC) else None
    if not isinstance(told, dict):
        raise ValueError("no record of steps")
    whole = len(body) // RECORD.size
    written = -(-len(body.rstrip(b"\0")) // RECORD.size)
    return told, body[: min(whole, written) * RECORD.size]


def loader_file(worker: int, pid: int) -> str:
    """What a loader's worker of this number writes."""
    return f"loader.{worker}.{pid}.jsonl"
