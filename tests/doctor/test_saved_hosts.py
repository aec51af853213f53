"""The doctor on files from elsewhere: what programs printed of a host, NCCL logs, and matrices."""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looks_help import HEALTHY, one, wrong
from saved_help import HEAD, LINKS, P2P, XID, saved, smi_text

from traceops.core.errors import InputError
from traceops.doctor.checkup import check_files
from traceops.doctor.model import Checkup
from traceops.machine.platform import p2p_matrices, parse_nvlink_status
from traceops.machine.saved import CUT_OFF, read_outputs
from traceops.machine.saved_programs import NOT_WHOLE, SEVERAL_LINKS, SEVERAL_P2P, parse_environment
from traceops.machine.smi import parse_smi
from traceops.machine.smi_table import lists_of_gpus, tables
from traceops.machine.xids import parse_failures, parse_xids
from traceops.render.doctor.text import doctor_verdict
from traceops.rules.machine.saved import judge_outputs

PROHIBITED = {"mode": "Prohibited"}
MATRIX = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNV18\tNV18\t0-63\t0
GPU1\tNV18\t X \tNV18\tNV18\t0-63\t0
GPU2\tNV18\tNV18\t X \tNV18\t0-63\t0
GPU3\tNV18\tNV18\tNV18\t X \t0-63\t0
"""
FAILED = (
    "[   12.1] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:1860)\n"
    "[   12.1] NVRM: GPU 0000:3b:00.0: rm_init_adapter failed, device minor number 0\n"
)
BOOT = "[    0.000000] Linux version 6.1.0 (gcc)\n"


def refused(count: int) -> str:
    labels = [f"GPU{index}" for index in range(count)]
    rows = ("\t".join([label, *("X" if label == other else "CNS" for other in labels)]) + "\n" for label in labels)
    return "\t" + "\t".join(labels) + "\n" + "".join(rows)


def by_host(*texts: str) -> str:
    return "".join(f"node{at}: {line}\n" for at, text in enumerate(texts) for line in text.splitlines())


def test_a_topology_of_another_machine_says_nothing_of_this_one(tmp_path: Path) -> None:
    """Four GPUs joined by NVLink beside the access matrix of eight: 'NVLink joins them and the driver refuses'."""
    checkup = check_files(saved(tmp_path, topo=MATRIX, p2p=refused(8)))
    files = one(checkup.looks, "files")
    assert (files.level, files.found) == ("warning", "p2p.txt has 8 GPUs, topo.txt has 4 GPUs")
    assert one(checkup.looks, "direct access (P2P)").level == "note"
    same = check_files(saved(tmp_path, topo=MATRIX, p2p=refused(4)))
    assert one(same.looks, "direct access (P2P)").why == "NVLink joins them and the driver refuses to use it"


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ({"links": LINKS}, "GPU0 of links.txt is of another model than in smi.txt"),
        ({"p2p": refused(8)}, "p2p.txt has 8 GPUs, smi.txt has 2 GPUs"),
        ({"topo": MATRIX}, "smi.txt has 2 GPUs, topo.txt has 4 GPUs"),
        (
            {"links": LINKS.replace("Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3")},
            "GPU0 of links.txt has another UUID than in smi.txt",
        ),
    ],
)
def test_gpus_that_differ_are_told_and_judged_apart(others: dict[str, str], found: str, tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, smi=smi_text({}, PROHIBITED), **others)).looks
    assert one(looks, "files").found == found
    assert one(looks, "compute mode").level == "error"


def test_hosts_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    """Of several reports in one file only the last was judged, and called sound."""
    sick, well = smi_text({}, PROHIBITED), smi_text({}, {})
    ruled = "".join(f"-----\nnode{at}\n-----\n{text}" for at, text in enumerate((sick, well)))
    said = "".join(f"node{at} | CHANGED | rc=0 >>\n{text}" for at, text in enumerate((sick, well)))
    for text in (by_host(sick, well), ruled, said):
        hosts, _, problems = read_outputs(saved(tmp_path, all=text))
        assert [host.name for host in hosts] == ["node0", "node1"] and not problems
        looks = check_files(saved(tmp_path, all=text)).looks
        assert [look.host for look in looks if look.what == "compute mode"] == ["node0"]
    other = well.replace("GPU-19", "GPU-119").replace("GPU-3B", "GPU-13B")
    hosts, _, _ = read_outputs(saved(tmp_path, all=sick + other))
    assert [host.name for host in hosts] == ["all.txt (1)", "all.txt (2)"]
    [again], _, _ = read_outputs(saved(tmp_path, all=sick + well))
    assert again.name == "all.txt"  # the same GPUs, later


def test_hosts_that_several_files_name(tmp_path: Path) -> None:
    """Each file has both hosts; the second host's nvidia-smi is of another time than its matrices."""
    paths = saved(
        tmp_path,
        topo=by_host(MATRIX, MATRIX),
        p2p=by_host(refused(4), refused(4)),
        q=by_host(smi_text({}, {}, {}, {}), smi_text({}, {})),
    )
    looks = check_files(paths).looks
    assert [look.host for look in looks if look.what == "files"] == ["node1 (q.txt)"]
    assert {look.host for look in looks if look.why.startswith("NVLink joins")} == {"node0", "node1"}


