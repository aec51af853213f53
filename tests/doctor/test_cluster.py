"""What a cluster has, by what scontrol, sinfo and kubectl print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traceops.cli import main
from traceops.machine.cluster import NodeKind, cluster_here, read_cluster

DATA = Path(__file__).parents[1] / "data" / "cluster"
MIB = 1 << 20


def kinds(name: str) -> list[NodeKind]:
    return read_cluster((DATA / name).read_text())


def test_a_node_a_line_and_a_node_in_two_partitions() -> None:
    a100 = NodeKind("gpu-high", 1, gpus=4, gpu="a100", memory=256000 * MIB, cores=32, fabric="ib, hdr")
    v100 = NodeKind("gpu-high", 2, free=1, gpus=4, gpu="v100", memory=256000 * MIB, cores=48)
    found = kinds("scontrol_o.txt")
    assert found[:2] == [a100, v100]
    assert [kind.partition for kind in found] == ["gpu-high", "gpu-high", "gpu-test"]


def test_a_node_a_block() -> None:
    b200, pro, mover = kinds("scontrol.txt")
    assert (b200.gpus, b200.gpu, b200.partition) == (8, "nvidia_b200", "")
    assert (mover.away, mover.gpus) == (1, 0)
    assert (pro.free, pro.gpus, pro.fabric) == (1, 1, "efa")


def test_sinfo_with_its_header() -> None:
    batch, gpu = kinds("sinfo.txt")
    assert (batch.partition, batch.nodes, batch.free, batch.gpus) == ("batch", 15, 3, 0)
    assert (gpu.nodes, gpu.away, gpu.gpus, gpu.gpu, gpu.cores, gpu.fabric) == (5, 1, 8, "h100", 192, "ndr400, nvlink")
    bars = "PARTITION|NODES|GRES|MEMORY|CPUS|STATE\nbig|2|gpu:4|1000|8|idle\n"
    assert read_cluster(bars) == [NodeKind("big", 2, 2, 0, 4, "", None, 1000 * MIB, 8)]


def test_kubernetes_does_not_say_which_nodes_are_free() -> None:
    small, gpu = kinds("kubectl.json")
    assert (gpu.nodes, gpu.away, gpu.gpus, gpu.cores, gpu.fabric) == (2, 1, 8, 95, "4 vpc.amazonaws.com/efa")
    assert (gpu.gpu_memory, gpu.free, small.gpus, small.cores) == (40960 * MIB, None, 0, 2)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"items": 3}', '{"items": [1, {}]}', "PARTITION\n", "a b\nc"])
def test_what_is_no_list_of_nodes(text: str) -> None:
    assert read_cluster(text) == []


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--cluster", "--from", str(DATA / "kubectl.json"), str(DATA / "sinfo.txt")]) == 0
    assert "p4d" in capsys.readouterr().out
    assert main(["doctor", "--cluster", "--json", "--from", str(DATA / "sinfo.txt")]) == 0
    assert json.loads(capsys.readouterr().out)[1]["gpu_memory"] > 70e9  # an H100's
    (tmp_path / "x").write_text("nothing")
    assert main(["doctor", "--cluster", "--from", str(tmp_path / "x")]) == 3


def test_programs_that_answer_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    found, problems = cluster_here()
    assert found == [] and len(problems) == 2
