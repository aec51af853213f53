"""Every nanosecond of a step lands in exactly one bucket, and in the right one."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from changed import replace
from drawn import examples
from events_builder import BACKWARD, MAIN, build, call, kernel, note, step
from generated_run import (
    ClockShift,
    LateWindow,
    ShortWindow,
    Size,
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    TraceStyle,
    ddp,
    exposed_wait,
    fsdp2,
    hsdp,
    simulate,
    summaries,
    tp_dp,
    trace_edges,
    write_traces,
)
from hypothesis import given
from hypothesis import strategies as st
from slow_ledger import slow_ledger

from traceops.across.cross_rank import measure_across
from traceops.measure.activity import COMM, COMPUTE, MEMORY, find_activity
from traceops.measure.ledger import find_lane, hta_is_wrong, ledger_of
from traceops.measure.steps import NO_STEP, find_steps
from traceops.traces.kineto import load_trace

DATA = Path(__file__).resolve().parents[1] / "data"
TRACES = sorted(DATA.rglob("*.json.gz"))


def measure(events):
    activity = find_activity(events)
    steps = find_steps(events, activity)
    return steps, ledger_of(find_lane(events, activity, steps), steps)


def load(name, rank):
    return load_trace(str(DATA / name / f"rank_{rank}.pt.trace.json.gz")).events


def check_adds_up(steps, ledger):
    assert len(steps.edges) == len(steps) + 1
    assert (np.diff(steps.edges) >= 0).all()
    assert ledger.duration.tolist() == np.diff(steps.edges).tolist()
    assert sum(ledger.buckets.values()).tolist() == ledger.duration.tolist()
    assert all((ns >= 0).all() for ns in ledger.buckets.values())
    assert all(ns.dtype == np.int64 for ns in ledger.buckets.values())
    assert ledger.exposed.total == ledger.buckets["comm"].sum()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: str(path.relative_to(DATA)).split(".")[0])
def test_buckets_of_real_steps_add_up_exactly(path):
    steps, ledger = measure(load_trace(str(path)).events)
    check_adds_up(steps, ledger)
    assert ledger.duration.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name, rank", [("item_sync4", 0), ("slow_loader4", 1), ("hsdp4", 2)])
def test_real_ledger_equals_one_painted_nanosecond_by_nanosecond(name, rank):
    events = load(name, rank)
    steps, ledger = measure(events)
    numbers, edges, buckets = slow_ledger(events)
    assert (steps.number.tolist(), steps.edges.tolist()) == (numbers, edges)
    assert {name: ns.tolist() for name, ns in ledger.buckets.items()} == buckets


def test_item_calls_show_as_idle_sync_where_a_healthy_run_has_none():
    for rank in range(4):
        assert measure(load("ddp4", rank))[1].buckets["idle_sync"].sum() == 0
        assert (measure(load("item_sync4", rank))[1].buckets["idle_sync"] > 0).all()


def test_a_slow_loader_shows_as_idle_input_on_its_rank_only():
    slow = {rank: measure(load("slow_loader4", rank))[1].buckets["idle_input"] / 1e6 for rank in range(4)}
    assert np.median(slow[1]) == pytest.approx(29, abs=1.5)
    assert all((slow[rank] < 1).all() for rank in (0, 2, 3))


# Generated traces

TIMES = st.integers(0, 12_000)
LENGTHS = st.integers(0, 1500)
THREADS = st.sampled_from([MAIN, BACKWARD])


@st.composite
def traces(draw):
    """Kernels on streams with or without launches, steps, synchronisations and data loading, all at random."""
    marks = sorted(draw(st.sets(TIMES, min_size=1, max_size=4)))
    rows = [
        step(number, start, draw(st.integers(1, end - start)))
        for number, (start, end) in enumerate(zip(marks, [*marks[1:], 14_000], strict=True), 3)
    ]
    for correlation in range(draw(st.integers(0, 14))):
        ts, launched = draw(TIMES), draw(st.none() | TIMES)
        name, cat = draw(st.sampled_from([
            ("gemm", "kernel"), ("ncclDevKernel_AllReduce_Sum_f32", "kernel"), ("Memset (Device)", "gpu_memset"),
            ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"), ("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy"),
        ]))  # fmt: skip
        early = launched if launched is None or launched <= ts else ts
        of_graph = draw(st.integers(0, 3)) == 0  # a launch has more than one kernel
        rows += kernel(
            ts, draw(LENGTHS), early, name, cat, draw(st.sampled_from([7, 20])), draw(THREADS),
            draw(st.integers(0, correlation)) if of_graph else correlation,
        )  # fmt: skip
    for name in draw(st.lists(st.sampled_from(["cudaStreamSynchronize", "cudaDeviceSynchronize"]), max_size=3)):
        rows.append(call(name, draw(TIMES), draw(LENGTHS), draw(THREADS)))
    for name in draw(
        st.lists(st.sampled_from(["dataloader_next", "enumerate(DataLoader)#_Iter.__next__"]), max_size=3)
    ):
        rows.append(note(name, draw(TIMES), draw(LENGTHS), draw(THREADS)))
    scale = draw(st.sampled_from([1, 10]))  # below and above what an idle device takes to start a kernel
    rows = [{**row, "ts": scale * row["ts"], "dur": scale * row["dur"]} for row in rows]
    return build(draw(st.permutations(rows)))


@pytest.mark.slow
@examples(400)
@given(traces())
def test_any_ledger_adds_up_and_equals_the_painted_one(events):
    steps, ledger = measure(events)
    check_adds_up(steps, ledger)
    if not find_activity(events).on_gpu:
        return
    numbers, edges, buckets = slow_ledger(events)
    assert (steps.number.tolist(), steps.edges.tolist()) == (numbers, edges)
    assert {name: ns.tolist() for name, ns in ledger.buckets.items()} == buckets


@st.composite
def cpu_traces(draw):
    """Operators, gloo collectives and data loading on threads, nested and overlapping at random."""
    rows = [step(number, 3000 * number, draw(st.integers(1, 3000))) for number in range(draw(st.integers(0, 4)))]
    for _ in range(draw(st.integers(0, 14))):
        name, cat = draw(st.sampled_from([
            ("aten::mm", "cpu_op"), ("aten::add", "cpu_op"), ("gloo:all_reduce", "user_annotation"),
            ("c10d::allreduce_", "cpu_op"), ("dataloader_next", "user_annotation"),
            ("autograd::engine::evaluate_function: MmBackward0", "cpu_op"),
        ]))  # fmt: skip
        rows.append(note(name, draw(TIMES), draw(LENGTHS), draw(st.sampled_from([MAIN, BACKWARD, 3])), cat))
    return build(draw(st.permutations(rows)))


@examples(300)
@given(cpu_traces())
def test_any_ledger_without_a_gpu_adds_up(events):
    steps, ledger = measure(events)
    check_adds_up(steps, ledger)
    for bucket in ("memory", "idle_sync", "idle_dependency", "idle_unknown", "idle_gap"):
        assert ledger.buckets[bucket].sum() == 0


# Each bucket by itself


def buckets(rows, lasts=50_000):
    """Non-empty buckets of the only step of a GPU trace that begins at 0, in µs."""
    steps, ledger = measure(build([step(3, 0, lasts), *kernel(0, 1000, 0), *rows]))
    check_adds_up(steps, ledger)
    assert steps.number.tolist() == [3]
    return {name: ns[0] / 1000 for name, ns in ledger.buckets.items() if ns[0]}


def test_compute_hides_communication_and_both_hide_memory():
    rows = [
        *kernel(1000, 4000, 500), *kernel(3000, 5000, 600, "ncclDevKernel_AllReduce", stream=20),
        *kernel(7000, 3000, 700, "Memcpy DtoH", "gpu_memcpy", 21),
    ]  # fmt: skip
    assert buckets(rows) == {"compute": 5, "comm": 3, "memory": 2}


def test_kernel_launched_after_the_device_ran_dry_waited_for_the_host():
    assert buckets(kernel(9000, 1000, 6000)) == {"compute": 2, "idle_host": 8}


@pytest.mark.parametrize("launched", [900, 990])  # the device ran dry at 1000, the call takes 10
def test_kernel_launched_before_the_device_ran_dry_waited_for_a_dependency(launched):
    assert buckets(kernel(9000, 1000, launched, stream=20)) == {"compute": 2, "idle_dependency": 8}
    assert buckets(kernel(30_000, 1000, launched)) == {"compute": 2, "idle_dependency": 29}


def test_a_kernel_queued_behind_the_one_before_it_waited_for_no_other_stream():
    """Of a program with one stream 1,770 gaps of 1 to 4 µs were 'dependencies between streams', 0.6 ms a step."""
    assert buckets(kernel(9000, 1000, 900)) == {"compute": 2, "idle_gap": 8}
    beside = kernel(0, 1000, 0, stream=20)  # both end as the gap begins
    assert buckets([*beside, *kernel(9000, 1000, 900)]) == {"compute": 2, "idle_gap": 8}
    late = kernel(500, 1000, 300, stream=20)  # another stream was busy last
    assert buckets([*late, *kernel(9000, 1000, 900)]) == {"compute": 2.5, "idle_dependency": 7.5}


def test_a_gap_splits_where_the_launch_was_over():
    """A kernel that was launched early in a long gap: for what came after its host is not to blame."""
    late = kernel(463_040, 1000, 2000)
    steps, ledger = measure(build([step(3, 0, 500_000), *kernel(0, 1000, 0), *late]))
    check_adds_up(steps, ledger)
    assert {name: ns[0] for name, ns in ledger.buckets.items() if ns[0]} == {
        "compute": 2000, "idle_host": 1010, "idle_dependency": 461_030,
    }  # fmt: skip


def test_what_an_idle_device_takes_to_start_a_kernel_belongs_to_its_late_launch():
    assert buckets(kernel(29_000, 1000, 9000)) == {"compute": 2, "idle_host": 28}
    assert buckets(kernel(29_011, 1000, 9000)) == {"compute": 2, "idle_host": 8.01, "idle_dependency": 20.001}


def test_only_the_part_before_the_launch_is_input_or_a_blocked_host():
    late = kernel(40_000, 1000, 5000)
    assert buckets([note("dataloader_next", 2000, 30_000), *late]) == {
        "compute": 2, "idle_input": 3.01, "idle_host": 1, "idle_dependency": 34.99,
    }  # fmt: skip
    assert buckets([call("cudaStreamSynchronize", 500, 600), *late]) == {
        "compute": 2, "idle_sync": 0.6, "idle_host": 3.41, "idle_dependency": 34.99,
    }  # fmt: skip


def test_gaps_between_the_kernels_of_a_graph_are_not_the_hosts():
    """A graph's launch may take longer than its first kernels: they show that it was over for the device."""
    graph = {**call("cudaGraphLaunch", 6000, 9000, correlation=77), "dur": 9000}
    kernels = [kernel(ts, 1000, correlation=77)[0] for ts in (8000, 12_000, 16_000)]
    assert buckets([graph, *kernels]) == {"compute": 4, "idle_host": 7, "idle_gap": 6}


