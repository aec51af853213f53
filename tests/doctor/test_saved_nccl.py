"""What NCCL's or RCCL's log alone tells the doctor of a host: the kernel's IOMMU, NUMA balancing, GPUDirect RDMA.

The lines are those of published logs (ROCm/rccl#1026, NVIDIA/nccl#1537), of hosts of our own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from looks_help import wrong
from saved_help import saved, smi_text

from traceops.doctor.checkup import check_files
from traceops.doctor.model import Checkup
from traceops.render.doctor.text import doctor_verdict

RCCL = "/build/hipify/src/init.cc:140 NCCL WARN"
IOMMU = 'Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!'
BALANCING = (
    "NUMA auto balancing enabled which can lead to variability in the RCCL performance! "
    'Disable by "sudo sysctl kernel.numa_balancing=0"'
)
SYSTEM = """=== System : maxBw 24.0 totalBw 48.0 ===
CPU/0-0 (1/1/2)
+ PCI[12.0] - GPU/0-b000 (0)
+ PCI[12.0] - GPU/0-e000 (1)
==========================================
GPU/0-b000 :GPU/0-b000 (0/5000.0/LOC) GPU/0-e000 (3/24.0/{way})
GPU/0-e000 :GPU/0-b000 (3/24.0/{way}) GPU/0-e000 (0/5000.0/LOC)"""

TESTS = """# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#  Rank  0 Pid     90 on          a device  0 [0x01] {gpu}
#
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum     15.0    0.00    0.00  0e+00     15.0    0.00    0.00  0e+00
"""


def rank(number: int, host: str = "a", ranks: int = 2) -> str:
    return (
        f"{host}:9{number}:9{number} [{number}] NCCL INFO ncclCommInitRank comm 0x5{number} rank {number} "
        f"nranks {ranks} cudaDev {number} nvmlDev {number} busId {'be'[number % 2]}000 commId 0xa3 - Init START"
    )


def warned(words: str, host: str = "a", number: int = 0) -> str:
    return f"[2026-04-16 07:48:24] {host}:9{number}:9{number} [{number}] {RCCL} {words}"


def system(way: str) -> str:
    return "\n".join(f"a:90:90 [0] NCCL INFO {line}" for line in SYSTEM.format(way=way).splitlines())


def checked(tmp_path: Path, *lines: str) -> Checkup:
    return check_files(saved(tmp_path, nccl="\n".join(lines)))


def test_rccl_misses_iommu_pt(tmp_path: Path) -> None:
    checkup = checked(tmp_path, warned(IOMMU), warned(IOMMU, number=1), rank(0), rank(1))
    [look] = [look for look in checkup.looks if look.level == "warning"]
    assert (look.rule, look.host, look.found) == ("TO-D105", "a", "the kernel runs without iommu=pt")
    assert "iommu=pt" in look.advice
    head = doctor_verdict(checkup)
    assert head.level == "warning" and "iommu=pt" in head.sentence and "NCCL itself" not in head.sentence


@pytest.mark.parametrize(("way", "level"), [("XGMI", "note"), ("PHB", "warning")])
def test_what_goes_over_other_links_does_not_hang(tmp_path: Path, way: str, level: str) -> None:
    assert wrong(checked(tmp_path, warned(IOMMU), rank(0), rank(1), system(way)).looks) == {"IOMMU": level}


def test_one_gpu_reaches_no_other(tmp_path: Path) -> None:
    assert wrong(checked(tmp_path, warned(IOMMU), rank(0, ranks=1)).looks) == {}


def test_each_host_is_told(tmp_path: Path) -> None:
    checkup = checked(tmp_path, warned(IOMMU), warned(BALANCING, "b"), rank(0, ranks=4), rank(1, "b", 4))
    assert wrong(checkup.looks) == {"automatic NUMA balancing": "note"}  # one rank on each
    told = [rank(0, ranks=4), rank(1, ranks=4), rank(2, "b", 4), rank(3, "b", 4)]
    checkup = checked(tmp_path, warned(IOMMU), warned(BALANCING, "b"), *told)
    assert {(look.host, look.rule, look.level) for look in checkup.looks if look.level in ("note", "warning")} == {
        ("a", "TO-D105", "warning"),
        ("b", "TO-D306", "note"),
    }


def gdr(*told: str, plugin: str = "IB") -> list[str]:
    head = "a:90:90 [0] NCCL INFO"
    return [
        f"{head} NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.10.10.10<0>",
        f"{head} Using network {plugin}",
        *(f"{head} NET/{plugin} : GPU Direct RDMA {word} for HCA {at} 'mlx5_{at}'" for at, word in enumerate(told)),
    ]


def test_nccl_says_that_gpudirect_rdma_is_off(tmp_path: Path) -> None:
    checkup = checked(tmp_path, rank(0), *gdr("Enabled", "Disabled"))
    [look] = [look for look in checkup.looks if look.rule == "TO-D207"]
    assert (look.level, look.found) == ("warning", "off for mlx5_1") and "nvidia-peermem" in look.advice
    [check] = [check for check in checkup.checks if check.rule == "TO-D207"]
    assert check.status == "fired"


@pytest.mark.parametrize(
    ("lines", "levels"),
    [
        (gdr("Enabled", "Enabled"), ["ok"]),
        (gdr("Disabled", plugin="SPCX"), ["warning"]),
        (gdr("Disabled", plugin="AWS Libfabric"), []),
        (gdr("Disabled", plugin="Socket"), []),
        (gdr(), []),
    ],
)
def test_it_is_told_of_infiniband_and_roce_only(tmp_path: Path, lines: list[str], levels: list[str]) -> None:
    looks = checked(tmp_path, rank(0), *lines).looks
    assert [look.level for look in looks if look.rule == "TO-D207"] == levels


@pytest.mark.parametrize(
    ("gpu", "level"), [("NVIDIA GB10", "ok"), ("NVIDIA GeForce RTX 4090", "note"), ("NVIDIA H100", "warning")]
)
def test_some_gpus_never_have_it(tmp_path: Path, gpu: str, level: str) -> None:
    tests = TESTS.format(gpu=gpu)
    looks = checked(tmp_path, rank(0), *gdr("Disabled"), tests).looks
    assert [look.level for look in looks if look.rule == "TO-D207"] == [level]


def test_what_the_log_does_not_tell_is_not_clear(tmp_path: Path) -> None:
    """A look of an area cleared all other rules of that area."""
    checkup = checked(tmp_path, warned(IOMMU), warned(BALANCING), rank(0), rank(1), *gdr("Disabled"))
    of = {check.rule: check.status for check in checkup.checks}
    assert {of[rule] for rule in ("TO-D103", "TO-D104", "TO-D201", "TO-D203", "TO-D305")} == {"not_evaluated"}


MATRIX = """\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1
GPU0\tX\tNV18\tSYS\tSYS\tPIX\tSYS
GPU1\tNV18\tX\tSYS\tSYS\tPIX\tSYS
GPU2\tSYS\tSYS\tX\tNV18\tSYS\tPIX
GPU3\tSYS\tSYS\tNV18\tX\tSYS\tPIX

