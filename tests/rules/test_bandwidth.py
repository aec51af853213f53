"""TO-C001 to TO-C003: what links give, and data that goes through the hosts."""

import json
from types import SimpleNamespace

import pytest
from changed import replace
from generated_run import Mesh, Size, SlowCompute, SlowInput, SlowLink, ddp, fsdp2, hsdp, simulate, tp_dp, write_traces
from measured_runs import across, program, true_step

from traceops.across.links import (
    bus_factor,
    busbw_gbs,
    collective_bytes,
    reference_of,
    reference_transfer_ns,
    reference_transfers,
)
from traceops.across.match import Collective
from traceops.across.replay.what_if import REFERENCE
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.rank_files import COLLECTIVES
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Measured, Quote
from traceops.fabric.model import Reference as MachineReference
from traceops.fabric.nccl import Communicator, Connection, GraphBandwidth, NcclLog, RankPlace
from traceops.pipeline.analyze import analyze
from traceops.pipeline.assemble_cross import reference_rows
from traceops.rules import bandwidth
from traceops.rules.bandwidth import (
    SAVED,
    LowBandwidth,
    SlowerGroup,
    ThroughHost,
    judge_low,
    judge_siblings,
    judge_through_host,
)

# As fast as NVLink 4 gives, so that a healthy group is well above the bound; messages of 64 MB.
FAST = Size(bandwidth_gbs=300.0, far_bandwidth_gbs=300.0, elements=1 << 24, kernel_us=150.0)


def collective(op="allreduce", elements=1 << 24, dtype="Float", ranks=4, transfer_ns=1_000_000):
    group = tuple(range(ranks))
    members = tuple((rank, 0) for rank in group)
    return Collective(group, "default_pg", op, elements, dtype, members, transfer_ns, (0,) * ranks)


@pytest.mark.parametrize(
    ("device", "link", "gbs"),
    [
        ("NVIDIA H200", "NVLink 4", 350.0),
        ("NVIDIA H100 80GB HBM3", "NVLink 4", 350.0),
        ("NVIDIA B200", "NVLink 5", 650.0),
        ("NVIDIA A100-SXM4-80GB", "NVLink 3", 230.0),
        ("Tesla V100-SXM3-32GB", "NVLink 2", 120.0),
        ("Tesla V100-SXM2-32GB", None, None),  # of a mesh: these two may share no link
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None, None),
        ("NVIDIA H200 NVL", None, None),
        ("NVIDIA H800 PCIe", None, None),
        ("NVIDIA A800 80GB PCIe", None, None),
        ("NVIDIA GB200", "NVLink 5", 650.0),
        ("NVIDIA B200", "NVLink 5", 650.0),
        ("NVIDIA H800", "NVLink 4, cut down", 160.0),
        ("NVIDIA A800-SXM4-80GB", "NVLink 3, cut down", 160.0),
        ("NVIDIA GH200 480GB", None, None),
        ("NVIDIA H100 PCIe", None, None),
        ("NVIDIA H100 NVL", None, None),
        ("NVIDIA A100-PCIE-40GB", None, None),
        ("NVIDIA GeForce RTX 4090", None, None),
        ("AMD Instinct MI300X", None, None),
        (None, None, None),
    ],
)
def test_the_reference_goes_by_the_name_of_the_gpu(device, link, gbs):
    found = reference_of((0, 1), device, {0: "a", 1: "a"}, 2)
    assert (None if found is None else (found.link, found.busbw_gbs)) == (link and (link, gbs))


def measured_at(gbs, host="a", gpu="NVIDIA H200", size=1 << 28):
    row = Measured("all_reduce", (0, 1, 2, 3), size, 1.0, gbs, host)
    return MachineReference(host, gpu, "t", 0.0, (row,))