def test_logs_of_several_hosts_are_kept_apart(tmp_path: Path) -> None:
    prefixed = by_host(XID, "[ 14.5] NVRM: Xid (PCI:0000:3B:00): 48, pid=1, DBE\n")
    syslog = "Nov 23 13:00:00 a kernel: {}Nov 23 13:00:01 b kernel: {}".format(XID, XID.replace("79,", "48,"))
    for text, names in ((prefixed, ("node0", "node1")), (syslog, ("a", "b"))):
        looks = check_files(saved(tmp_path, log=text)).looks
        assert [(look.host, look.what) for look in looks if look.level == "error"] == [
            (names[0], "Xid 79"), (names[1], "Xid 48"),
        ]  # fmt: skip


def test_a_kernels_log_without_times_is_of_one_host(tmp_path: Path) -> None:
    text = "nvidia: loading\naudit: type=1400\nACPI: ready\n" * 20 + XID[XID.index("NVRM") :]
    assert one(check_files(saved(tmp_path, log=text)).looks, "Xid 79").level == "error"


@pytest.mark.parametrize(
    ("text", "problem"), [(LINKS + LINKS.replace("GPU-", "GPU-9"), SEVERAL_LINKS), (refused(4) + P2P, SEVERAL_P2P)]
)
def test_machines_that_cannot_be_told_apart_are_not_judged(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem[:30]):
        check_files(saved(tmp_path, all=text))


def test_a_bug_report_whose_download_broke_off_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    """It was said to hold nothing; in a folder it was not even opened."""
    filler = "\n".join(f"{(at * 2654435761) ** 3:040x}" for at in range(20_000))
    report = f"Start of NVIDIA bug report log file.\n\n{smi_text({}, {})}\n*** dmesg\n{XID}{filler}"
    packed = gzip.compress(report.encode())
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(packed[: len(packed) // 2])
    checkup = check_files([tmp_path])
    assert one(checkup.looks, "Xid 79").found.startswith("GPU1: ")
    assert [problem for _, problem in checkup.problems] == [CUT_OFF]


def test_a_gpu_that_the_driver_could_not_start_is_no_clean_bill(tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, dmesg=BOOT + FAILED)).looks
    assert one(looks, "driver").found == "0000:3b:00.0: the driver could not start the GPU"
    assert wrong(looks)["driver"] == "error"
    mismatch = "[ 5.0] NVRM: API mismatch: the client has the version 535.54.03, but\n"
    assert wrong(check_files(saved(tmp_path, dmesg=BOOT + mismatch)).looks)["driver"] == "error"
    by_now = check_files(saved(tmp_path, dmesg=BOOT + FAILED + mismatch, smi=smi_text({}, {}))).looks
    assert {look.level for look in by_now if look.what == "driver"} == {"note"}


@pytest.mark.parametrize(
    "said",
    [
        "The NVIDIA probe routine failed for 2 device(s).",
        "None of the NVIDIA devices were initialized.",
        "None of the NVIDIA graphics adapters were initialized!",
        "No NVIDIA devices probed.",
    ],
)
def test_a_driver_that_started_nothing_is_no_clean_bill(said: str, tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, dmesg=f"{BOOT}[ 19.5] NVRM: {said}\n")).looks
    assert (one(looks, "driver").level, one(looks, "driver").found) == ("error", "the driver could not start GPUs")
    by_now = saved(tmp_path, dmesg=f"{BOOT}[ 19.5] NVRM: {said}\n", smi=smi_text({}, {}))
    look = one(check_files(by_now).looks, "driver")
    assert (look.level, look.found) == ("note", "the driver could not start GPUs, and lists GPU0, GPU1 by now")


