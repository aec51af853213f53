"""The figure of a machine: what it says, and that every part lies where it belongs."""

from __future__ import annotations

from itertools import combinations

import pytest
from changed import replace
from html_page import Page
from sample_fabric import dgx1, no_gpu, nvswitch, pair_sweep, pcie_box, shm_log, sweep, two_l4, with_narrow
from sample_report import HOSTILE

from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Measured, Nic, Path, Quote
from traceops.fabric.nccl import Communicator, Connection, NcclLog, Network, RankPlace
from traceops.fabric.talks import talks
from traceops.render.topology.figure import Box, Figure, FigureDrawing, topology_figure
from traceops.render.topology.shape import Way, near_text, shape_of, ways_on
from traceops.render.writers import html as page

MACHINES = (
    *(nvswitch(gpus) for gpus in (1, 2, 4)),
    nvswitch(8, numas=2, nics=8),
    nvswitch(16, numas=4, nics=16),
    dgx1(),
    two_l4(),
    pcie_box(),
    no_gpu(),
    Machine(None, (Gpu(0), Gpu(1))),
    Machine(None),
    Machine(HOSTILE, (Gpu(0, HOSTILE, numa=0),), (Nic("NIC0", HOSTILE, numa=0),)),
)


def drawn(figure: Figure) -> Page:
    macro = page.environment().get_template("_topology.html.j2").make_module({})
    return Page(str(macro.topology(figure, "t")))  # type: ignore[attr-defined]


def said(drawing: FigureDrawing) -> list[str]:
    return [text.text for box in drawing.boxes for text in box.texts] + [text.text for text in drawing.texts]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_part_is_drawn_once_inside_and_apart(machine: Machine) -> None:
    for drawing in topology_figure(machine, pair_sweep([gpu.index for gpu in machine.gpus], 20.0)).drawings:
        nodes = [box for box in drawing.boxes if box.css == "numa"]
        devices = [box for box in drawing.boxes if box.css.split()[0] in ("gpu", "nic")]
        assert len(devices) == len(machine.gpus) + len(machine.nics)
        assert {box.texts[0].text for box in devices} == {d.label for d in (*machine.gpus, *machine.nics)}
        for box in devices:
            assert sum(_inside(box, node) for node in nodes) == 1
        for box in (*nodes, *devices):
            assert box.x >= 0 and box.x + box.width <= drawing.width
            assert box.y >= 0 and box.y + box.height <= drawing.height
        for one, other in (*combinations(nodes, 2), *combinations(devices, 2)):
            assert not _overlap(one, other), (one.title, other.title)


@pytest.mark.parametrize("machine", [m for m in MACHINES if m.host != "dgx"])
def test_the_narrow_drawing_fits_a_phone(machine: Machine) -> None:
    assert topology_figure(machine).drawings[1].width <= 314


@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_named_described_and_escaped(machine: Machine) -> None:
    shown = drawn(topology_figure(machine))
    assert shown.mismatched == [] and shown.open == []
    ids = [a["id"] for _, a in shown.elements if a.get("id")]
    assert len(ids) == len(set(ids)) == 4
    for svg in shown.all("svg"):
        assert svg["role"] == "img" and set((svg["aria-labelledby"] or "").split()) <= set(ids)
    assert not any("onerror" in attributes for _, attributes in shown.elements)


def test_nvlink_between_all_is_one_bar_with_what_was_measured() -> None:
    measured = (*sweep("all_reduce", range(4), 360.0), *pair_sweep(range(4), 380.0, slow={(1, 3): 120.0}))
    figure = topology_figure(nvswitch(), measured)
    assert "NVLink between all GPUs · NV18 · 120–380 GB/s" in said(figure.drawings[0])
    assert figure.problems == ("GPU1–GPU3 only 120 GB/s",)
    assert figure.bandwidth == "all_reduce 351 GB/s"
    assert "120–380 GB/s" in figure.description


def test_the_way_nccl_took_is_wrong_where_links_lie_idle() -> None:
    machine, log = nvswitch(), shm_log()
    figure = topology_figure(machine, ways=ways_on(machine, talks(Fabric((machine,), log))))
    assert figure.problems == ("NCCL leaves the links unused",)
    healthy = ways_on(machine, talks(Fabric((machine,), shm_log(transport="P2P", detail="CUMEM"))))
    assert topology_figure(machine, ways=healthy).problems == ()
    assert "NCCL: P2P/CUMEM" in (shape_of(machine, ways=healthy).hub or pytest.fail()).texts


def test_shared_memory_is_all_right_between_numa_nodes_without_links() -> None:
    figure = topology_figure(two_l4(), pair_sweep(range(2), 9.8, "l4-host"), (Way("GPU0", "GPU1", "SHM/direct"),))
    assert "Between NUMA nodes · SYS · 9.8 GB/s · NCCL: SHM/direct" in said(figure.drawings[0])
    assert figure.problems == ("GPU0: PCIe Gen4 ×8 of ×16",)