def expected_by_nccl(gbs, *, intra="NVL", inter="PIX", inter_gbs=None, hosts="aaaa", pattern=4):
    quote = Quote("nccl.log", 1, "Pattern")
    graph = GraphBandwidth(pattern, 12, gbs, gbs if inter_gbs is None else inter_gbs, intra, inter, quote)
    places = {rank: RankPlace(rank, host) for rank, host in enumerate(hosts)}
    return NcclLog(("nccl.log",), communicators=(Communicator("c", len(hosts), places, graphs=(graph,)),))


def known(device="NVIDIA H200", hosts="aaaa", **fabric):
    named = dict(enumerate(hosts))
    found = reference_of(tuple(named), device, named, len(named), Fabric(**fabric))
    return None if found is None else (found.source, found.busbw_gbs)


def test_measured_on_this_host_comes_before_what_nccl_expects_and_that_before_the_table():
    assert known() == ("table", 350.0)
    assert known(log=expected_by_nccl(360.0)) == ("graph", 360.0)
    assert known(log=expected_by_nccl(360.0), references=(measured_at(335.0),)) == ("doctor", 335.0)


def test_a_measurement_counts_for_the_same_host_and_gpu_and_large_messages_only():
    for other in (measured_at(335.0, "b"), measured_at(335.0, gpu=None), measured_at(335.0, size=1 << 20)):
        assert known(references=(other,)) == ("table", 350.0)
    assert known(None, references=(measured_at(335.0),)) is None  # ranks on the CPU of a host with GPUs
    assert known(None, references=(measured_at(1.5, gpu=None),)) == ("doctor", 1.5)


def test_what_two_gpus_gave_is_no_reference_for_four():
    """Cards with a bridge between each two: 200 GB/s over it, 10 GB/s among all."""
    card = "NVIDIA A100-PCIE-40GB"
    bridge = Measured("all_reduce", (0, 1), 1 << 28, 1.0, 200.0, "a")
    among_all = Measured("all_reduce", (0, 1, 2, 3), 1 << 28, 1.0, 10.0, "a")
    references = tuple(MachineReference("a", card, str(n), n, (row,)) for n, row in enumerate([among_all, bridge]))
    assert known(card, references=references) == ("doctor", 10.0)
    assert known(card, hosts="aa", references=references) == ("doctor", 200.0)
    assert known(card, references=references[1:]) is None


def test_of_several_states_of_a_machine_the_latest_counts_and_gloo_tells_nothing_of_nccl():
    card = "NVIDIA L4"
    before, after = replace(measured_at(20.0, gpu=card), measured_at=1.0), measured_at(8.0, gpu=card)
    after = replace(after, topology="u", measured_at=2.0, host="A.cluster.example")
    assert known(card, references=(after, before)) == ("doctor", 8.0)
    row = replace(before.measured[0], backend="gloo")
    assert known(card, references=(replace(before, measured=(row,)),)) is None


def test_the_links_of_a_mesh_are_known_for_whole_groups_only():
    v100 = "Tesla V100-SXM2-32GB"
    assert [known(v100, hosts="a" * size) for size in (2, 3, 4, 8)] == [None, None, ("table", 120.0), ("table", 120.0)]


def test_ranks_that_cannot_share_a_host_are_not_held_to_its_links():
    of_one_name = dict.fromkeys(range(16), "vm")
    assert reference_of((0, 8), "NVIDIA H200", of_one_name, 16) is None
    assert reference_of((0, 8), "NVIDIA H200", of_one_name, 16, devices=16) is not None
    assert reference_of((0, 1), "NVIDIA H200", {0: "localhost", 1: "localhost"}, 16) is None
    assert reference_of((0, 4), "NVIDIA H200", {}, 8, devices=4) is None  # eight ranks, four GPUs each sees
    assert reference_of((0, 4), "NVIDIA H200", {}, 8, devices=1) is not None  # CUDA_VISIBLE_DEVICES: one a rank
    assert reference_of((0,), "NVIDIA H200", {0: "a"}, 1) is None  # a copy


