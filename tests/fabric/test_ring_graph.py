"""TO-P006: NCCL's rings against the links that join their GPUs, from XML and logs in any mixture."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed import replace

from traceops.core.claims import claim_of
from traceops.doctor.checkup import check_files
from traceops.fabric.discover import named_fabric
from traceops.fabric.fabric import Circumstances, Fabric
from traceops.fabric.model import Gpu, Machine, Pcie, Quote
from traceops.fabric.model import Path as Way
from traceops.fabric.nccl import Communicator, GraphBandwidth, NcclLog, NcclSetting, RankPlace
from traceops.fabric.reference import ring_limit
from traceops.render.doctor.text import doctor_verdict
from traceops.rules.fabric.claims import Rings
from traceops.rules.fabric.graph import judge_graph

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