def test_kernel_without_a_launch_record_waited_for_nobody_knows_what():
    rows = [*kernel(9000, 1000), *kernel(10_000, 1000, 100)]
    assert buckets(rows) == {"compute": 3, "idle_unknown": 8}


def test_without_any_launch_record_all_idle_time_is_of_unknown_cause():
    steps, ledger = measure(build([*kernel(0, 1000), *kernel(9000, 1000), *kernel(10_500, 500)]))
    check_adds_up(steps, ledger)
    assert {name: ns[0] for name, ns in ledger.buckets.items() if ns[0]} == {
        "compute": 2500, "idle_unknown": 8000, "idle_gap": 500,
    }  # fmt: skip


def test_short_gap_is_the_devices_own_whoever_caused_it():
    assert buckets(kernel(1999, 1000, 1500)) == {"compute": 2, "idle_gap": 0.999}
    assert buckets(kernel(2000, 1000, 1500)) == {"compute": 2, "idle_host": 1}


def test_what_the_host_does_for_longer_than_it_had_waited_is_not_the_synchronisations():
    """A program that compiled for 2.65 s behind 0.01 ms of waiting was told to take 84 % less without such calls."""
    rows = [call("cudaStreamSynchronize", 500, 600), *kernel(3_001_000, 1000, 3_000_500)]
    assert buckets(rows, 4_000_000) == {"compute": 2, "idle_sync": 0.6, "idle_host": 2999.4}


