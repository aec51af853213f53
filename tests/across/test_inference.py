"""Prefill and decode passes of servers: their time, what lies between them, and skew against transfer."""

import json

import pytest

from traceops.measure.phases import _told
from traceops.pipeline.analyze import analyze
from traceops.render.report.coverage import unjudged_sentence
from traceops.render.report.parallel_sections import pass_sentence
from traceops.rules.idle import CAPTURED

NAMES = {
    # as public traces of vLLM and SGLang have them
    "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)": (
        "mixed",
        46,
        8192,
    ),
    "execute_15360_context_15(sq15360sk15360sqsq1sqsk1)_generation_0(sq0sk0sqsq0sqsk0)": ("prefill", 15, 15360),
    "execute_context_0(0)_generation_8(8)": ("decode", 8, 8),
    "execute_context_2(300)_generation_0(0)": ("prefill", 2, 300),
    "execute_new_2_cached_5": ("mixed", 7, None),
    "step[EXTEND bs=15 toks=15360]": ("prefill", 15, 15360),
    "step[DECODE bs=32]": ("decode", 32, 32),
    "decode_step 7": ("decode", None, None),
    "prefill": ("prefill", None, None),
    "capture_32_DECODE": None,
    "step[IDLE bs=0]": None,
    "sglang_profiler::mha__mha_batch_prefill_167": None,
    "training_step 3": None,
}


@pytest.mark.parametrize(("name", "told"), NAMES.items())
def test_names_of_passes(name, told):
    assert _told(name) == told


def decode_trace(rank, late_us):
    """Ten decode passes of 1 ms: a graph of three products, each followed by the server's own all-reduce of 40 µs.

    Rank 1's products take `late_us` µs more, so rank 0 waits as long in each all-reduce. 200 µs of scheduling lie
    in between.
    """
    rows, at = [], 1000.0
    for number in range(10):
        begin, correlation, kernel = at, 10 + number, at + 20
        rows.append(row("cuda_runtime", "cudaGraphLaunch", at + 5, 8, tid=1, args={"correlation": correlation}))
        for _ in range(3):
            slow = late_us if rank else 0.0
            for name, us in (
                ("nvjet_tst_64x8", 200 + slow),
                ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", 40 + late_us - slow),
            ):
                args = {"stream": 7, "device": rank, "correlation": correlation}
                rows.append(row("kernel", name, kernel, us, tid=7, args=args))
                kernel += us
        rows.append(row("user_annotation", "execute_context_0(0)_generation_8(8)", begin, kernel - begin + 10, tid=1))
        at = kernel + 10 + 200
    info = {
        "rank": rank,
        "world_size": 2,
        "backend": "nccl",
        "pg_config": [
            {"pg_name": name, "pg_desc": desc, "pg_size": 2, "ranks": [0, 1]}
            for name, desc in (("0", "default_pg"), ("1", "tp:0"))
        ],
    }
    return {"distributedInfo": info, "baseTimeNanoseconds": 0, "traceEvents": rows}


def row(cat, name, ts, dur, tid, args=None):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": tid, "args": args or {}}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    for rank in (0, 1):
        (folder / f"rank_{rank}.json").write_text(json.dumps(decode_trace(rank, 30.0)))
    return analyze(folder, cache=False, jobs=1)


def test_a_servers_own_all_reduces_are_matched_with_skew_against_transfer(served):
    assert served.summary.matching.matched_pct == 100.0
    [role] = served.roles
    assert (role.role, role.told_by, role.waits_for_rank) == ("tensor", ("kernels",), 1)
    assert (role.groups, role.group_sizes) == (1, (2,))
    [decode] = served.passes
    assert (decode.kind, decode.count, decode.requests, decode.graphs) == ("decode", 10, 8, 1)
    assert decode.device_ms == pytest.approx(0.81)
    assert decode.transfer_ms == pytest.approx(0.12)  # three of 40 µs
    assert decode.waiting_ms == pytest.approx(0.045)  # three of 30 µs on rank 0, none on rank 1


def test_between_passes_the_device_waits_for_the_scheduler(served):
    [decode] = served.passes
    assert decode.between_ms == pytest.approx(0.23)
    assert decode.scheduling_ms == pytest.approx(0.2)
    assert pass_sentence(decode) == (
        "Decode: 10 passes, 0.810 ms on the device each, 0.230 ms of nothing before it (0.200 ms between them on the "
        "host); of its collectives 0.045 ms are skew and 0.120 ms transfer."
    )


def test_kernels_that_are_captured_into_a_graph_starve_nobody(tmp_path):
    """As in a server's warm-up: 50 launches inside a capture, of which the trace holds no kernel."""
    rows = [row("cuda_runtime", "hipStreamBeginCapture", 100, 5, tid=1)]
    rows += [
        row("cuda_runtime", "hipLaunchKernel", 200 + 20 * at, 8, tid=1, args={"correlation": 100 + at})
        for at in range(50)
    ]
    rows.append(row("cuda_runtime", "hipStreamEndCapture", 1300, 5, tid=1))
    for at, ts in enumerate((10, 30_000)):
        args = {"stream": 7, "device": 0, "correlation": at + 1}
        rows.append(row("cuda_runtime", "hipLaunchKernel", ts, 5, tid=1, args=args))
        rows.append(row("kernel", "fill", ts + 10, 5, tid=7, args=args))
    info = {"rank": 0, "world_size": 1}
    (tmp_path / "rank_0.json").write_text(
        json.dumps({"distributedInfo": info, "baseTimeNanoseconds": 0, "traceEvents": rows})
    )
    report = analyze(tmp_path, cache=False, jobs=1)
    told = {check.rule: check for check in report.checks}["TO-I001"]
    assert (told.status, told.reason) == ("not_evaluated", CAPTURED)
    assert "Record steps that replay the graph." in unjudged_sentence(report)