def test_ranks_on_equal_devices_are_on_several_hosts_whatever_those_are_called():
    def log(buses):
        places = {rank: RankPlace(rank, "vm", 100 + rank, bus_id=bus) for rank, bus in enumerate(buses)}
        return NcclLog(("nccl.log",), communicators=(Communicator("c", len(places), places),))

    assert known(log=log("1212")) is None
    assert known(log=log("1234")) == ("table", 350.0)
    h200 = "NVIDIA H200"
    assert reference_of((0, 1), h200, {}, 4, Fabric(log=log("1212"))) is None
    assert reference_of((0, 1), h200, {}, 4, Fabric(log=log("1234"))) is not None
    two = {0: "a", 1: "a", 2: "b", 3: "b"}
    assert reference_of((0, 1), h200, two, 4, Fabric(log=log("1212"))) is not None


def test_a_machine_that_was_broken_when_it_was_measured_is_no_reference():
    assert known(references=(measured_at(25.0),)) == ("table", 350.0)


def test_what_nccl_expects_of_host_memory_is_no_reference_where_there_is_nvlink():
    by_shm = expected_by_nccl(40.0, intra="PHB")
    assert known(log=by_shm) == ("table", 350.0)
    assert known("NVIDIA L4", log=by_shm) == ("graph", 40.0)


def test_between_hosts_the_slower_of_both_ways_counts():
    log = expected_by_nccl(360.0, inter="PXB", inter_gbs=48.0, hosts="aabb")
    assert known(hosts="aabb", log=log) == ("graph", 48.0)
    assert known(hosts="aaab", log=expected_by_nccl(360.0)) is None  # a communicator of one host says nothing
    assert known(hosts="aabb", log=expected_by_nccl(9.0, pattern=1, hosts="aabb")) is None  # trees are no rings


@pytest.mark.parametrize(("devices", "gpus", "gbs"), [((0, 0), "12", 6.0), ((0, 1), "12", 12.0), ((0, 0), "11", 12.0)])
def test_groups_that_leave_by_one_nic_share_it_and_one_group_made_twice_does_not(devices, gpus, gbs):
    [one] = expected_by_nccl(360.0, inter="PHB", inter_gbs=12.0, hosts="ab").communicators
    quote = Quote("nccl.log", 2, "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0")
    groups = tuple(
        replace(
            one,
            id=str(number),
            places={rank: replace(place, bus_id=gpu) for rank, place in one.places.items()},
            connections=(Connection(0, 1, "NET", "IB", 2, quote, device),),
        )
        for number, (device, gpu) in enumerate(zip(devices, gpus, strict=True))
    )
    log = NcclLog(("nccl.log",), communicators=groups)
    assert known(hosts="ab", log=log) == ("graph", gbs)


def test_a_dump_of_the_graph_tells_of_the_whole_job_where_no_log_does():
    graphs = expected_by_nccl(360.0).communicators[0].graphs
    assert known(graphs=graphs) == ("graph", 360.0)
    assert known(graphs=graphs, log=expected_by_nccl(300.0)) == ("graph", 300.0)
    named = dict.fromkeys(range(4), "a")
    found = reference_of((0, 1), "NVIDIA H200", named, 4, Fabric(graphs=graphs))
    assert found is not None and found.source == "table"


def test_rows_against_the_reference_add_up_what_is_lost():
    measured = across(simulate(program(ddp, replace(FAST, bandwidth_gbs=100.0)), 4))
    rows = reference_rows(measured)
    assert sum(row.count for row in rows) == len(measured.matching.collectives)
    large = rows[0]
    assert large.bytes_min >= 8_000_000
    if large.reference_gbs is None:
        assert large.lost_ms is None
    fast = replace(measured, device="NVIDIA H200")
    large = reference_rows(fast)[0]
    assert (large.reference_source, large.reference_gbs) == ("table", 350.0)
    assert large.reference_pct == pytest.approx(100 * large.busbw_gbs / 350.0, abs=0.01)
    assert large.lost_ms > 0
    assert {row.reference_pct for row in reference_rows(fast) if row.bytes_max < 8_000_000} <= {None}