def test_a_long_gap_is_the_synchronisations_for_as_long_as_the_host_had_waited():
    waited = [*kernel(1000, 2_000_000, 900), call("cudaStreamSynchronize", 1500, 2_000_000)]
    rows = [*waited, *kernel(7_001_000, 1000, 7_000_500)]
    assert buckets(rows, 8_000_000) == {"compute": 2002, "idle_sync": 2000, "idle_host": 3000}
    rows = [*waited, *kernel(3_501_000, 1000, 3_500_500)]  # the gap is shorter than that
    assert buckets(rows, 8_000_000) == {"compute": 2002, "idle_sync": 1500}


def test_earlier_waits_do_not_pay_for_long_work_of_the_host_behind_a_short_one():
    """48 ms of Python behind a wait of 3 µs were the blocking call's, because earlier waits had taken a second."""
    waited = [*kernel(1000, 90_000_000, 900), call("cudaStreamSynchronize", 1500, 90_000_000)]
    short = [*kernel(90_011_000, 10_000, 90_010_500), call("cudaStreamSynchronize", 90_019_000, 3000)]
    _, ledger = measure(build([*waited, *short, *kernel(140_021_000, 1000, 140_020_500)]))
    found = {name: int(ns.sum()) for name, ns in ledger.buckets.items() if ns.any()}
    assert found == {"compute": 90_011_000, "idle_sync": 1_013_000, "idle_host": 48_997_000}


