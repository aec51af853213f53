"""NCCL's topology and graph XML, of machines and hosts of several kinds, damaged and hostile."""

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
from traceops.fabric.readers.nccl_xml import read_graph_xml, read_topology_xml, xml_kind

DATA = Path(__file__).parents[1] / "data" / "topology"
H200 = DATA / "h200x4_nccl_2.28.xml"
GRAPHS = DATA / "h200x4_graphs_nccl_2.28.xml"
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
    (machine,) = read_topology_xml(str(DATA / "mi250x8_rccl.xml"))
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
