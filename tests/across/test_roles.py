"""What groups are for is told by their names or by what they do, and the ledger's communication adds up over roles."""

from collections import Counter
from types import SimpleNamespace

import pytest
from generated_run import Mesh, SlowCompute, SlowLink, simulate, summaries

from traceops.across.match import Collective, MatchedCollectives
from traceops.across.measure_across import measure_across
from traceops.across.role_names import role_of_kernel, role_of_name
from traceops.across.roles import Computed, Moved, _messages, computed_by, roles_by_operations
from traceops.core.claims import claim_of
from traceops.measure.exchanges import BACKWARD, FORWARD, NOTHING
from traceops.measure.phases import AFTER
from traceops.pipeline.assemble_cross import role_rows
from traceops.render.report.parallel_sections import role_sentence
from traceops.report.rows import RoleRow
from traceops.rules.bandwidth import SlowerGroup, judge_siblings
from traceops.rules.stragglers import judge_stragglers
from traceops.rules.stragglers_claims import Late

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
    assert run.lateness.share(41) < 0.1
    [late], _ = (verdict.findings for verdict in judge_stragglers(run, 1.0))
    assert (late.ranks, late.role) == ((41,), "expert")
    assert "ranks wait" in late.message or "ranks that it meets wait" in late.message