def test_a_copy_that_returns_late_was_waited_for_whatever_its_name():
    """Pageable memory: the host is in cudaMemcpyAsync all the time, and synchronises for a moment behind it."""
    copied = [
        call("cudaMemcpyAsync", 1500, 2_000_000, correlation=77),
        *kernel(2000, 2_000_000, None, "Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", correlation=77),
    ]
    rows = [*copied, call("cudaStreamSynchronize", 2_001_600, 1000), *kernel(5_002_000, 1000, 5_001_500)]
    assert buckets(rows, 6_000_000) == {
        "compute": 2, "memory": 2000, "idle_sync": 2000.5, "idle_host": 1000.5,
    }  # fmt: skip


def test_a_copy_into_pageable_memory_blocks_in_its_own_call():
    """The synchronisation behind it begins after the device ran dry, and would have waited for nothing."""
    name = "Memcpy DtoH (Device -> Pageable)"
    rows = [
        *kernel(1000, 500_000, 900),
        call("cudaMemcpyAsync", 1100, 510_000, correlation=77),
        *kernel(501_000, 1000, None, name, "gpu_memcpy", correlation=77),
        call("cudaStreamSynchronize", 512_000, 1000),
        *kernel(800_000, 1000, 799_000),
    ]
    assert buckets(rows, 900_000) == {"compute": 502, "memory": 1, "idle_sync": 298}
    pinned = [{**row, "name": row["name"].replace("Pageable", "Pinned")} for row in rows]
    assert buckets(pinned, 900_000) == {"compute": 502, "memory": 1, "idle_host": 298}


def test_idle_time_before_the_hosts_first_event_has_no_known_cause():
    """A device that works off what was launched before recording; then nobody knows what the host did."""
    first = [*kernel(1000, 1000), *kernel(5000, 1000)]
    rows = [*first, *kernel(60_000, 1000, 50_000), *kernel(90_000, 1000, 80_000)]
    _, ledger = measure(build(rows))
    found = {name: int(ns.sum()) for name, ns in ledger.buckets.items() if ns.any()}
    assert found == {"compute": 4000, "idle_unknown": 47_000, "idle_host": 39_000}
    assert ledger.unrecorded == 47_000


