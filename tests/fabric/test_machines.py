"""Machines from what people save: evidence is found, several sources become one machine, and it is judged."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path as File

import pytest
from changed import replace
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.core.errors import InputError
from traceops.fabric.discover import named_fabric, run_fabric
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Nic, Path, Pcie, Quote
from traceops.fabric.read import merge_machines, read_fabric
from traceops.fabric.readers.nccl_xml import read_topology_xml
from traceops.fabric.readers.topo_matrix import read_topo_matrices
from traceops.fabric.reference import fingerprint, link_by_name, link_of_machine
from traceops.fabric.talks import nearest_nics
from traceops.render.topology.shape import shape_of
from traceops.rules.fabric.judge import judge_fabric
from traceops.rules.fabric.paths import judge_widths

DATA = File(__file__).parent.parent / "data"
TOPOLOGY, LOGS = DATA / "topology", DATA / "nccl_logs"


def fired(fabric):
    return {v.rule: [f.severity for f in v.findings] for v in judge_fabric(fabric) if v.findings}


def test_two_l4_on_two_nodes_with_a_bonded_nic():
    fabric = named_fabric([TOPOLOGY / "l4x2_bonded.txt"])
    assert fired(fabric) == {"TO-P001": ["info"]}
    (machine,) = fabric.machines
    near = {gpu.label: [nic.name for nic in nearest_nics(machine, gpu)[0]] for gpu in machine.gpus}
    assert near == {"GPU0": ["mlx5_bond_0"], "GPU1": ["mlx5_0", "mlx5_1"]}
    assert {nic.name: (nic.numa, nic.bonded) for nic in machine.nics} == {
        "mlx5_0": (1, False), "mlx5_1": (1, False), "mlx5_bond_0": (0, True),
    }  # fmt: skip
    found = judge_fabric(fabric)[0].findings[0]
    assert (found.kind, found.facts["pair"]) == ("across_numa", "GPU0 and GPU1")
    told = {one.metric: one.value for one in found.evidence}
    assert told["nearest NICs of GPU0"] == "bonded NIC2 (mlx5_bond_0) (NODE)"
    assert told["nearest NICs of GPU1"] == "NIC0 (mlx5_0), NIC1 (mlx5_1) (NODE)"


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("p2p.txt", {}),
        ("shm.txt", {"TO-P002": ["warning"]}),
        ("socket.txt", {"TO-P002": ["warning"], "TO-P003": ["warning"]}),
        ("no_interface.txt", {"TO-P003": ["error"]}),
    ],
)
def test_what_nccl_says_of_a_host_with_nvlink(name, rules):
    fabric = named_fabric([LOGS / name, TOPOLOGY / "h200x4.txt"])
    assert fired(fabric) == rules


@pytest.mark.parametrize("first", ["{'loss': 2.31, 'epoch': 0.1}", '{"loss": 2.31}', "<rank 0> starts"])
def test_a_log_is_read_whatever_the_trainer_prints_first(tmp_path, first):
    log = tmp_path / "slurm-1.out"
    log.write_text(f"{first}\n{(LOGS / 'shm.txt').read_text()}")
    assert fired(named_fabric([log, TOPOLOGY / "h200x4.txt"])) == {"TO-P002": ["warning"]}


def test_evidence_is_found_in_a_run_folder_and_beside_traces(tmp_path):
    run = tmp_path / "run"
    (run / "evidence").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    shutil.copy(LOGS / "shm.txt", run / "evidence" / "nccl.vm.1.log")
    shutil.copy(TOPOLOGY / "h200x4.txt", run / "evidence" / "topo.vm.txt")
    shutil.copy(LOGS / "socket.txt", run / "notes.txt")  # of a run folder only its evidence and logs count
    assert fired(run_fabric(str(run))) == {"TO-P002": ["warning"]}
    (run / "run.json").unlink()
    (run / "notes.txt").unlink()
    shutil.copy(LOGS / "shm.txt", run / "log.txt")
    shutil.rmtree(run / "evidence")
    assert fired(run_fabric(str(run), [TOPOLOGY / "h200x4.txt"])) == {"TO-P002": ["warning"]}


def test_a_folder_without_any_has_no_fabric(tmp_path):
    (tmp_path / "notes.txt").write_text("loss 3.5\n")
    assert run_fabric(str(tmp_path)) is None
    assert run_fabric("s3://bucket/run") is None


def test_a_bad_file_that_was_found_hides_no_other_and_one_that_was_named_is_an_error(tmp_path):
    (tmp_path / "topo.xml").write_text('<system version="1"><cpu numaid=')
    shutil.copy(LOGS / "p2p.txt", tmp_path / "log.txt")
    fabric = run_fabric(str(tmp_path))
    assert fabric.log is not None
    assert [File(path).name for path, _ in fabric.problems] == ["topo.xml"]
    with pytest.raises(InputError, match=r"topo\.xml"):
        named_fabric([tmp_path / "topo.xml"])
    with pytest.raises(InputError, match=r"nosuch\.txt"):
        named_fabric([tmp_path / "nosuch.txt"])
    (tmp_path / "notes.txt").write_text("loss 3.5\n")
    with pytest.raises(InputError, match="holds no topology matrix"):
        named_fabric([tmp_path / "notes.txt"])
    with pytest.raises(InputError, match="no file tells about GPUs and links"):
        named_fabric([tmp_path / "empty"]) if (tmp_path / "empty").mkdir() is None else None


def test_a_dump_of_nccls_graph_is_read():
    fabric = named_fabric([TOPOLOGY / "h200x4_graphs_nccl_2.28.xml", TOPOLOGY / "h200x4_nccl_2.28.xml"])
    assert {(graph.pattern, graph.intra_gbs) for graph in fabric.graphs} >= {(4, 360.0)}
    assert [len(machine.gpus) for machine in fabric.machines] == [4]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_what_powershell_wrote_is_read(tmp_path, encoding):
    file = tmp_path / "topo.txt"
    file.write_bytes(
        ("" if encoding == "utf-16" else "\ufeff").encode(encoding)
        + (TOPOLOGY / "l4x2_bonded.txt").read_text().encode(encoding)
    )
    ours, theirs = (named_fabric([one]).machines[0] for one in (file, TOPOLOGY / "l4x2_bonded.txt"))
    assert (ours.gpus, ours.nics) == (theirs.gpus, theirs.nics)
    assert {pair: path.kind for pair, path in ours.paths.items()} == {
        pair: path.kind for pair, path in theirs.paths.items()
    }


def test_an_archive_may_hold_several_jobs(tmp_path):
    packed = tmp_path / "logs.tgz"
    packed.write_bytes(gzip.compress((LOGS / "p2p.txt").read_bytes()))
    with pytest.raises(InputError, match="unpack it"):
        named_fabric([packed])


def test_matrices_of_two_machines_without_names_stay_two():
    fabric = named_fabric([TOPOLOGY / "a100x4_in_comments.txt", TOPOLOGY / "b200x8_one_without_nvlink.txt"])
    assert [len(machine.gpus) for machine in fabric.machines] == [4, 8]


def test_a_cube_of_v100_has_as_many_links_on_every_gpu():
    assert set(fired(named_fabric([TOPOLOGY / "v100x8_cube.txt"]))) <= {"TO-P001"}


@pytest.mark.parametrize(
    ("name", "gbs"),
    [
        ("NVIDIA H200", 48.0),
        ("NVIDIA H100 80GB HBM3", 48.0),
        ("NVIDIA A100-SXM4-80GB", 24.0),
        ("NVIDIA A10G", 24.0),
        ("NVIDIA L4", 24.0),
        ("NVIDIA GeForce RTX 4090", 24.0),
        ("Tesla V100-SXM2-16GB", 12.0),
        ("Tesla T4", 12.0),
        ("AMD Instinct MI300X", 48.0),
    ],
)
def test_by_name(name, gbs):
    link = link_by_name(name)
    assert (link.gbs, link.source) == (gbs, "table")


@pytest.mark.parametrize("name", [None, "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H100 MIG 1g.10gb", "Iris Xe"])
def test_of_others_nothing_is_known(name):
    assert link_by_name(name) is None


def test_the_narrowest_link_of_the_machines_counts():
    def machine(*links):
        gpus = tuple(Gpu(number, pcie=Pcie(1, 16, *link)) for number, link in enumerate(links))
        return Machine("one", gpus)

    narrow = link_of_machine((machine((5, 16), (4, 8)),))
    assert (narrow.gbs, narrow.source) == (12.0, "machine")
    assert link_of_machine((machine((5, None)),)) is None
    assert link_of_machine(()) is None


MATRIX = read_topo_matrices(str(TOPOLOGY / "h200x4.txt"))[0]
XML = read_topology_xml(str(TOPOLOGY / "h200x4_nccl_2.28.xml"))[0]


def machine(host=None, *, buses=("01", "02"), kind="NV", count=2, source="", **gpu) -> Machine:
    gpus = tuple(Gpu(index, bus_id=bus and f"0000:{bus}:00.0", **gpu) for index, bus in enumerate(buses))
    pairs = [(one.label, other.label) for one in gpus for other in gpus if one.index < other.index]
    return Machine(host, gpus, (), {pair: Path(kind, count) for pair in pairs}, (source,) if source else ())


def test_matrix_xml_and_a_look_at_the_machine():
    look = Machine(
        "h200",
        tuple(
            Gpu(i, "NVIDIA H200", f"00000000:00:0{6 + i}.0", f"GPU-{i}", pcie=Pcie(generation=1, most_width=16))
            for i in range(4)
        ),
        (Nic("NIC0", "eth0", "Ethernet", up=True),),
    )
    (joined,) = merge_machines([MATRIX, XML, look])
    assert joined.host == "h200"
    assert joined.sources == (*MATRIX.sources, *XML.sources)
    gpu = joined.gpus[2]
    assert (gpu.name, gpu.uuid, gpu.numa, gpu.cpus, gpu.nvlinks) == ("NVIDIA H200", "GPU-2", 0, "0-63", 18)
    assert gpu.pcie == Pcie(generation=1, most_generation=5, most_width=16)
    (nic,) = joined.nics
    assert (nic.name, nic.speed_gbs, nic.up) == ("eth0", 1.25, True)
    assert len(joined.paths) == 6
    assert joined.path("GPU0", "GPU1").quote == MATRIX.path("GPU0", "GPU1").quote


def test_gpus_by_bus_id_where_indices_differ():
    whole = machine("a", buses=("01", "02", "03"))
    job = replace(machine("a", buses=("03", "02"), kind="SYS", count=None, numa=1), host=None)
    job.paths["GPU0", "GPU1"] = Path("NV", 2, gbs=50.0)
    (joined,) = merge_machines([whole, job])
    assert [gpu.numa for gpu in joined.gpus] == [None, 1, 1]
    assert joined.path("GPU1", "GPU2").gbs == 50.0
    assert joined.path("GPU0", "GPU1").gbs is None


def test_a_source_that_knows_more_gpus_adds_them():
    (joined,) = merge_machines([machine("a", buses=("02",)), machine("a", buses=("01", "02", "03"), numa=0)])
    assert [(gpu.index, gpu.bus_id) for gpu in joined.gpus] == [
        (0, "0000:02:00.0"),
        (1, "0000:01:00.0"),
        (2, "0000:03:00.0"),
    ]
    assert len(joined.paths) == 3


def test_nics_by_name_whatever_their_labels():
    nics = (Nic("NIC0", "mlx5_1", numa=1), Nic("NIC1", "mlx5_0"))
    first = replace(machine("a"), nics=nics)
    first.paths["GPU0", "NIC1"] = Path("PIX")
    others = (Nic("NIC0", "mlx5_0", speed_gbs=25.0), Nic("NIC1", "eth0", "Ethernet", speed_gbs=1.25))
    second = replace(machine("a", numa=3), nics=others)
    second.paths["GPU1", "NIC0"] = Path("SYS")
    (joined,) = merge_machines([first, second])
    assert [(nic.label, nic.name, nic.speed_gbs) for nic in joined.nics] == [
        ("NIC0", "mlx5_1", None),
        ("NIC1", "mlx5_0", 25.0),
        ("NIC2", "eth0", 1.25),
    ]
    assert joined.path("NIC1", "GPU1").kind == "SYS"
    assert joined.nics[1].numa == 3  # one source knew the path, the other the GPU's node


def test_which_path_is_believed():
    def joined(one: Path, other: Path) -> Path:
        first, second = (replace(machine("a"), paths={("GPU0", "GPU1"): path}) for path in (one, other))
        second = replace(second, paths={("GPU1", "GPU0"): other})
        (both,) = merge_machines([first, second])
        assert len(both.paths) == 1
        return both.path("GPU0", "GPU1")

    quote = Quote("a.txt", 1, "GPU0")
    assert joined(Path("PHB"), Path("NV", 4)) == Path("NV", 4)
    assert joined(Path("NV", 4), Path("PHB")) == Path("NV", 4)
    assert joined(Path("PHB"), Path("NODE", quote=quote)) == Path("NODE", quote=quote)
    assert joined(Path("PCIE"), Path("SYS")) == Path("SYS")
    assert joined(Path("PIX"), Path("SYS")) == Path("PIX")
    assert joined(Path("NV", 4), Path("NV", quote=quote)) == Path("NV", 4, quote=quote)


def test_hosts_by_their_short_names():
    assert len(merge_machines([machine("node1"), machine("Node1.cluster.example")])) == 1
    assert len(merge_machines([machine("10.0.0.1"), machine("10.0.0.2")])) == 2


def test_one_host_with_other_gpus_is_not_joined():
    assert len(merge_machines([machine("a"), machine("a", buses=("07", "08"))])) == 2
    assert len(merge_machines([machine("a", name="NVIDIA H100"), machine("a", name="H100")])) == 1
    assert len(merge_machines([machine("a", name="H100"), machine("a", name="A100")])) == 2
    assert len(merge_machines([machine("a"), machine("a", count=1)])) == 2


def test_without_a_name():
    unnamed = machine(source="topo.txt")
    assert [each.host for each in merge_machines([unnamed, machine("a")])] == ["a"]
    assert [each.host for each in merge_machines([unnamed, machine("a"), machine("b")])] == [None, "a", "b"]
    assert len(merge_machines([unnamed, machine(source="topo.xml", buses=(None, None))])) == 1
    assert len(merge_machines([unnamed, machine(source="topo.txt")])) == 2  # two matrices in one file


def test_the_first_source_is_believed_though_only_a_later_one_has_a_name():
    nics = [replace(machine(host, cpus=cpus), nics=(Nic(label, "mlx5_0"),)) for host, cpus, label in
            ((None, "0-7", "NIC0"), ("a", "8-15", "NET0"))]  # fmt: skip
    (joined,) = merge_machines(nics)
    assert (joined.host, joined.gpus[0].cpus, joined.nics[0].label) == ("a", "0-7", "NIC0")


def test_where_nccl_hangs_an_ethernet_port_tells_nothing():
    (matrix, log) = machine(None, numa=1), replace(machine("a"), nics=(Nic("NET0", "eth0", "Ethernet"),))
    log.paths["GPU0", "NET0"] = Path("PHB")
    (joined,) = merge_machines([matrix, log])
    assert (joined.nics[0].name, joined.nics[0].numa) == ("eth0", None)


def test_hosts_in_one_file_stay_apart():
    matrices = read_topo_matrices(str(TOPOLOGY / "two_hosts_pdsh.txt"))
    assert {each.host: fingerprint(each) for each in merge_machines(matrices)} == {
        each.host: fingerprint(each) for each in matrices
    }


@examples(40)
@given(order=st.permutations(range(4)))
def test_the_order_of_sources_does_not_matter_to_what_is_known(order):
    """Nothing that a source said is lost, and the fingerprint stays, whichever file came first."""
    nic = Nic("NIC3", "mlx5_bond_0", "RoCE", bonded=True)
    sources = [
        MATRIX,
        XML,
        replace(MATRIX, host="h200", nics=(nic,), sources=()),
        Machine("h200", tuple(Gpu(i, name="NVIDIA H200") for i in range(4)), sources=("nccl.log",)),
    ]
    (joined,) = merge_machines([sources[place] for place in order])
    (expected,) = merge_machines(sources)
    assert joined.host == "h200"
    assert set(joined.sources) == set(expected.sources)
    assert joined.gpus == expected.gpus
    assert {nic.name for nic in joined.nics} == {"eth0", "mlx5_bond_0"}
    assert fingerprint(joined) == fingerprint(expected)
    assert merge_machines([joined]) == (joined,)


GPUS = (Gpu(0, name="A100"), Gpu(1, name="A100"))


def two_gpus(*nics: Nic) -> Machine:
    paths = {(gpu.label, nic.label): Path("SYS") for gpu in GPUS for nic in nics}
    return Machine("h", GPUS, nics, paths | {("GPU0", "GPU1"): Path("NV", 12)})


def fast(index: int, card: str, gbs: float) -> Nic:
    return Nic(f"NIC{index}", f"mlx5_{index}", kind="IB", speed_gbs=gbs, bus_id=card)


OTHERS = [fast(i, f"0000:{i}0:00.0", 50.0) for i in (4, 5, 6, 7)]


def test_a_card_all_of_whose_ports_are_slower_is_another_card():
    slow = [fast(i, "0000:01:00.0", 12.5) for i in range(4)]
    assert judge_widths(Fabric((two_gpus(*slow, *OTHERS),))).findings == ()


@pytest.mark.parametrize(
    "slow",
    [
        [fast(0, "0000:01:00.0", 12.5)],  # a card of one port
        [fast(0, "0000:01:00.0", 12.5), fast(1, "0000:01:00.1", 50.0)],  # one port of a card
    ],
)
def test_a_port_that_is_slower_than_its_siblings_is_told(slow):
    (finding,) = judge_widths(Fabric((two_gpus(*slow, *OTHERS),))).findings
    assert (finding.facts["device"], finding.facts["one"]) == ("mlx5_0", "100 Gbit/s")


def test_links_that_are_narrower_one_way_are_not_called_alike():
    uneven = replace(two_gpus(), paths={("GPU0", "GPU1"): Path("NV", 12, back_share=1 / 12)})
    hub = shape_of(uneven).hub
    assert hub is not None and hub.texts[0] == "NV12 one way, NV1 back"
    assert shape_of(two_gpus()).hub.texts[0] == "NV12"


TEST = """\
# Collective test starting: {op}_perf
# nThread 1 nGpus 1 minBytes 33554432 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid 36 on n3 device  0 [0000:61:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 35 on n8 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
"""
ROWS = """\
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
    33554432       2097152    double    none      -1  1286.53   26.08   13.04       0  1274.91   26.32   13.16    N/A
# Avg bus bandwidth    : 13.1
# Collective test concluded: {op}_perf
"""


def test_a_test_that_began_and_has_no_result_is_told(tmp_path):
    path = tmp_path / "tests.log"
    whole = (TEST + ROWS).format(op="alltoall")
    path.write_text(whole + TEST.format(op="sendrecv"))
    fabric = read_fabric([path], [])
    assert [one.op for one in fabric.benchmarks] == ["alltoall"]
    assert [said for _, said in fabric.problems if "sendrecv of nccl-tests began and has no result" in said]
    path.write_text(whole)
    assert read_fabric([path], []).problems == ()