def test_errors_before_the_last_boot_are_of_the_past(tmp_path: Path) -> None:
    text = f"{BOOT}{XID}{FAILED}{BOOT}[    9.1] nvidia: loaded\n"
    looks = check_files(saved(tmp_path, kern=text)).looks
    assert wrong(looks) == {"Xid 79": "note", "driver": "note"}
    assert one(looks, "Xid 79").found.endswith(", before the last boot")
    assert wrong(check_files(saved(tmp_path, kern=text + XID)).looks)["Xid 79"] == "error"


BUG_REPORT = """Start of NVIDIA bug report log file.

____________________________________________

Scanning kernel log files for NVIDIA kernel messages:
  /var/log/kern.log:
{files}
  journalctl -b -0:
{now}
  journalctl -b -1:
{before}
____________________________________________

dmesg:

{now}
"""
ECC = XID.replace("79,", "48,")
LOADED = "[    9.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"


@pytest.mark.parametrize(
    ("logs", "levels"),
    [
        ({"files": XID, "now": LOADED, "before": XID}, {"Xid 79": "note"}),
        ({"files": XID, "now": XID, "before": XID}, {"Xid 79": "error"}),
        ({"files": XID, "now": LOADED, "before": LOADED}, {"Xid 79": "note"}),
        ({"files": "", "now": XID, "before": ECC}, {"Xid 79": "error", "Xid 48": "note"}),
    ],
)
def test_a_bug_report_has_logs_of_three_boots(logs: dict[str, str], levels: dict[str, str], tmp_path: Path) -> None:
    """An Xid before the reboot that cured it was one of today."""
    assert wrong(check_files(saved(tmp_path, report=BUG_REPORT.format(**logs))).looks) == levels


@pytest.mark.parametrize("before", ["If dmesg shows `", "errors such as ", 'grep -c "', "# "])
def test_words_about_an_xid_are_none(before: str) -> None:
    assert not parse_xids(f"{before}{XID[XID.index('NVRM') :]}")
    assert not parse_failures(f"{before}{FAILED[FAILED.index('NVRM') :]}".splitlines()[0])


@pytest.mark.parametrize(
    "before",
    ["", "  ", "[ 12.5] ", "[Mon Jan  1 00:00:02 2024] ", "Nov 23 13:00:00 host kernel: ", "<3>", "3,1,2,-;",
     '{"_HOSTNAME":"a","MESSAGE":"', '"MESSAGE" : "', "kern  :err   : [ 12.5] "],
)  # fmt: skip
def test_an_xid_is_known_however_the_log_was_written(before: str) -> None:
    assert [xid.code for xid in parse_xids(before + XID[XID.index("NVRM") :])] == [79]


def test_gpus_keep_their_numbers_where_one_before_is_not_whole(tmp_path: Path) -> None:
    whole = smi_text({}, PROHIBITED)
    torn = whole.replace("    Max Clocks\n        SM                                : 1980 MHz\n", "", 1)
    assert one(check_files(saved(tmp_path, q=torn)).looks, "compute mode").found.startswith("GPU1: ")


