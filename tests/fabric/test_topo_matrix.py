"""Matrices of ``nvidia-smi topo -m``, rocm-smi and amd-smi as people paste them, and the fingerprints of machines."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path as File

import pytest
from changed import replace
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.core.errors import InputError
from traceops.fabric.model import Gpu, Machine, Nic, Path, Pcie, Quote
from traceops.fabric.readers.topo_matrix import (
    looks_like_rocm_topo,
    looks_like_topo_matrix,
    read_rocm_topo,
    read_topo_matrices,
)
from traceops.fabric.reference import fingerprint

DATA = File(__file__).parents[1] / "data" / "topology"
MATRICES = sorted(DATA.glob("*.txt"))
FEW = examples(60)


def read(name: str):
    (machine,) = read_topo_matrices(str(DATA / name))
    return machine


def kinds(machine, label: str) -> list[str]:
    """The paths from one device to all GPUs and NICs, in their order; X to itself."""
    others = [*(gpu.label for gpu in machine.gpus), *(nic.label for nic in machine.nics)]
    found = ((other, machine.path(label, other)) for other in others)
    return [
        "X" if other == label else "-" if path is None else f"{path.kind}{path.count or ''}" for other, path in found
    ]


def test_two_l4_with_a_bonded_nic():
    machine = read("l4x2_bonded.txt")
    assert [(gpu.numa, gpu.cpus) for gpu in machine.gpus] == [(0, "0-15,32-47"), (1, "16-31,48-63")]
    assert [(nic.name, nic.numa, nic.bonded) for nic in machine.nics] == [
        ("mlx5_0", 1, False),
        ("mlx5_1", 1, False),
        ("mlx5_bond_0", 0, True),
    ]
    assert kinds(machine, "GPU0") == ["X", "SYS", "SYS", "SYS", "NODE"]
    assert kinds(machine, "NIC1") == ["SYS", "NODE", "PIX", "X", "SYS"]
    quote = machine.path("GPU1", "NIC0").quote
    lines = (DATA / "l4x2_bonded.txt").read_text().splitlines()
    assert quote.text == lines[quote.line - 1]
    assert quote.text.startswith("GPU1\tSYS")


@pytest.mark.parametrize(
    ("name", "label", "paths", "nodes", "nic_nodes"),
    [
        ("h200x4.txt", "GPU0", "X NV18 NV18 NV18", [0] * 4, []),
        ("p100x4_soc.txt", "GPU2", "SYS SYS X NV2 SYS SYS", [None] * 4, [None] * 2),
        ("v100x4_stuck_header.txt", "GPU3", "NV1 NV1 NV1 X SYS PIX", [None] * 4, [None] * 2),
        (
            "v100x8_cube.txt",
            "GPU5",
            "SYS NV2 SYS SYS NV1 X NV2 NV1 SYS SYS PIX NODE",
            [0] * 4 + [1] * 4,
            [0, 0, 1, 1],
        ),
        ("a100x4_in_comments.txt", "GPU1", "SYS X SYS SYS PIX SYS", [3, 1, 7, 5], [1, 7]),
        # The last two NICs are on a node of their own: not known which.
        (
            "a100x8_eight_nodes.txt",
            "GPU0",
            "X" + " NV12" * 7 + " PXB PXB" + " SYS" * 8,
            [3, 3, 1, 1, 7, 7, 5, 5],
            [3, 3, 1, 1, 7, 7, 5, 5, None, None],
        ),
        (
            "b200x8_one_without_nvlink.txt",
            "GPU2",
            "NODE NODE X NODE SYS SYS SYS SYS NODE NODE PXB NODE SYS SYS SYS SYS",
            [0] * 4 + [1] * 4,
            [0] * 4 + [1] * 4,
        ),
        ("gb200x4.txt", "GPU3", "NV18 NV18 NV18 X SYS SYS SYS SYS", [0, 0, 1, 1], [None] * 4),
        (
            "h100x8_one_tab_lost.txt",
            "GPU6",
            "NV18 " * 6 + "X NV18" + " SYS" * 5 + " NODE NODE PXB NODE NODE",
            [0] * 4 + [1] * 4,
            [0] * 5 + [1] * 5,
        ),
        ("h100x4_in_a_log.txt", "NIC3", "SYS SYS NODE PIX SYS SYS NODE X", [0, 0, 1, 1], [0, 0, 1, 1]),
        ("h100x8_wrapped.txt", "GPU5", "NV18 " * 5 + "X NV18 NV18 SYS SYS PIX SYS", [0] * 4 + [1] * 4, [0, 0, 1, 1]),
    ],
)  # fmt: skip
def test_layouts(name, label, paths, nodes, nic_nodes):
    machine = read(name)
    assert kinds(machine, label) == paths.split()
    assert [gpu.numa for gpu in machine.gpus] == nodes
    assert [nic.numa for nic in machine.nics] == nic_nodes


def test_lists_of_cores():
    assert read("p100x4_soc.txt").gpus[0].cpus.startswith("0-0,8-8,16-16")
    assert read("h100x4_in_a_log.txt").gpus[3].cpus == "1,3,5,7,9,11"
    assert read("gb200x4.txt").gpus[2].cpus == "72-143"


def test_one_machine_though_asked_for_nvlink_pcie_and_p2p():
    machine = read("h200x4_all_matrices.txt")
    assert kinds(machine, "GPU3") == ["NV18", "NV18", "NV18", "X"]


def test_the_pcie_matrix_first_tells_no_less():
    text = (DATA / "h200x4_all_matrices.txt").read_text()
    _, with_nvlink, pcie = text.split("##### nvidia-smi topo -m", 2)
    pcie = pcie.partition("## rc")[0]
    (machine,) = read_topo_matrices("saved.txt", pcie + with_nvlink)
    assert kinds(machine, "GPU0") == ["X", "NV18", "NV18", "NV18"]
    (machine,) = read_topo_matrices("saved.txt", pcie)
    assert kinds(machine, "GPU0") == ["X", "PHB", "PHB", "PHB"]


def test_peer_access_is_no_topology():
    p2p = (DATA / "h200x4_all_matrices.txt").read_text().partition("-p2p r")[2]
    assert not looks_like_topo_matrix(p2p)
    with pytest.raises(InputError, match=r"saved\.txt.*nvidia-smi topo -m"):
        read_topo_matrices("saved.txt", p2p)


@pytest.mark.parametrize("name", ["two_hosts_pdsh.txt", "two_hosts_ansible.txt", "two_hosts_clush.txt"])
def test_two_hosts_in_one_file(name):
    machines = {machine.host: machine for machine in read_topo_matrices(str(DATA / name))}
    assert sorted(machines) == ["gpu-a1", "gpu-a2"]
    assert kinds(machines["gpu-a1"], "NIC0") == ["NODE", "NODE", "X"]
    assert kinds(machines["gpu-a2"], "NIC0") == ["SYS", "NODE", "X"]
    assert machines["gpu-a1"].path("GPU0", "GPU1").count == 4
    assert [machines[host].nics[0].name for host in sorted(machines)] == ["mlx5_0", "mlx5_2"]
    assert machines["gpu-a2"].gpus[1].cpus == "32-63"


def test_host_from_the_prompt():
    assert read("a100x8_eight_nodes.txt").host == "dgx07"
    assert read("h100x4_in_a_log.txt").host is None


@pytest.mark.parametrize("who", ["INFO: ", "0: ", "[1,0]<stdout>:", "[default0]:", "[pod/ns/job-0] ", "10:15:01 "])
def test_whoever_says_it_is_no_host(who):
    text = (DATA / "l4x2_bonded.txt").read_text()
    (machine,) = read_topo_matrices("", "".join(f"{who}{line}\n" for line in text.splitlines()))
    assert machine.host is None
    assert [(nic.name, nic.numa) for nic in machine.nics] == [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_bond_0", 0)]


@pytest.mark.parametrize(("one", "other"), [("[default0]:", "[default1]:"), ("0: ", "1: "), ("web-1  | ", "db-1  | ")])
def test_lines_of_two_that_speak_at_once(one, other):
    ours = (DATA / "l4x2_bonded.txt").read_text().splitlines()
    theirs = (DATA / "h200x4.txt").read_text().splitlines()
    mixed = [
        f"{who}{line}" for pair in zip(ours, theirs, strict=False) for who, line in zip((one, other), pair, strict=True)
    ]
    machines = read_topo_matrices("", "\n".join(mixed))
    assert [kinds(machine, "GPU0")[:2] for machine in machines] == [["X", "SYS"], ["X", "NV18"]]


def test_cut_off_in_a_row():
    machine = read("a100x8_cut_off.txt")
    assert len(machine.gpus) == 8
    assert kinds(machine, "GPU3")[:8] == ["NV12"] * 3 + ["X"] + ["NV12"] * 4
    assert kinds(machine, "GPU5")[5:8] == ["X", "-", "-"]
    assert machine.gpus[4].numa is None
    assert [nic.numa for nic in machine.nics][:5] == [3, 3, 1, 1, None]


def test_entries_that_differ_by_direction():
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV2\t X \t0-7\n"
    (machine,) = read_topo_matrices("", text)
    assert (machine.path("GPU0", "GPU1").count, machine.path("GPU1", "GPU0").count) == (4, 2)


def test_columns_left_empty():
    header = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    text = header + "GPU0\t X \tPHB\t0-7\t\t\tN/A\nGPU1\tPHB\t X \t\t1\t\tN/A\n"
    (machine,) = read_topo_matrices("", text)
    assert [(gpu.cpus, gpu.numa) for gpu in machine.gpus] == [("0-7", None), (None, 1)]
    spread = header + "GPU0\t X \tPHB\t0-7\t0-1\t\tN/A\nGPU1\tPHB\t X \tN/A\tN/A\t\tN/A\n"
    (machine,) = read_topo_matrices("", spread)
    assert [(gpu.cpus, gpu.numa) for gpu in machine.gpus] == [("0-7", None), (None, None)]


def test_devices_that_are_neither_gpu_nor_nic():
    text = (
        "\tGPU0\tMIG0\tGPU1\tNVSwitch0\tmlx5_0\tCPU Affinity\nGPU0\t X \tPIX\tNV4\tNV4\tPXB\t0-7\n"
        "GPU1\tNV4\tSYS\t X \tNV4\tSYS\t8-15\n"
    )
    (machine,) = read_topo_matrices("", text)
    assert [gpu.label for gpu in machine.gpus] == ["GPU0", "GPU1"]
    assert [nic.label for nic in machine.nics] == ["mlx5_0"]
    assert kinds(machine, "GPU0") == ["X", "NV4", "PXB"]


def test_one_gpu():
    (machine,) = read_topo_matrices("", "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-11\t0\n")
    assert (machine.gpus[0].cpus, machine.gpus[0].numa, machine.paths) == ("0-11", 0, {})


@pytest.mark.parametrize("path", MATRICES, ids=lambda path: path.stem)
def test_matrices_are_told_from_other_text(path):
    assert looks_like_topo_matrix(path.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU0 is slower than GPU1\n",
        "\tGPU0\tGPU1\tCPU Affinity\n",
        "GPU0\t X \tNV4\nGPU1\tNV4\t X \n",
        "       GPU0         GPU1         \nGPU0   0            XGMI         \nGPU1   XGMI         0            \n",
    ],
)
def test_no_matrix(text):
    assert not looks_like_topo_matrix(text)
    with pytest.raises(InputError, match=r"a\.txt"):
        read_topo_matrices("a.txt", text)


@FEW
@given(width=st.integers(40, 200))
def test_wrapped_at_any_width_even_inside_a_word(width):
    whole = (DATA / "b200x8_one_without_nvlink.txt").read_text().partition("Legend")[0]
    wrapped = "\n".join(
        line[at : at + width] for line in whole.splitlines() for at in range(0, max(len(line), 1), width)
    )
    (expected,) = read_topo_matrices("", whole)
    (machine,) = read_topo_matrices("", wrapped)
    assert (machine.gpus, machine.nics) == (expected.gpus, expected.nics)
    for device in (*expected.gpus, *expected.nics):
        assert kinds(machine, device.label) == kinds(expected, device.label)


@FEW
@given(seed=st.integers(0, 2**32))
def test_mutated_matrices_are_read_or_refused(seed):
    chance = random.Random(seed)
    text = chance.choice(MATRICES).read_text()
    pieces = [
        "\t",
        "\n",
        " ",
        "X",
        "NV",
        "GPU0",
        "NIC1",
        "0-",
        ",",
        "\x1b[4m",
        "N/A",
        ": ",
        "9" * 30,
        "\udcff",
        "²",
        "-",
    ]
    for _ in range(chance.randint(1, 40)):
        at, end = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        text = chance.choice(
            [
                text[:at] + chance.choice(pieces) + text[at:],
                text[:at] + text[min(end, at + chance.randint(1, 60)) :],
                text[:at] + text[at : at + 80] + text[at:],
            ]
        )
    try:
        machines = read_topo_matrices("mutated.txt", text)
    except InputError:
        return
    for machine in machines:
        known = {device.label for device in (*machine.gpus, *machine.nics)}
        assert known.issuperset(label for pair in machine.paths for label in pair)


def test_a_header_and_rows_that_run_into_the_affinity(tmp_path: File):
    """As a narrow terminal gave them (microsoft/msccl issue 60)."""
    text = (
        "        GPU0    GPU1    GPU2CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV12    NV120-31    0\n"
        "GPU1    NV12     X      NV1232-63   1\n"
        "GPU2    NV12    NV12     X 32-63    1\n"
    )
    (machine,) = read_topo_matrices("topo.txt", text)
    assert [(gpu.numa, gpu.cpus) for gpu in machine.gpus] == [(0, "0-31"), (1, "32-63"), (1, "32-63")]
    assert kinds(machine, "GPU2") == ["NV12", "NV12", "X"]
    (bridged,) = read_topo_matrices("topo.txt", "GPU0 GPU1CPU Affinity\nGPU0 X NV448-63\nGPU1 NV4 X 0-15\n")
    assert (kinds(bridged, "GPU0"), bridged.gpus[0].cpus) == (["X", "NV4"], "48-63")


@pytest.mark.parametrize("rule", ["|------|------|------|------|", "+------+------+------+------+", ""])
def test_a_matrix_made_into_a_table(rule: str):
    """As READMEs have it, in Markdown and reStructuredText."""
    rows = [
        "|      | GPU0 | GPU1 | NIC0 | CPU Affinity | NUMA Affinity |",
        "| GPU0 | X    | NV18 | SYS  | 0-31         | 0             |",
        "| GPU1 | NV18 | X    | NODE | 32-63        | 1             |",
        "| NIC0 | SYS  | NODE | X    |              |               |",
    ]
    (machine,) = read_topo_matrices("topo.txt", "".join(f"{row}\n{rule}\n" for row in rows))
    assert (kinds(machine, "GPU0"), kinds(machine, "NIC0")) == (["X", "NV18", "SYS"], ["SYS", "NODE", "X"])
    assert [(gpu.numa, gpu.cpus) for gpu in machine.gpus] == [(0, "0-31"), (1, "32-63")]
    path = machine.path("GPU0", "GPU1")
    assert path is not None and path.quote is not None and path.quote.text == rows[1]


MP = """a@node1:~# nvidia-smi topo -mp
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      SYS     PIX     0-47            0
"""


def test_a_matrix_without_nvlink_does_not_say_how_gpus_reach_each_other(tmp_path):
    """``topo -mp`` shows SYS also between GPUs that NVLink joins."""
    path = tmp_path / "topo.txt"
    path.write_text(MP)
    problems: list[str] = []
    (machine,) = read_topo_matrices(str(path), problems=problems)
    assert machine.path("GPU0", "GPU1") is None and machine.path("GPU0", "NIC0").kind == "PIX"
    assert "leaves NVLink out" in problems[0] and looks_like_topo_matrix(MP)
    path.write_text(MP.replace("-mp", "-m"))
    (machine,) = read_topo_matrices(str(path), problems=problems)
    assert machine.path("GPU0", "GPU1").kind == "SYS" and len(problems) == 1


def test_the_whole_matrix_of_a_host_replaces_the_one_without_nvlink():
    asked = "nvidia-smi topo {how}\n        GPU0    GPU1    NIC0\nGPU0     X      {way}     PIX\n"
    (machine,) = read_topo_matrices("t", asked.format(how="-mp", way="SYS") + asked.format(how="-m", way="NV4"))
    assert machine.path("GPU0", "GPU1").count == 4


def table(title: str, labels: list[str], cell, own: str) -> str:
    rows = [[one, *(own if one == other else cell(one, other) for other in labels)] for one in labels]
    return "\n".join([title, "  ".join(["", *labels]), *("  ".join(row) for row in rows), ""])


GPUS = [f"GPU{index}" for index in range(4)]
BUSES = [f"0000:{bus}:00.0" for bus in ("03", "0c", "83", "8C")]


def link(one: str, other: str) -> str:
    return "XGMI" if (one in (*GPUS[:2], *BUSES[:2])) == (other in (*GPUS[:2], *BUSES[:2])) else "PCIE"


ROCM_SMI = "\n".join(
    [
        "===== ROCm System Management Interface =====",
        table("========== Weight between two GPUs ==========", GPUS, lambda *_: "15", "0"),
        table("=========== Hops between two GPUs ===========", GPUS, lambda *_: "1", "0"),
        table("========= Link Type between two GPUs =========", GPUS, link, "0"),
        "================= Numa Nodes =================",
        *(f"GPU[{index}]\t\t: (Topology) Numa Node: {index // 2}" for index in range(4)),
        *(f"GPU[{index}]\t\t: (Topology) Numa Affinity: {index // 2}" for index in range(4)),
        "============= End of ROCm SMI Log =============",
    ]
)  # fmt: skip
AMD_SMI = "\n".join(
    [
        table("ACCESS TABLE:", BUSES, lambda *_: "ENABLED", "ENABLED"),
        table("HOPS TABLE:", BUSES, lambda *_: "1", "0"),
        table("LINK TYPE TABLE:", BUSES, link, "SELF"),
        table("NUMA BW TABLE:", BUSES, lambda *_: "50000-50000", "N/A"),
    ]
)


@pytest.mark.parametrize(
    ("text", "nodes", "buses"),
    [(ROCM_SMI, [0, 0, 1, 1], [None] * 4), (AMD_SMI, [None] * 4, [bus.lower() for bus in BUSES])],
    ids=["rocm-smi", "amd-smi"],
)
def test_link_types(text, nodes, buses):
    assert looks_like_rocm_topo(text)
    assert not looks_like_topo_matrix(text)
    (machine,) = read_rocm_topo("topo.txt", text)
    assert [gpu.numa for gpu in machine.gpus] == nodes
    assert [gpu.bus_id for gpu in machine.gpus] == buses
    found = {pair: path.kind for pair, path in machine.paths.items()}
    assert found.pop(("GPU0", "GPU1")) == found.pop(("GPU2", "GPU3")) == "XGMI"
    assert len(found) == 4
    assert set(found.values()) == {"PCIE"}
    quote = machine.path("GPU1", "GPU2").quote
    assert text.splitlines()[quote.line - 1] == quote.text


def test_cut_off_and_without_the_table():
    cut = ROCM_SMI[: ROCM_SMI.index("GPU2", ROCM_SMI.index("Link Type") + 100)]
    (machine,) = read_rocm_topo("", cut)
    assert len(machine.gpus) == 4
    assert set(machine.paths) == {
        ("GPU0", "GPU1"),
        ("GPU0", "GPU2"),
        ("GPU0", "GPU3"),
        ("GPU1", "GPU2"),
        ("GPU1", "GPU3"),
    }
    weights = ROCM_SMI[: ROCM_SMI.index("========= Link Type")]
    assert not looks_like_rocm_topo(weights)
    with pytest.raises(InputError, match=r"a\.txt holds no table of link types.*rocm-smi --showtopo"):
        read_rocm_topo("a.txt", weights)


def test_one_gpu_has_no_links_and_is_a_machine_all_the_same():
    """What sglang's check_env prints on a machine with one GPU."""
    text = table("========= Link Type between two GPUs =========", ["GPU0"], link, "0")
    assert looks_like_rocm_topo(text)
    (machine,) = read_rocm_topo("a.txt", text)
    assert ([gpu.index for gpu in machine.gpus], machine.paths) == ([0], {})


