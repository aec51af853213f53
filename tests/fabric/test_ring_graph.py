"""TO-P006 and who talks to whom: NCCL's rings against the links that join their GPUs, from any mixture of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed import replace

from traceops.core.claims import claim_of
from traceops.doctor.checkup import check_files
from traceops.fabric.discover import named_fabric, run_fabric
from traceops.fabric.fabric import Circumstances, Fabric
from traceops.fabric.model import Gpu, Machine, Pcie, Quote
from traceops.fabric.model import Path as Way
from traceops.fabric.nccl import Communicator, GraphBandwidth, NcclLog, NcclSetting, RankPlace
from traceops.fabric.read import merge_machines
from traceops.fabric.readers.nccl_log import read_nccl_log
from traceops.fabric.reference import ring_limit
from traceops.fabric.talks import RankGpus
from traceops.fabric.to_json import alike_connections
from traceops.render.doctor.text import doctor_verdict
from traceops.rules.fabric.claims import Rings
from traceops.rules.fabric.graph import judge_graph
from traceops.rules.fabric.judge import RULES, judge_fabric

DATA = Path(__file__).parents[1] / "data"
H200 = DATA / "topology" / "h200x4_nccl_2.28.xml"
GRAPHS = DATA / "topology" / "h200x4_graphs_nccl_2.28.xml"


def machine(links, *, gbs=25.0, total=None, host=None, **gpu):
    """GPUs joined as {(0, 1): 12}; total: NVLinks of each."""
    count = 1 + max(max(pair) for pair in links)
    gpus = tuple(Gpu(i, nvlinks=total, nvlink_gbs=gbs, **gpu) for i in range(count))
    quote = Quote("topo.xml", 3, "<nvlink/>")
    paths = {(f"GPU{a}", f"GPU{b}"): Way("NV", n, quote=quote) for (a, b), n in links.items()}
    return Machine(host, gpus, (), paths)


def graph(channels, gbs, devices=(0, 1), *, leaves=False, kind="NVL"):
    """A ring graph of that many channels of `gbs` each, as NCCL's XML has it."""
    quote = Quote("graph.xml", 2, "<graph/>")
    return GraphBandwidth(4, channels, channels * gbs, channels * gbs, kind, "PIX", quote, tuple(devices), leaves)


def judged(host, *graphs, log=None):
    return judge_graph(Fabric((host,), log, graphs=graphs), Circumstances())


def told(host, *graphs, log=None):
    return [found.facts for found in judged(host, *graphs, log=log).findings]


PAIR = machine({(0, 1): 12}, total=12)
SWITCHED = machine({(a, b): 12 for a in range(4) for b in range(a + 1, 4)}, total=12)
MESH = machine({(a, b): 4 for a in range(4) for b in range(a + 1, 4)}, total=12)
ISLANDS = machine({(0, 1): 12, (2, 3): 12}, total=12)
CUBE_SIDE = machine({(0, 1): 2, (1, 2): 2, (2, 3): 2, (0, 3): 2}, total=6)


@pytest.mark.parametrize(
    ("host", "limit"), [(PAIR, 240.0), (SWITCHED, 240.0), (MESH, 240.0), (CUBE_SIDE, 80.0), (ISLANDS, None)]
)
def test_the_limit_of_rings_is_that_of_the_links_as_nccl_counts_them(host, limit):
    found = ring_limit(host, host.gpus)
    assert (None if found is None else found.gbs) == limit


def test_a_switch_seen_without_the_number_of_its_links_is_taken_for_the_least_it_may_be():
    unknown = machine({(a, b): 6 for a in range(3) for b in range(a + 1, 3)})
    assert ring_limit(unknown, unknown.gpus).gbs == 120.0


def test_a_matrix_without_a_rate_counts_the_slowest_nvlink_there_is():
    of_a_server, of_a_bridge = machine({(0, 1): 18}, gbs=None), machine({(0, 1): 4}, gbs=None)
    assert ring_limit(of_a_server, of_a_server.gpus).gbs == 18 * 18.0
    assert ring_limit(of_a_bridge, of_a_bridge.gpus).gbs == 4 * 12.0