def test_a_gpu_that_was_chosen_keeps_its_number(tmp_path: Path) -> None:
    """`nvidia-smi -q -i 3` has one GPU of eight; it was called GPU0, also in the command that mends it."""
    text = smi_text(PROHIBITED).replace("Attached GPUs                             : 1", "Attached GPUs : 8")
    uuid = "    GPU UUID   "
    checkup = check_files(saved(tmp_path, q=text.replace(uuid, f"    Minor Number : 3\n{uuid}")))
    look = one(checkup.looks, "compute mode")
    assert look.found.startswith("GPU3: ") and "-i 3" in look.advice
    assert checkup.problems[0][1].endswith("1 of 8 GPUs are whole")


def test_lines_of_hosts_in_between_each_other(tmp_path: Path) -> None:
    texts = [smi_text({}, PROHIBITED).splitlines(), smi_text({}, {}).splitlines()]
    lines = [f"node{at}: {line}" for both in zip(*texts, strict=True) for at, line in enumerate(both)]
    looks = check_files(saved(tmp_path, q="\n".join(lines))).looks
    assert [look.host for look in looks if look.what == "compute mode"] == ["node0"]


def test_odd_texts_are_read_in_time_that_grows_with_them(tmp_path: Path) -> None:
    """Blank lines before a UUID, or a line full of GPUs, were read in their length squared."""
    blank = smi_text({}).replace("    GPU UUID", "\n" * 200_000 + "    GPU UUID")
    gpus = "[ 1.0] NVRM: " + "GPU 0000 " * 100_000 + "fallen off the bus\n"
    assert len(read_outputs(saved(tmp_path, q=blank + blank, log=gpus + XID))[0]) == 1


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


