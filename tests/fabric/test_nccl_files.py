"""NCCL's logs and its topology and graph XML: of real hosts, damaged and hostile."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.core.errors import InputError
from traceops.fabric.model import Pcie
from traceops.fabric.nccl import Communicator, NcclLog
from traceops.fabric.readers import nccl_comms
from traceops.fabric.readers.nccl_lines import holds_nccl_lines
from traceops.fabric.readers.nccl_log import read_nccl_log
from traceops.fabric.readers.nccl_xml import read_graph_xml, read_topology_xml, xml_kind

DATA = Path(__file__).parents[1] / "data" / "nccl_logs"


def read(*names: str) -> NcclLog:
    return read_nccl_log([str(DATA / name) for name in names])


def ways(communicator: Communicator) -> dict[tuple[int, int], tuple[str, str, int]]:
    return {(c.source, c.destination): (c.transport, c.detail, c.channels) for c in communicator.connections}


def written(tmp_path: Path, text: str, name: str = "log.txt") -> NcclLog:
    path = tmp_path / name
    path.write_text(text)
    return read_nccl_log([str(path)])


RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


def test_healthy_host() -> None:
    log = read("p2p.txt")
    assert (log.nccl_versions, log.cuda_driver) == (("2.28.9+cuda13.0",), "13.0")
    (world,) = log.communicators
    assert (world.id, world.size, world.nodes) == ("0x3ef1780e68e285d1", 4, 1)
    assert ways(world) == dict.fromkeys(RING, ("P2P", "CUMEM", 24))
    assert (world.coll_channels, world.nvls_channels, world.p2p_channels) == (24, 0, 32)
    assert world.rings == ((0, 1, 2, 3),)
    place = world.places[3]
    assert (place.pid, place.nvml_device, place.bus_id) == (2120, 3, "0000:00:09.0")
    ring = next(graph for graph in world.graphs if graph.pattern == 4)
    assert (ring.channels, ring.intra_gbs, ring.intra_type, ring.inter_type) == (12, 360.0, "NVL", "PIX")
    # Only the absence of what nobody asked for: no failure.
    assert {event.kind for event in log.network_events} == {"no_plugin", "no_device"}
    assert log.plugin_failures == log.warnings == ()
    assert {network.plugin for network in log.networks} == {"Socket"}
    assert log.networks[0].devices == ((0, "eth0"),)
    assert log.networks[0].gdr == {"eth0": False}
    (machine,) = log.machines
    assert [gpu.bus_id for gpu in machine.gpus] == [f"0000:00:0{slot}.0" for slot in (6, 7, 8, 9)]
    path = machine.path("GPU3", "GPU1")
    assert path is not None
    assert (path.kind, path.gbs) == ("NV", 370.8)
    assert [(choice.op, choice.algorithm, choice.protocol) for choice in log.choices] == [
        ("AllGather", "RING", "LL"),
        ("Broadcast", "RING", "LL"),
        ("AllReduce", "RING", "LL"),
        ("Broadcast", "RING", "SIMPLE"),
        ("AllReduce", "RING", "SIMPLE"),
    ]


def test_every_fact_can_be_found_in_the_file() -> None:
    log = read("p2p.txt", "socket.txt")
    quotes = [
        quote for c in log.communicators for quote in [*(x.quote for x in c.connections), *(g.quote for g in c.graphs)]
    ]
    quotes += [setting.quote for setting in log.settings] + [event.quote for event in log.network_events]
    quotes += [path.quote for machine in log.machines for path in machine.paths.values() if path.quote is not None]
    assert len(quotes) > 30
    for quote in quotes:
        line = Path(quote.path).read_text().split("\n")[quote.line - 1]
        assert quote.text == line[:300]


@pytest.mark.parametrize(
    ("name", "setting", "transport", "detail", "nodes"),
    [
        ("shm.txt", "NCCL_P2P_DISABLE", "SHM", "direct/direct", 1),
        ("socket.txt", "NCCL_SHM_DISABLE", "NET", "Socket", 4),
    ],
)
def test_slow_ways_and_what_was_set(name: str, setting: str, transport: str, detail: str, nodes: int) -> None:
    log = read(name)
    (world,) = log.communicators
    assert {(c.transport, c.detail) for c in world.connections} == {(transport, detail)}
    assert set(RING) <= set(ways(world))
    assert world.nodes == nodes
    assert [(s.value, s.quote.line > 0) for s in log.settings if s.name == setting] == [("1", True)]
    assert log.plugin_failures == ()


def test_a_connection_is_counted_once_for_sender_and_receiver() -> None:
    connection = next(c for c in read("socket.txt").communicators[0].connections if (c.source, c.destination) == (0, 1))
    assert (connection.channels, connection.device) == (2, 0)
    assert "[send]" in connection.quote.text


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("no_interface.txt", "no_interface", "no socket interface found"),
        ("no_ib.txt", "no_network", "Failed to initialize any NET plugin"),
        ("efa_only_2.10.txt", "plugin_failed", "Only EFA provider is supported"),
    ],
)
def test_failures(name: str, kind: str, words: str) -> None:
    log = read(name)
    assert [event.kind for event in log.network_events if event.failed] == [kind]
    assert [words in quote.text for quote in log.plugin_failures] == [True]
    assert log.plugin_failures[0] in log.warnings


def test_split_over_efa() -> None:
    log = read("efa_split.txt")
    world, split = log.communicators
    assert (world.id, split.id) == ("0x81dca7568efe26d7", "0x81dca7568efe26d7/1.1734919490")
    assert sorted(split.places) == [0, 1, 2, 3]
    assert ways(split)[3, 4] == ("NET", "Libfabric", 2)
    assert ways(split)[15, 0] == ("NET", "Libfabric", 2)  # only the receiver's lines are there
    assert ways(split)[0, 1] == ("SHM", "direct/direct", 2)
    assert split.rings == (tuple(range(16)),)
    assert (log.networks[0].plugin, log.networks[0].provider) == ("Libfabric", "efa")
    assert log.plugin_failures == ()


def test_one_process_with_four_gpus_over_infiniband() -> None:
    (world,) = read("ib_gdr_2.10.txt").communicators
    assert {rank: place.bus_id for rank, place in world.places.items()} == {
        0: "0000:87:00.0", 1: "0000:8d:00.0", 2: "0000:c7:00.0", 3: "0000:ca:00.0",
    }  # fmt: skip
    there = {(c.source, c.destination): c for c in world.connections}
    assert (there[2, 0].device, there[2, 0].gdr) == (2, True)
    assert len(there) == 6


def test_rccl_names_the_communicator() -> None:
    log = read("rccl_socket.txt")
    assert log.nccl_versions == ("RCCL 2.18.3+hip5.7",)
    (world,) = log.communicators
    assert ways(world) == {(1, 4): ("NET", "Socket", 1), (7, 5): ("P2P", "IPC", 2), (2, 0): ("P2P", "IPC", 2)}


def test_numa_nodes_and_nics_of_an_old_version() -> None:
    (machine,) = read("ethernet_nics_system.txt").machines
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 1, 1]
    assert [(nic.label, nic.name, nic.numa) for nic in machine.nics] == [
        ("NET0", "eth0", 0), ("NET1", "eth1", 0), ("NET2", "eth2", 1), ("NET3", "eth3", 1),
    ]  # fmt: skip
    kinds = {pair: path.kind for pair, path in machine.paths.items()}
    assert (kinds["GPU0", "GPU1"], kinds["GPU0", "GPU2"], kinds["GPU0", "NET3"]) == ("PHB", "SYS", "SYS")
    assert machine.nics[0].speed_gbs is None  # 10 Gbit/s is also what NCCL takes where nobody says


def test_bonded_nics_and_nvswitch_from_the_tree_alone() -> None:
    (machine,) = read("nvswitch_tree.txt").machines
    assert [(nic.name, nic.kind, nic.speed_gbs, nic.bonded) for nic in machine.nics] == [
        ("mlx5_bond_0", "RoCE", 25.0, True)
    ] * 2
    assert {path.kind for path in machine.paths.values()} == {"NV"}
    assert len(machine.paths) == 3


def test_what_there_is_counts_and_not_what_nccl_may_use() -> None:
    """Without P2P, NCCL's paths lead through the CPU; without shared memory, each process shows its own GPU."""
    (machine,) = read("p2p_off_system.txt").machines
    assert machine.paths["GPU0", "GPU1"].kind == "NV"
    (machine,) = read("own_gpu_only.txt").machines
    assert [gpu.index for gpu in machine.gpus] == [1, 2]
    assert machine.paths["GPU1", "GPU2"].kind == "NV"


INIT = (
    "{host}:{pid}:{pid} [{dev}] NCCL INFO ncclCommInitRank comm 0x{comm:x} rank {rank} nranks {size} "
    "cudaDev {dev} nvmlDev {dev} busId {dev}0 commId 0x{id:x} - Init {what}\n"
)


def start(pid: int, comm: int, rank: int, size: int, unique: int, what: str = "START") -> str:
    return INIT.format(host="h", pid=pid, dev=pid % 10, comm=comm, rank=rank, size=size, id=unique, what=what)


def link(pid: int, channel: int, text: str) -> str:
    return f"h:{pid}:{pid} [{pid % 10}] NCCL INFO Channel {channel:02d}/0 : {text}\n"


def test_later_connections_find_their_communicator_by_rank_and_device(tmp_path: Path) -> None:
    """From 2.22 on, connections come long after the start: here, after a world, pairs (0,1) and pairs (0,2)."""
    text = ""
    for pid in range(4):
        text += start(pid + 100, 10 + pid, pid, 4, 0xA) + start(pid + 100, 10 + pid, pid, 4, 0xA, "COMPLETE")
    for pid in range(4):  # pairs {0,1} and {2,3}
        text += start(pid + 100, 20 + pid, pid % 2, 2, 0xB + pid // 2)
        text += start(pid + 100, 20 + pid, pid % 2, 2, 0xB + pid // 2, "COMPLETE")
    for pid in range(4):  # pairs {0,2} and {1,3}
        text += start(pid + 100, 30 + pid, pid // 2, 2, 0xE + pid % 2)
        text += start(pid + 100, 30 + pid, pid // 2, 2, 0xE + pid % 2, "COMPLETE")
    text += link(102, 0, "0[2] -> 1[3] via P2P/CUMEM") + link(101, 0, "0[1] -> 1[3] via SHM/direct/direct")
    text += link(101, 1, "1[1] -> 2[2] via P2P/IPC/read")
    found = {c.id: ways(c) for c in written(tmp_path, text).communicators}
    assert found["0xc"] == {(0, 1): ("P2P", "CUMEM", 1)}
    assert found["0xf"] == {(0, 1): ("SHM", "direct/direct", 1)}
    assert found["0xa"] == {(1, 2): ("P2P", "IPC", 1)}
    assert found["0xb"] == found["0xe"] == {}


def test_starts_that_overlap_are_one_communicator_each(tmp_path: Path) -> None:
    text = start(100, 1, 0, 2, 0xA) + start(100, 2, 0, 2, 0xB) + start(100, 1, 0, 2, 0xA, "COMPLETE")
    text += start(100, 2, 0, 2, 0xB, "COMPLETE") + start(101, 3, 1, 2, 0xA)
    assert [(c.id, sorted(c.places)) for c in written(tmp_path, text).communicators] == [("0xa", [0, 1]), ("0xb", [0])]


def old(pid: int, rank: int, size: int, comm: int) -> str:
    dev = pid % 10
    head = f"h:{pid}:{pid} [{dev}] NCCL INFO comm 0x{comm:x} rank {rank} nranks {size} "
    return f"{head}cudaDev {dev} busId {dev}0 - Init COMPLETE\n"


def test_old_versions_print_connections_before_the_communicator(tmp_path: Path) -> None:
    """Until 2.15 there is neither START nor an id: two communicators one after the other, then two pairs."""
    text = "NCCL version 2.10.3+cuda11.3\n"
    for round_, way in ((0, "P2P/IPC"), (1, "direct shared memory")):
        for pid in (100, 101):
            ends = f"{pid % 10}[{pid % 10}0] -> {101 - pid}[{101 - pid}0]"
            text += f"h:{pid}:{pid} [{pid % 10}] NCCL INFO Channel 00 : {ends} via {way}\n"
            text += old(pid, pid % 10, 2, 0x10 * (round_ + 1) + pid)
    log = written(tmp_path, text)
    assert [sorted(c.places) for c in log.communicators] == [[0, 1], [0, 1]]
    assert [ways(c)[0, 1] for c in log.communicators] == [("P2P", "IPC", 1), ("SHM", "direct", 1)]
    # Four processes with two ranks 0: nobody can tell which belong together.
    text = "".join(old(pid, pid % 2, 2, pid) for pid in range(100, 104))
    assert [len(c.places) for c in written(tmp_path, text).communicators] == [1, 1, 1, 1]


def test_several_files_are_one_job(tmp_path: Path) -> None:
    paths = []
    for pid in range(2):
        path = tmp_path / f"nccl.h.{pid}.log"
        path.write_text(
            start(100 + pid, 1, pid, 2, 0xA) + link(100 + pid, 0, f"{pid}[{pid}] -> {1 - pid}[{1 - pid}] via P2P/CUMEM")
        )
        paths.append(str(path))
    log = read_nccl_log(paths)
    assert log.files == tuple(paths)
    assert [ways(c) for c in log.communicators] == [dict.fromkeys([(0, 1), (1, 0)], ("P2P", "CUMEM", 1))]
    assert log.communicators[0].connections[1].quote.path == paths[1]


def test_no_more_connections_are_kept_than_a_report_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks to all: a thousand ranks have a million connections."""
    monkeypatch.setattr(nccl_comms, "MOST_CONNECTIONS", 3)
    text = start(100, 1, 0, 9, 0xA) + "".join(link(100, 0, f"0[0] -> {to}[{to}] via P2P/IPC") for to in range(1, 9))
    log = written(tmp_path, text)
    assert (len(log.communicators[0].connections), log.connections_left_out) == (3, 5)


def test_files_without_nccl(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step 1 loss 3.0\nncclRemoteError: x\n" * 1000)
    assert not holds_nccl_lines(str(path))
    assert read_nccl_log([str(path)]) == NcclLog(files=(str(path),))
    assert holds_nccl_lines(str(DATA / "shm.txt"))
    with pytest.raises(InputError, match=r"missing\.log"):
        read_nccl_log([str(tmp_path / "missing.log")])


def test_a_communicator_made_again_and_again_is_read_in_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log to which hundreds of runs were appended, all with one id."""
    calls = 0

    def counting(text: bytes) -> str:
        nonlocal calls
        calls += 1
        return real(text)

    real = nccl_comms.bus_id
    monkeypatch.setattr(nccl_comms, "bus_id", counting)
    head, counted = "vm:7:7 [0] NCCL INFO", []
    for runs in (100, 400):
        init = "comm 0x{} rank 0 nranks 4 cudaDev 0 busId 60 commId 0xa - Init "
        link = "Channel 00/0 : 0[60] -> 1[70] via P2P/IPC"
        lines = (
            line for run in range(1, runs) for line in (f"{init.format(run)}START", f"{init.format(run)}COMPLETE", link)
        )
        text = "".join(f"{head} {line}\n" for line in lines)
        calls = 0
        (communicator,) = written(tmp_path, text).communicators
        assert len(communicator.connections) == 1
        counted.append(calls)
    assert 0 < counted[1] < 8 * counted[0]


def test_a_start_that_failed_is_read_from_its_connections(tmp_path: Path) -> None:
    """Until 2.17 NCCL named a communicator when it was complete (jax-ml/jax issue 13559, NVIDIA/nccl issue 952)."""
    text = """\
vm:7:7 [0] NCCL INFO Channel 00/02 :    0   1   2   3
vm:7:7 [0] NCCL INFO Channel 00/0 : 3[87000] -> 0[a000] [receive] via NET/IB/0/GDRDMA
vm:7:7 [0] NCCL INFO Channel 00 : 0[a000] -> 1[47000] via P2P/IPC/read
vm:8:8 [1] NCCL INFO Channel 00/0 : 1[47000] -> 2[a000] [send] via NET/IB/0/GDRDMA
vm:8:8 [1] NCCL INFO CollNet 00/0 : 1 [send] via COLLNET/SHARP/0/GDRDMA
vm:9:9 [0] NCCL INFO Channel 00 : 2[a000] -> 3[87000] via P2P/IPC/read
vm:9:9 [0] NCCL INFO Channel 01 : 3[87000] -> 2[a000] via P2P/IPC/read
"""
    (communicator,) = written(tmp_path, text).communicators
    assert (communicator.size, communicator.at_least) == (4, False)  # the ring has all
    assert {rank: place.bus_id for rank, place in communicator.places.items()} == {
        0: "0000:0a:00.0",
        1: "0000:47:00.0",
    }  # 9 speaks for two ranks
    assert set(ways(communicator)) == {(3, 0), (0, 1), (1, 1), (1, 2)}
    (communicator,) = written(tmp_path, "\n".join(text.splitlines()[1:4])).communicators
    assert (communicator.size, communicator.at_least) == (4, True)
    named = written(tmp_path, text.replace("[a000]", "[0]").replace("[47000]", "[1]"))
    assert [place.nvml_device for place in named.communicators[0].places.values()] == [0, 1]


TOPOLOGY = Path(__file__).parents[1] / "data" / "topology"
H200 = TOPOLOGY / "h200x4_nccl_2.28.xml"
GRAPHS = TOPOLOGY / "h200x4_graphs_nccl_2.28.xml"
SWITCH = '<nvlink target="fffffff:ff:ff.0" count="{}" tclass="0x068000"/>'


@pytest.fixture
def saved(tmp_path):
    """The path of a file with this text or these bytes."""

    def save(content: str | bytes) -> str:
        path = tmp_path / "topo.xml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return save


def pci(bus: str, inside: str = "", link: str = 'link_speed="16.0 GT/s PCIe" link_width="16"') -> str:
    return f'<pci busid="{bus}" class="0x060400" {link}>{inside}</pci>\n'


def gpu(bus: str, dev: int, links: str = "", sm: int = 80) -> str:
    return pci(bus, f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">{links}</gpu>')


def nic(bus: str, dev: int, name: str, speed: str = "200000") -> str:
    return pci(bus, f'<nic><net name="{name}" dev="{dev}" speed="{speed}" port="1" gdr="1"/></nic>')


def cpu(numa: int, inside: str, more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>\n{inside}</cpu>\n'


def system(*cpus: str) -> str:
    return f'<system version="1">\n{"".join(cpus)}</system>\n'


def test_four_h200_in_a_virtual_machine():
    (machine,) = read_topology_xml(str(H200))
    assert machine.host is None
    assert [(gpu.index, gpu.bus_id) for gpu in machine.gpus] == [(i, f"0000:00:0{6 + i}.0") for i in range(4)]
    first = machine.gpus[0]
    assert (first.numa, first.cpus, first.nvlinks, first.nvlink_gbs) == (None, None, 18, 25.0)
    assert first.pcie == Pcie(most_generation=5)  # its width is written as 0
    assert {(path.kind, path.count) for path in machine.paths.values()} == {("NV", 18)}
    assert len(machine.paths) == 6
    quote = machine.path("GPU2", "GPU3").quote
    assert quote.text.rstrip(">") in H200.read_text().splitlines()[quote.line - 1]
    (nic,) = machine.nics
    assert (nic.name, nic.kind, nic.speed_gbs, nic.numa) == ("eth0", "Ethernet", 1.25, None)


def test_paths_follow_from_the_tree(saved):
    left = pci(
        "0000:10:00.0",
        pci("0000:11:00.0", gpu("0000:12:00.0", 0) + nic("0000:13:00.0", 0, "mlx5_0"))
        + pci("0000:14:00.0", gpu("0000:15:00.0", 1)),
    )
    other = pci("0000:20:00.0", gpu("0000:21:00.0", 2) + nic("0000:22:00.0", 1, "mlx5_bond_0", "-1"))
    right = gpu("0000:80:00.0", 3)
    affinity = 'affinity="0000ffff,00000000,0000000f"'
    (machine,) = read_topology_xml(saved(system(cpu(0, left + other, affinity), cpu(1, right))))
    found = {pair: path.kind for pair, path in machine.paths.items()}
    assert found == {
        ("GPU0", "GPU1"): "PXB", ("GPU0", "GPU2"): "PHB", ("GPU0", "GPU3"): "SYS",
        ("GPU1", "GPU2"): "PHB", ("GPU1", "GPU3"): "SYS", ("GPU2", "GPU3"): "SYS",
        ("GPU0", "NIC0"): "PIX", ("GPU1", "NIC0"): "PXB", ("GPU2", "NIC0"): "PHB", ("GPU3", "NIC0"): "SYS",
        ("GPU0", "NIC1"): "PHB", ("GPU1", "NIC1"): "PHB", ("GPU2", "NIC1"): "PIX", ("GPU3", "NIC1"): "SYS",
        ("NIC0", "NIC1"): "PHB",
    }  # fmt: skip
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 0, 1]
    assert machine.gpus[0].cpus == "0-3,64-79"
    assert [(nic.numa, nic.speed_gbs, nic.bonded, nic.bus_id) for nic in machine.nics] == [
        (0, 25.0, False, "0000:13:00.0"),
        (0, None, True, "0000:22:00.0"),
    ]
    assert machine.gpus[0].nvlinks == 0
    assert machine.gpus[0].nvlink_gbs is None
    assert "mlx5_0" in machine.path("NIC0", "GPU2").quote.text


def test_nvlink_between_some_pairs_only(saved):
    def link(bus: str, count: int) -> str:
        return f'<nvlink target="{bus}" count="{count}" tclass="0x030200"/>'

    a, b, c = (f"0000:0{i}:00.0" for i in (1, 2, 3))
    # To a Power CPU and to a GPU that the job does not use: neither joins two of its GPUs.
    foreign = '<nvlink target="0004:04:00.0" count="3" tclass="0x068001"/>' + link("0000:07:00.0", 1)
    inside = gpu(a, 0, link(b.upper(), 2), 70) + gpu(b, 1, link(a, 2) + foreign, 70) + gpu(c, 2, foreign, 70)
    (machine,) = read_topology_xml(saved(system(cpu(0, inside))))
    assert {pair: (path.kind, path.count) for pair, path in machine.paths.items()} == {
        ("GPU0", "GPU1"): ("NV", 2),
        ("GPU0", "GPU2"): ("PHB", None),
        ("GPU1", "GPU2"): ("PHB", None),
    }


def test_a_gpu_with_fewer_links_to_the_switch(saved):
    inside = "".join(gpu(f"0000:0{i}:00.0", i, SWITCH.format(12 if i else 10)) for i in range(3))
    (machine,) = read_topology_xml(saved(system(cpu(0, inside))))
    counts = {pair: path.count for pair, path in machine.paths.items()}
    assert counts == {("GPU0", "GPU1"): 10, ("GPU0", "GPU2"): 10, ("GPU1", "GPU2"): 12}


def test_hosts_that_nvlink_joins(saved):
    def tray(name: str) -> str:
        return "".join(
            cpu(
                numa, gpu(f"000{8 + numa}:01:00.0", numa, SWITCH.format(18) + '<c2c bw="43125" count="10"/>', 100), name
            )
            for numa in (0, 1)
        )

    machines = read_topology_xml(saved(system(tray('host_hash="0xa"'), tray('host_hash="0xb"'))))
    assert [machine.host for machine in machines] == ["0xa", "0xb"]
    for machine in machines:
        assert [(gpu.index, gpu.numa, gpu.nvlink_gbs) for gpu in machine.gpus] == [(0, 0, 50.0), (1, 1, 50.0)]
        assert machine.path("GPU0", "GPU1").count == 18


def test_indices_that_do_not_tell_gpus_apart(saved):
    (machine,) = read_topology_xml(saved(system(cpu(0, gpu("0000:01:00.0", 0) + gpu("0000:02:00.0", 0)))))
    assert [(gpu.index, gpu.bus_id) for gpu in machine.gpus] == [(0, "0000:01:00.0"), (1, "0000:02:00.0")]


def test_what_is_not_known_is_none(saved):
    odd = 'link_speed="Unknown" link_width=""'
    inside = pci("0000:01:00.0", '<gpu dev="0" sm="x" gdr="1"/>', odd) + "<nic><net/></nic>"
    (machine,) = read_topology_xml(saved(system(cpu(-1, inside, 'affinity="zz"'))))
    (gpu,) = machine.gpus
    assert (gpu.pcie, gpu.numa, gpu.cpus, gpu.nvlinks) == (None, None, None, 0)
    assert (machine.nics[0].name, machine.nics[0].speed_gbs) == (None, None)


def test_graphs_have_the_bandwidth_of_all_channels():
    ring, tree = read_graph_xml(str(GRAPHS))  # three ways without channels are left out
    assert (ring.pattern, ring.channels, ring.intra_gbs, ring.inter_gbs) == (4, 12, 360.0, 360.0)
    assert (ring.intra_type, ring.inter_type) == ("NVL", "PIX")
    assert (tree.pattern, tree.quote.line) == (1, 76)
    assert tree.quote.text.startswith('<graph id="1" pattern="1"')


def test_kinds_by_the_root_element(saved):
    assert xml_kind(H200.read_text()[:200]) == "topology"
    assert xml_kind('<?xml version="1.0"?>\n<!-- by\nhand -->\n<graphs version="1">') == "graph"
    assert xml_kind('<systems version="1">') is None
    with pytest.raises(InputError, match=r"<graphs>, not <system>.*NCCL_TOPO_DUMP_FILE"):
        read_topology_xml(str(GRAPHS))
    with pytest.raises(InputError, match="NCCL_GRAPH_DUMP_FILE"):
        read_graph_xml(str(H200))


def test_a_file_for_nccl_topo_file_has_no_gpus(saved):
    with pytest.raises(InputError, match=r"topo\.xml names no GPU.*NCCL_TOPO_DUMP_FILE"):
        read_topology_xml(saved(system(cpu(0, pci("0000:10:1c.0")))))


BOMB = '<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><system version="&b;"/>'
OTHER_FILE = '<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not whole XML"),
        ("NCCL INFO", "not whole XML"),
        (H200.read_text()[:700], r"not whole XML \(line 11"),
        ("<system/><system/>", "not whole XML"),
        (BOMB, "document type"),
        (OTHER_FILE, "document type"),
        ("<system>" * 101, "levels"),
        ("<system>" + "<cpu/>" * 200_000 + "</system>", "elements"),
        (gzip.compress(b"<system>" + b" " * (1 << 24)), "unpack it first"),
        (gzip.compress(H200.read_bytes())[:100], "cut off"),
        ('<?xml version="1.0" encoding="no-such"?><system>\xff</system>'.encode("latin-1"), "not whole XML"),
    ],
    ids=["empty", "log", "cut", "two", "entities", "other file", "deep", "many", "zip bomb", "cut zip", "encoding"],
)
def test_damaged_and_hostile_files_are_refused(saved, content, why):
    with pytest.raises(InputError, match=rf"topo\.xml.*{why}"):
        read_topology_xml(saved(content))


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match="nowhere"):
        read_topology_xml("nowhere.xml")


@examples(80)
@given(seed=st.integers(0, 2**32))
def test_mutated_files_are_read_or_refused(tmp_path_factory, seed):
    chance = random.Random(seed)
    original = chance.choice((H200, GRAPHS))
    text = original.read_text()
    pieces = ['"', "<gpu/>", "<pci>", "</pci>", "0x", "-", "9" * 19, "&a;", "<!--", "\0", "é", "e999", "," * 9]
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(pieces) + text[at + chance.choice((0, 1, 3)) :]
    path = tmp_path_factory.mktemp("mutated") / "topo.xml"
    path.write_text(text)
    for read in (read_topology_xml, read_graph_xml):
        try:
            read(str(path))
        except InputError as error:
            assert "topo.xml" in str(error)


def test_links_of_amd_gpus_are_xgmi():
    """RCCL's file of four MI250: each die reaches three others over XGMI, the rest over those or PCIe."""
    (machine,) = read_topology_xml(str(TOPOLOGY / "mi250x8_rccl.xml"))
    near = machine.path("GPU0", "GPU1")
    assert near is not None and near.quote is not None
    assert (near.kind, near.count, near.quote.line) == ("XGMI", 1, 9)
    kinds = [path.kind for pair, path in machine.paths.items() if "NIC0" not in pair]
    assert (kinds.count("XGMI"), kinds.count("PHB")) == (12, 16)
    assert {gpu.nvlinks for gpu in machine.gpus} == {None}


@pytest.mark.parametrize("tclass", ["0x120000", "0x130000", "0x030000"])
def test_an_mi300_is_a_processing_accelerator(saved, tclass):
    link = '<xgmi target="0000:0{}:00.0" count="1" tclass="' + tclass + '"/>'
    text = cpu(0, gpu("0000:0c:00.0", 0, link.format("d"))) + cpu(1, gpu("0000:0d:00.0", 1, link.format("c")))
    (machine,) = read_topology_xml(saved(f'<system version="2">{text}</system>'))
    path = machine.path("GPU0", "GPU1")
    assert path is not None and (path.kind, path.count) == ("XGMI", 1)