def test_nics_of_two_l4s_stand_with_their_gpu() -> None:
    machine = two_l4()
    nodes = shape_of(machine).nodes
    assert [[nic.name for nic in node.nics] for node in nodes] == [["mlx5_bond_0"], ["mlx5_0", "mlx5_1"]]
    assert [near_text(machine, nic) for nic in machine.nics] == ["NODE to GPU1", "NODE to GPU1", "NODE to GPU0"]
    assert {"bonded", "down"} <= set(said(topology_figure(machine).drawings[0]))


def test_without_numa_numbers_devices_stand_with_what_is_near() -> None:
    nodes = shape_of(pcie_box()).nodes
    assert [[gpu.index for gpu in node.gpus] for node in nodes] == [list(range(a, a + 4)) for a in (0, 4, 8, 12)]
    assert all(len(node.nics) == 4 for node in nodes)


def test_direct_links_are_drawn_one_by_one() -> None:
    figure = topology_figure(dgx1())
    for drawing in figure.drawings:
        brackets = [line for line in drawing.lines if line.css == "hub"]
        assert len(brackets) == 16
        assert sorted(text.text for text in drawing.texts) == ["NV1"] * 8 + ["NV2"] * 8


def test_direct_links_are_told_together_and_none_is_left_out() -> None:
    text = topology_figure(dgx1()).description
    assert text.count("NV1.") == text.count("NV2.") == text.count("GPU0–GPU1") == 1
    machine = nvswitch(8)
    paths = {pair: path for pair, path in machine.paths.items() if "GPU2" not in pair}
    text = topology_figure(replace(machine, paths=paths)).description
    assert "GPU1–GPU4 and 13 more pairs: NV18." in text and "over PCIe" not in text


def test_links_that_nobody_counted_have_no_number() -> None:
    machine = nvswitch(2)
    text = topology_figure(replace(machine, paths={("GPU0", "GPU1"): Path("NV")})).description
    assert "NVLink between all GPUs." in text


def test_narrow_and_missing_links_are_marked() -> None:
    figure = topology_figure(with_narrow(nvswitch(8), 3))
    assert figure.problems == ("GPU3: PCIe Gen5 ×8 of ×16", "GPU3: 16/18 NVLinks")
    bad = [text.text for box in figure.drawings[0].boxes for text in box.texts if text.css == "bad"]
    assert bad == ["Gen5 ×8 of ×16", "16/18 NVLinks"]


def test_ways_to_other_hosts_and_the_card_they_use() -> None:
    machine = nvswitch(2, "a", nics=2)
    machine = replace(machine, gpus=tuple(replace(gpu, bus_id=f"{gpu.index}") for gpu in machine.gpus))
    places = {0: RankPlace(0, "a", bus_id="1"), 1: RankPlace(1, "b", bus_id="0"), 2: RankPlace(2)}
    quote = Quote("log", 1, "")
    connections = tuple(Connection(0, end, "NET", "IB", 2, quote, device=1) for end in (1, 2))
    log = NcclLog(("log",), communicators=(Communicator("x", 3, places, connections),))
    network = Network("a", 1, "IB", quote, ((0, "mlx5_0:1/IB"), (1, "mlx5_1:1/IB")))
    ways = ways_on(machine, talks(Fabric((machine,), log)), [network])
    assert ways == (Way("GPU1", None, "NET/IB", "mlx5_1:1/IB"),)
    received = tuple(replace(one, of_receiver=True) for one in connections)
    log = NcclLog(("log",), communicators=(Communicator("x", 3, places, received),))
    assert ways_on(machine, talks(Fabric((machine,), log)), [network]) == (Way("GPU1", None, "NET/IB"),)
    figure = topology_figure(machine, ways=ways)
    assert figure.leaving == ("NET/IB",)
    assert [box.texts[0].text for box in figure.drawings[0].boxes if box.css == "nic used"] == ["NIC1"]


def test_bandwidth_of_another_host_is_left_out() -> None:
    measured = (Measured("send_recv", (0, 1), 1 << 28, 1.0, 5.0, "elsewhere"),)
    assert shape_of(nvswitch(2)).hub == shape_of(nvswitch(2), ()).hub
    assert "5" not in topology_figure(nvswitch(2), measured).description.replace("NV18", "")


def test_one_gpu_pair_without_a_known_path_says_so() -> None:
    machine = Machine(None, (Gpu(0, numa=0), Gpu(1, numa=0)), (), {})
    assert shape_of(machine).nodes[0].near is not None
    assert "path not known" in topology_figure(machine).description
    with_path = Machine(None, machine.gpus, (), {("GPU1", "GPU0"): Path("PHB")})
    assert "GPU 0–1 over PCIe: PHB." in topology_figure(with_path).description


def _inside(one: Box, other: Box) -> bool:
    return (
        other.x <= one.x
        and other.y <= one.y
        and one.x + one.width <= other.x + other.width
        and one.y + one.height <= other.y + other.height
    )


def _overlap(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )
