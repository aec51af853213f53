"""TO-P001 to TO-P005 from small fabrics written by hand: each fires for its cause and for nothing else."""

import pytest
from changed import replace

from traceops.core.claims import claim_of
from traceops.fabric.discover import named_fabric
from traceops.fabric.fabric import Circumstances, Fabric
from traceops.fabric.model import Gpu, Machine, Measured, Nic, Path, Pcie, Quote
from traceops.fabric.nccl import Communicator, Connection, NcclLog, NcclSetting, Network, NetworkEvent, RankPlace
from traceops.rules.fabric.claims import AcrossNuma, FarNic, UnusedLinks
from traceops.rules.fabric.judge import RULES, judge_fabric
from traceops.rules.fabric.paths import _listed


def quote(text, line=1, path="nccl.log"):
    return Quote(path, line, text)


def machine(kinds, *, numa=(), nics=(), host="a", **fields):
    """Machine of GPUs with paths {(0, 1): ("NV", 18), (0, "NIC0"): "SYS"}."""
    labels = [key if isinstance(key, str) else f"GPU{key}" for pair in kinds for key in pair]
    count = 1 + max(int(label[3:]) for label in labels if label.startswith("GPU"))
    gpus = tuple(Gpu(i, **{"name": "NVIDIA L4", "numa": numa[i] if numa else None} | fields) for i in range(count))
    paths = {}
    for pair, kind in kinds.items():
        one, other = (key if isinstance(key, str) else f"GPU{key}" for key in pair)
        name, links = kind if isinstance(kind, tuple) else (kind, None)
        paths[one, other] = Path(name, links, quote=quote(f"{one} {other} {name}", path="topo.txt"))
    return Machine(host, gpus, tuple(nics), paths)


def log(connections, places=("a", "a"), **fields):
    """A log of one communicator; connections as (source, destination, transport, detail, device)."""
    made = tuple(
        Connection(s, d, transport, detail, 2, quote(f"{s} -> {d} via {transport}/{detail}", number), device)
        for number, (s, d, transport, detail, device) in enumerate(connections, 1)
    )
    ranks = {
        rank: RankPlace(rank, host, 100 + rank, nvml_device=places[:rank].count(host))
        for rank, host in enumerate(places)
    }
    return NcclLog(("nccl.log",), communicators=(Communicator("c", len(places), ranks, made),), **fields)


def verdicts(fabric, circumstances=None):
    return {verdict.rule: verdict for verdict in judge_fabric(fabric, circumstances)}


def fired(fabric, circumstances=None):
    return {
        rule: [found.severity for found in verdict.findings]
        for rule, verdict in verdicts(fabric, circumstances).items()
        if verdict.findings
    }


NVLINK = machine({(0, 1): ("NV", 18)}, name="NVIDIA H200")
BOTH_WAYS = [(0, 1, "P2P", "CUMEM", None), (1, 0, "P2P", "CUMEM", None)]
BY_SHM = [(0, 1, "SHM", "direct", None), (1, 0, "SHM", "direct", None)]
BY_SOCKET = [(0, 1, "NET", "Socket", 0), (1, 0, "NET", "Socket", 0)]
NO_P2P = NcclSetting("NCCL_P2P_DISABLE", "1", quote("NCCL_P2P_DISABLE set by environment to 1", 9))


def test_without_evidence_nothing_is_judged_and_that_is_said():
    for fabric in (None, Fabric()):
        for verdict in judge_fabric(fabric):
            assert not verdict.findings
            assert "nvidia-smi topo -m" in verdict.not_evaluated
    assert tuple(verdicts(None)) == tuple(rule.id for rule in RULES)


def test_a_healthy_host_on_nvlink_has_no_finding():
    known = verdicts(Fabric((NVLINK,), log(BOTH_WAYS)))
    assert not any(verdict.findings for verdict in known.values())
    assert known["TO-P002"].clear == "GPUs of one host talk by P2P/CUMEM"
    assert known["TO-P001"].clear
    assert known["TO-P003"].clear