PAIRS = """\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1
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
    assert "TO-P004" not in {one.rule for one in check_files(saved(tmp_path, nccl=log, topo=PAIRS)).findings}
    smi = smi_text({}, {}, {}, {})
    [found] = [
        one for one in check_files(saved(tmp_path, nccl=log, topo=PAIRS, smi=smi)).findings if one.rule == "TO-P004"
    ]
    assert (found.facts["gpu"], found.facts["nic"], found.facts["path"]) == ("GPU2", "NIC0 (mlx5_0)", "SYS")
    few = check_files(saved(tmp_path, nccl=log, topo=PAIRS, smi=smi_text({}, {})))  # of another machine
    assert "TO-P004" not in {one.rule for one in few.findings}


def test_the_text_is_read_as_the_xml_is() -> None:
    smi = parse_smi(smi_text({}, {"slow": "Active", "idle": "Not Active"}))
    assert smi is not None and (smi.driver, smi.cuda, len(smi.gpus)) == ("535.161.08", "12.2", 2)
    gpu = smi.gpus[1]
    assert (gpu.name, gpu.uuid, gpu.bus_id) == ("NVIDIA H100 80GB HBM3", "GPU-3B", "0000:3b:00.0")
    assert (gpu.memory, gpu.used, gpu.bar1, gpu.clock, gpu.most_clock) == (81559, 9221, 131072, 86, 1980)
    assert gpu.reasons == ("hw_slowdown", "hw_power_brake_slowdown") and not gpu.idle and gpu.tells_reasons
    assert gpu.pcie is not None and (gpu.pcie.most_generation, gpu.pcie.width) == (5, 16)
    assert (gpu.temperature, gpu.tlimit, gpu.power_limit, gpu.power_draw) == (29, 56, 700.0, 67.74)
    assert (gpu.ecc, gpu.uncorrectable, gpu.uncorrectable_ever, gpu.remapped) == (True, 0, 2, 2)
    assert (gpu.mig, gpu.persistence, gpu.virtual, gpu.fabric_state) == (False, True, "None", "Completed")
    [process] = gpu.processes
    assert (process.pid, process.kind, process.name, process.mib) == (1002127, "C", "/usr/bin/python", 9212)


def test_clocks_that_the_hardware_cut_are_found_in_the_text(tmp_path: Path) -> None:
    """As in a published output of eight H100 at 86 MHz, whose power brake is on."""
    checkup = check_files(saved(tmp_path, smi=smi_text({}, {"slow": "Active", "idle": "Not Active"})))
    assert wrong(checkup.looks) == {"throttled": "warning", "memory repaired": "note"}
    look = one(checkup.looks, "throttled")
    assert look.found == "GPU1: the hardware cuts the clocks to half or less: a power brake from outside is on"
    assert look.why == "86 MHz of 1980; the slowest GPU makes all ranks wait"


@pytest.mark.parametrize(
    ("change", "rule", "severity"),
    [({"pending": "Yes"}, "TO-D001", "warning"), ({"mode": "Exclusive_Process"}, "TO-D005", "info")],
)
def test_what_is_wrong_with_a_gpu_is_found_in_the_text(
    change: dict[str, str], rule: str, severity: str, tmp_path: Path
) -> None:
    checkup = check_files(saved(tmp_path, smi=smi_text({}, change)))
    assert rule in {finding.rule for finding in checkup.findings if finding.severity == severity}


def test_what_the_files_do_not_hold_is_not_called_well(tmp_path: Path) -> None:
    checkup = check_files(saved(tmp_path, smi=smi_text({}, {})))
    states = {check.rule: check.status for check in checkup.checks}
    unknown = {"TO-D002", "TO-D009", "TO-D101", "TO-D103", "TO-D105", "TO-D305", "TO-D601"}
    assert {states[rule] for rule in unknown} == {"not_evaluated"}
    assert {states[rule] for rule in ("TO-D003", "TO-D005", "TO-D102", "TO-D104")} == {"clear"}
    alone = check_files(saved(tmp_path, dmesg=XID))
    states = {check.rule: check.status for check in alone.checks}
    assert {states[rule] for rule in ("TO-D001", "TO-D003", "TO-D102", "TO-D104")} == {"not_evaluated"}


def test_programs_on_the_gpus_may_be_the_jobs_own(tmp_path: Path) -> None:
    xml = HEALTHY.replace("<used>0 MiB", "<used>90000 MiB")
    assert "TO-D009" not in {finding.rule for finding in check_files(saved(tmp_path, smi=xml)).findings}


def test_files_of_several_programs_are_of_one_host(tmp_path: Path) -> None:
    paths = saved(tmp_path, smi=smi_text({}, {}), dmesg=XID)
    [host], used, problems = read_outputs(paths)
    assert used == frozenset(paths) and not problems
    looks = judge_outputs(host)
    assert one(looks, "Xid 79").found.startswith("GPU1: ")


def test_the_same_programs_output_twice_is_of_two_hosts(tmp_path: Path) -> None:
    for name in ("node0", "node1"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name, smi=smi_text({}), dmesg=XID)
    assert [host.name for host in read_outputs(sorted(tmp_path.rglob("*.txt")))[0]] == ["node0", "node1"]
    flat = saved(tmp_path, one=smi_text({}), two=smi_text({"mode": "Prohibited"}))
    assert [host.name for host in read_outputs(flat)[0]] == ["one.txt", "two.txt"]
    assert "on two.txt" in next(one for one in check_files(flat).findings if one.rule == "TO-D005").message


def test_links_that_are_down_are_found_without_nvidia_smi_q(tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, nvlink=LINKS)).looks
    down = one(looks, "NVLink of GPU1")
    assert (down.found, down.level) == ("1 of 2 links up", "warning")
    assert down.advice.endswith("CUDA_VISIBLE_DEVICES=0,2")


def test_gpus_that_a_paste_of_links_lacks_are_not_called_without_links(tmp_path: Path) -> None:
    same = LINKS.replace("Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3")
    for index, bus in enumerate(("19", "3B", "5D")):
        same = same.replace(f"UUID: GPU-{index})", f"UUID: GPU-{bus})")
    looks = check_files(saved(tmp_path, smi=smi_text({}, {}, {}, {}), nvlink=same)).looks
    assert [look.what for look in looks if look.rule == "TO-D101" and look.level == "warning"] == ["NVLink of GPU1"]
    assert not [look for look in looks if look.level == "error"]


def test_a_matrix_of_direct_access(tmp_path: Path) -> None:
    [look] = [one for one in check_files(saved(tmp_path, p2p=P2P)).looks if one.rule == "TO-D103"]
    assert (look.level, look.found) == ("note", "not on these GPUs")
    other = saved(tmp_path, nvlink_access=f"$ nvidia-smi topo -p2p n\n{P2P}")
    assert not read_outputs(other)[0]


def test_a_part_of_the_output_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    whole = smi_text({}, {})
    cut = whole[: whole.rindex("    Clocks\n")]
    [(path, problem)] = check_files(saved(tmp_path, cut=cut)).problems
    assert path.endswith("cut.txt") and problem == f"{NOT_WHOLE}: 1 of 2 GPUs are whole"
    part = HEAD.format(count=1) + "GPU 00000000:19:00.0\n    Max Clocks\n        SM    : 1980 MHz\n"
    with pytest.raises(InputError, match="give the whole output"):
        check_files(saved(tmp_path, part=part))
    with pytest.raises(InputError, match="give the whole output"):
        check_files(saved(tmp_path, xml=HEALTHY[: len(HEALTHY) // 2]))


def test_a_bug_report_holds_all_of_it_and_its_log_several_times(tmp_path: Path) -> None:
    rule = "_" * 44
    parts = ("Start of NVIDIA bug report log file.", smi_text({}, {}), f"*** dmesg\n{XID}", f"*** journal\nhost {XID}")
    path = tmp_path / "nvidia-bug-report.log.gz"
    path.write_bytes(gzip.compress(f"\n{rule}\n\n".join(parts).encode()))
    looks = check_files([path]).looks
    assert one(looks, "Xid 79").facts["count"] == 1
    assert one(looks, "GPUs").found == "2 × NVIDIA H100 80GB HBM3, 80 GiB"


def test_a_log_from_the_boot_on_without_xids(tmp_path: Path) -> None:
    text = "[    0.000000] Linux version 6.1.0 (gcc)\n[    9.1] nvidia: loading out-of-tree module\n"
    looks = check_files(saved(tmp_path, dmesg=text)).looks
    assert one(looks, "Xid errors").found == "none in this log"
    with pytest.raises(InputError):
        check_files(saved(tmp_path, notes="[    9.1] nvidia: loading out-of-tree module\n"))


def test_lines_without_end_are_read_in_time_that_grows_with_them(tmp_path: Path) -> None:
    """A pattern that tries every end of a label took minutes for one line of spaces."""
    odd = "    a" + " " * 300_000 + "b"
    whole = smi_text({}).replace("    Clocks\n", f"{odd}\n    Clocks\n")
    smi = parse_smi(whole)
    assert smi is not None and len(smi.gpus) == 1 and smi.gpus[0].clock == 86
    deep = HEAD.format(count=1) + "GPU 00000000:19:00.0\n" + "".join(f"{' ' * at}a\n" for at in range(4, 4000, 4))
    assert not read_outputs(saved(tmp_path, deep=deep))[0]


def test_each_output_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were parsed when they were found, when files were held to each other, and when they were judged."""
    check_files(saved(tmp_path, smi=smi_text({}, {}), dmesg=XID))  # what is imported late is imported
    parsers = (parse_smi, parse_nvlink_status, p2p_matrices, tables, lists_of_gpus, parse_environment, parse_xids)
    calls: Counter[tuple[str, str]] = Counter()

    def counted(parser: Callable[[str], Any]) -> Callable[[str], Any]:
        def parse(text: str) -> Any:
            calls[parser.__name__, text] += 1
            return parser(text)

        return parse

    for parser in parsers:
        for module in list(sys.modules.values()):
            if getattr(module, parser.__name__, None) is parser and module is not sys.modules[__name__]:
                monkeypatch.setattr(module, parser.__name__, counted(parser))
    topology = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV18\t0-47\nGPU1\tNV18\tX\t0-47\n"
    files = saved(tmp_path, smi=smi_text({}, {}), dmesg=XID, nvlink=LINKS, p2p=P2P, topo=topology)
    assert check_files(files).looks
    assert {name for name, _ in calls} >= {"parse_smi", "parse_nvlink_status", "p2p_matrices", "parse_xids"}
    assert max(calls.values()) == 1
