"""Several sources about one host become one machine, and two hosts never do."""

from __future__ import annotations

from pathlib import Path as File

from changed import replace
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.fabric.model import Gpu, Machine, Nic, Path, Pcie, Quote
from traceops.fabric.read import merge_machines
from traceops.fabric.readers.nccl_xml import read_topology_xml
from traceops.fabric.readers.topo_matrix import read_topo_matrices
from traceops.fabric.reference import fingerprint

DATA = File(__file__).parents[1] / "data" / "topology"
MATRIX = read_topo_matrices(str(DATA / "h200x4.txt"))[0]
XML = read_topology_xml(str(DATA / "h200x4_nccl_2.28.xml"))[0]


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
    matrices = read_topo_matrices(str(DATA / "two_hosts_pdsh.txt"))
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