def test_shared_memory_beside_nvlink_is_a_lost_link_with_the_lines_that_prove_it():
    found = verdicts(Fabric((NVLINK,), log(BY_SHM, settings=(NO_P2P,))))["TO-P002"].findings
    assert [f.severity for f in found] == ["warning"]
    assert found[0].ranks == (0, 1)
    claim = claim_of(found[0], UnusedLinks)
    assert claim and (claim.has, claim.because, claim.settings) == ("nvlink", "set", ("NCCL_P2P_DISABLE was set to 1",))
    lines = {(e.file, e.line) for e in found[0].evidence if e.line}
    assert {("nccl.log", 1), ("nccl.log", 9), ("topo.txt", 1)} <= lines


def test_the_cost_and_weight_of_a_lost_link_come_from_the_traces():
    circumstances = Circumstances("NVIDIA H200", slow="error", lost_ms=12.5)
    found = verdicts(Fabric((), log(BY_SHM)), circumstances)["TO-P002"].findings
    assert [(f.severity, f.impact_ms) for f in found] == [("error", 12.5)]
    claim = claim_of(found[0], UnusedLinks)
    assert claim and (claim.has, claim.device, claim.link) == ("by_name", "NVIDIA H200", "NVLink 4")
    assert claim.because == "unknown"


@pytest.mark.parametrize("kind", ["PHB", "NODE", "SYS"])
def test_host_memory_is_the_usual_way_between_distant_gpus(kind):
    assert "TO-P002" not in fired(Fabric((machine({(0, 1): kind}),), log(BY_SHM)))


def test_host_memory_between_gpus_at_one_switch_is_worth_a_remark():
    assert fired(Fabric((machine({(0, 1): "PIX"}),), log(BY_SHM)))["TO-P002"] == ["info"]


def test_gpus_that_are_made_without_p2p_lose_nothing_but_nvlink_that_is_refused_does():
    line = quote("P2P is disabled between connected GPUs 1 and 0.", 7)
    refused = log(BY_SHM, p2p_disabled=(line,))
    assert "TO-P002" not in fired(Fabric((machine({(0, 1): "PIX"}),), refused))
    found = verdicts(Fabric((NVLINK,), refused))["TO-P002"].findings
    assert found[0].facts["because"] == "refused"
    assert ("nccl.log", 7) in {(e.file, e.line) for e in found[0].evidence}


@pytest.mark.parametrize(
    ("name", "value", "off"),
    [
        ("NCCL_P2P_DISABLE", "1", True),
        ("NCCL_P2P_DISABLE", "0", False),
        ("NCCL_P2P_LEVEL", "LOC", True),
        ("NCCL_P2P_LEVEL", "SYS", False),
        ("NCCL_DEBUG", "INFO", False),
    ],
)
def test_only_settings_that_switch_p2p_off_are_blamed(name, value, off):
    setting = NcclSetting(name, value, quote(f"{name} set by environment to {value}"))
    found = fired(Fabric((), log(BY_SHM, settings=(setting,))))
    assert ("TO-P002" in found) is off  # no topology says what else there is


def test_a_setting_takes_nothing_from_gpus_that_cannot_reach_each_other():
    """NVIDIA/nccl issue 1637: P2P was switched off, and CUDA said that it is not supported there."""
    refused = quote("NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'", 7)
    assert "TO-P002" not in fired(Fabric((), log(BY_SHM, settings=(NO_P2P,), p2p_disabled=(refused,))))
    assert "TO-P002" in fired(Fabric((NVLINK,), log(BY_SHM, settings=(NO_P2P,), p2p_disabled=(refused,))))


def test_without_a_log_nobody_knows_which_way_nccl_took():
    assert "NCCL_DEBUG=INFO" in verdicts(Fabric((NVLINK,)))["TO-P002"].not_evaluated