def test_twenty_of_240_is_a_finding_with_what_it_rests_on():
    [found] = judged(PAIR, graph(1, 20.0)).findings
    assert found.severity == "warning"
    assert claim_of(found, Rings) == Rings(
        gpus=2, gbs=20.0, pct=pytest.approx(8.33, abs=0.01), limit=240.0, channels=1, links="NVLinks", per_gpu=12
    )
    assert {(one.file, one.line) for one in found.evidence if one.file} == {("graph.xml", 2), ("topo.xml", 3)}


@pytest.mark.parametrize(("channels", "fires"), [(12, False), (8, False), (6, True), (2, True)])
def test_fewer_channels_than_the_links_allow(channels, fires):
    assert bool(told(SWITCHED, graph(channels, 20.0, range(4)))) is fires


def test_rings_that_leave_the_links_for_the_processors_link():
    [facts] = told(PAIR, graph(2, 5.0, kind="SYS"))
    assert (facts["channels"], facts["over"]) == (2, "SYS")


def test_gpus_that_are_joined_two_by_two_are_not_held_to_their_bridges():
    verdict = judged(ISLANDS, graph(2, 12.0, range(4), kind="SYS"))
    assert not verdict.findings
    assert "not all joined by links of their own" in verdict.not_evaluated


def test_where_some_pairs_have_no_link_only_a_third_of_the_narrowest_cut_is_asked_for():
    assert not told(CUBE_SIDE, graph(2, 20.0, range(4)))
    assert told(CUBE_SIDE, graph(1, 20.0, range(4)))


def test_rings_between_hosts_are_not_judged_by_links():
    verdict = judged(PAIR, graph(1, 20.0, leaves=True))
    assert not verdict.findings
    assert "leave the host" in verdict.not_evaluated


def test_what_would_make_it_judgeable_is_said():
    assert "NCCL_GRAPH_DUMP_FILE" in judged(PAIR).not_evaluated
    bare = judge_graph(Fabric(graphs=(graph(1, 20.0),)), Circumstances())
    assert "NCCL_TOPO_DUMP_FILE" in bare.not_evaluated
    other = judged(PAIR, graph(1, 20.0, devices=(4, 5)))
    assert "NCCL_TOPO_DUMP_FILE" in other.not_evaluated


def test_gpus_at_one_pcie_switch_are_judged_where_the_rings_stay_there():
    link = Pcie(most_generation=4, most_width=16)
    gpus = tuple(Gpu(i, pcie=link) for i in range(2))
    host = Machine(None, gpus, (), {("GPU0", "GPU1"): Way("PIX")})
    assert not told(host, graph(1, 24.0, kind="PIX"))
    assert told(host, graph(1, 3.0, kind="PIX"))[0]["links"] == "PCIe links"
    assert judged(host, graph(1, 3.0, kind="PHB")).not_evaluated  # without P2P: its own cause


def log(channels, gbs, used=None, settings=(), hosts=("a", "a")):
    places = {rank: RankPlace(rank, host, 7 + rank, nvml_device=rank) for rank, host in enumerate(hosts)}
    ring = replace(graph(channels, gbs), devices=(), leaves_host=None)
    made = Communicator("c", len(hosts), places, graphs=(ring,), coll_channels=used)
    return NcclLog(("nccl.log",), communicators=(made,), settings=tuple(settings))


def test_a_graph_in_a_log_is_placed_by_its_ranks_beside_a_topology_without_a_host():
    assert told(PAIR, log=log(1, 20.0))[0]["pct"] == pytest.approx(8.33, abs=0.01)
    assert not told(PAIR, log=log(12, 20.0))
    assert "leave the host" in judged(PAIR, log=log(1, 20.0, hosts=("a", "b"))).not_evaluated


def test_channels_that_a_setting_took_away_are_named_with_it():
    setting = NcclSetting(
        "NCCL_MAX_NCHANNELS", "2", Quote("nccl.log", 5, "NCCL_MAX_NCHANNELS set by environment to 2.")
    )
    [facts] = told(PAIR, log=log(12, 20.0, used=2, settings=[setting]))
    assert (facts["gbs"], facts["channels"], facts["found"]) == (40.0, 2, 12)
    assert facts["settings"] == ["NCCL_MAX_NCHANNELS was set to 2"]