def test_between_hosts_and_where_hosts_are_not_known_nothing_is_expected():
    two = {0: "a", 1: "a", 8: "b"}
    assert reference_of((0, 1), "NVIDIA H200", two, 16) is not None
    assert reference_of((0, 8), "NVIDIA H200", two, 16) is None
    assert reference_of((0, 9), "NVIDIA H200", two, 16) is None  # one of them not known
    assert reference_of((0, 1), "NVIDIA H200", {}, 8) is not None  # no larger than one host
    assert reference_of((0, 1), "NVIDIA H200", {}, 16) is None


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("allreduce", 4) == 1.5
    assert bus_factor("all_reduce", 2) == 1.0
    for op in ("allgather", "_allgather_base", "_reduce_scatter_base", "reduce_scatter", "all_to_all", "gather"):
        assert bus_factor(op, 4) == 0.75
    for op in ("broadcast", "reduce"):
        assert bus_factor(op, 4) == 1.0
    assert bus_factor("allreduce", 1) == 1.0


def test_bytes_and_bus_bandwidth():
    assert collective_bytes(collective(elements=1000, dtype="Float")) == 4000
    assert collective_bytes(collective(elements=1000, dtype="BFloat16")) == 2000
    assert collective_bytes(collective(elements=1000, dtype="c10::BFloat16")) == 2000
    assert collective_bytes(collective(elements=1000, dtype="Float8_e4m3fn")) == 1000
    assert collective_bytes(collective(elements=None)) is None
    assert collective_bytes(collective(dtype="Something")) is None
    assert busbw_gbs(collective(elements=10**6, transfer_ns=40_000)) == pytest.approx(150.0)
    assert busbw_gbs(collective(transfer_ns=0)) is None
    assert busbw_gbs(collective(elements=0)) is None


def test_the_transfer_at_the_reference():
    reference = reference_of((0, 1), "NVIDIA H200", {}, 4)
    one = collective(elements=70_000_000)  # 280 MB, 420 MB over the bus
    assert reference_transfer_ns(one, reference) == pytest.approx(20_000 + 1_200_000)
    assert reference_transfer_ns(one, None) == one.transfer_ns
    assert reference_transfer_ns(replace(one, elements=None), reference) == one.transfer_ns


@pytest.mark.parametrize("builder", [ddp, fsdp2])
def test_the_bandwidth_of_a_generated_run_is_the_one_it_was_given(builder):
    run = simulate(program(builder, replace(FAST, latency_us=0.001, end_jitter_us=0.0)), 4)
    measured = across(run)
    achieved = [busbw_gbs(c) for c in measured.matching.collectives]
    assert achieved == pytest.approx([300.0] * len(achieved), rel=0.03)
    assert len(achieved) == len([c for c in run.collectives if c.step >= 3])


def test_a_slow_link_of_the_whole_group_is_c001():
    made = program(ddp, FAST)
    assert judge_low(across(simulate(made, 4))).findings == ()
    run = simulate(made, 4, [SlowLink("world", 5.0)])
    measured = across(run)
    [found] = judge_low(measured).findings
    assert (found.rule, found.severity, found.ranks) == ("TO-C001", "warning", (0, 1, 2, 3))
    assert claim_of(found, LowBandwidth).device == "NVIDIA H200"
    good = replace(made, groups=tuple(replace(groups, bandwidth_gbs=350.0) for groups in made.groups))
    saved = (true_step(run) - true_step(simulate(good, 4))) / 1e6
    assert found.impact_ms == pytest.approx(saved, rel=0.1)
    assert found.impact_ms == pytest.approx(measured.replay.what_if.saved_ns(REFERENCE) / 1e6, abs=1e-3)