def test_the_first_step_begins_no_earlier_than_its_host_is_recorded():
    """A profiler that starts while the device works for earlier steps: 2.3 ms until its first event were the step's."""
    rows = [*kernel(1000, 1000), step(3, 40_000, 20_000), *kernel(60_000, 1000, 50_000)]
    steps, ledger = measure(build(rows))
    assert steps.edges.tolist() == [40_000, 61_000]
    assert not ledger.buckets["idle_unknown"].any()
    steps, _ = measure(build([call("cudaGetDevice", 20_000, 10), *rows]))
    assert steps.edges.tolist() == [20_000, 61_000]


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "hipStreamSynchronize",
             "cuCtxSynchronize", "cudaMemcpy", "hipMemcpyWithStream"],
)  # fmt: skip
def test_host_that_waited_for_the_device_as_it_ran_dry_caused_the_gap(name):
    rows = [call(name, 500, 600), *kernel(9000, 1000, 6000)]
    assert buckets(rows) == {"compute": 2, "idle_sync": 0.6, "idle_host": 7.4}, "no longer than it had waited"
    rows.append(call("cudaMemcpyAsync", 2000, 3000))
    assert buckets(rows) == {"compute": 2, "idle_sync": 0.6, "idle_host": 7.4}, (
        "another that is later waits for nothing"
    )
    rows.append(call(name, 5000, 1000))
    assert buckets(rows) == {"compute": 2, "idle_sync": 1.6, "idle_host": 6.4}, "of a chain each one costs"


@pytest.mark.parametrize(
    "sync",
    [call("cudaStreamSynchronize", 1500, 600), call("cudaStreamSynchronize", 500, 600, BACKWARD),
     call("cudaStreamSynchronize", 100, 600), call("cudaMemcpyAsync", 500, 600)],
    ids=["began later", "another thread", "ended before", "does not block"],
)  # fmt: skip
def test_a_synchronisation_that_did_not_keep_the_device_waiting_is_not_the_cause(sync):
    assert buckets([sync, *kernel(9000, 1000, 6000)]) == {"compute": 2, "idle_host": 8}


@pytest.mark.parametrize(
    "name", ["dataloader_next", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "get_batch", "data_wait"]
)
def test_time_of_a_gap_inside_data_loading_is_input_and_the_rest_is_host(name):
    assert buckets([note(name, 2000, 3000), *kernel(9000, 1000, 6000)]) == {
        "compute": 2,
        "idle_input": 3,
        "idle_host": 5,
    }


def test_data_loading_on_a_thread_that_did_not_launch_is_not_the_cause():
    rows = [note("dataloader_next", 2000, 3000, BACKWARD), *kernel(9000, 1000, 6000)]
    assert buckets(rows) == {"compute": 2, "idle_host": 8}


def test_data_loading_behind_a_busy_device_costs_nothing():
    rows = [note("dataloader_next", 1000, 5000), *kernel(1000, 9000, 500)]
    assert buckets(rows) == {"compute": 10}


# Steps


def test_a_step_ends_with_the_last_activity_its_host_launched():
    events = build([
        step(3, 0, 1000), step(4, 1000, 1000), step(5, 2000, 1000),
        *kernel(100, 1900, 50), *kernel(2500, 1000, 900, stream=20), *kernel(4000, 500, 1500), *kernel(4500, 700, 2999),
        *kernel(5200, 900, 3000),
    ])  # fmt: skip
    steps, ledger = measure(events)
    assert steps.number.tolist() == [3, 4, 5]
    assert steps.edges.tolist() == [0, 3500, 4500, 5200]  # what was launched after the last step belongs to none
    assert steps.of_activity.tolist() == [0, 0, 1, 2, 3]
    check_adds_up(steps, ledger)


