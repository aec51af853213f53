"""What rocm-smi and amd-smi say of the links between AMD GPUs."""

from __future__ import annotations

import pytest

from traceops.core.errors import InputError
from traceops.fabric.readers.topo_matrix import looks_like_rocm_topo, looks_like_topo_matrix, read_rocm_topo


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
