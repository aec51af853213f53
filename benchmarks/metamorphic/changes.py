"""Every change that a verdict is held against."""

from __future__ import annotations

from decimal import Decimal

from benchmarks.metamorphic.change import SECOND, Change, Changed
from benchmarks.metamorphic.longer import idle_end, one_more, scaled, step_fewer, step_more
from benchmarks.metamorphic.lost import (
    alone,
    cut,
    cut_gz,
    damaged,
    empty,
    kind,
    without_args,
    without_events,
    without_header,
    without_rank,
)
from benchmarks.metamorphic.renamed import (
    base,
    beside,
    file_names,
    in_order,
    numbers,
    permuted,
    process_names,
    shift,
    shuffle,
    streams,
    style,
    two_windows,
    without_names,
)
from benchmarks.metamorphic.traces import Event, is_mark

_COLLECTIVE = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
               "Process Group Description", "Process Group Ranks", "Seq")  # fmt: skip


def _is_plain(event: Event) -> bool:
    """Whether it is an operator that tells of no collective."""
    return event.get("cat") == "cpu_op" and not (event.get("args") or {}).get("Collective name")


CHANGES: tuple[Change, ...] = (
    Change("as read", "same", lambda run, rng: Changed(run)),
    Change("ranks permuted", "permuted", permuted),
    # A clock that ranks of one host share is knowledge.
    Change("clocks 3 ms apart", "less", shift(lambda rank: Decimal(rank * 3_000))),
    Change("clocks 7 s apart", "less", shift(lambda rank: Decimal(rank * -7 * SECOND + 60 * SECOND))),
    Change("clocks hours apart", "less", shift(lambda rank: Decimal((rank * 7919 % 5) * 3600 * SECOND))),
    Change("base time", "same", base),
    Change("events shuffled", "same", shuffle),
    Change("events by time", "same", in_order),
    Change("ids renumbered", "same", numbers),
    Change("streams renumbered", "same", streams),
    Change("process names", "same", process_names),
    Change("no process names", "same", without_names),
    Change("gz", "same", style("plain", ".gz")),
    Change("indented", "same", style("indented")),
    Change("compact", "same", style("compact")),
    Change("keys reversed", "same", style("reversed")),
    Change("named worker0.123", "same", file_names("worker{rank}.{time}.pt.trace.json.gz")),
    Change("named rank0_trace", "same", file_names("rank{rank}_trace.json")),
    Change("named by the handler", "same", file_names("node_{pid}.{time}.pt.trace.json")),
    Change("named trace_0", "same", file_names("trace_{rank}.json")),
    Change("in folders", "same", file_names("iteration_8/rank{rank}_trace.json")),
    Change("in rank folders", "same", file_names("rank_{rank}/trace.json")),
    Change("first rank missing", "peers", without_rank(False)),
    Change("last rank missing", "peers", without_rank(True)),
    Change("last rank cut", "peers", damaged(cut)),
    Change("last rank's gz cut", "peers", damaged(cut_gz)),
    Change("last rank empty", "peers", damaged(empty)),
    Change("one rank alone, cut", "peers", alone),
    Change("two windows", "same", two_windows),
    Change("files beside", "same", beside),
    Change("no External id", "less", without_args("External id")),
    Change("no Ev Idx", "less", without_args("Ev Idx")),
    Change("no Collective name", "less", without_args(*_COLLECTIVE)),
    Change("no Process Group Name", "less", without_args("Process Group Name", "Process Group Description")),
    Change("no Process Group Ranks", "less", without_args("Process Group Ranks")),
    Change("no msg nelems", "less", without_args("In msg nelems", "Out msg nelems")),
    Change("no Group size", "less", without_args("Group size")),
    Change("no dtype", "less", without_args("dtype")),
    Change("no Seq", "less", without_args("Seq")),
    Change("no Input Dims", "less", without_args("Input Dims", "Input type", "Input Strides", "Concrete Inputs")),
    Change("no bytes", "less", without_args("bytes", "memory bandwidth (GB/s)")),
    Change("no header", "less", without_header("distributedInfo")),
    Change("no devices", "less", without_header("deviceProperties")),
    Change("no python", "less", without_events(kind("python_function"))),
    Change("no runtime calls", "less", without_events(kind("cuda_runtime", "cuda_driver"))),
    Change("no annotations", "less", without_events(lambda e: e.get("cat") == "user_annotation" and not is_mark(e))),
    Change("no device annotations", "same", without_events(kind("gpu_user_annotation"))),
    Change("no overhead", "less", without_events(kind("overhead"))),
    Change("no operators", "less", without_events(_is_plain)),
    Change("no flows", "same", without_events(lambda e: e.get("ph") in ("s", "f", "t"))),
    Change("no marks", "less", without_events(is_mark)),
    Change("times doubled", "read", scaled(2)),
    Change("a step more", "read", step_more),
    Change("a step fewer", "read", step_fewer),
    Change("idle second", "same", idle_end),
    Change("a rank more", "read", one_more),
)  # fmt: skip
