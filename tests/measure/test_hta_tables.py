"""The tables are those of HTA's own code, to the last bit, and where HTA raises they hold what its definitions mean."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.measure.hta_bridge import tables_by_hta
from traceops.measure.hta_tables import hta_tables, number_ids
from traceops.traces.kineto import load_trace
from traceops.traces.model import Events, RankTrace, TraceMeta

DATA = Path(__file__).resolve().parents[1] / "data"
ON_CPU = {
    "clip_norms_gloo2",
    "cpu_only",
    "diary_gloo2",
    "last_pass_gloo2",
    "pipeline_gc_gloo3",
    "pipeline_gpipe4",
    "pipeline_interleaved4",
    "pipeline_middle_gloo3",
    "pipeline_uneven_gloo2",
    "pipeline_zero_bubble2",
    "recommender_even_gloo2",
    "starved_loader2",
    "straggler_gloo2",
    "synced_passes_gloo2",
    "tensor_parallel_gloo2",
    "tp_late_gloo2",
    "two_late_gloo3",
}
GPU_TRACES = [
    path
    for path in sorted(DATA.rglob("*.json.gz"))
    if "runs" not in path.parts and path.parent.name not in {*ON_CPU, "cupti"}  # which has counters, and no kernels
]


@pytest.mark.parametrize("path", GPU_TRACES, ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}")
def test_tables_are_those_of_htas_own_code_to_the_last_bit(path, remembered_hta):
    trace = load_trace(str(path))
    rank = 3 if trace.meta.rank is None else trace.meta.rank
    tables = hta_tables(rank, trace.events)
    assert tables == tables_by_hta(rank, trace)
    assert tables.overlap["rank"] == [rank]
    assert tables.failed == ()
    assert len(tables.kernels["name"]) > 2
    assert json.loads(json.dumps(tables.kernels)) == tables.kernels  # plain data


def trace_of(rows):
    """A trace of (name, category, start and duration in ns, stream, correlation id) in file order."""
    names, cats = (list(dict.fromkeys(row[i] for row in rows)) for i in (0, 1))
    columns = np.array([row[2:] for row in rows], dtype=np.int64).T
    none = np.full(len(rows), -1)
    events = Events(
        index=np.arange(len(rows)),
        name=np.array([names.index(row[0]) for row in rows], dtype=np.int32),
        cat=np.array([cats.index(row[1]) for row in rows], dtype=np.int32),
        ts=columns[0] + 1_700_000_000_000_000_000,
        dur=columns[1],
        pid=none,
        tid=none,
        stream=columns[2],
        correlation=columns[3],
        external=none,
        sequence=none,
        **{name: none.astype(np.int32) for name in ("shape", "types", "strides", "concrete")},
        names=tuple(names),
        cats=tuple(cats),
        shapes=(),
        type_lists=(),
        stride_lists=(),
        concrete_lists=(),
        comm={},
    )
    return RankTrace("trace.json", TraceMeta(), events)


KERNELS = ["ncclDevKernel_AllReduce", "Memcpy DtoD", "Memset (Device)", "kernel with Sync", "others", "dma copy"]
KERNELS += ["no Memcpy", "no Memset", "no nccl Kernel", *(f"kernel {i}" for i in range(14))]
CALLS = ["cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cuLaunchKernel", "hipLaunchKernel"]
CALLS += ["cudaGraphLaunch", "cudaStreamSynchronize"]


@st.composite
def traces(draw):
    """Launches with any number of kernels each, kernels without a launch, waits with and without a stream, steps."""
    random = draw(st.randoms(use_true_random=False))
    step, grid = random.choice([50, 2_000, 100_000]), random.choice([1, 500, 1000])
    steps = random.randrange(4)
    rows = [("aten::mm", "cpu_op", 0, 1, -1, -1)]
    kernels = random.sample(KERNELS, random.choice([3, 12, len(KERNELS)]))
    for id in range(draw(st.integers(1, 60))):
        start = 33 + random.randrange(max(steps, 1) * step)
        call = (random.choice(CALLS), "cuda_runtime", start, random.randrange(20), -1, id)
        rows += [call] * (random.random() < 0.95)
        for _ in range(random.choice([1, 1, 1, 0, 3])):
            cat = random.choice(["kernel", "kernel", "gpu_memcpy", "Memset", "other"])
            start += random.randrange(60)
            stream, own = random.choice([0, 7, 7, 20]), random.choice([id] * 20 + [-1])
            rows.append((random.choice(kernels), cat, start, random.randrange(40), stream, own))
        if random.random() < 0.1:
            sync = (random.choice(["Event Sync", "Context Sync"]), "cuda_sync", start, 9)
            rows.append((*sync, *random.choice([(-1, -1), (-1, 2000 + id), (7, 2000 + id)])))
            rows.append(("Stream Wait Event", "cuda_sync", start, 50, random.choice([-1, 7]), 1000 + id))
            rows.append(("nn.Linear", "gpu_user_annotation", start, 50, 7, -1))
    rows += [(f"ProfilerStep#{i}", "user_annotation", 33 + i * step, step, -1, -1) for i in range(steps)]
    rows = [(name, cat, start * grid, dur * grid, *ids) for name, cat, start, dur, *ids in rows]
    return random.sample(rows, len(rows)) if draw(st.booleans()) else sorted(rows, key=lambda row: row[2])


@pytest.mark.slow
@examples(60)
@given(traces())
def test_tables_of_generated_traces_are_those_of_htas_own_code(rows):
    trace = trace_of(rows)
    ours, theirs = hta_tables(0, trace.events), tables_by_hta(0, trace)
    if ours.failed:  # HTA raises in two analyses, and the others have nothing to say
        assert ours.failed[0][0] == "all"
        assert theirs.temporal is None
        return
    failed = {name for name, _ in theirs.failed}
    for analysis, table in (("temporal breakdown", "temporal"), ("idle time breakdown", "idle")):
        assert analysis in failed or getattr(ours, table) == getattr(theirs, table)
    for table in ("overlap", "kernel_types", "kernels", "queue_length"):
        assert getattr(ours, table) == getattr(theirs, table), table
    assert ours.launches.keys() == theirs.launches.keys()
    for column in list(theirs.launches)[1:]:  # pandas joins in an order of its own at times: another last digit
        one, other = (np.array(table.launches[column], dtype=float) for table in (ours, theirs))
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_equal_times_come_in_the_order_that_htas_sort_leaves_them_in(seed):
    random = Random(seed)
    rows = []
    for id in range(300):
        launch, start = random.randrange(40), random.randrange(40)
        kernel = random.choice(["gemm", "ncclDevKernel_AllReduce", "Memcpy DtoD"])
        rows.append(("cudaLaunchKernel", "cuda_runtime", launch * 500, 100, -1, id))
        rows.append((kernel, "kernel", start * 500, random.choice([0, 0, 500]), 7, id))
    trace = trace_of(rows)
    ours, theirs = hta_tables(0, trace.events), tables_by_hta(0, trace)
    assert ours == theirs


def step(number, start, dur):
    return (f"ProfilerStep#{number}", "user_annotation", start, dur, -1, -1)


def launched(id, call, start, kernel, at, dur, stream=7):
    cat = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
    return [(call, "cuda_runtime", start, 1_000, -1, id), (kernel, cat, at, dur, stream, id)]


def test_a_trace_whose_numbers_can_be_told_by_hand():
    rows = [
        step(0, 0, 400_000), step(1, 400_000, 100_000),
        *launched(1, "cudaLaunchKernel", 0, "gemm", 10_000, 90_000),
        *launched(2, "cudaLaunchKernel", 1_000, "ncclDevKernel_AllReduce", 50_000, 100_000, stream=20),
        *launched(3, "cudaMemcpyAsync", 2_000, "Memcpy DtoD", 129_999, 10_000),  # 29.999 µs after gemm
        *launched(4, "cudaLaunchKernel", 3_000, "gemm", 169_999, 1_000),  # 30 µs after the copy
        *launched(5, "cudaLaunchKernel", 190_000, "gemm", 200_000, 10_001),  # launched after the device ran dry
        *launched(6, "cudaLaunchKernel", 450_000, "gemm", 460_000, 10_000),  # in the last step
        ("gemm", "kernel", 300_000, 50_000, 7, 99),  # its launch is not in the trace
    ]  # fmt: skip
    tables = hta_tables(2, trace_of(rows).events)
    assert tables.temporal == {
        "rank": [2],
        "idle_time(us)": [pytest.approx(19.999 + 29.001)],
        "compute_time(us)": [pytest.approx(101.001)],
        "non_compute_time(us)": [pytest.approx(50)],
        "kernel_time(us)": [pytest.approx(200.001)],
        "idle_time_pctg": [24.5],
        "compute_time_pctg": [50.5],
        "non_compute_time_pctg": [25.0],
    }
    assert tables.overlap == {"rank": [2], "comp_comm_overlap_pctg": [50]}
    assert tables.idle == {
        "rank": [2] * 4,
        "stream": [7, 7, 7, 20],
        "idle_category": ["host_wait", "kernel_wait", "other", "other"],
        "idle_time": [29.0, 30.0, 30.0, 0.0],
        "idle_time_ratio": [0.33, 0.34, 0.34, None],
    }
    assert tables.kernel_types == {
        "kernel_type": [
            "COMPUTATION",
            "COMPUTATION overlapping COMMUNICATION",
            "COMMUNICATION",
            "COMMUNICATION overlapping MEMORY",
        ],
        "sum": [51, 50, 39, 10],
        "percentage": [34.0, 33.3, 26.0, 6.7],
    }
    assert tables.kernels["name"] == ["ncclDevKernel_AllReduce", "gemm", "Memcpy DtoD"]
    assert tables.kernels["sum (us)"] == [100, pytest.approx(101.001), 10]
    assert tables.kernels["stddev"] == [0, pytest.approx(np.std([90, 1, 10.001], ddof=1)), 0]
    delays = [9, 48, 126.999, 165.999, 9]
    assert tables.launches["quantity"][2] == "launch_delay"
    assert tables.launches["count"] == [5, 5, 5]
    assert tables.launches["mean"][2] == pytest.approx(np.mean(delays))
    assert tables.launches["95%"][2] == pytest.approx(np.percentile(delays, 95))
    assert tables.queue_length["stream"] == [7, 20]
    assert tables.queue_length["max"] == [3, 1]
    assert tables.queue_length["mean"] == [(1 + 2 + 3 + 2 + 1 + 0 + 1 + 0) / 8, 0.5]


def test_a_kernel_counts_as_often_as_calls_share_its_id_and_the_last_of_them_launched_it():
    rows = [
        step(0, 0, 100_000), step(1, 100_000, 100_000),
        *launched(1, "cudaLaunchKernel", 1_000, "gemm", 10_000, 5_000),
        ("cudaEventRecord", "cuda_runtime", 2_000, 1_000, -1, 1),
        *launched(2, "cudaLaunchKernel", 15_000, "gemm", 60_000, 5_000),  # just when the first gemm ends
        *launched(3, "cudaLaunchKernel", 66_000, "gemm", 130_000, 5_000),
        ("cudaEventRecord", "cuda_runtime", 120_000, 1_000, -1, 3),  # in the last step
        ("Event Sync", "cuda_sync", 150_000, 10_000, 7, -1),  # kept without a launch, busy but no kernel
    ]  # fmt: skip
    trace = trace_of(rows)
    tables = hta_tables(0, trace.events)
    assert tables == tables_by_hta(0, trace)
    assert tables.kernels["sum (us)"] == [20]
    assert tables.idle["idle_category"] == ["kernel_wait", "other"]
    assert tables.idle["idle_time"] == [-5, 45 + 65]
    assert tables.temporal["idle_time(us)"] == [45 + 65 + 15]


@pytest.mark.parametrize(("names", "mean"), [(10, 2), (11, 4)])
def test_of_more_than_ten_kernels_their_sums_are_described(names, mean):
    starts = [(i, 5_000 * i + 60_000 * j) for i in range(names) for j in (0, 1)]
    rows = [(f"kernel {i}", "kernel", start, 2_000, 7, -1) for i, start in starts]
    trace = trace_of(rows)
    tables = hta_tables(0, trace.events)
    assert tables.kernels == tables_by_hta(0, trace).kernels
    assert tables.kernels["mean (us)"][0] == mean
    assert ("others" in tables.kernels["name"]) == (names > 10)


def test_rounding_does_not_make_the_rest_negative():
    kernels = ((10_755, 16), (27_085, 24), (40_175, 36), (41_157, 36), (44_469, 37), (61_510, 28), (65_437, 10))
    rows = [step(0, 0, 70_000), ("Memcpy DtoD", "gpu_memcpy", 44_625, 0, 7, -1)]
    trace = trace_of([*rows, *(("gemm", "kernel", start, dur, 7, -1) for start, dur in kernels)])
    assert ("temporal breakdown", "AssertionError: ") in tables_by_hta(0, trace).failed
    tables = hta_tables(0, trace.events)
    assert tables.failed == ()
    assert tables.temporal["non_compute_time(us)"] == [0]
    assert tables.overlap["comp_comm_overlap_pctg"] == [None]


def test_a_kernel_waits_once_in_the_queue_where_two_calls_have_its_correlation_id():
    rows = [
        ("cudaLaunchKernel", "cuda_runtime", 0, 9_000, -1, 5),
        ("cuLaunchKernel", "cuda_driver", 2_000, 5_000, -1, 5),
        ("gemm", "kernel", 20_000, 1_000, 7, 5),
        step(0, 0, 50_000), step(1, 50_000, 1_000),
    ]  # fmt: skip
    trace = trace_of(rows)
    assert ("queue length", "AssertionError: ") in tables_by_hta(0, trace).failed
    lengths = hta_tables(0, trace.events).queue_length
    assert (lengths["count"], lengths["max"], lengths["min"]) == ([2], [1], [0])


def test_without_activity_before_the_last_step_there_are_no_tables():
    rows = [step(0, 0, 5_000), step(1, 5_000, 5_000), *launched(1, "cudaLaunchKernel", 6_000, "gemm", 7_000, 10)]
    tables = hta_tables(0, trace_of(rows).events)
    assert tables.failed == (("all", "HTA leaves out the last step, and no GPU activity remains"),)
    assert tables.temporal is tables.kernels is None
    one_step = hta_tables(0, trace_of(rows[1:]).events)
    assert one_step.temporal["kernel_time(us)"] == [pytest.approx(0.01)]


def test_activity_without_a_kernel_has_no_idle_times():
    rows = [("Stream Wait Event", "cuda_sync", 0, 10, 7, 1)]
    tables = hta_tables(0, trace_of(rows).events)
    assert tables.failed == ()
    assert not any(tables.idle.values())
    assert tables.queue_length is None


def test_correlation_ids_are_numbered_alike_whatever_they_are():
    ids = np.array([3, -1, 9, 3, 4, 9])
    on_device = np.array([False, False, True, True, False, False])
    number, count = number_ids(ids, on_device)
    assert (number.tolist(), count) == ([0, -1, 2, 0, 1, 2], 3)
    far, count = number_ids(np.where(ids == 9, 2**62, ids), on_device)
    assert (far.tolist(), count) == (number.tolist(), 3)
    assert number_ids(np.array([-1]), np.array([True]))[1] == 0


def test_a_correlation_id_on_thousands_of_rows_does_not_multiply():
    ids = np.array([7] * 2000 + [8] * 3)
    on_device = np.array([True, False] * 1000 + [False, True, True])
    assert number_ids(ids, on_device)[0].tolist() == [-1] * 2000 + [1] * 3
    graph = np.full(5001, 9)  # one cudaGraphLaunch and its kernels
    assert (number_ids(graph, np.arange(5001) > 0)[0] == 0).all()
