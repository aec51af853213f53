"""Healthy jobs over two hosts, as NCCL's own lines and a matrix tell of them: no finding, whatever they are called."""

import pytest

from traceops.fabric.fabric import Circumstances
from traceops.fabric.read import named_fabric
from traceops.fabric.to_json import alike_connections
from traceops.rules.fabric.judge import RULES, judge_fabric

H100 = "NVIDIA H100 80GB HBM3"
MATRIX = """\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\tX\tNV18\tPIX\tSYS\t0-31\t0\t\tN/A
GPU1\tNV18\tX\tSYS\tPIX\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\tX\tSYS
NIC1\tSYS\tPIX\tSYS\tX
NIC Legend:
  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def log_of(hosts: tuple[str, str], proxied: bool) -> str:
    """Two hosts of two GPUs, a NIC near each: the ring leaves rank 0's host from GPU1 through GPU0's NIC."""
    lines = []
    for rank in range(4):
        host, gpu = hosts[rank // 2], rank % 2
        head = f"{host}:{100 + rank}:{200 + rank} [{gpu}] NCCL INFO"
        start = f"comm 0x{rank + 1}00 rank {rank} nranks 4 cudaDev {gpu} nvmlDev {gpu} busId {gpu + 1}b000 commId 0xabc"
        proxy = f"({rank - 1})" if proxied else ""
        lines += [
            f"{head} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            f"{head} Using network IB",
            f"{head} ncclCommInitRankConfig {start} - Init START",
        ]
        if gpu == 0:
            lines.append(f"{head} Channel 00/0 : {rank}[0] -> {rank + 1}[1] via P2P/CUMEM")
        else:
            to = (rank + 1) % 4
            lines.append(
                f"{head} Channel 00/0 : {rank}[1] -> {to}[0] [send] via NET/IB/0{proxy}{'/GDRDMA' if proxied else ''}"
            )
        lines.append(f"{head} ncclCommInitRankConfig {start} - Init COMPLETE")
    return "\n".join(lines)


def fired(folder, *, hosts=("a", "b"), proxied=True, matrix=MATRIX):
    (folder / "log.txt").write_text(log_of(hosts, proxied))
    (folder / "topo.txt").write_text(matrix)
    fabric = named_fabric([folder])
    found = judge_fabric(fabric, Circumstances(device=H100))
    assert {verdict.rule for verdict in found} == {rule.id for rule in RULES}
    return fabric, {v.rule: [(f.severity, f.message) for f in v.findings] for v in found if v.findings}


def test_who_sends_for_another_uses_the_nic_near_itself(tmp_path):
    assert fired(tmp_path)[1] == {}
    far = fired(tmp_path, proxied=False)[1]["TO-P004"]  # PXN off: now it is GPU1 that goes to GPU0's NIC
    assert [severity for severity, _ in far] == ["warning"]
    assert "GPU1 sends through NIC0 (mlx5_0), which lies across NUMA nodes" in far[0][1]


def test_two_hosts_of_one_name_are_two(tmp_path):
    fabric, found = fired(tmp_path, hosts=("localhost", "localhost"))
    assert found == {}
    within = {kind.transport: kind.within_host for kind in alike_connections(fabric.log.communicators)}
    assert within == {"P2P": True, "NET": False}


def test_hosts_of_one_name_in_a_cut_log_are_not_taken_for_one(tmp_path):
    """Lines from the middle of a log: nothing says how many hosts are called localhost."""
    way = "Channel 00/0 : {}[{}] -> {}[{}] [send] via NET/Socket/0"
    ranks = ((7, 7, 8, 0), (8, 0, 9, 1))
    (tmp_path / "log.txt").write_text(
        "\n".join(f"localhost:{ends[0]}:9 [{ends[1]}] NCCL INFO {way.format(*ends)}" for ends in ranks)
    )
    found = [f for verdict in judge_fabric(named_fabric([tmp_path])) for f in verdict.findings]
    assert [(f.rule, f.severity) for f in found] == [("TO-P003", "info")]


def test_a_host_with_its_domain_is_the_one_without(tmp_path):
    named = "".join(f"{host}.cluster.example: {line}\n" for host in "ab" for line in MATRIX.splitlines() if line)
    [(_, message)] = fired(tmp_path, matrix=named, proxied=False)[1]["TO-P004"]
    assert "GPU1 of a.cluster.example, b.cluster.example sends" in message


def test_a_near_nic_that_nccl_does_not_list_may_be_down(tmp_path):
    text = log_of(("a", "b"), False).replace(" [1]mlx5_1:1/IB", "")
    for chosen, severity in (("", "info"), ("a:100:200 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n", "warning")):
        (tmp_path / "log.txt").write_text(chosen + text)
        (tmp_path / "topo.txt").write_text(MATRIX)
        [found] = [f for v in judge_fabric(named_fabric([tmp_path])) for f in v.findings]
        assert (found.rule, found.severity) == ("TO-P004", severity)
        assert ("lists none of them" in found.message) is (severity == "info")


def test_machines_that_are_alike_are_one_finding(tmp_path):
    matrix = MATRIX.replace("NV18", "SYS").splitlines()
    (tmp_path / "topo.txt").write_text("".join(f"n{number}: {line}\n" for number in range(20) for line in matrix))
    [found] = [f for v in judge_fabric(named_fabric([tmp_path])) for f in v.findings]
    assert found.message.startswith("GPU0 and GPU1 on n0, n1, n2 and 17 more hosts reach each other only through")


@pytest.mark.parametrize("other", ["eth0", "bond0"])
def test_the_port_of_another_network_is_no_nearer_nic(tmp_path, other):
    only = MATRIX.replace("NIC1: mlx5_1", f"NIC1: {other}")
    assert "TO-P004" not in fired(tmp_path, matrix=only, proxied=False)[1]


def test_of_two_runs_in_one_log_the_last_counts(tmp_path):
    slow = log_of(("a", "b"), True).replace("P2P/CUMEM", "SHM/direct/direct")
    again = log_of(("a", "b"), True).replace(":10", ":90").replace("0xabc", "0xdef")
    folder = tmp_path / "log"
    folder.mkdir()
    for text, rules in ((f"{slow}\n{again}", []), (f"{again}\n{slow}", ["TO-P002"])):
        (folder / "log.txt").write_text(text)
        found = judge_fabric(named_fabric([folder]), Circumstances(device=H100))
        assert [verdict.rule for verdict in found if verdict.findings] == rules


@pytest.mark.parametrize(
    ("way", "clear"),
    [
        ("P2P/CUMEM", "GPUs of one host talk by P2P/CUMEM"),
        ("SHM/direct/direct", "GPUs of one host talk by SHM/direct"),
        ("P2P/MNNVL", ""),
    ],
)
def test_one_rank_of_a_log_tells_what_stays_inside(tmp_path, way, clear):
    """One process's file, or what Ray says once for all workers."""
    lines = log_of(("a", "b"), True).splitlines()[:5]
    (tmp_path / "log.txt").write_text("\n".join(lines).replace("P2P/CUMEM", way))
    verdict = {each.rule: each for each in judge_fabric(named_fabric([tmp_path]))}["TO-P002"]
    assert (verdict.clear or "") == clear