def test_across_numa_nodes_alone_is_information():
    far = machine({(0, 1): "SYS"}, numa=(0, 1))
    found = verdicts(Fabric((far,)))["TO-P001"].findings
    assert [f.severity for f in found] == ["info"]
    claim = claim_of(found[0], AcrossNuma)
    assert claim and (claim.pair, claim.nodes, claim.weight) == ("GPU0 and GPU1", (0, 1), "alone")


@pytest.mark.parametrize(
    "circumstances", [Circumstances(hung=True), Circumstances(exposed_pct=35.0), Circumstances(slow="warning")]
)
def test_across_numa_nodes_becomes_more_with_a_hang_or_time_lost(circumstances):
    far = machine({(0, 1): "SYS"}, numa=(0, 1))
    assert fired(Fabric((far,)), circumstances)["TO-P001"] == ["warning"]


def test_across_numa_nodes_becomes_more_where_it_is_measured_to_be_far_slower():
    far = machine({(0, 1): "PIX", (0, 2): "SYS", (1, 2): "SYS"}, numa=(0, 0, 1))
    measured = tuple(
        Measured("send_recv", pair, 1 << 26, 1.0, gbs, "a")
        for pair, gbs in (((0, 1), 20.0), ((0, 2), 4.0), ((1, 2), 12.0))
    )
    assert fired(Fabric((far,)), Circumstances(measured=measured))["TO-P001"] == ["warning"]
    near = tuple(replace(row, busbw_gbs=15.0) for row in measured)
    assert fired(Fabric((far,)), Circumstances(measured=near))["TO-P001"] == ["info"]


def test_only_the_gpus_of_the_job_count():
    far = machine({(0, 1): "PIX", (0, 2): "SYS", (1, 2): "SYS"}, numa=(0, 0, 1))
    part = log(BOTH_WAYS)
    [found] = verdicts(Fabric((far,), part))["TO-P001"].findings  # of three GPUs two, and nobody knows which
    assert found.facts["way"] == "not_logged"
    known = replace(far, gpus=tuple(replace(gpu, bus_id=f"{gpu.index}") for gpu in far.gpus))
    [one] = part.communicators
    places = {rank: replace(place, bus_id=f"{rank}") for rank, place in one.places.items()}
    placed = replace(part, communicators=(replace(one, places=places),))
    assert "TO-P001" not in fired(Fabric((known,), placed))


def test_which_way_nccl_took_and_could_take_is_said():
    nics = (Nic("NIC0", "mlx5_0", "RoCE"), Nic("NIC1", "mlx5_bond_0", "RoCE", bonded=True))
    kinds = {(0, 1): "SYS", (0, "NIC0"): "SYS", (1, "NIC0"): "PIX", (0, "NIC1"): "NODE", (1, "NIC1"): "SYS"}
    host = machine(kinds, numa=(0, 1), nics=nics)
    found = verdicts(Fabric((host,), log(BY_SHM)))["TO-P001"].findings[0]
    assert (found.facts["way"], found.facts["took"]) == ("SHM", ["SHM/direct"])
    assert "NCCL_P2P_LEVEL=SYS" in found.message
    told = {one.metric: one.value for one in found.evidence}
    assert told["nearest NICs of GPU0"] == "bonded NIC1 (mlx5_bond_0) (NODE)"
    assert told["nearest NICs of GPU1"] == "NIC0 (mlx5_0) (PIX)" and "a bonded NIC" in told


def test_far_gpus_whose_neighbours_are_linked_need_not_go_through_host_memory():
    square = {(0, 1): "NV", (2, 3): "NV", (0, 2): "NV", (1, 3): "NV", (0, 3): "SYS", (1, 2): "SYS"}
    (mesh,) = verdicts(Fabric((machine(square),)))["TO-P001"].findings
    assert mesh.facts["way"] == "joined"
    islands = square | {(0, 2): "SYS", (1, 3): "SYS"}
    (apart,) = verdicts(Fabric((machine(islands),)))["TO-P001"].findings
    assert apart.facts["way"] == "no_log"