def test_kernels_of_the_warm_up_move_the_first_edge_not_the_first_step():
    events = build([step(3, 1000, 1000), *kernel(500, 2000), *kernel(2600, 400, 1100)])
    steps, ledger = measure(events)
    assert steps.edges.tolist() == [2500, 3000]
    assert {k: v.tolist() for k, v in ledger.buckets.items() if v.any()} == {"compute": [400], "idle_gap": [100]}


def test_steps_of_a_filtered_trace_begin_with_its_first_mark():
    """Of the second to fourth kernel of each step the launch is missing: its stream ran them before the fifth."""
    rows = [step(3, 0, 1000), step(4, 1000, 1000)]
    for begin in (0, 1000):
        rows += kernel(begin + 600, 50, begin + 100)
        rows += [row for at in (700, 800, 1100) for row in kernel(begin + at, 50)]
        rows += kernel(begin + 1200, 100, begin + 900)
    steps, ledger = measure(build(rows))
    assert (steps.number.tolist(), steps.edges.tolist()) == ([3, 4], [0, 1300, 2300])
    check_adds_up(steps, ledger)


def test_steps_in_which_the_device_did_nothing_have_no_device_time():
    events = build(
        [step(3, 0, 1000), step(4, 1000, 1000), step(5, 2000, 1000), *kernel(100, 400, 50), *kernel(2100, 9, 2050)]
    )
    steps, _ = measure(events)
    assert steps.number.tolist() == [3, 5]
    assert steps.edges.tolist() == [0, 500, 2109]


def test_a_host_that_goes_on_alone_at_the_end_of_each_step_belongs_to_it():
    """A profiler's step that begins with training ends with loading the next batch: all of them last as marked."""
    rows = []
    for at, start in enumerate((0, 100_000, 200_000)):
        rows += [step(at, start, 100_000), {**step(at, start + 90, 400, 7), "cat": "gpu_user_annotation"}]
        rows += kernel(start + 100, 400, start + 50)
        rows.append(note("enumerate(DataLoader)#_Iter.__next__", start + 600, 90_000))
    steps, ledger = measure(build(rows))
    assert steps.edges.tolist() == [0, 100_000, 200_000, 300_000]
    assert ledger.buckets["idle_input"].tolist() == [90_000] * 3


def test_a_trace_without_steps_is_one_window():
    steps, ledger = measure(build([*kernel(500, 100, 0), *kernel(900, 100, 10)]))
    assert steps.number.tolist() == [NO_STEP]
    assert steps.edges.tolist() == [500, 1000]
    check_adds_up(steps, ledger)


def test_a_trace_of_steps_that_launched_nothing_is_one_window():
    warmup = kernel(10, 20, launched=0)
    steps, ledger = measure(build([*warmup, step(3, 100, 50), step(4, 150, 50), call("cudaDeviceSynchronize", 110, 9)]))
    assert (steps.number.tolist(), steps.empty) == ([NO_STEP], (3, 4))
    assert steps.edges.tolist() == [10, 30]
    check_adds_up(steps, ledger)


def test_nothing_at_all_is_measured_as_nothing():
    for rows in ([], [step(3, 10, 5)], [note("x", 0, 5)]):
        steps, ledger = measure(build(rows))
        check_adds_up(steps, ledger)
        assert ledger.buckets["compute"].sum() == 0


# Activity


@pytest.mark.parametrize(
    "name, cat, kind",
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", COMM),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "Kernel", COMM),
        ("rcclGenericKernel<1>", "kernel", COMM), ("void vllm::cross_device_reduce_1stage<half, 8>", "kernel", COMM),
        ("one_shot_all_reduce_kernel", "kernel", COMM), ("nvshmem_barrier", "kernel", COMM),
        ("void reduce_kernel<512, 1>", "kernel", COMPUTE), ("sm90_xmma_gemm_bf16", "kernel", COMPUTE),
        ("triton_red_fused_all_0", "kernel", COMPUTE), ("MemcpyLikeKernel", "kernel", COMPUTE),
        ("Memcpy HtoD", "gpu_memcpy", MEMORY), ("Memset (Device)", "Memset", MEMORY),
    ],
)  # fmt: skip
def test_kernels_are_classed_by_what_they_are(name, cat, kind):
    assert find_activity(build(kernel(0, 5, name=name, cat=cat))).kind.tolist() == [kind]


