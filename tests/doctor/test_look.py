"""A whole look around, over files and programs that answer as real machines did."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from changed import replace
from looks_help import HEALTHY, one, put, wrong

from traceops.machine.files import Output
from traceops.machine.platform import Software
from traceops.machine.probe import HostFacts, _within, probe
from traceops.rules.machine.host import inspect_host, judge

# From a virtual machine with 4 H200, as it was.
MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\t0-63\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\t0-63\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\t0-63\t0\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \t0-63\t0\t\tN/A
"""
P2P = """\
 \t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\t\x1b[0m
 GPU0\tX\tOK\tOK\tOK\t
 GPU1\tOK\tX\tOK\tOK\t
 GPU2\tOK\tOK\tX\tOK\t
 GPU3\tOK\tOK\tOK\tX\t

Legend:

  X    = Self
  OK   = Status Ok
"""
NVLINK = "".join(
    f"GPU {gpu}: NVIDIA H200 (UUID: GPU-{gpu})\n" + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    for gpu in range(4)
)  # fmt: skip
ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
)
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             2063358              2063358              processes
Max open files            20000                20000                files
Max locked memory         unlimited            unlimited            bytes
"""
TORCH = Software("3.12.3", "2.11.0+cu130", "13.0", wheels=(("cu13", "2.28.9"),), needs="2.28.9")


def machine(root: Path) -> Path:
    """The files of that virtual machine that the doctor reads."""
    return put(
        root,
        {
            "proc/self/limits": LIMITS,
            "proc/self/status": "Cpus_allowed_list:\t0-63\nCapEff:\t000001fffeffffff\n",
            "proc/self/cgroup": "0::/\n",
            "proc/cpuinfo": "flags\t\t: fpu vme hypervisor lahf_lm\n",
            "proc/net/route": ROUTES,
            "sys/devices/system/node/node0/cpulist": "0-63\n",
            "sys/class/net/eth0/ifindex": "2\n",
            "sys/class/net/eth0/flags": "0x1003\n",
            "sys/class/net/eth0/operstate": "up\n",
            "sys/class/net/eth0/device/": "",
            "sys/class/net/lo/ifindex": "1\n",
            "sys/class/net/lo/flags": "0x9\n",
            "sys/class/net/lo/operstate": "unknown\n",
            "sys/class/infiniband/": "",
            ".dockerenv": "",
            "dev/nvidia0": "",
        },
    )


def h200(command: Sequence[str], timeout_s: float) -> Output:
    """What the programs print on 4 H200 that are well."""
    answers = {"-q": HEALTHY, "-m": MATRIX, "-p2p": P2P, "nvlink": NVLINK}
    if command[0] == "dmesg":
        return Output("[    1.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n")
    return Output(answers[command[2] if command[1] == "topo" else command[1]])


def test_a_healthy_machine_has_no_errors_and_no_warnings(tmp_path: Path) -> None:
    environ = {"NCCL_NVLS_ENABLE": "0", "NCCL_VERSION": "2.28.3-1", "NVIDIA_VISIBLE_DEVICES": "0,1,2,3"}
    facts = replace(probe(environ, machine(tmp_path), h200), software=TORCH)
    found, looks = judge(facts, environ)
    assert wrong(look for look in looks if look.what != "/dev/shm") == {"NCCL_NVLS_ENABLE": "note"}
    assert [(gpu.name, gpu.nvlinks, gpu.numa, gpu.cpus) for gpu in found.gpus] == [("NVIDIA H200", 18, 0, "0-63")] * 4
    assert found.gpus[0].bus_id == "0000:00:06.0" and found.gpus[0].nvlink_gbs == 26.562
    path = found.path("GPU0", "GPU3")
    assert path is not None and (path.kind, path.count) == ("NV", 18)
    assert [(nic.label, nic.kind) for nic in found.nics] == [("eth0", "Ethernet")]


def test_a_machine_without_gpus_has_no_errors_and_says_what_was_not_looked_at(tmp_path: Path) -> None:
    def none(command: Sequence[str], timeout_s: float) -> Output:
        return Output("", f"{command[0]} is not installed")

    facts = replace(probe({}, machine(tmp_path), none), software=Software("3.11.7", "2.13.0+cpu"))
    found, looks = judge(replace(facts, platform=replace(facts.platform, gpu_files=0)), {})  # type: ignore[type-var]
    assert wrong(look for look in looks if look.what != "/dev/shm") == {}
    assert found.gpus == ()
    unseen = {look.what for look in looks if look.level == "not_evaluated"}
    assert {"GPUs", "NVLink", "direct access (P2P)", "Xid errors", "GPUDirect RDMA"} <= unseen
    assert one(looks, "cores").found == "64 cores"


def test_a_driver_that_does_not_answer_is_an_error_and_nothing_else_suffers(tmp_path: Path) -> None:
    def mute(command: Sequence[str], timeout_s: float) -> Output:
        return Output("", f"no answer within {timeout_s:.0f} s", timed_out=True)

    looks = inspect_host({}, machine(tmp_path), mute)[1]
    driver = one(looks, "NVIDIA driver")
    assert driver.level == "error" and "no answer" in driver.why and "reboot" in driver.advice
    assert one(looks, "interfaces").level == "ok"
    facts = probe({}, machine(tmp_path), mute)
    hidden = judge(replace(facts, platform=replace(facts.platform, gpu_files=0)), {})[1]  # type: ignore[type-var]
    assert one(hidden, "GPUs").level == "warning"  # as in a container that does not see the PCI bus


def test_the_driver_s_own_words_tell_what_to_do(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "nvidia-smi"
    # as in anderskm/gputil issue 55
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    program.chmod(0o755)
    looks = inspect_host({"PATH": str(programs)}, machine(tmp_path / "root"))[1]
    driver = one(looks, "NVIDIA driver")
    assert driver.level == "error" and "version mismatch" in driver.why and "updated under it" in driver.advice


def test_a_gpu_without_nvlink_prints_nothing(tmp_path: Path) -> None:
    def silent(command: Sequence[str], timeout_s: float) -> Output:
        return Output("") if "nvlink" in command else h200(command, timeout_s)

    facts = probe({}, machine(tmp_path), silent)
    cards = Output(HEALTHY.replace("NVIDIA H200<", "NVIDIA L4<").replace("<state>Completed", "<state>N/A"))
    assert one(judge(replace(facts, smi=cards), {})[1], "NVLink").found == "none"


def test_words_of_another_driver_are_no_proof_that_links_are_missing(tmp_path: Path) -> None:
    def other(command: Sequence[str], timeout_s: float) -> Output:
        return Output("Device 0\n\tport 0 up\n") if "nvlink" in command else h200(command, timeout_s)

    _, looks = judge(probe({}, machine(tmp_path), other), {})
    assert one(looks, "NVLink").level == "not_evaluated"


def test_what_never_comes_back_holds_up_nothing() -> None:
    never = threading.Event()
    done = _within({"quick": (lambda: 1, 5.0), "never": (never.wait, 0.05)})
    never.set()
    assert done == {"quick": 1}


def test_a_mistake_of_ours_while_reading_is_not_taken_for_silence() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _within({"broken": (broken, 5.0)})


def test_what_was_not_read_in_time_is_said(tmp_path: Path) -> None:
    looks = judge(HostFacts("paper"), {})[1]
    assert {look.level for look in looks if look.area not in ("environment", "container")} == {"not_evaluated"}