NIC0: mlx5_0  -> ens2005np0  10.0.0.0/24  (rail 0)
NIC1: mlx5_1  -> ens5008np0  10.0.1.0/24  (rail 1)
"""


def test_nvidia_smi_beside_a_matrix_says_which_gpu_a_rank_has(tmp_path: Path) -> None:
    """A job with a part of its host counts from 0; the bus id that NCCL tells is that of GPU2."""
    log = "\n".join(
        f"a:90:90 [0] NCCL INFO {line}"
        for line in (
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            "Using network IB",
            "ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 5d000 commId 0xa3 - Init START",
            "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
            "ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 5d000 commId 0xa3 - Init COMPLETE",
        )
    )
    assert "TO-P004" not in {one.rule for one in check_files(saved(tmp_path, nccl=log, topo=MATRIX)).findings}
    smi = smi_text({}, {}, {}, {})
    [found] = [
        one for one in check_files(saved(tmp_path, nccl=log, topo=MATRIX, smi=smi)).findings if one.rule == "TO-P004"
    ]
    assert "GPU2 sends through NIC0 (mlx5_0), which lies across NUMA nodes" in found.message
    few = check_files(saved(tmp_path, nccl=log, topo=MATRIX, smi=smi_text({}, {})))  # of another machine
    assert "TO-P004" not in {one.rule for one in few.findings}
