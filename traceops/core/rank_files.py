"""What a rank writes of every step of its training, and what it sees its host do: the formats of both files.

``rank_<r>/steps.bin``: `MAGIC`, one line of JSON (`rank`, `started_ns`: Unix time of the first step's begin, `first`:
its number, `core_waits`: whether Linux tells how long a thread wants for a core), then a `RECORD` a step.
``rank_<r>/observed.jsonl``: a JSON list a line, its kind first:

    ["f", function, file, first line, line, text of that line or null]   a frame; they are numbered from 0
    ["s", [frame, …]]                                                    a stack, outermost first; numbered from 0
    ["n", [frame, …]]                                                    frames with a line in a block without gradients
    ["t", [step, stack, µs, step, stack, µs, …], [µs, …]]                samples: each is of so many µs, and was made so
                                                                         long after its step began
    ["m", step, allocations, retries, frees]                             the CUDA allocator's counters until then
    ["b", step, tensors, reserved, pieces, most tensors, most reserved]  bytes of the GPU at this step's end: pieces
                                                                         lie free between blocks in use
    ["c", step, µs, function, file, line, reason]                        a compilation of torch.compile
    ["d", [number, …]]                                                   checksums of what the data loaders gave to the
                                                                         first steps, where ranks do not share a model
    ["e", reason]                                                        why no more was observed

``rank_<r>/loader.<worker>.<pid>.jsonl``: frames, stacks and samples of a worker of one of its data loaders, in the same
form; their step is 0 and the second list empty, because a worker does not know its step. The times that they stand for
follow each other without a gap, from here on:

    ["w", ns]                                                            Unix time at which the looks begin"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

from traceops.core.errors import UsageError

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
    """The header of a `STEPS_FILE` and its whole records. Raises ValueError where it is none. Records of zeros at its
    end are none: a machine that loses its power leaves them, and no step takes no time."""
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


# What a rank writes of its light windows: kernels, copies and memsets of a few steps, and nothing of the host.
#
# ``rank_<r>/light.bin.gz``, and of later ones ``light.2.bin.gz`` and so on, gzipped: `MAGIC`, one line of JSON, then a
# `ROW` an activity. The line is an object:
#
#     rank, source         'cupti', or 'torch' for its profiler recording the device alone
#     steps, step_ms       numbers of the measured steps, and what each took by events on the device, ms
#     mark_bytes           of the copies that we queue where the first step begins and where each ends; 0 without
#     clocks               realtime, monotonic, time stamp counter and CUPTI's own clock, before and after: the rows
#                          are on one of them, as torch's profiler may have given CUPTI another; empty: Unix ns
#     names                of kernels, by the number in `name`
#     discarded            activities that are missing

LIGHT_FILE = "light.bin.gz"
LATER_LIGHT_FILES = ("light.2.bin.gz", "light.3.bin.gz", "light.4.bin.gz")
LIGHT_LOG_MAGIC = b"traceops light 1\n"
KERNEL, MEMCPY, MEMSET = 10, 1, 2  # as CUPTI numbers kinds of activities
NO_NAME = (1 << 32) - 1
# Begin and end; blocks of a kernel's grid, or bytes; name; stream; correlation id; kind; kind of copy; device.
ROW = struct.Struct("<QQQIIIBBBB")
LIGHT_LOG_FIELDS = (
    ("start", "<u8"), ("end", "<u8"), ("size", "<u8"), ("name", "<u4"), ("stream", "<u4"), ("correlation", "<u4"),
    ("kind", "u1"), ("detail", "u1"), ("device", "u1"), ("reserved", "u1"),
)  # fmt: skip


# What the launcher sees of a machine while its ranks train: ``machine.<host>.jsonl``, a JSON list a line.
#
#     ["g", GPU, uuid, name, highest MHz, power cap W]
#     ["G", ms, GPU, MHz, reasons, W, °C, busy %, bytes used, [[pid, bytes], …], [[pid, busy %], …]]
#     ["r", ms, rank, pid, CPU ms, ms its main thread waited for a core, major faults, core, ms it ran]
#     ["h", ms, stolen CPU ms, CPU ms that its quota refused the cgroup, CPU ms in which its cores were wanted, CPU ms
#      that the cgroup used]
#     ["n", ms, bytes received, bytes sent]    by all network devices and InfiniBand ports
#     ["d", ms, rank, bytes read from storage, bytes read in all]    with the workers of its data loaders
#     ["m", rank, mount, file system]    of the largest file that a rank or a worker has open to read
#     ["p", ms, pid, name, percent of a core since the last such look, core]    processes that are not of the run
#
# Times are Unix ms; CPU, waiting, faults, stolen, refused, wanted and used time count up, over all cores of the
# machine where they are its own. null is what the machine does not tell. Earlier logs do not have what was wanted and
# used.

PREFIX, SUFFIX = "machine.", ".jsonl"


def machine_file(host: str) -> str:
    """The file's name in the run folder."""
    return f"{PREFIX}{host}{SUFFIX}"