def test_a_matrix_without_the_gpus_that_ranks_run_on_is_of_another_machine(tmp_path):
    (tmp_path / "log.txt").write_text(log_of(("a", "a"), True).replace("nvmlDev ", "nvmlDev 4"))
    (tmp_path / "topo.txt").write_text(MATRIX.replace("NV18", "SYS"))
    fabric = named_fabric([tmp_path])
    [found] = [f for verdict in judge_fabric(fabric) for f in verdict.findings]
    assert found.rule == "TO-P001"
    assert "NCCL took" not in found.message


def test_what_goes_to_a_switch_of_the_network_leaves_the_host(tmp_path):
    head = "a:100:200 [0] NCCL INFO"
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "log.txt").write_text(
        f"{log_of(('a', 'b'), True)}\n{head} CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA"
    )
    clear = {verdict.rule: verdict.clear for verdict in judge_fabric(named_fabric([folder]))}
    assert clear["TO-P002"] == "GPUs of one host talk by P2P/CUMEM"
    assert clear["TO-P003"] == "between ranks NCCL goes over COLLNET/SHARP, NET/IB"


def groups_of_two(*, with_world: bool) -> str:
    """Four GPUs of one host in two groups of two, the second over host memory; with the group of all, or without."""
    lines = []
    for rank in range(4):
        head = f"a:{100 + rank}:{200 + rank} [{rank}] NCCL INFO"
        where = f"cudaDev {rank} nvmlDev {rank} busId {rank + 1}b000"
        if with_world:
            world = f"comm 0x{rank + 1}00 rank {rank} nranks 4 {where} commId 0xa"
            lines += [f"{head} {world} - Init START", f"{head} {world} - Init COMPLETE"]
        own, other, way = rank % 2, 1 - rank % 2, ("P2P/CUMEM", "SHM/direct/direct")[rank // 2]
        devices = rank, rank - own + other
        small = f"comm 0x{rank + 1}01 rank {own} nranks 2 {where} commId 0xb{rank // 2}"
        lines += [
            f"{head} {small} - Init START",
            f"{head} Channel 00/0 : {own}[{devices[0]}] -> {other}[{devices[1]}] via {way}",
            f"{head} {small} - Init COMPLETE",
        ]
    return "\n".join(lines)


@pytest.mark.parametrize(("with_world", "ranks"), [(True, (2, 3)), (False, ())])
def test_ranks_of_small_groups_are_named_as_ranks_of_the_job(tmp_path, with_world, ranks):
    (tmp_path / "log.txt").write_text(groups_of_two(with_world=with_world))
    [found] = [f for v in judge_fabric(named_fabric([tmp_path]), Circumstances(device=H100)) for f in v.findings]
    assert (found.rule, found.ranks) == ("TO-P002", ranks)
    assert found.evidence[0].value == 1
    assert found.evidence[0].unit == "of 2"
