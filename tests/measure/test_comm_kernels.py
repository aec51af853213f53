"""Kernels that communicate: by what they are known, and what computing beside them costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from events_builder import build, kernel, step

from traceops.core.arrays import spread_before
from traceops.core.errors import UsageError
from traceops.measure.activity import COMM, communicates, find_activity
from traceops.measure.ledger import _quartiles, measure_beside
from traceops.measure.steps import find_steps
from traceops.measure.summary import CommEvents, summarize
from traceops.pipeline.analyze import analyze, own_kernels
from traceops.traces.discover import discover

COMMUNICATE = """
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
void ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)
rcclGenericKernel<1>
mscclKernel_Sum_float_LL_false
void vllm::cross_device_reduce_1stage<half, 8>
void aiter::cross_device_reduce_2stage_write_mode
void dpsk::ep::internode::dispatch<true, 10>(int4*)
void deep_ep::intranode::dispatch
mori::moe::EpDispatchInterNodeV1Kernel
userbuffers_fp16_sum_inplace_gpu_rr_rs_atomic
void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<x>
void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>
void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel
two_shot_all_reduce_kernel
multimem_all_reduce_kernel
void c10d::symm_mem::(anonymous namespace)::barrier_kernel
oneccl_allreduce_small_kernel
nvshmemx_barrier_kernel
void quickreduce::allreduce_prototype_twoshot
AllToAllInterNodeDispatchKernel
void hcclAllReduce
""".strip().splitlines()
COMPUTE = """
nvjet_tst_128x256
void at::native::reduce_kernel<512, 1, at::native::ReduceOp>
void at::native::vectorized_gather_kernel
void BlockAllReduce<float>
warpAllReduceSum
all_gather_gemm_kernel
split_embedding_codegen_forward_kernel
void cub::DeviceReduceKernel
triton_red_fused_all_mean
flattened_ccl_labels_kernel
occlusion_kernel
""".strip().splitlines()


@pytest.mark.parametrize("name", COMMUNICATE)
def test_communication_is_known_by_its_name(name):
    assert communicates(name)


@pytest.mark.parametrize("name", COMPUTE)
def test_computation_is_not(name):
    assert not communicates(name)


def test_patterns_of_ones_own_are_read_from_the_settings(tmp_path):
    (tmp_path / ".git").mkdir()
    assert own_kernels(tmp_path) == ()
    (tmp_path / "traceops.toml").write_text('[analyze]\ncommunication_kernels = ["^my_ring", "halo"]\n')
    assert own_kernels(tmp_path) == ("^my_ring", "halo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[analyze]\ncommunication_kernels = "one"\n', "must be a list of regular expressions"),
        ('[analyze]\ncommunication_kernels = ["("]\n', "is no regular expression"),
        ("[analyze]\ncomunication_kernels = []\n", "did you mean communication_kernels"),
        ("[analize]\n", "did you mean analyze"),
    ],
)
def test_settings_that_make_no_sense_name_the_file(tmp_path, text, said):
    (tmp_path / "traceops.toml").write_text(text)
    with pytest.raises(UsageError, match=said) as raised:
        own_kernels(tmp_path)
    assert str(tmp_path / "traceops.toml") in str(raised.value)


def test_a_kernel_of_ones_own_counts_as_communication(tmp_path, monkeypatch):
    from traceops.pipeline.analyze import analyze

    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"stream": 7, "correlation": 1}}
    rows = [{**kernel, "name": name, "ts": 100.0 * at, "dur": 50.0} for at, name in enumerate(("mm", "my_ring_kernel"))]
    info = {"rank": 0, "world_size": 2, "backend": "nccl"}
    trace = {"distributedInfo": info, "baseTimeNanoseconds": 0, "traceEvents": rows}
    (tmp_path / "rank_0.json").write_text(json.dumps(trace))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    told = {check.rule: check.status for check in analyze(tmp_path, cache=False).checks}
    assert told["TO-V009"] == "fired"
    (tmp_path / "traceops.toml").write_text('[analyze]\ncommunication_kernels = ["^my_ring"]\n')
    report = analyze(tmp_path, cache=False)
    assert {row.kind for row in report.tables.kernels if row.name == "my_ring_kernel"} == {"comm"}
    assert {check.rule: check.status for check in report.checks}["TO-V009"] == "clear"


# A communication kernel that does not say what it is: the host's call around its launch does.


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


# What compute kernels take longer because communication runs beside them, and what a cure makes of that.


UNEVEN = Path(__file__).parents[1] / "data" / "uneven_batch2"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def held_up(*kernels: list[dict[str, object]]) -> list[int]:
    """Of the communication among the kernels of one step, in order."""
    events = build([step(1, 0, 100_000), *(row for rows in kernels for row in rows)])
    activity = find_activity(events)
    comm = np.flatnonzero(activity.kind == COMM)
    steps = find_steps(events, activity, (1,))
    return measure_beside(events, activity, steps, comm[np.argsort(activity.start[comm])]).tolist()


def test_a_kernel_that_takes_longer_beside_communication_is_told_apart_from_a_larger_one() -> None:
    alone = [kernel(1000 * i, 500, 10 + i) for i in range(3)]
    beside = kernel(10_000, 800, 100)
    other = kernel(20_000, 3000, 200, name="another")  # never alone: nothing tells what it takes so
    comm = [
        kernel(9_000, 1400, 50, name=NCCL, stream=9),
        kernel(10_400, 900, 60, name=NCCL, stream=9),
        kernel(20_000, 3000, 70, name=NCCL, stream=9),
    ]
    # Of 300 ns more half is beside the first of the two.
    assert held_up(*alone, beside, other, *comm) == [150, 150, 0]
    assert held_up(*alone[:1], beside, *comm) == [0, 0, 0]
    sizes = [kernel(1000 * i, 300 + 300 * i, 10 + i) for i in range(3)]
    assert held_up(*sizes, beside, *comm) == [0, 0, 0]


def test_kernels_that_vary_are_not_said_to_be_slowed_by_communication() -> None:
    """The longer half of them counted, so that all that vary looked slowed."""
    alone = [kernel(1000 * i, 480 + 10 * i, 10 + i) for i in range(5)]
    beside = [kernel(10_000 + 1000 * i, 470 + 20 * i, 100 + i) for i in range(4)]
    comm = kernel(10_000, 4_000, 50, name=NCCL, stream=9)
    assert held_up(*alone, *beside, comm) == [0]
    slowed = [kernel(10_000 + 1000 * i, 570 + 20 * i, 100 + i) for i in range(4)]
    assert held_up(*alone, *slowed, comm) == [400]


def test_amounts_spread_over_intervals_that_overlap_add_up() -> None:
    start, end = np.array([0, 50, 70, 5]), np.array([100, 150, 70, 9])
    amounts = np.array([100, 200, 40, 0])  # what lies in an interval of no length counts for nothing
    moments = np.array([-5, 0, 50, 100, 150, 999])
    assert spread_before(start, end, amounts, moments).tolist() == [0, 0, 50, 200, 300, 300]


def test_work_shared_evenly_is_predicted_without_what_waiting_did_to_the_kernels_beside_it() -> None:
    """DDP of linear layers, 70 % of the rows on one of two H200s; with half a rank it takes 17.4 ms (measured)."""
    report = analyze(UNEVEN)
    (shared,) = [row for row in report.what_if if row.change == "work shared evenly"]
    assert shared.predicted_step_time_ms == pytest.approx(17.4, rel=0.04)
    assert shared.predicted_least_ms is not None
    assert 0.94 * 17.4 < shared.predicted_least_ms < 17.4 < shared.predicted_step_time_ms


def test_a_late_rank_is_cured_without_what_waiting_did_to_the_others_kernels() -> None:
    """FSDP2 on four H200s, rank 1 with extra products: 79.4 ms a step, of which they cost 17.5 (measured)."""
    report = analyze(UNEVEN.parent / "slow_hsdp4")
    (cured,) = [row for row in report.what_if if row.change == "rank 1 as its peers"]
    assert cured.predicted_step_time_ms == pytest.approx(79.4 - 17.5, rel=0.04)


@pytest.mark.parametrize("count", range(1, 14))
def test_quartiles_are_those_of_numpy(count: int) -> None:
    took = np.random.default_rng(count).integers(0, 10**6, count)
    assert _quartiles(took) == pytest.approx(tuple(np.percentile(took, (25, 50, 75))), rel=1e-15)