def test_slow_links_of_several_kinds_of_parallelism_are_told_by_role():
    made = Mesh(data=2, tensor=2, layers=1, micro_batches=2).program(size=FAST)
    measured = across(simulate(made, 4, [SlowLink("tp", 20.0), SlowLink("dp", 20.0)]))
    [found] = judge_low(measured).findings
    by_role = {e.metric: e.value for e in found.evidence if e.fact is Fact.OF_ROLE}
    assert set(by_role) == {"of it tensor parallel", "of it data parallel"}
    [whole] = [e.value for e in found.evidence if e.fact is Fact.TRANSFER_OF_THEM]
    assert sum(by_role.values()) == pytest.approx(whole, abs=0.01)  # a rank is in a group of each


def test_what_faster_links_save_is_a_range_where_hosts_are_slow():
    """A profiler makes hosts slow: the same links save more of a step whose hosts launch as fast as without it."""
    made = program(ddp, replace(FAST, launch_us=45.0, kernel_us=10.0, kernels=12))
    quick = program(ddp, replace(FAST, launch_us=4.0, kernel_us=10.0, kernels=12))
    run = simulate(made, 4, [SlowLink("world", 5.0)])
    [found] = judge_low(across(run)).findings
    kept, best = ({e.fact: e.value for e in found.evidence}[fact] for fact in SAVED)
    good = replace(quick, groups=tuple(replace(groups, bandwidth_gbs=350.0) for groups in quick.groups))
    true = (true_step(run) - true_step(simulate(good, 4))) / 1e6
    assert found.impact_ms == kept < best == pytest.approx(true, rel=0.05)


def test_a_very_slow_link_is_an_error_and_a_slow_one_that_costs_nothing_a_remark():
    [found] = judge_low(across(simulate(program(ddp, FAST), 4, [SlowLink("world", 20.0)]))).findings
    assert found.severity == "error"
    compute = replace(FAST, kernel_us=20_000.0, elements=1 << 21)  # 8 MB a layer
    measured = across(simulate(program(ddp, compute), 4, [SlowLink("world", 5.0)]))
    [found] = judge_low(measured).findings
    assert found.severity == "info"


def test_latency_is_allowed_for():
    """8 MB over eight GPUs that give 480 GB/s to 256 MB: 77 us are what a healthy H100 takes."""
    measured = across(simulate(program(ddp, replace(FAST, bandwidth_gbs=140.0, elements=1 << 21)), 4))
    row = Measured("all_reduce", (0, 1, 2, 3), 1 << 28, 1.0, 480.0)
    fabric = Fabric(references=(MachineReference("host0", measured.device, "t", 0.0, (row,)),))
    held = replace(measured, fabric=fabric)
    assert held.reference((0, 1, 2, 3)).busbw_gbs == 480.0
    assert judge_low(held).findings == ()


def test_what_is_not_known_is_not_judged():
    measured = across(simulate(program(ddp, FAST), 4, [SlowLink("world", 5.0)]))
    assert "device not named" in judge_low(replace(measured, device=None)).not_evaluated
    apart = replace(measured, hosts={0: "a", 1: "a", 2: "b", 3: "b"})
    assert "2 hosts" in judge_low(apart).not_evaluated
    small = across(simulate(program(ddp, replace(FAST, elements=1 << 16)), 4))
    assert "8 MB or more" in judge_low(small).not_evaluated
    no_groups = judge_siblings(measured)
    assert "no two groups" in no_groups.not_evaluated


@pytest.mark.parametrize(("builder", "key"), [(hsdp, "shard"), (hsdp, "replicate"), (tp_dp, "tp"), (tp_dp, "dp")])
def test_one_slow_group_among_its_siblings_is_c002(builder, key):
    run = simulate(program(builder, FAST), 8, [SlowLink(key, 3.0, ranks=(5,))])
    [slow] = {c.members for c in run.collectives if c.op.group == key and 5 in c.members}
    found = judge_siblings(across(run)).findings
    assert {f.ranks for f in found} == {slow}
    assert {(f.rule, f.severity) for f in found} == {("TO-C002", "warning")}
    assert found[0].impact_ms > 0