# What a rank's folder holds of its GPU's memory: names of the files, and what one of them tells.
#
# ``rank_<r>/out_of_memory.json``: where memory ran out last, a JSON object. step; device: index; asked_bytes,
# total_bytes: of the device, or what the process allowed itself of it; free_bytes: of the device; allocated_bytes:
# that tensors held; reserved_bytes: that torch held; retries: requests that fitted only after the cache was emptied;
# history: whether stacks were recorded; held: bytes by what they are (parameters, gradients, optimizer_state), null
# where that could not be told. The snapshots are pickles as torch.cuda.memory._dump_snapshot writes them.

RAN_OUT = "out_of_memory.json"
OUT_OF_MEMORY = "out_of_memory.pickle"  # the snapshot of that moment
SNAPSHOT = "memory.pickle"  # at the end of a window, or on demand
HELD = ("parameters", "gradients", "optimizer_state")


# The rank's collectives as torch's flight recorder has them, in the order of their calls: lists of RECORDED.
COLLECTIVES = "traceopsCollectives"
RECORDED_KEY = ("name", "group", "description", "sequence", "elements_in", "elements_out", "dtype", "created_ns")

_SELDOM = 0.75  # of the steps: what is within fewer makes them of two kinds
_LEAST = 2  # of them: what came once tells of no second kind


def seldom(steps: int, within: Mapping[str, int]) -> list[str]:
    """What is within some of so many steps only, by how often it came."""
    return [name for name, count in within.items() if _LEAST <= count <= _SELDOM * steps]


def rounds(steps: int, count: int) -> range:
    """Of how many steps a round may be in which something is within one: it came `count` times in so many steps. A
    program ends anywhere in a round, so it may be one time more or less. Empty where it comes in no rhythm."""
    return range(-(-steps // (count + 1)), steps // max(count - 1, 1) + 1)


def round_steps(steps: int, count: int) -> float:
    """How many steps a round has: the mean where several numbers may be, or none."""
    own = rounds(steps, count)
    return float(own[0]) if len(own) == 1 else steps / count


def usual_ends(ends: Mapping[str, int], within: Mapping[str, int]) -> list[str]:
    """What ends steps, but for what did so once and else is within them: it stood for its first round."""
    usual = [name for name, count in ends.items() if count >= _LEAST or within.get(name, 0) < _LEAST]
    return usual or list(ends)


# One rank in the place of many: how many it stands for, and the samples of a step with them and with it alone.

# In the script's environment: by how much to multiply its gradient accumulation. Not set in a run of all ranks.
RANKS_ENV = "TRACEOPS_FALLBACK_RANKS"


def ranks_replaced(environ: Mapping[str, str] = os.environ) -> int | None:
    """Ranks that this one stands for; None where all are there. Raises UsageError for what is no count of ranks."""
    if not (value := environ.get(RANKS_ENV, "").strip()):
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise UsageError(f"{RANKS_ENV}={value}: give the number of ranks, 1 or more, or unset it where all ranks run")
    return int(value)


def effective_batches(ranks: int, accumulation: int, batch: int | None) -> list[str]:
    """The table of effective batch sizes, as lines: all ranks, and one that accumulates `ranks` times as much.
    accumulation: micro-batches a step of each rank before; batch: samples of a micro-batch, None where nobody knows it
    yet (the last column then counts micro-batches)."""
    names = ["ranks", "accumulation", "batches a step"] if batch is None else [
        "ranks", "batch", "accumulation", "samples a step"]  # fmt: skip
    lines = [f"{'':9}  {'  '.join(names)}"]
    for name, count, steps in (("all ranks", ranks, accumulation), ("one rank", 1, accumulation * ranks)):
        numbers = [count, steps] if batch is None else [count, batch, steps]
        product = count * steps * (1 if batch is None else batch)
        cells = (f"{value:>{len(head)}}" for value, head in zip([*numbers, product], names, strict=True))
        lines.append(f"{name:9}  {'  '.join(cells)}")
    return lines