def test_waiting_on_streams_and_cpu_ops_with_a_stream_are_no_device_activity():
    rows = [
        *kernel(0, 5),
        *kernel(9, 5, name="Stream Wait Event", cat="cuda_sync"),
        *kernel(0, 9, name="t", cat="cpu_op"),
    ]
    rows += kernel(0, 50, name="ProfilerStep#3", cat="gpu_user_annotation")
    assert find_activity(build(rows)).row.tolist() == [0]
    rows = [*kernel(0, 5), {**kernel(0, 9, name="t", cat="cpu_op")[-1], "args": {"stream": 7}}]  # as Triton's have it
    assert "1 events of category 'cpu_op'" in hta_is_wrong(build(rows), find_activity(build(rows)))


@pytest.mark.parametrize("far", [10, 1 << 40])
def test_the_first_of_several_calls_with_one_correlation_launched_the_kernel(far):
    rows = [
        call("cudaLaunchKernel", 30, 5, correlation=9), call("cuLaunchKernel", 20, 5, correlation=9),
        call("cudaLaunchKernel", 40, 5, correlation=far), call("cudaStreamSynchronize", 10, 5),
    ]  # fmt: skip
    rows += kernel(50, 5, correlation=9) + kernel(60, 5, correlation=far) + kernel(70, 5, correlation=far + 1)
    rows += kernel(80, 5, correlation=7) + kernel(90, 5, correlation=-1)
    assert find_activity(build(rows)).launch.tolist() == [1, 2, -1, -1, -1]


def test_without_a_gpu_operators_compute_and_annotations_communicate():
    rows = [
        step(3, 0, 10_000), note("aten::linear", 0, 1000, cat="cpu_op"), note("aten::mm", 100, 500, cat="cpu_op"),
        note("gloo:all_reduce", 800, 2000, 3), note("dataloader_next", 4000, 2000),
        note("aten::copy_", 1500, 1000, 3, "cpu_op"),
        note("aten::stack", 4500, 100, cat="cpu_op"), note("c10d::allreduce_", 7000, 10, cat="cpu_op"),
        note("aten::mul", 8000, 500, BACKWARD, "cpu_op"),
    ]  # fmt: skip
    steps, ledger = measure(build(rows))
    check_adds_up(steps, ledger)
    assert {name: ns[0] for name, ns in ledger.buckets.items() if ns[0]} == {
        "compute": 1500, "comm": 1800, "idle_input": 2000, "idle_host": 4700,
    }  # fmt: skip


def test_an_only_step_nearly_all_behind_its_last_kernel_is_idle_to_its_end():
    """As in HolisticTraceAnalysis' triton_example: 2 µs on the device in a step marked 13 s long."""
    events = build([step(3, 0, 50_000), *kernel(1200, 2, 1000)])
    steps, ledger = measure(events)
    check_adds_up(steps, ledger)
    assert steps.edges.tolist() == [0, 50_000]
    assert {name: ns[0] for name, ns in ledger.buckets.items() if ns[0]} == {"compute": 2, "idle_host": 49_998}


# On generated runs, whose truth is known, steps begin and end, and ranks wait, exactly as they did.


HOST_BOUND = Size(kernel_us=3.0, launch_us=10.0, elements=1 << 16)
FEW = examples(25)