def test_more_channels_than_the_search_found_are_its_channels_split():
    assert not told(PAIR, log=log(12, 20.0, used=24))


def edited(tmp_path, source, *changes):
    text = source.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / source.name
    path.write_text(text)
    return path


def test_four_h200_and_their_graph_are_clear_and_an_altered_one_is_not(tmp_path):
    whole = judge_graph(named_fabric([H200, GRAPHS]), Circumstances())
    assert whole.clear == "NCCL's rings plan for 360 of 360 GB/s that the links give"
    few = edited(
        tmp_path, GRAPHS, ('pattern="4" crossnic="0" nchannels="12"', 'pattern="4" crossnic="0" nchannels="2"')
    )
    [found] = judge_graph(named_fabric([H200, few]), Circumstances()).findings
    claim = claim_of(found, Rings)
    assert claim and (claim.gbs, claim.channels, claim.limit, claim.per_gpu) == (60.0, 2, 360.0, 18)


TWO = """<system version="1"><cpu numaid="0" arch="x86_64">
<pci busid="0000:17:00.0" class="0x030200"><gpu dev="0" {gpu} rank="0">
<{kind} target="0000:65:00.0" count="{there}" tclass="{end}"/>
</gpu></pci>
<pci busid="0000:65:00.0" class="0x030200"><gpu dev="1" {gpu} rank="1">
<{kind} target="0000:17:00.0" count="{back}" tclass="{end}"/>
</gpu></pci></cpu></system>
"""


def two(tmp_path, there, back, kind="nvlink", gpu='sm="80"', end="0x030200"):
    path = tmp_path / "topo.xml"
    path.write_text(TWO.format(there=there, back=back, kind=kind, gpu=gpu, end=end))
    return named_fabric([path])


@pytest.mark.parametrize(("there", "back"), [(12, 1), (1, 12)])
def test_links_that_are_fewer_one_way_are_a_finding(tmp_path, there, back):
    fabric = two(tmp_path, there, back)
    wide, narrow = ("GPU0", "GPU1") if there > back else ("GPU1", "GPU0")
    [found] = judge_graph(fabric, Circumstances()).findings
    assert found.facts == {"links": "NVLinks", "count": 1, "pairs": [f"12 from {wide} to {narrow}, 1 back"]}
    planned = replace(fabric, graphs=(graph(1, 20.0),))  # one cause, one finding
    [both] = judge_graph(planned, Circumstances()).findings
    assert both.facts["planned"] == 20.0


def test_links_that_are_alike_both_ways_are_not(tmp_path):
    assert not judge_graph(two(tmp_path, 12, 12), Circumstances()).findings


def test_xgmi_counts_as_rccl_counts_it(tmp_path):
    [host] = two(tmp_path, 1, 1, "xgmi", 'sm="94" gcn="gfx942"', "0x038000").machines
    assert ring_limit(host, host.gpus).gbs == 48.0
    [old] = two(tmp_path, 4, 4, "xgmi", 'sm="90" gcn="910"', "0x038000").machines
    assert ring_limit(old, old.gpus).gbs == 144.0


SYSTEM = """a:7:9 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 17000 commId 0x5 - Init START
a:7:10 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 65000 commId 0x5 - Init START
a:7:9 [0] NCCL INFO === System : maxBw 240.0 totalBw 240.0 ===
a:7:9 [0] NCCL INFO CPU/0-0 (1/1/2)
a:7:9 [0] NCCL INFO + PCI[24.0] - GPU/0-17000 (0)
a:7:9 [0] NCCL INFO               + NVL[{there}] - GPU/0-65000
a:7:9 [0] NCCL INFO + PCI[24.0] - GPU/0-65000 (1)
a:7:9 [0] NCCL INFO               + NVL[{back}] - GPU/0-17000
a:7:9 [0] NCCL INFO ==========================================
a:7:9 [0] NCCL INFO Pattern 4, crossNic 0, nChannels {channels}, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1
a:7:9 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 17000 commId 0x5 - Init COMPLETE
a:7:10 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 65000 commId 0x5 - Init COMPLETE
"""