KINDS = st.lists(st.sampled_from(["NV", "PHB", "SYS"]), min_size=6, max_size=6)
PAIRS = list(combinations(range(4), 2))


def machine(first: int = 0, names=("NVIDIA H200",) * 4, kinds=("NV",) * 6, counts=(18,) * 6, nics=()) -> Machine:
    gpus = tuple(Gpu(first + place, name) for place, name in enumerate(names))
    paths = {
        (gpus[one].label, gpus[other].label): Path(kind, count)
        for (one, other), kind, count in zip(PAIRS, kinds, counts, strict=True)
    }
    return Machine("a", gpus, nics, paths)


NICS = (Nic("NIC0", "mlx5_0", "IB"), Nic("NIC1", "mlx5_1", "IB"))


def test_it_is_short_and_does_not_change_between_versions():
    assert fingerprint(machine()) == "9e6d6514fff7a4d2"


@pytest.mark.parametrize(
    "same",
    [
        replace(machine(nics=NICS), host="b", sources=("x.txt",)),
        machine(first=4, nics=NICS),
        machine(names=("H200",) * 4, nics=NICS[::-1]),
        machine(nics=(*NICS, Nic("NIC2", "eth0", "Ethernet"), Nic("NIC3", "lo"))),
        machine(nics=(replace(NICS[0], label="NIC7", numa=1, up=True), NICS[1])),
    ],
)
def test_what_makes_no_other_machine(same):
    assert fingerprint(same) == fingerprint(machine(nics=NICS))