@st.composite
def faulty(draw, exact=False, device="cuda"):
    """A run of 2 to 8 ranks with faults of any kind; an exact one without what blurs moments."""
    builders = (ddp, fsdp2, hsdp, tp_dp) if device == "cuda" else (ddp, fsdp2)
    size = draw(st.sampled_from([Size(), HOST_BOUND]))
    program = draw(st.sampled_from(builders))(layers=3, size=size, sync=draw(st.booleans()), device=device)
    program = replace(program, end_jitter_us=0.0) if exact else program
    ranks = draw(st.sampled_from([2, 4, 8]))
    rank, steps = st.integers(0, ranks - 1), st.none() | st.sampled_from([(3,), (4, 5)])
    us = st.floats(0, 4000)
    some = st.one_of(
        st.builds(SlowCompute, rank, st.floats(1, 3), us, steps),
        *(st.builds(kind, rank, us, steps=steps) for kind in (SlowHost, SlowInput, SlowCopy)),
    )
    faults = draw(st.lists(some, max_size=3))
    if not exact:
        faults += draw(st.lists(st.builds(LateWindow, rank, st.integers(0, len(program.steps[0]))), max_size=3))
        faults += draw(st.lists(st.builds(ClockShift, rank, st.floats(-1e6, 1e6), st.floats(-50, 50)), max_size=3))
    return simulate(program, ranks, faults, draw(st.integers(0, 1000)))


def across(run, **style):
    return measure_across(summaries(run, TraceStyle(**style)), run.world)


def check_rank(rank):
    assert sum(rank.buckets.values()).tolist() == rank.duration.tolist()
    assert rank.duration.tolist() == np.diff(rank.summary.step_edges).tolist()
    assert all((ns >= 0).all() for ns in rank.buckets.values())


@pytest.mark.slow
@FEW
@given(faulty(), st.booleans(), st.booleans())
def test_steps_tile_and_buckets_add_up_exactly(run, metadata, seq):
    for rank in across(run, metadata=metadata, seq=seq, shuffle_names=1).ranks:
        check_rank(rank)
        truth = run.ranks[rank.summary.rank]
        assert rank.summary.step_numbers.tolist() == [number for number, _, _ in truth.marks]
        assert rank.summary.step_edges.tolist() == trace_edges(run, truth.rank).tolist()


@FEW
@given(faulty())
def test_each_rank_alone_equals_the_ledger_painted_nanosecond_by_nanosecond(run):
    alone = tuple(range(1, run.world))
    with tempfile.TemporaryDirectory() as folder:
        [path] = write_traces(run, Path(folder), TraceStyle(missing=alone))
        events = load_trace(str(path)).events
    activity = find_activity(events)
    steps = find_steps(events, activity)
    numbers, edges, buckets = slow_ledger(events)
    assert (steps.number.tolist(), steps.edges.tolist()) == (numbers, edges)
    ledger = ledger_of(find_lane(events, activity, steps), steps)
    assert {name: ns.tolist() for name, ns in ledger.buckets.items()} == buckets


@pytest.mark.slow
@FEW
@given(faulty(exact=True))
def test_steps_and_waiting_are_the_true_ones_to_the_ns(run):
    result = across(run)
    assert result.matching.matched_pct == 100
    for rank in result.ranks:
        assert rank.summary.step_edges.tolist() == run.ranks[rank.summary.rank].edges.tolist()
        assert rank.buckets["comm_wait"].tolist() == exposed_wait(run, rank.summary.rank).tolist()
        assert not rank.buckets["comm_unmatched"].any()


@pytest.mark.slow
@FEW
@given(faulty())
def test_waiting_is_the_true_one_within_the_spread_of_the_ends(run):
    faults = [fault for fault in run.faults if not isinstance(fault, LateWindow | ShortWindow)]
    run = simulate(run.program, run.world, faults, run.seed)
    of_a_step = len(run.collectives) / len(run.program.steps)
    spread = 2 * (of_a_step + 1) * run.program.end_jitter_us * 1000
    for rank in across(run).ranks:
        off = rank.buckets["comm_wait"] - exposed_wait(run, rank.summary.rank)
        assert abs(off).max() <= spread


@pytest.mark.slow
@FEW
@given(faulty(exact=True, device="cpu"))
def test_without_a_gpu_steps_and_waiting_are_the_true_ones(run):
    for rank in across(run).ranks:
        check_rank(rank)
        assert rank.summary.step_edges.tolist() == trace_edges(run, rank.summary.rank).tolist()
        assert rank.buckets["comm_wait"].tolist() == exposed_wait(run, rank.summary.rank).tolist()
