"""A communication kernel that does not say what it is: the host's call around its launch does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from traceops.measure.summary import CommEvents, summarize
from traceops.traces.discover import discover


def communication(folder: Path, *host: dict[str, Any], kernel: str = "ncclDevKernel_SendRecv") -> CommEvents:
    """The communication of a rank whose only kernels are launched at 100 µs, and the calls that the host made."""
    events = [
        *host,
        event("cuda_runtime", "cudaLaunchKernelExC", 100, 1, correlation=7),
        event("kernel", kernel, 200, 50, stream=17, correlation=7),
    ]
    (folder / "rank_0.json").write_text(json.dumps({"traceEvents": events}))
    return summarize(discover(str(folder)).windows[0].files[0]).comm


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    tid = 17 if cat == "kernel" else 1
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def call(op: str, ts: float, dur: float = 4, **args: Any) -> dict[str, Any]:
    known = {"Collective name": op, "In msg nelems": 64, "dtype": "Float", "Process Group Ranks": "[0, 1, 2]"}
    return event("cpu_op", "record_param_comms", ts, dur, **{**known, **args})


def test_the_call_around_the_launch_says_what_a_kernel_is(tmp_path):
    comm = communication(tmp_path, call("all_to_allv", 95, 20))
    assert comm.args[0] is not None and comm.args[0].op == "all_to_allv"
    assert (comm.args[0].elements_in, comm.args[0].group_ranks, comm.parts) == (64, (0, 1, 2), ((),))


def test_an_older_backends_note_says_the_operation(tmp_path):
    comm = communication(tmp_path, event("user_annotation", "nccl:_all_to_all_base", 95, 20))
    assert comm.args[0] is not None and comm.args[0].op == "all_to_all_base"
    comm = communication(tmp_path, event("user_annotation", "nccl:recv 1<-2", 95, 20))
    assert [(part.op, part.source) for part in comm.parts[0]] == [("recv", 2)]


def test_what_one_rank_calls_by_itself_is_no_part_of_a_group(tmp_path):
    """picotron averages its loss over a group of one after the last send of a step."""
    comm = communication(
        tmp_path,
        event("user_annotation", "nccl:coalesced", 20, 5),
        call("allreduce", 60, **{"Process Group Ranks": "[]", "Group size": 1}),
        call("recv", 86, **{"Src Rank": 0}),
        event("user_annotation", "nccl:coalesced", 95, 20),
    )
    assert [(part.op, part.source) for part in comm.parts[0]] == [("recv", 0)]


def test_a_group_launches_what_was_called_since_the_group_before(tmp_path):
    comm = communication(
        tmp_path,
        call("send", 10, **{"Dst Rank": 2}),
        event("user_annotation", "nccl:coalesced", 20, 5),
        call("wait", 70),
        call("send", 80, **{"Dst Rank": 1}),
        call("recv", 86, **{"Src Rank": 2}),
        event("user_annotation", "nccl:coalesced", 95, 20),
    )
    assert comm.args == (None,)
    assert [(part.op, part.destination, part.source) for part in comm.parts[0]] == [
        ("send", 1, None),
        ("recv", None, 2),
    ]


@pytest.mark.parametrize(("second", "elements"), [("all_gather", 128), ("reduce_scatter", None)])
def test_a_group_of_one_operation_is_that_operation(tmp_path, second, elements):
    comm = communication(
        tmp_path, call("all_gather", 80), call(second, 86), event("user_annotation", "nccl:coalesced", 95, 20)
    )
    args = comm.args[0]
    assert (None if args is None else args.elements_in) == elements and comm.parts == ((),)


def test_what_nothing_is_known_of_stays_unknown(tmp_path):
    comm = communication(tmp_path, call("all_reduce", 10), event("user_annotation", "my step", 90, 40))
    assert (comm.args, comm.parts) == ((None,), ((),))
