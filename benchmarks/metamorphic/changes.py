"""Every change that a verdict is held against."""

from __future__ import annotations

from decimal import Decimal

from benchmarks.metamorphic import longer, lost, renamed
from benchmarks.metamorphic.change import SECOND, Change, Changed
from benchmarks.metamorphic.traces import Event, is_mark

_COLLECTIVE = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
               "Process Group Description", "Process Group Ranks", "Seq")  # fmt: skip


def _is_plain(event: Event) -> bool:
    """Whether it is an operator that tells of no collective."""
    return event.get("cat") == "cpu_op" and not (event.get("args") or {}).get("Collective name")


def _is_annotation(event: Event) -> bool:
    return event.get("cat") == "user_annotation" and not is_mark(event)


CHANGES: tuple[Change, ...] = (
    Change("as read", "same", lambda run, rng: Changed(run)),
    Change("ranks permuted", "permuted", renamed.permuted),
    # A clock that ranks of one host share is knowledge.
    Change("clocks 3 ms apart", "less", renamed.shift(lambda rank: Decimal(rank * 3_000))),
    Change("clocks 7 s apart", "less", renamed.shift(lambda rank: Decimal(rank * -7 * SECOND + 60 * SECOND))),
    Change("clocks hours apart", "less", renamed.shift(lambda rank: Decimal((rank * 7919 % 5) * 3600 * SECOND))),
    Change("base time", "same", renamed.base),
    Change("events shuffled", "same", renamed.shuffle),
    Change("events by time", "same", renamed.in_order),
    Change("ids renumbered", "same", renamed.numbers),
    Change("streams renumbered", "same", renamed.streams),
    Change("process names", "same", renamed.process_names),
    Change("no process names", "same", renamed.without_names),
    Change("gz", "same", renamed.style("plain", ".gz")),
    Change("indented", "same", renamed.style("indented")),
    Change("compact", "same", renamed.style("compact")),
    Change("keys reversed", "same", renamed.style("reversed")),
    Change("named worker0.123", "same", renamed.file_names("worker{rank}.{time}.pt.trace.json.gz")),
    Change("named rank0_trace", "same", renamed.file_names("rank{rank}_trace.json")),
    Change("named by the handler", "same", renamed.file_names("node_{pid}.{time}.pt.trace.json")),
    Change("named trace_0", "same", renamed.file_names("trace_{rank}.json")),
    Change("in folders", "same", renamed.file_names("iteration_8/rank{rank}_trace.json")),
    Change("in rank folders", "same", renamed.file_names("rank_{rank}/trace.json")),
    Change("first rank missing", "peers", lost.without_rank(False)),
    Change("last rank missing", "peers", lost.without_rank(True)),
    Change("last rank cut", "peers", lost.damaged(lost.cut)),
    Change("last rank's gz cut", "peers", lost.damaged(lost.cut_gz)),
    Change("last rank empty", "peers", lost.damaged(lost.empty)),
    Change("one rank alone, cut", "peers", lost.alone),
    Change("two windows", "same", renamed.two_windows),
    Change("files beside", "same", renamed.beside),
    Change("no External id", "less", lost.without_args("External id")),
    Change("no Ev Idx", "less", lost.without_args("Ev Idx")),
    Change("no Collective name", "less", lost.without_args(*_COLLECTIVE)),
    Change("no Process Group Name", "less", lost.without_args("Process Group Name", "Process Group Description")),
    Change("no Process Group Ranks", "less", lost.without_args("Process Group Ranks")),
    Change("no msg nelems", "less", lost.without_args("In msg nelems", "Out msg nelems")),
    Change("no Group size", "less", lost.without_args("Group size")),
    Change("no dtype", "less", lost.without_args("dtype")),
    Change("no Seq", "less", lost.without_args("Seq")),
    Change("no Input Dims", "less", lost.without_args("Input Dims", "Input type", "Input Strides", "Concrete Inputs")),
    Change("no bytes", "less", lost.without_args("bytes", "memory bandwidth (GB/s)")),
    Change("no header", "less", lost.without_header("distributedInfo")),
    Change("no devices", "less", lost.without_header("deviceProperties")),
    Change("no python", "less", lost.without_events(lost.kind("python_function"))),
    Change("no runtime calls", "less", lost.without_events(lost.kind("cuda_runtime", "cuda_driver"))),
    Change("no annotations", "less", lost.without_events(_is_annotation)),
    Change("no device annotations", "same", lost.without_events(lost.kind("gpu_user_annotation"))),
    Change("no overhead", "less", lost.without_events(lost.kind("overhead"))),
    Change("no operators", "less", lost.without_events(_is_plain)),
    Change("no flows", "same", lost.without_events(lambda e: e.get("ph") in ("s", "f", "t"))),
    Change("no marks", "less", lost.without_events(is_mark)),
    Change("times doubled", "read", longer.scaled(2)),
    Change("a step more", "read", longer.step_more),
    Change("a step fewer", "read", longer.step_fewer),
    Change("idle second", "same", longer.idle_end),
    Change("a rank more", "read", longer.one_more),
)  # fmt: skip