@pytest.mark.parametrize(("builder", "key"), [(hsdp, "shard"), (tp_dp, "tp")])
def test_groups_that_are_all_slow_or_hardly_slower_are_no_c002(builder, key):
    for faults in ([], [SlowLink(key, 3.0)], [SlowLink(key, 1.6, ranks=(5,))]):
        verdict = judge_siblings(across(simulate(program(builder, FAST), 8, faults)))
        assert verdict.findings == ()
        assert verdict.clear


def test_transfers_at_the_reference_in_the_order_of_the_graph():
    measured = across(simulate(program(hsdp, FAST), 8, [SlowLink("shard", 4.0, ranks=(0,))], ranks_per_host=4))
    order = measured.replay.graph.kind
    given = reference_transfers(measured.matching, order, measured.link)
    for number, ns in zip(order, given.tolist(), strict=True):
        one = measured.matching.collectives[number]
        inside = len({measured.hosts[rank] for rank in one.group}) == 1
        if not inside:
            assert ns == one.transfer_ns
        else:
            size = collective_bytes(one) * bus_factor(one.op, len(one.group))
            assert ns == pytest.approx(20_000 + size / 350.0, abs=2)
    assert reference_transfers(measured.matching, order, lambda group: None) is None


@pytest.mark.parametrize(("late", "saves"), [((), 2.15), ((SlowCompute(2, 2.0),), 0.0)])
def test_a_slow_sibling_costs_what_its_cure_saves(late, saves):
    """It was the sum of its longer transfers: 5.46 ms of a step, beside a late rank that hides them too."""
    made = program(hsdp, FAST, sync=True)
    measured = across(simulate(made, 4, [SlowLink("shard", 8.0, (0,)), *late]))
    [found] = judge_siblings(measured).findings
    assert found.ranks == (0, 1) and found.severity == ("info" if late else "warning")
    true = true_step(simulate(made, 4, [SlowLink("shard", 8.0, (0,)), *late])) - true_step(simulate(made, 4, late))
    assert true / 1e6 == pytest.approx(saves, abs=0.01)
    assert found.impact_ms == pytest.approx(saves, abs=0.05)
    assert claim_of(found, SlowerGroup).hidden is bool(late)


def test_where_ends_do_not_fit_together_no_bandwidth_is_told(monkeypatch):
    """Rank 0 of one run beside rank 1 of another: 'move 20.1 GB/s, 5.7 % of NVLink', as an error."""
    monkeypatch.setattr(bandwidth, "ends_fit", lambda run: False)
    low, siblings, _ = bandwidth.judge(SimpleNamespace(run=SimpleNamespace(ranks=[])))
    assert all("see TO-V006" in one.not_evaluated for one in (low, siblings))


def run_of(bandwidth_gbs, faults=(), *, through_host=True):
    made = ddp(steps=4, size=Size(kernel_us=200.0, elements=1 << 21, bandwidth_gbs=bandwidth_gbs))
    return simulate(replace(made, through_host=through_host), 2, faults)


def called(trace, row):
    return trace["baseTimeNanoseconds"] + round(1000 * row["ts"]) - 2000


def told_by(tmp_path, run, gpus):
    """The report of these traces as a capture writes them, with a run.json that says which GPU each rank has."""
    for path in write_traces(run, tmp_path):
        trace = json.loads(path.read_text())
        notes = [row for row in trace["traceEvents"] if row["name"].startswith("gloo:")]
        trace[COLLECTIVES] = [
            [row["name"], "0", "default_pg", number, *2 * row["args"]["Input Dims"][0], "Float", called(trace, row)]
            for number, row in enumerate(sorted(notes, key=lambda row: row["ts"]))
        ]
        path.write_text(json.dumps(trace))
    ranks = [{"rank": rank, "device": {"type": "cuda", "uuid": gpu}} for rank, gpu in enumerate(gpus)]
    (tmp_path / "run.json").write_text(json.dumps({"world_size": 2, "ranks": ranks}))
    return analyze(tmp_path)