@pytest.mark.parametrize(
    "other",
    [
        machine(),
        machine(nics=NICS[:1]),
        machine(nics=(replace(NICS[0], up=False), NICS[1])),
        machine(names=("NVIDIA H200",) * 3 + ("NVIDIA H100",), nics=NICS),
        machine(kinds=("NV",) * 5 + ("SYS",), nics=NICS),
        machine(counts=(18,) * 5 + (17,), nics=NICS),
        Machine("a", machine().gpus, NICS),
    ],
)
def test_what_makes_another(other):
    assert fingerprint(other) != fingerprint(machine(nics=NICS))


@examples(60)
@given(
    seed=st.randoms(use_true_random=False),
    kinds=st.lists(st.sampled_from(["NV", "PHB", "SYS"]), min_size=6, max_size=6),
)
def test_order_direction_and_sources_do_not_matter(seed, kinds):
    told = machine(kinds=tuple(kinds), nics=NICS)
    gpus, nics, paths = list(told.gpus), list(told.nics), list(told.paths.items())
    for shuffled in (gpus, nics, paths):
        seed.shuffle(shuffled)
    turned = {
        (pair if seed.random() < 0.5 else pair[::-1]): replace(path, gbs=1.0, quote=Quote("a", 1, "b"))
        for pair, path in paths
    }
    gpus = [replace(gpu, bus_id="0000:01:00.0", numa=1, pcie=Pcie(4, 8)) for gpu in gpus]
    assert fingerprint(Machine(None, tuple(gpus), tuple(nics), turned, ("c",))) == fingerprint(told)
    nodes = tuple(kind.replace("PHB", "NODE") for kind in kinds)  # what NCCL calls PHB, nvidia-smi may call NODE
    assert fingerprint(machine(kinds=nodes, nics=NICS)) == fingerprint(told)