@pytest.mark.parametrize(
    ("there", "back", "channels", "facts"),
    [
        ("240.0", "240.0", 12, []),
        ("240.0", "240.0", 1, [("limit", 240.0)]),
        ("20.0", "240.0", 1, [("pairs", ["240 GB/s from GPU1 to GPU0, 20 back"])]),
    ],
)
def test_a_log_alone_tells_both(tmp_path, there, back, channels, facts):
    path = tmp_path / "nccl.log"
    path.write_text(SYSTEM.format(there=there, back=back, channels=channels))
    verdict = judge_graph(named_fabric([path]), Circumstances())
    assert [found.facts[name] for (name, _), found in zip(facts, verdict.findings, strict=True)] == [
        value for _, value in facts
    ]
    assert bool(verdict.clear) is not bool(facts)


def test_rings_slower_than_any_link_are_named_without_a_topology():
    slow = judge_graph(Fabric(graphs=(graph(1, 3.0, kind="SYS"),)), Circumstances())
    [found] = slow.findings
    assert found.facts == {"gbs": 3.0, "slowest": 12.0, "channels": 1, "over": "SYS"}
    assert judge_graph(Fabric(graphs=(graph(6, 22.0),)), Circumstances()).not_evaluated


def test_a_graph_alone_gets_no_clean_bill():
    said = doctor_verdict(check_files([str(GRAPHS)])).sentence
    assert said.startswith("Nothing could be judged: nothing shows how fast the links between the GPUs")


