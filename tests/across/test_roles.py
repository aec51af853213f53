"""What groups are for, and what their ranks do in them: ledgers by role, experts, passes of inference servers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from changed import replace
from generated_run import Mesh, SlowCompute, SlowLink, simulate, summaries

from traceops.across.cross_rank import CrossRank, measure_across
from traceops.across.groups import role_of_kernel, role_of_name
from traceops.across.match import Collective, MatchedCollectives
from traceops.across.rank_times import find_experts
from traceops.across.roles import Computed, Moved, _messages, computed_by, roles_by_operations
from traceops.core.claims import claim_of
from traceops.measure.exchanges import BACKWARD, FORWARD, NOTHING
from traceops.measure.phases import AFTER, _told
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.pipeline.assemble_cross import role_rows
from traceops.render.report.card import card_of
from traceops.render.report.coverage import unjudged_sentence
from traceops.render.report.parallel_sections import (
    experts,
    experts_lines,
    experts_sentence,
    pass_sentence,
    role_sentence,
)
from traceops.report.model import Report
from traceops.report.rows import RoleRow
from traceops.rules.bandwidth import SlowerGroup, judge_siblings
from traceops.rules.stragglers import judge_stragglers
from traceops.rules.stragglers_claims import Late
from traceops.traces.discover import discover

NAMES = {
    "mesh_tp": "tensor",
    "mesh_dp": "data",
    "mesh_dp_shard": "shard",
    "mesh_dp_replicate": "data",
    "mesh_dp_shard_cp": "shard",
    "mesh_dp_cp": "data",
    "mesh_cp": "context",
    "mesh_ep": "expert",
    "mesh_etp": "tensor",
    "mesh_dp_shard_mod_ep": "shard",
    "mesh_pp": "pipeline",
    "mesh_rep": "data",
    "tp:0": "tensor",
    "TENSOR_MODEL_PARALLEL_GROUP": "tensor",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pipeline",
    "CONTEXT_PARALLEL_GROUP": "context",
    "DATA_PARALLEL_GROUP_WITH_CP": "data",
    "EXPERT_MODEL_PARALLEL_GROUP": "expert",
    "EXPERT_TENSOR_PARALLEL_GROUP": "tensor",
    "EXPERT_DATA_PARALLEL_GROUP": "data",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "shard",
    "EMBEDDING_GROUP": "pipeline",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "unknown",
    "MODEL_PARALLEL_GROUP": "unknown",
    "default_pg": "unknown",
    "undefined": "unknown",
    "mesh_step": "unknown",  # a word that only begins or ends like one
    "": "unknown",
}


@pytest.mark.parametrize(("name", "role"), NAMES.items())
def test_names(name, role):
    assert role_of_name(name) == role


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("void dpsk::ep::internode::dispatch<true>(int4*)", "expert"),
        ("void deep_ep::intranode::combine<bf16>(x)", "expert"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(x)", "tensor"),
        ("flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport", "tensor"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_atomic", "tensor"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("nvjet_tst_128x256", "unknown"),
    ],
)
def test_kernels(name, role):
    assert role_of_kernel(name) == role


NOTHING_SEEN = Computed()


def moved(*calls, steps=1, computed=NOTHING_SEEN):
    """calls: operation, pass, elements in, and out where that differs."""
    found = Moved(steps, computed)
    for op, phase, elements, *out in calls:
        found.add(op, phase, elements, *(out or [elements]))
    return found


BIG = 1 << 20
INFERS, EXPERTS, TABLES = Computed(infers=True), Computed(experts=True), Computed(tables=True)
OPERATIONS = {
    "ddp": (moved(("allreduce", BACKWARD, BIG), ("allreduce", BACKWARD, BIG)), "all_reduce", "data"),
    "by hand": (moved(("allreduce", AFTER, BIG)), "all_reduce", "data"),
    "ddp, loss": (moved(("allreduce", BACKWARD, BIG), ("allreduce", FORWARD, 1)), "all_reduce", "data"),
    "tensor": (moved(*[("allreduce", p, BIG) for p in (FORWARD, FORWARD, BACKWARD)]), "all_reduce", "tensor"),
    "a flag": (moved(("allreduce", AFTER, 1), ("allreduce", AFTER, 1)), "all_reduce", "unknown"),
    "no pass is told": (moved(("allreduce", NOTHING, BIG), ("allreduce", NOTHING, BIG)), "all_reduce", "unknown"),
    "inference": (moved(*[("allreduce", NOTHING, BIG)] * 4, computed=INFERS), "all_reduce", "tensor"),
    "fsdp": (moved(("allgather_base", FORWARD, BIG), ("_reduce_scatter_base", BACKWARD, BIG)), "all_gather", "shard"),
    "sequence parallel": (
        moved(("_reduce_scatter_base", FORWARD, BIG), ("_reduce_scatter_base", BACKWARD, BIG)),
        "reduce_scatter",
        "tensor",
    ),
    "experts by their kernels": (moved(("all_to_all", FORWARD, BIG), computed=EXPERTS), "all_to_all", "expert"),
    "experts by uneven exchanges": (moved(("all_to_allv", FORWARD, BIG, 5)), "all_to_all", "expert"),
    "tables of a recommender": (moved(("all_to_allv", FORWARD, BIG, 5), computed=TABLES), "all_to_all", "unknown"),
    "even exchanges": (moved(("all_to_all", FORWARD, BIG)), "all_to_all", "unknown"),
    "gradients beside tables": (
        moved(("allreduce", BACKWARD, BIG), ("all_to_all", FORWARD, BIG), computed=TABLES),
        "all_reduce",
        "data",
    ),
}


@pytest.mark.parametrize("case", OPERATIONS)
def test_operations(case):
    calls, kind, role = OPERATIONS[case]
    assert roles_by_operations(calls)[kind] == role


def test_what_ranks_compute():
    assert computed_by(["nvjet", "silu_kernel"], on_gpu=True, has_backward=False).infers
    assert not computed_by(["nvjet", "multi_tensor_apply_kernel"], on_gpu=True, has_backward=False).infers
    assert not computed_by(["aten::mm"], on_gpu=False, has_backward=False).infers
    assert computed_by(["split_embedding_codegen_forward_kernel"], True, True).tables
    assert computed_by(["aten::_grouped_mm"], True, True).experts
    assert computed_by(["symm_mem::fused_all_gather_matmul"], True, True).fused
    assert not computed_by(["aten::mm", "aten::all_gather"], True, True).fused


MESH = Mesh(data=4, tensor=2, pipeline=2, experts=2, layers=1, micro_batches=2, named=False)


def measured(mesh, *faults):
    run = simulate(mesh.program(2), mesh.world, faults)
    return measure_across(summaries(run), mesh.world, {rank: f"host{rank // 8}" for rank in range(mesh.world)})


@pytest.fixture(scope="module")
def unnamed():
    return measured(MESH)


def test_a_mesh_without_names_is_told_by_what_it_does(unnamed):
    assert unnamed.matching.matched_pct == 100.0
    groups = Counter((own.role, own.told_by, len(own.ranks)) for own in unnamed.roles.groups)
    assert groups == {
        ("tensor", "operations", 2): 8,
        ("expert", "operations", 2): 8,
        ("data", "operations", 4): 4,
        ("pipeline", "messages", 0): 1,
    }
    told = Counter(
        (own.op, role) for own, role in zip(unnamed.matching.collectives, unnamed.roles.of_collective, strict=True)
    )
    assert set(told) == {
        ("allreduce", "tensor"),
        ("allreduce", "data"),
        ("all_to_allv", "expert"),
        ("send_recv", "pipeline"),
    }


def test_roles_add_up_to_the_ledger_to_the_ns(unnamed):
    for times in unnamed.ranks:
        roles = unnamed.role_times[times.summary.rank].values()
        for part in ("wait", "transfer", "unmatched"):
            assert sum(getattr(own, part) for own in roles).tolist() == times.buckets[f"comm_{part}"].tolist()


def test_rows_say_where_a_role_reaches(unnamed):
    rows = {row.role: row for row in role_rows(unnamed)}
    assert set(rows) == {"tensor", "expert", "data", "pipeline"}
    assert rows["tensor"].reach == rows["data"].reach == "inside"
    assert rows["pipeline"].reach == "between"
    assert (rows["tensor"].groups, rows["tensor"].group_sizes, rows["tensor"].ranks) == (8, (2,), 16)
    assert rows["tensor"].told_by == ("operations",)
    assert all(row.saved_ms is not None for row in rows.values())
    assert rows["tensor"].exposed_ms == pytest.approx(rows["tensor"].wait_ms + rows["tensor"].transfer_ms, rel=0.2)


def test_the_late_rank_is_told_with_the_role_that_meets_it_first():
    run = measured(MESH, SlowCompute(5, 4.0, at="experts"))
    [late], _ = (verdict.findings for verdict in judge_stragglers(run, 1.0))
    assert (late.ranks, late.role) == ((5,), "expert")
    assert claim_of(late, Late).role == "expert parallel"


def test_a_slow_link_is_told_with_its_role_and_host():
    mesh = Mesh(data=4, tensor=2, pipeline=2, layers=1, micro_batches=2)
    run = measured(mesh, SlowLink("tp", 12.0, ranks=(10,)))
    slow = [found for found in judge_siblings(run).findings if claim_of(found, SlowerGroup).role == "tensor parallel"]
    assert {(found.ranks, found.role) for found in slow} == {((10, 11), "tensor")}
    row = next(row for row in role_rows(run) if row.role == "tensor")
    assert row.names == ("mesh_tp",)
    assert row.worst_rank in (10, 11)


def ring_of(members, times):
    """So many exchanges around a ring in one step, and the ranks that they are of."""
    links = tuple((place, (place + 1) % members) for place in range(members))
    group = tuple(range(members))
    found = tuple(
        Collective(group, "", "batched_send_recv", 4, "Float", tuple((r, at) for r in group), 1, (0,) * members, links)
        for at in range(times)
    )
    ranks = {rank: SimpleNamespace(step_number=lambda position: 3) for rank in group}
    return MatchedCollectives(found, members * times, {}), ranks


@pytest.mark.parametrize(("times", "told"), [(3, True), (4, True), (2, False)])
def test_a_ring_in_which_all_parts_come_around_is_context_parallel(times, told):
    matching, ranks = ring_of(4, times)
    found = _messages(matching, (), ranks)
    assert set(found.values()) == ({("context", "messages")} if told else set())


def test_a_role_in_words():
    row = RoleRow(role="tensor", told_by=("description",), ranks=8, exposed_ms=9.1, reach="inside", host="host2")
    assert role_sentence(row) == "Tensor parallel: 9.10 ms exposed, all inside host2."
    assert role_sentence(RoleRow(role="unknown", told_by=("nothing",), ranks=8, exposed_ms=9.1)) == ""


@pytest.mark.slow
def test_of_many_ranks_the_late_one_is_found_though_it_causes_little_of_all_waiting():
    """On a mesh most ranks wait in places of their own: rank 41 of 64 causes less than a tenth of all waiting."""
    mesh = Mesh(data=8, tensor=2, pipeline=4, experts=2, layers=1, micro_batches=2)
    run = measured(mesh, SlowCompute(41, 4.0, at="experts"))
    assert run.replay.lateness.share(41) < 0.1
    [late], _ = (verdict.findings for verdict in judge_stragglers(run, 1.0))
    assert (late.ranks, late.role) == ((41,), "expert")
    assert "ranks wait" in late.message or "ranks that it meets wait" in late.message


SKEWED = Path(__file__).parents[1] / "data" / "expert_skew2"


@pytest.fixture(scope="module")
def report() -> Report:
    return analyze(SKEWED)


def measured_skewed() -> CrossRank:
    ranks = [summarize(file) for file in discover(str(SKEWED)).windows[0].files]
    return measure_across(ranks, 2, {0: "host", 1: "host"})


def test_a_rank_that_gets_three_quarters_of_the_tokens_gets_one_and_a_half_times_the_mean(report: Report) -> None:
    (row,) = report.experts
    assert (row.ranks, row.layers) == ((0, 1), 6)
    assert row.imbalance == pytest.approx(1.5, abs=1e-3)
    assert all(one.share == pytest.approx(1.5, abs=1e-3) for one in row.imbalance_by_step)
    by_rank = [[t for t in row.times if t.rank == rank] for rank in (0, 1)]
    for light, heavy in zip(*by_rank, strict=True):
        assert light.layer == heavy.layer
        # 16,384 tokens of 2,048 bf16 from each of two ranks, in forward, and their gradients in backward
        assert light.received_bytes + heavy.received_bytes == pytest.approx(2 * 2 * 16384 * 2048 * 2)
        assert heavy.received_bytes == 3 * light.received_bytes
        assert heavy.compute_ms > 2 * light.compute_ms
    assert row.reference_gbs is not None and 0.3 * row.reference_gbs < (row.dispatch_gbs or 0) < row.reference_gbs
    (shared,) = [change for change in report.what_if if change.change == "work shared evenly"]
    assert row.even_saves_ms == pytest.approx(
        (shared.step_time_ms or 0) - (shared.predicted_step_time_ms or 0), abs=1e-3
    )


def test_it_is_said_on_the_page_and_on_the_terminal(report: Report) -> None:
    (row,) = report.experts
    said = experts_sentence(row)
    assert said.startswith("Experts of ranks 0–1, 6 layers: rank 1 gets 1.50 times the mean (1.50 to 1.50")
    assert "Even routing would save" in said
    assert experts_lines(report) and experts(report, (0, 1)) is not None


def test_what_does_not_come_in_pairs_is_no_dispatch_and_combine() -> None:
    run = measured_skewed()
    ranks = [times.summary for times in run.ranks]
    (found,) = find_experts(ranks, run.matching, run.roles)
    assert found.mean_imbalance == pytest.approx(1.5, abs=1e-3)
    one = next(i for i, role in enumerate(run.roles.of_collective) if role == "expert")
    cut = [c for i, c in enumerate(run.matching.collectives) if i != one]
    roles = [role for i, role in enumerate(run.roles.of_collective) if i != one]
    assert not find_experts(
        ranks, replace(run.matching, collectives=tuple(cut)), replace(run.roles, of_collective=tuple(roles))
    )


SERVERS = {
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


@pytest.mark.parametrize(("name", "told"), SERVERS.items())
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


def test_what_the_device_runs_between_two_passes_is_not_idle_time(tmp_path):
    """The server's sampler: it was in 'idle before'."""
    trace = decode_trace(0, 0.0)
    for one in [one for one in trace["traceEvents"] if one["name"].startswith("execute_")]:
        args = {"stream": 7, "device": 0, "correlation": 1000 + int(one["ts"])}
        at = one["ts"] + one["dur"]
        trace["traceEvents"] += [
            row("cuda_runtime", "cudaLaunchKernel", at + 10, 5, tid=1, args=args),
            row("kernel", "softmax", at + 30, 100, tid=7, args=args),
        ]
    (tmp_path / "rank_0.json").write_text(json.dumps(trace))
    [decode] = analyze(tmp_path, cache=False, jobs=1).passes
    assert decode.between_ms == pytest.approx(0.13)


@pytest.mark.parametrize("second, lacking", [(30_000, "captured"), (900, "short_window")])
def test_kernels_that_are_captured_into_a_graph_starve_nobody(tmp_path, second, lacking):
    """As in a server's warm-up: 50 launches inside a capture, of which the trace holds no kernel. A window of 1 us of
    such a trace was '100 % compute'."""
    rows = [row("cuda_runtime", "hipStreamBeginCapture", 100, 5, tid=1)]
    rows += [
        row("cuda_runtime", "hipLaunchKernel", 200 + 20 * at, 8, tid=1, args={"correlation": 100 + at})
        for at in range(50)
    ]
    rows.append(row("cuda_runtime", "hipStreamEndCapture", 1300, 5, tid=1))
    for at, ts in enumerate((10, second)):
        args = {"stream": 7, "device": 0, "correlation": at + 1}
        rows.append(row("cuda_runtime", "hipLaunchKernel", ts, 5, tid=1, args=args))
        rows.append(row("kernel", "fill", ts + 10, 5, tid=7, args=args))
    info = {"rank": 0, "world_size": 1}
    (tmp_path / "rank_0.json").write_text(
        json.dumps({"distributedInfo": info, "baseTimeNanoseconds": 0, "traceEvents": rows})
    )
    report = analyze(tmp_path, cache=False, jobs=1)
    told = {check.rule: check for check in report.checks}["TO-I001"]
    assert (told.status, told.lacking) == ("not_evaluated", lacking)
    assert ("Record steps that replay the graph." in unjudged_sentence(report)) == (lacking == "captured")
    assert ("too little to judge" in card_of(report).headline) == (lacking == "short_window")