@pytest.mark.parametrize("faults", [(), (SlowInput(1, 5000.0),)])
def test_nccl_would_save_the_transfer(tmp_path, faults):
    report = told_by(tmp_path, run_of(4.0, faults), ("a", "b"))
    [found] = [found for found in report.findings if found.rule == "TO-C003"]
    assert found.severity == "error"
    fast = across(run_of(350.0, faults, through_host=False))
    step = report.summary.step_time_ms.typical
    assert "communication free" not in {
        row.change for row in report.what_if
    }  # hosts wait for it, nobody knows how long
    # With NCCL a host waits for no collective: it launches what comes next meanwhile, and no replay tells that.
    assert 0.4 * (step - fast.step_ms) < found.impact_ms < 1.1 * (step - fast.step_ms)
    claim = claim_of(found, ThroughHost)
    assert claim.link == "NVLink 4" and claim.then < claim.step


@pytest.mark.parametrize("gpus", [("a", "a"), ("a", None)])
def test_nothing_is_promised_of_nccl_where_ranks_share_a_gpu_or_may(tmp_path, gpus):
    report = told_by(tmp_path, run_of(4.0), gpus)
    [found] = [found for found in report.findings if found.rule == "TO-C003"]
    assert (found.severity, found.impact_ms) == ("warning", None)
    claim = claim_of(found, ThroughHost)
    assert claim.then is None and claim.shared_gpus == (gpus == ("a", "a"))
    assert "reference bandwidth" not in {row.change for row in report.what_if}


def test_a_transfer_that_computation_hides_is_clear():
    assert judge_through_host(across(run_of(1000.0))).clear


def test_nccl_goes_over_no_host():
    verdict = judge_through_host(across(run_of(4.0, through_host=False)))
    assert verdict.clear and not verdict.findings


def test_the_link_is_not_blamed_for_what_the_hosts_move():
    assert "TO-C003" in judge_low(across(run_of(4.0))).not_evaluated


def test_what_hosts_exchange_without_waiting_for_a_gpu_is_not_called_the_gpus():
    """Metrics or objects over gloo, beside GPUs that exchange nothing in the window."""
    run = across(run_of(4.0))
    own = [replace(one, summary=replace(one.summary, exchanges_of_gpu=False)) for one in run.ranks]
    verdict = judge_through_host(replace(run, ranks=tuple(own)))
    assert not verdict.findings and "the hosts' own data" in verdict.not_evaluated


def test_gpus_that_exchange_over_gloo_beside_nccl_are_no_clean_bill(tmp_path):
    """Two groups in one process: the kernel of one of them hid what the other moves through the hosts."""
    for path in write_traces(run_of(4.0), tmp_path):
        trace = json.loads(path.read_text())
        kernel = next(row for row in trace["traceEvents"] if row.get("cat") == "kernel")
        nccl = kernel | {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}
        trace["traceEvents"].append(nccl | {"tid": 99, "args": kernel["args"] | {"stream": 99}})
        path.write_text(json.dumps(trace))
    [check] = [one for one in analyze(tmp_path).checks if one.rule == "TO-C003"]
    assert check.status == "not_evaluated" and "while collectives run on the GPUs" in check.reason


def test_where_the_traces_hold_only_the_hosts_own_data_no_link_is_judged():
    """Accumulation without a synchronisation, and a metric over gloo: 'the hosts move the data'."""
    run = across(run_of(4.0))
    own = [replace(one, summary=replace(one.summary, exchanges_of_gpu=False)) for one in run.ranks]
    assert "their own data" in judge_low(replace(run, ranks=tuple(own))).not_evaluated


def test_sends_over_gloo_between_gpus_are_not_said_to_be_no_pipeline(tmp_path):
    """Nothing of them is matched, and 'no rank hands activations on to another' was a clean bill."""
    write_traces(simulate(replace(Mesh(data=1, pipeline=2).program(), through_host=True), 2), tmp_path)
    report = analyze(tmp_path)
    checks = {one.rule: one for one in report.checks}
    assert report.summary.matching.events == 0
    assert all("over gloo is not matched" in checks[rule].reason for rule in ("TO-B001", "TO-B002", "TO-B003"))