@pytest.mark.parametrize(
    ("kind", "connections", "setting", "has"),
    [
        ("PIX", BY_SHM, ("NCCL_P2P_LEVEL", "NVL"), "switch"),
        ("SYS", BY_SOCKET, ("NCCL_SHM_DISABLE", "1"), "shm_off"),
        ("XGMI", BY_SHM, ("NCCL_DEBUG", "INFO"), "xgmi"),
    ],
)
def test_what_keeps_gpus_from_the_better_way_is_said(kind, connections, setting, has):
    host = machine({(0, 1): kind}, name="AMD Instinct MI300X" if kind == "XGMI" else "NVIDIA L4")
    asked = log(connections, settings=(NcclSetting(*setting, quote(f"{setting[0]} set")),))
    [found] = verdicts(Fabric((host,), asked))["TO-P002"].findings
    assert found.severity == "warning"
    assert (found.facts["has"], "settings" in found.facts) == (has, has != "xgmi")


def test_sockets_inside_one_host_are_wrong():
    found = fired(Fabric((NVLINK,), log(BY_SOCKET)))
    assert found["TO-P003"] == ["warning"]
    assert found["TO-P002"] == ["warning"]


def test_sockets_between_hosts_are_as_bad_as_what_they_replace():
    plain = log(BY_SOCKET, places=("a", "b"))
    for slow in (None, "error"):  # a slow group inside a host, say
        assert fired(Fabric((), plain), Circumstances(slow=slow))["TO-P003"] == ["info"]
    fast = machine({(0, "NIC0"): "PIX"}, nics=(Nic("NIC0", "mlx5_0", "IB", up=True),))
    assert fired(Fabric((fast,), plain))["TO-P003"] == ["warning"]
    down = replace(fast, nics=(replace(fast.nics[0], up=False),))
    assert fired(Fabric((down,), plain))["TO-P003"] == ["info"]
    asked = replace(plain, settings=(NcclSetting("NCCL_IB_DISABLE", "1", quote("NCCL_IB_DISABLE set")),))
    assert fired(Fabric((), asked))["TO-P003"] == ["warning"]
    only = replace(machine({(0, 1): "PHB"}), sources=("topo.txt",))  # a matrix, and no NIC in it
    found = verdicts(Fabric((only,), asked))["TO-P003"].findings[0]
    assert (found.severity, found.facts["case"]) == ("info", "nothing_faster")
    said = replace(only, sources=("nccl.log",))  # NCCL's own tree has no device of a network that is off
    assert fired(Fabric((said,), asked))["TO-P003"] == ["warning"]
    broken = replace(plain, plugin_failures=(quote("NET/OFI aws-ofi-nccl initialization failed"),))
    found = verdicts(Fabric((), broken))["TO-P003"].findings[0]
    assert found.severity == "error"
    assert any(e.value == "NET/OFI aws-ofi-nccl initialization failed" for e in found.evidence)


def test_one_host_on_sockets_beside_others_of_its_communicator_on_infiniband() -> None:
    ring = [(0, 1, "NET", "IB", 0), (1, 2, "NET", "IB", 0), (2, 0, "NET", "Socket", 0)]
    (found,) = verdicts(Fabric(log=log(ring, ("a", "b", "c"))))["TO-P003"].findings
    assert found.severity == "warning" and found.facts["ways"] == ["NET/IB"] and found.ranks == (0, 2)
    apart = log([(0, 1, "NET", "Socket", 0)], ("c", "d"))
    other = log([(0, 1, "NET", "IB", 0)], ("a", "b"))
    two_jobs = replace(apart, communicators=apart.communicators + other.communicators)
    (found,) = verdicts(Fabric(log=two_jobs))["TO-P003"].findings
    assert found.severity == "info"


