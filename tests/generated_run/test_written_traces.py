"""Traces written from a simulated run say what was simulated, in torch's words."""

import gzip
import json

import numpy as np
import pytest

from generated_run import (
    ClockShift,
    LateWindow,
    Size,
    SlowCompute,
    TraceStyle,
    ddp,
    exposed_wait,
    fsdp2,
    hsdp,
    simulate,
    tp_dp,
    trace_edges,
    write_traces,
)  # fmt: skip
from traceops.traces.kineto import load_trace

BUILDERS = (ddp, fsdp2, hsdp, tp_dp)


def events(path):
    text = path.read_bytes()
    return json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_trace_says_what_was_simulated(tmp_path, builder, compressed):
    faults = [ClockShift(1, 2_500_000.0, 30.0), ClockShift(host=1, offset_us=-700.5)]
    run = simulate(builder(), 4, faults, ranks_per_host=2)
    paths = write_traces(run, tmp_path, TraceStyle(compressed=compressed))
    assert len({events(path)["baseTimeNanoseconds"] for path in paths}) > 1
    for rank, path in zip(run.ranks, paths, strict=True):
        trace = load_trace(str(path))
        assert not trace.damage
        assert (trace.meta.rank, trace.meta.world_size, trace.meta.host) == (rank.rank, 4, f"host{rank.rank // 2}")
        found = trace.events
        on_device = found.in_cats("kernel", "gpu_memcpy")
        in_trace = {(int(found.stream[i]), int(found.ts[i]), int(found.end[i])) for i in np.flatnonzero(on_device)}
        truth = {(a.stream, rank.on_clock(a.start), rank.on_clock(a.end)) for a in rank.recorded}
        assert in_trace == truth
        assert on_device.sum() == len(rank.recorded)
        assert (found.dur > 0).sum() >= len(truth)


def test_clocks_shift_by_rank_and_by_host():
    faults = [ClockShift(1, 5.0), ClockShift(host=1, offset_us=-2.0, drift_ppm=100.0)]
    run = simulate(ddp(), 4, faults, ranks_per_host=2)
    second = run.ranks[0].window_start - run.ranks[0].window_start % 1000 + 10**9
    shown = [rank.on_clock(second) - second for rank in run.ranks]
    assert shown[:2] == [0, 5000]
    assert shown[2] == shown[3] == pytest.approx(98_000, abs=2000)


def test_collectives_say_what_torch_says(tmp_path):
    trace = events(write_traces(simulate(hsdp(shard=2), 4), tmp_path, TraceStyle(seq=True))[1])
    assert trace["distributedInfo"]["pg_config"] == [
        {"pg_name": name, "pg_desc": what, "backend_config": "cuda:nccl", "pg_size": len(ranks), "ranks": ranks}
        for name, what, ranks in (
            ("0", "default_pg", [0, 1, 2, 3]), ("1", "mesh_shard", [0, 1]), ("2", "mesh_rep", [1, 3])
        )
    ]  # fmt: skip
    rows = [e for e in trace["traceEvents"] if e.get("cat") == "kernel" and "Collective name" in e["args"]]
    assert all(isinstance(e["args"]["Seq"], int) for e in rows)
    assert all(e["args"]["In split size"] == "[]" and e["args"]["Group size"] == 2 for e in rows)
    keys = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Process Group Name")
    keys += ("Process Group Description", "Process Group Ranks")
    part, whole = 1 << 21, 1 << 22
    assert {(e["name"].split("_RING")[0], *(e["args"][key] for key in keys)) for e in rows} == {
        ("ncclDevKernel_AllGather", "_allgather_base", part, whole, "BFloat16", "1", "mesh_shard", "[0, 1]"),
        ("ncclDevKernel_ReduceScatter_Sum_f32", "_reduce_scatter_base", whole, part, "Float", "1", "mesh_shard",
         "[0, 1]"),
        ("ncclDevKernel_AllReduce_Sum_f32", "allreduce", part, part, "Float", "2", "mesh_rep", "[1, 3]"),
    }  # fmt: skip