H100 = "NVIDIA H100 80GB HBM3"
MATRIX = """\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\tX\tNV18\tPIX\tSYS\t0-31\t0\t\tN/A
GPU1\tNV18\tX\tSYS\tPIX\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\tX\tSYS
NIC1\tSYS\tPIX\tSYS\tX
NIC Legend:
  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def log_of(hosts: tuple[str, str], proxied: bool) -> str:
    """Two hosts of two GPUs, a NIC near each: the ring leaves rank 0's host from GPU1 through GPU0's NIC."""
    lines = []
    for rank in range(4):
        host, gpu = hosts[rank // 2], rank % 2
        head = f"{host}:{100 + rank}:{200 + rank} [{gpu}] NCCL INFO"
        start = f"comm 0x{rank + 1}00 rank {rank} nranks 4 cudaDev {gpu} nvmlDev {gpu} busId {gpu + 1}b000 commId 0xabc"
        proxy = f"({rank - 1})" if proxied else ""
        lines += [
            f"{head} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            f"{head} Using network IB",
            f"{head} ncclCommInitRankConfig {start} - Init START",
        ]
        if gpu == 0:
            lines.append(f"{head} Channel 00/0 : {rank}[0] -> {rank + 1}[1] via P2P/CUMEM")
        else:
            to = (rank + 1) % 4
            lines.append(
                f"{head} Channel 00/0 : {rank}[1] -> {to}[0] [send] via NET/IB/0{proxy}{'/GDRDMA' if proxied else ''}"
            )
        lines.append(f"{head} ncclCommInitRankConfig {start} - Init COMPLETE")
    return "\n".join(lines)


def fired(folder, *, hosts=("a", "b"), proxied=True, matrix=MATRIX):
    (folder / "log.txt").write_text(log_of(hosts, proxied))
    (folder / "topo.txt").write_text(matrix)
    fabric = named_fabric([folder])
    found = judge_fabric(fabric, Circumstances(device=H100))
    assert {verdict.rule for verdict in found} == {rule.id for rule in RULES}
    return fabric, {v.rule: [(f.severity, f.facts) for f in v.findings] for v in found if v.findings}


def test_who_sends_for_another_uses_the_nic_near_itself(tmp_path):
    assert fired(tmp_path)[1] == {}
    far = fired(tmp_path, proxied=False)[1]["TO-P004"]  # PXN off: now it is GPU1 that goes to GPU0's NIC
    assert [severity for severity, _ in far] == ["warning"]
    facts = far[0][1]
    assert (facts["gpu"], facts["does"], facts["nic"], facts["path"]) == ("GPU1", "sends", "NIC0 (mlx5_0)", "SYS")


def test_two_hosts_of_one_name_are_two(tmp_path):
    fabric, found = fired(tmp_path, hosts=("localhost", "localhost"))
    assert found == {}
    within = {kind.transport: kind.within_host for kind in alike_connections(fabric.log.communicators)}
    assert within == {"P2P": True, "NET": False}


def test_hosts_of_one_name_in_a_cut_log_are_not_taken_for_one(tmp_path):
    """Lines from the middle of a log: nothing says how many hosts are called localhost."""
    way = "Channel 00/0 : {}[{}] -> {}[{}] [send] via NET/Socket/0"
    ranks = ((7, 7, 8, 0), (8, 0, 9, 1))
    (tmp_path / "log.txt").write_text(
        "\n".join(f"localhost:{ends[0]}:9 [{ends[1]}] NCCL INFO {way.format(*ends)}" for ends in ranks)
    )
    found = [f for verdict in judge_fabric(named_fabric([tmp_path])) for f in verdict.findings]
    assert [(f.rule, f.severity) for f in found] == [("TO-P003", "info")]


def test_a_host_with_its_domain_is_the_one_without(tmp_path):
    named = "".join(f"{host}.cluster.example: {line}\n" for host in "ab" for line in MATRIX.splitlines() if line)
    [(_, facts)] = fired(tmp_path, matrix=named, proxied=False)[1]["TO-P004"]
    assert (facts["gpu"], facts["hosts"]) == ("GPU1", "a.cluster.example, b.cluster.example")


def test_a_near_nic_that_nccl_does_not_list_may_be_down(tmp_path):
    text = log_of(("a", "b"), False).replace(" [1]mlx5_1:1/IB", "")
    for chosen, severity in (("", "info"), ("a:100:200 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n", "warning")):
        (tmp_path / "log.txt").write_text(chosen + text)
        (tmp_path / "topo.txt").write_text(MATRIX)
        [found] = [f for v in judge_fabric(named_fabric([tmp_path])) for f in v.findings]
        assert (found.rule, found.severity) == ("TO-P004", severity)
        assert ("usable" not in found.facts) is (severity == "info")


def test_machines_that_are_alike_are_one_finding(tmp_path):
    matrix = MATRIX.replace("NV18", "SYS").splitlines()
    (tmp_path / "topo.txt").write_text("".join(f"n{number}: {line}\n" for number in range(20) for line in matrix))
    [found] = [f for v in judge_fabric(named_fabric([tmp_path])) for f in v.findings]
    assert found.facts["gpus"] == "GPU0 and GPU1 on n0, n1, n2 and 17 more hosts"


@pytest.mark.parametrize("other", ["eth0", "bond0"])
def test_the_port_of_another_network_is_no_nearer_nic(tmp_path, other):
    only = MATRIX.replace("NIC1: mlx5_1", f"NIC1: {other}")
    assert "TO-P004" not in fired(tmp_path, matrix=only, proxied=False)[1]


def test_of_two_runs_in_one_log_the_last_counts(tmp_path):
    slow = log_of(("a", "b"), True).replace("P2P/CUMEM", "SHM/direct/direct")
    again = log_of(("a", "b"), True).replace(":10", ":90").replace("0xabc", "0xdef")
    folder = tmp_path / "log"
    folder.mkdir()
    for text, rules in ((f"{slow}\n{again}", []), (f"{again}\n{slow}", ["TO-P002"])):
        (folder / "log.txt").write_text(text)
        found = judge_fabric(named_fabric([folder]), Circumstances(device=H100))
        assert [verdict.rule for verdict in found if verdict.findings] == rules


@pytest.mark.parametrize(
    ("way", "clear"),
    [
        ("P2P/CUMEM", "GPUs of one host talk by P2P/CUMEM"),
        ("SHM/direct/direct", "GPUs of one host talk by SHM/direct"),
        ("P2P/MNNVL", ""),
    ],
)
def test_one_rank_of_a_log_tells_what_stays_inside(tmp_path, way, clear):
    """One process's file, or what Ray says once for all workers."""
    lines = log_of(("a", "b"), True).splitlines()[:5]
    (tmp_path / "log.txt").write_text("\n".join(lines).replace("P2P/CUMEM", way))
    verdict = {each.rule: each for each in judge_fabric(named_fabric([tmp_path]))}["TO-P002"]
    assert (verdict.clear or "") == clear