def test_sockets_inside_hosts_are_not_hidden_by_those_between():
    ring = [(rank, (rank + 1) % 4, "NET", "Socket", 0) for rank in range(4)]
    found = verdicts(Fabric((), log(ring, places=("a", "a", "b", "b"))))["TO-P003"].findings[0]
    assert found.severity == "warning"
    assert found.facts["inside_too"]


def test_a_plugin_that_failed_beside_a_network_that_works():
    ring = [(0, 1, "NET", "IB", 0), (1, 0, "NET", "IB", 0)]
    failed = (quote("NET/OFI Only EFA provider is supported"),)
    found = verdicts(Fabric((), log(ring, places=("a", "b"), plugin_failures=failed)))["TO-P003"].findings[0]
    assert (found.severity, found.facts["ways"]) == ("info", ["NET/IB"])


def test_a_network_that_no_rank_needs_is_no_finding():
    idle = replace(log(BOTH_WAYS), networks=(Network("a", 100, "Socket", quote("Using network Socket")),))
    known = verdicts(Fabric((NVLINK,), idle))["TO-P003"]
    assert not known.findings
    assert known.clear == "no rank sends over the network"


def test_a_network_that_does_not_start_and_the_setting_that_asked_for_it():
    line = quote("bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found")
    asked = NcclSetting("NCCL_SOCKET_IFNAME", "nosuch0", quote("NCCL_SOCKET_IFNAME set by environment to nosuch0"))
    event = NetworkEvent("no_interface", "a", 1, line)
    nothing = NcclLog(("nccl.log",), settings=(asked,), plugin_failures=(line,), network_events=(event,))
    found = verdicts(Fabric((), nothing))["TO-P003"].findings[0]
    assert found.severity == "error"
    assert found.facts == {"case": "not_started", "settings": ["NCCL_SOCKET_IFNAME was set to nosuch0"]}
    went_on = replace(log(BOTH_WAYS), plugin_failures=(line,))
    assert fired(Fabric((NVLINK,), went_on)) == {"TO-P003": ["info"]}


def test_a_device_that_cannot_be_opened_says_nothing_of_the_others():
    """openai/parameter-golf, NaiveBaseline: eight ranks cannot open mlx5_an0 and train to their end."""
    line = quote("p2p_plugin.c:565 NCCL WARN NET/IB : Unable to open device mlx5_an0")
    event = NetworkEvent("device_failed", "a", 1, line, "IB")
    warned = NcclLog(("nccl.log",), plugin_failures=(line,), network_events=(event,))
    told = verdicts(Fabric((), warned))["TO-P003"]
    assert not told.findings and "could not open or query a network device" in str(told.not_evaluated)
    informed = replace(warned, informed=frozenset({("a", 1)}))
    assert fired(Fabric((), informed)) == {"TO-P003": ["warning"]}


def test_a_far_nic_is_named_with_the_near_one():
    nics = (Nic("NIC0", "mlx5_0", "IB"), Nic("NIC1", "mlx5_1", "IB"))
    host = machine({(0, "NIC0"): "SYS", (0, "NIC1"): "PIX"}, nics=nics)
    talk = log([(0, 1, "NET", "IB", 0)], places=("a", "b"))
    using = Network("a", 100, "IB", quote("NET/IB : Using"), ((0, "mlx5_0:1/IB"), (1, "mlx5_1:1/IB")))
    found = verdicts(Fabric((host,), replace(talk, networks=(using,))))["TO-P004"].findings
    assert [f.severity for f in found] == ["warning"]
    claim = claim_of(found[0], FarNic)
    assert claim and (claim.gpu, claim.hosts, claim.does, claim.nic) == ("GPU0", "a", "sends", "NIC0 (mlx5_0)")
    assert (claim.path, claim.near, claim.best) == ("SYS", ("NIC1 (mlx5_1)",), "PIX")
    swapped = replace(using, devices=((0, "mlx5_1:1/IB"), (1, "mlx5_0:1/IB")))
    near = verdicts(Fabric((host,), replace(talk, networks=(swapped,))))["TO-P004"]
    assert not near.findings
    assert near.clear