def test_names_of_groups_differ_between_ranks_if_asked(tmp_path):
    run = simulate(hsdp(shard=4), 8)
    for path, config in (
        (path, events(path)["distributedInfo"]["pg_config"])
        for path in write_traces(run, tmp_path, TraceStyle(shuffle_names=1))
    ):
        assert len({entry["pg_name"] for entry in config}) == 3
        own = {tuple(entry["ranks"]): entry["pg_name"] for entry in config}
        for event in events(path)["traceEvents"]:
            if event.get("cat") == "kernel" and "Process Group Ranks" in event["args"]:
                args = event["args"]
                assert own[tuple(json.loads(args["Process Group Ranks"]))] == args["Process Group Name"]
    shared = {
        tuple(entry["ranks"]): entry["pg_name"]
        for path in tmp_path.iterdir() for entry in events(path)["distributedInfo"]["pg_config"]
    }  # fmt: skip
    assert len(set(shared.values())) < len(shared)


def test_traces_without_metadata_say_nothing_of_groups(tmp_path):
    trace = events(write_traces(simulate(ddp(), 2), tmp_path, TraceStyle(metadata=False))[0])
    assert trace["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 2}
    assert not [e for e in trace["traceEvents"] if "Collective name" in e.get("args", {})]
    assert {e["name"].split("(")[0] for e in trace["traceEvents"] if e["name"].startswith("ncclK")} == {
        "ncclKernel_AllReduce_RING_LL_Sum_float"
    }


def test_what_was_launched_before_the_window_has_no_launch_and_no_arguments(tmp_path):
    run = simulate(ddp(), 2, [LateWindow(1, 20)])
    early = [
        {e["args"]["correlation"] for e in trace if e.get("cat") == "kernel"}
        - {e["args"]["correlation"] for e in trace if e.get("cat") in ("cuda_runtime", "cuda_driver")}
        for trace in (events(path)["traceEvents"] for path in write_traces(run, tmp_path))
    ]
    for rank, correlations in zip(run.ranks, early, strict=True):
        missed = {c for c, a in enumerate(rank.activities, 1000) if a.launch < rank.window_start}
        assert correlations == {c for c in missed if rank.activities[c - 1000] in rank.recorded and
                                rank.activities[c - 1000].kind != "memory"}  # fmt: skip
    launches = [sum(a.launch >= r.window_start for a in r.activities) for r in run.ranks]
    assert launches[0] - launches[1] == 20
    assert trace_edges(run, 1)[0] > trace_edges(run, 0)[0]
    assert trace_edges(run, 0).tolist() == run.ranks[0].edges.tolist()


def test_missing_ranks_have_no_trace(tmp_path):
    write_traces(simulate(ddp(), 4), tmp_path, TraceStyle(missing=(1, 2)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank_0.pt.trace.json", "rank_3.pt.trace.json"]


def test_without_a_gpu_gloo_runs_on_a_thread(tmp_path):
    run = simulate(ddp(device="cpu"), 2, [SlowCompute(1, 1.5)])
    trace = events(write_traces(run, tmp_path)[0])
    rows = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert trace["distributedInfo"]["backend"] == "gloo"
    assert {e["cat"] for e in rows} == {"cpu_op", "user_annotation", "Trace"}
    [main] = {e["tid"] for e in rows if e["cat"] == "cpu_op"}
    gloo = [e for e in rows if e["name"] == "gloo:all_reduce"]
    assert len(gloo) == 6
    assert all(e["tid"] != main and e["args"]["Input Dims"] == [[2 * Size().elements]] for e in gloo)
    assert sum(e["name"] == "c10d::allreduce_" for e in rows) == 6
    rank = run.ranks[0]
    optimizer = [a.start for a in rank.activities if a.label == "optimizer" and a.step == 3]
    assert min(optimizer) > max(a.end for a in rank.activities if a.kind == "comm" and a.step == 3)
    assert exposed_wait(run, 0).min() > 0