def test_a_matrix_without_the_gpus_that_ranks_run_on_is_of_another_machine(tmp_path):
    (tmp_path / "log.txt").write_text(log_of(("a", "a"), True).replace("nvmlDev ", "nvmlDev 4"))
    (tmp_path / "topo.txt").write_text(MATRIX.replace("NV18", "SYS"))
    fabric = named_fabric([tmp_path])
    [found] = [f for verdict in judge_fabric(fabric) for f in verdict.findings]
    assert found.rule == "TO-P001"
    assert "took" not in found.facts


def test_what_goes_to_a_switch_of_the_network_leaves_the_host(tmp_path):
    head = "a:100:200 [0] NCCL INFO"
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "log.txt").write_text(
        f"{log_of(('a', 'b'), True)}\n{head} CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA"
    )
    clear = {verdict.rule: verdict.clear for verdict in judge_fabric(named_fabric([folder]))}
    assert clear["TO-P002"] == "GPUs of one host talk by P2P/CUMEM"
    assert clear["TO-P003"] == "between ranks NCCL goes over COLLNET/SHARP, NET/IB"


def groups_of_two(*, with_world: bool) -> str:
    """Four GPUs of one host in two groups of two, the second over host memory; with the group of all, or without."""
    lines = []
    for rank in range(4):
        head = f"a:{100 + rank}:{200 + rank} [{rank}] NCCL INFO"
        where = f"cudaDev {rank} nvmlDev {rank} busId {rank + 1}b000"
        if with_world:
            world = f"comm 0x{rank + 1}00 rank {rank} nranks 4 {where} commId 0xa"
            lines += [f"{head} {world} - Init START", f"{head} {world} - Init COMPLETE"]
        own, other, way = rank % 2, 1 - rank % 2, ("P2P/CUMEM", "SHM/direct/direct")[rank // 2]
        devices = rank, rank - own + other
        small = f"comm 0x{rank + 1}01 rank {own} nranks 2 {where} commId 0xb{rank // 2}"
        lines += [
            f"{head} {small} - Init START",
            f"{head} Channel 00/0 : {own}[{devices[0]}] -> {other}[{devices[1]}] via {way}",
            f"{head} {small} - Init COMPLETE",
        ]
    return "\n".join(lines)


@pytest.mark.parametrize(("with_world", "ranks"), [(True, (2, 3)), (False, ())])
def test_ranks_of_small_groups_are_named_as_ranks_of_the_job(tmp_path, with_world, ranks):
    (tmp_path / "log.txt").write_text(groups_of_two(with_world=with_world))
    [found] = [f for v in judge_fabric(named_fabric([tmp_path]), Circumstances(device=H100)) for f in v.findings]
    assert (found.rule, found.ranks) == ("TO-P002", ranks)
    assert found.evidence[0].value == 1
    assert found.evidence[0].unit == "of 2"


# Two pairs of GPUs, each with its NIC: NVIDIA/nccl issue 2345.
TWO_GPUS = """\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1
GPU0\tX\tNV18\tSYS\tSYS\tPIX\tSYS
GPU1\tNV18\tX\tSYS\tSYS\tPIX\tSYS
GPU2\tSYS\tSYS\tX\tNV18\tSYS\tPIX
GPU3\tSYS\tSYS\tNV18\tX\tSYS\tPIX
NIC Legend:
  NIC0: mlx5_0
  NIC1: mlx5_1
"""
BUSES = ("17000", "2a000", "b8000", "cb000")


def lines(host: str, first: int, buses, ways=(), numbers=None, size: int = 8) -> str:
    """The log of a host's ranks, `first` and following. ways: what a rank says of a connection."""
    said = []
    for at, bus in enumerate(buses):
        number = at if numbers is None else numbers[at]
        head = f"{host}:{100 + at}:{200 + at} [{number}] NCCL INFO"
        device = f"cudaDev {number} nvmlDev {number} busId {bus}"
        start = f"comm 0x{at + 1}00 rank {first + at} nranks {size} {device} commId 0xabc"
        said += [
            f"{head} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            f"{head} Using network IB",
            f"{head} ncclCommInitRankConfig {start} - Init START",
            *(f"{head} Channel 00/0 : {way}" for rank, way in ways if rank == first + at),
            f"{head} ncclCommInitRankConfig {start} - Init COMPLETE",
        ]
    return "\n".join(said) + "\n"


def judged_fabric(folder, log: str, matrix: str = TWO_GPUS):
    (folder / "log.txt").write_text(log)
    (folder / "topo.txt").write_text(matrix)
    return {verdict.rule: verdict for verdict in judge_fabric(named_fabric([folder]))}["TO-P004"]


def test_what_a_run_saved_of_its_host_is_one_machine_with_what_its_ranks_say(tmp_path):
    """Two ranks on a host of four: beside them nvidia-smi counts as NVML does, in a container and under Slurm too."""
    evidence = tmp_path / "run" / "evidence"
    evidence.mkdir(parents=True)
    (evidence / "topo.a.txt").write_text(TWO_GPUS)
    (evidence / "nccl.a.100.log").write_text(lines("a", 0, BUSES[2:], numbers=(2, 3), size=2))
    apart = run_fabric(str(tmp_path / "run"))
    assert [(machine.host, len(machine.gpus)) for machine in apart.machines] == [(None, 4)]
    (tmp_path / "run" / "run.json").write_text("{}")
    [machine] = run_fabric(str(tmp_path / "run")).machines
    assert machine.host == "a"
    assert [gpu.bus_id for gpu in machine.gpus] == [None, None, "0000:b8:00.0", "0000:cb:00.0"]
    other = lines("a", 0, BUSES[:2], numbers=(2, 3), size=2).replace("0xabc", "0xdef")  # of another job
    (evidence / "nccl.a.300.log").write_text(other)
    [machine] = run_fabric(str(tmp_path / "run")).machines
    assert machine.host == "a" and not any(gpu.bus_id for gpu in machine.gpus)


def test_number_0_of_a_part_of_a_host_is_any_of_its_gpus(tmp_path):
    """NVIDIA/nccl-tests issue 311: Slurm gave the job two of eight GPUs; GPU0 was said to be far from its NIC."""
    ways = [(0, "0[0] -> 4[0] [send] via NET/IB/1")]
    verdict = judged_fabric(tmp_path, lines("a", 0, BUSES[2:], ways))
    assert verdict.findings == () and "has no bus ids" in verdict.not_evaluated
    [found] = judged_fabric(tmp_path, lines("a", 0, BUSES, ways)).findings  # all four, in order
    facts = found.facts
    assert (facts["gpu"], facts["does"], facts["nic"], facts["path"]) == ("GPU0", "sends", "NIC1 (mlx5_1)", "SYS")


@pytest.mark.parametrize(
    ("buses", "numbers"),
    [
        (BUSES[::-1], None),  # CUDA_DEVICE_ORDER, or a container that has them in another order
        (BUSES, (0, 0, 0, 0)),  # each in a container of its own
        ((*BUSES[:3], BUSES[0]), None),
        (BUSES, (0, 1, 2, 4)),
    ],
)
def test_numbers_that_are_not_those_of_the_matrix_say_nothing(tmp_path, buses, numbers):
    verdict = judged_fabric(tmp_path, lines("a", 0, buses, [(0, "0[0] -> 4[0] [send] via NET/IB/1")], numbers))
    assert verdict.findings == () and verdict.not_evaluated


def test_cudas_number_of_old_nccl_says_nothing_by_itself():
    machine = Machine("a", tuple(Gpu(index) for index in range(2)))

    def known(**fields):
        places = {rank: RankPlace(rank, "a", 7 + rank, cuda_device=rank) for rank in range(2)}
        places = {rank: replace(place, **{k: v[rank] for k, v in fields.items()}) for rank, place in places.items()}
        log = NcclLog(("log",), communicators=(Communicator("c", 2, places),))
        return [RankGpus(log).gpu(machine, place) for place in places.values()]

    buses = ("0000:17:00.0", "0000:65:00.0")
    assert known() == [None, None]
    assert known(bus_id=buses) == list(machine.gpus)
    assert known(bus_id=buses[::-1]) == [None, None]
    assert known(nvml_device=(0, 1)) == list(machine.gpus)


def test_a_machine_with_other_bus_ids_is_another_one():
    machine = Machine("a", (Gpu(0, bus_id="0000:17:00.0"),))
    place = RankPlace(0, "a", 7, nvml_device=0, bus_id="0000:65:00.0")
    log = NcclLog(("log",), communicators=(Communicator("c", 1, {0: place}),))
    assert RankGpus(log).gpu(machine, place) is None


def test_direct_rdma_to_a_far_nic_says_that_the_matrix_is_of_other_gpus(tmp_path):
    log = lines("a", 0, BUSES, [(0, "0[0] -> 4[0] [send] via NET/IB/1/GDRDMA")])
    verdict = judged_fabric(tmp_path, log)
    assert verdict.findings == () and "the topology is of other GPUs" in verdict.not_evaluated
    asked = "a:100:200 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to SYS\n"
    assert len(judged_fabric(tmp_path, asked + log).findings) == 1


def test_a_receivers_nic_is_not_the_senders(tmp_path):
    """Only the receiver's line is there: its NIC is near its own GPU, and of the sender's nothing is told."""
    ways = [(4, "3[3] -> 4[0] [receive] via NET/IB/0")]
    verdict = judged_fabric(tmp_path, lines("a", 0, BUSES) + lines("b", 4, BUSES, ways))
    assert verdict.findings == () and verdict.clear.startswith("all NICs in use whose place is known (by 1 connection)")
    [connection] = read_nccl_log([str(tmp_path / "log.txt")]).communicators[0].connections
    assert (connection.source, connection.at_device, connection.of_receiver) == (3, 4, True)
    far = [(4, "3[3] -> 4[0] [receive] via NET/IB/1")]
    [found] = judged_fabric(tmp_path, lines("a", 0, BUSES) + lines("b", 4, BUSES, far)).findings
    facts = found.facts
    assert (facts["gpu"], facts["does"], facts["nic"], facts["path"]) == ("GPU0", "receives", "NIC1 (mlx5_1)", "SYS")
    assert found.ranks == (4,)


def test_a_topology_of_a_part_of_a_host_lends_its_bus_ids_to_no_row_of_the_whole():
    """NCCL's own, of a job with two of four GPUs, counts from 0, too."""
    matrix = Machine(None, tuple(Gpu(index) for index in range(4)), paths={("GPU0", "GPU1"): Way("NV", 18)})
    of_job = Machine("a", (Gpu(0, bus_id="0000:b8:00.0"), Gpu(1, bus_id="0000:cb:00.0")))
    assert len(merge_machines([matrix, of_job])) == 2
    whole = tuple(Gpu(index, bus_id=f"0000:{index + 1:02x}:00.0") for index in range(4))
    [one] = merge_machines([matrix, replace(of_job, gpus=whole)])
    assert [gpu.bus_id for gpu in one.gpus] == [gpu.bus_id for gpu in whole]
    assert (
        len(merge_machines([matrix, replace(of_job, gpus=tuple(replace(gpu, index=3 - gpu.index) for gpu in whole))]))
        == 2
    )


def test_links_between_all_gpus_are_known_whichever_a_job_has(tmp_path):
    nvlink = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "".join(
        f"GPU{one}\t" + "\t".join("X" if one == other else "NV18" for other in range(4)) + "\n" for one in range(4)
    )
    ways = [(0, "0[0] -> 1[1] via SHM/direct/direct"), (1, "1[1] -> 0[0] via SHM/direct/direct")]
    (tmp_path / "log.txt").write_text(lines("a", 0, BUSES[2:], ways, size=2))
    (tmp_path / "topo.txt").write_text(nvlink)
    [found] = [f for v in judge_fabric(named_fabric([tmp_path])) for f in v.findings if f.rule == "TO-P002"]
    assert found.facts["has"] == "nvlink"


def test_a_log_that_tells_of_other_connections_is_not_asked_for(tmp_path):
    """NVIDIA/nccl issue 2345 has one rank's lines of the network: 'NCCL's log would say which way it takes'."""
    (tmp_path / "log.txt").write_text(lines("a", 0, BUSES[:1], [(0, "7[3] -> 0[0] [receive] via NET/IB/1")]))
    (tmp_path / "topo.txt").write_text(TWO_GPUS)
    [found] = [f for v in judge_fabric(named_fabric([tmp_path])) for f in v.findings]
    assert (found.rule, found.facts["way"]) == ("TO-P001", "not_logged")