def test_narrow_links_are_found_among_siblings_only():
    lanes = (16, 16, 8, 16)
    gpus = tuple(Gpu(i, "NVIDIA L4", pcie=Pcie(1, width, 4, 16)) for i, width in enumerate(lanes))
    found = verdicts(Fabric((Machine("a", gpus),)))["TO-P005"].findings
    assert len(found) == 1
    assert (found[0].facts["device"], found[0].facts["one"]) == ("GPU2", "8 lanes")
    board = tuple(replace(gpu, pcie=Pcie(1, 8, 4, 16)) for gpu in gpus)  # so wired on purpose
    assert not fired(Fabric((Machine("a", board),)))
    slot = tuple(replace(gpu, pcie=replace(gpu.pcie, most_width=gpu.pcie.width)) for gpu in gpus)
    assert fired(Fabric((Machine("a", slot),))) == {"TO-P005": ["info"]}
    mixed = tuple(replace(gpu, name=f"kind {i}") for i, gpu in enumerate(gpus))
    assert not fired(Fabric((Machine("a", mixed),)))


def test_a_port_for_storage_is_slower_on_purpose():
    def found(speeds, paths):
        nics = [Nic(f"NIC{i}", f"mlx5_{i}", "IB", speed_gbs=gbs) for i, gbs in enumerate(speeds)]
        return fired(Fabric((machine({(0, f"NIC{i}"): kind for i, kind in enumerate(paths)}, nics=nics),)))

    assert found((50, 50, 50, 25), ("PIX", "PIX", "PIX", "NODE")) == {}
    assert found((50, 50, 25, 25), ("PIX", "PIX", "PIX", "NODE")) == {"TO-P005": ["warning"]}


def test_nvlinks_are_added_up_because_pairs_may_differ_by_design():
    # A cube mesh: each GPU has six links, one to some of its peers and two to others.
    mesh = {
        (0, 1): ("NV", 1),
        (2, 3): ("NV", 1),
        (0, 2): ("NV", 2),
        (1, 3): ("NV", 2),
        (0, 3): ("NV", 3),
        (1, 2): ("NV", 3),
    }
    assert not fired(Fabric((machine(mesh, name="V100"),)))
    lost = {**mesh, (0, 3): ("NV", 2)}
    found = verdicts(Fabric((machine(lost, name="V100"),)))["TO-P005"].findings
    assert len(found) == 1
    assert found[0].facts["devices"] == ["5 links on GPU0", "5 links on GPU3"]


def switched(lost=None, links=0, gpus=8):
    """GPUs at NVSwitches with 18 links each; one has fewer, or none."""
    kinds = {
        (i, j): "NODE" if lost in (i, j) and not links else ("NV", links if lost in (i, j) else 18)
        for i in range(gpus)
        for j in range(i + 1, gpus)
    }
    return narrow(Fabric((machine(kinds, name="H100"),)))


def narrow(fabric):
    return [(f.facts["device"], f.facts["one"], f.facts["usual"]) for f in verdicts(fabric)["TO-P005"].findings]


def test_links_to_a_switch_are_counted_once_and_none_at_all_is_found():
    assert switched() == []
    assert switched(3, 17) == [("GPU3", "17 links", "18 links")]
    assert switched(3) == [("GPU3", "0 links", "18 links")]


def test_gpus_without_a_bridge_and_parts_of_a_mesh_are_made_so():
    kinds = {(0, 1): ("NV", 4), (0, 2): "PHB", (1, 2): "PHB"}
    bridge = machine(kinds, name="NVIDIA GeForce RTX 3090")
    assert narrow(Fabric((bridge,))) == []
    told = [replace(gpu, nvlinks=4 * (gpu.index < 2), nvlinks_down=4 * (gpu.index > 1)) for gpu in bridge.gpus]
    assert narrow(Fabric((replace(bridge, gpus=tuple(told)),))) == []
    part = {(0, 1): ("NV", 1), (0, 2): ("NV", 1), (1, 2): ("NV", 2)}  # three GPUs of a DGX-1
    assert narrow(Fabric((machine(part, name="V100"),))) == []


def test_links_that_are_down_on_one_gpu_only():
    gpus = (Gpu(0, "H", nvlinks=18), Gpu(1, "H", nvlinks=16, nvlinks_down=2))
    found = verdicts(Fabric((Machine("a", gpus),)))["TO-P005"].findings
    assert any(f.kind == "links_down" and (f.facts["one"], f.facts["gpu"]) == (2, "GPU1") for f in found)
    unused = tuple(replace(gpu, nvlinks=12, nvlinks_down=6) for gpu in gpus)
    assert not fired(Fabric((Machine("a", unused),)))


WARNINGS_ONLY = """20:13:32 - NCCL WARN NET/OFI Only EFA provider is supported
20:13:32 - NCCL WARN NET/OFI aws-ofi-nccl initialization failed
20:13:32 - NCCL version 2.10.3+cuda11.3
"""


def judged_text(tmp_path, text):
    (tmp_path / "nccl.log").write_text(text)
    return verdicts(named_fabric([tmp_path / "nccl.log"]))["TO-P003"]


def test_without_info_lines_nothing_follows_from_missing_connections(tmp_path):
    (found,) = judged_text(tmp_path, WARNINGS_ONLY).findings
    assert (found.severity, found.confidence) == ("info", "medium")
    assert found.facts["case"] == found.facts["remark"] == "not_informed"


def test_info_lines_of_one_process_tell_nothing_of_another(tmp_path):
    other = "a:1:2 [0] NCCL INFO cudaDriverVersion 13000\n"
    failed = "{}:1:2 [0] ofi_init:1134 NCCL WARN NET/OFI Only EFA provider is supported\n"
    (found,) = judged_text(tmp_path, other + failed.format("b")).findings
    assert (found.severity, found.facts["case"]) == ("info", "not_informed")
    (found,) = judged_text(tmp_path, other + failed.format("a")).findings
    assert (found.severity, found.facts["case"]) == ("warning", "log_ends")


def test_that_nothing_started_is_what_nccl_says_and_not_what_is_missing(tmp_path):
    line = "a:1:2 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found\n"
    assert [found.severity for found in judged_text(tmp_path, line).findings] == ["error"]


def test_a_log_that_ends_before_the_connections_clears_no_network(tmp_path):
    begin = (
        "a:{0}:9 [{0}] NCCL INFO Using network Socket\n"
        "a:{0}:9 [{0}] NCCL INFO comm 0x5{0} rank {0} nranks 2 cudaDev {0} busId {0}000 commId 0x7 - Init START\n"
    )
    text = begin.format(1) + begin.format(2).replace("rank 2", "rank 0")
    assert "no connection between ranks" in judged_text(tmp_path, text).not_evaluated
    assert "no connection between ranks" in judged_text(tmp_path, begin.splitlines()[0].format(1)).not_evaluated


def test_a_plugin_that_failed_is_not_called_unneeded_from_a_part_of_the_ranks():
    failed = (quote("NET/OFI Only EFA provider is supported"),)
    half = log([(0, 1, "P2P", "CUMEM", None)], places=("a", "a", "b", "b"), plugin_failures=failed)
    (found,) = verdicts(Fabric((), half))["TO-P003"].findings
    assert (found.facts["case"], found.facts["remark"]) == ("not_logged", "part_of_ranks")


def test_pairs_between_two_sides_are_listed_by_their_sides():
    gpus = [Gpu(index) for index in range(4)]
    across = [(one, other, Path("SYS")) for one in gpus[:2] for other in gpus[2:]]
    assert _listed(across) == "Pairs of GPU0, GPU1 with GPU2, GPU3"
    assert _listed(across[:3]) == "GPU0 and GPU2; GPU0 and GPU3; GPU1 and GPU2"
    assert _listed(across[:1]) == "GPU0 and GPU2"
