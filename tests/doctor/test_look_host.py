"""The look at a host: each fact of its report is judged, and shown with what it means."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from changed import replace
from looks_help import HEALTHY, one, put, wrong

from traceops.machine.files import Output, cores, listed
from traceops.machine.network import Interface, Port, Rdma, read_interfaces, read_plugin, read_rdma, taken_by_nccl
from traceops.machine.platform import (
    Cpus,
    Limits,
    Near,
    PlatformFacts,
    Software,
    acs_redirects,
    library_version,
    parse_torch_version,
    read_limits,
    read_near,
    read_platform,
)
from traceops.machine.probe import HostFacts, _within, probe
from traceops.rules.machine.host import inspect_host, judge
from traceops.rules.machine.limits import judge_cpus, judge_limits
from traceops.rules.machine.network import judge_efa, judge_gdr, judge_interfaces, judge_rdma
from traceops.rules.machine.platform import judge_container, judge_fabric_manager, judge_pcie_ways, judge_software

MB, GB = 1 << 20, 1 << 30
ROOMY = Limits(shm=500 * GB, shm_free=490 * GB, files=65536)


# Limits


@pytest.mark.parametrize(
    ("limits", "gpus", "rdma", "found"),
    [
        (ROOMY, 8, True, {}),
        (replace(ROOMY, shm=64 * MB, shm_free=64 * MB), 8, False, {"/dev/shm": "error"}),
        (replace(ROOMY, shm=64 * MB, shm_free=64 * MB), 0, False, {"/dev/shm": "warning"}),
        (replace(ROOMY, shm=16 * GB, shm_free=10 * MB), 2, False, {"/dev/shm": "error"}),
        (replace(ROOMY, shm=512 * MB, shm_free=512 * MB), 2, False, {"/dev/shm": "warning"}),
        (replace(ROOMY, memlock=65536), 8, True, {"locked memory": "error"}),
        (replace(ROOMY, memlock=65536, may_lock=True), 8, True, {}),
        (replace(ROOMY, memlock=250 * GB), 8, True, {}),
        (replace(ROOMY, memlock=65536), 8, False, {}),
        (replace(ROOMY, files=1024), 8, False, {"open files": "note"}),
        (replace(ROOMY, tasks=512), 8, False, {"processes and threads": "warning"}),
        (replace(ROOMY, memory=8 * GB), 8, False, {"cgroup limits": "warning"}),
    ],
)
def test_limits(limits: Limits, gpus: int, rdma: bool, found: dict[str, str]) -> None:
    assert wrong(judge_limits(limits, gpus, rdma, "h")) == found


def test_limits_of_cgroups_version_2_count_from_every_level(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1/main\n",
        "sys/fs/cgroup/kubepods/pod1/main/memory.max": "max\n",
        "sys/fs/cgroup/kubepods/pod1/memory.max": f"{64 * GB}\n",
        "sys/fs/cgroup/kubepods/memory.max": f"{900 * GB}\n",
        "sys/fs/cgroup/kubepods/pod1/main/cpu.max": "1600000 100000\n",
        "sys/fs/cgroup/kubepods/cpu.max": "max 100000\n",
        "sys/fs/cgroup/kubepods/pod1/main/pids.max": "4096\n",
    }
    found = read_limits(put(tmp_path, files))
    assert (found.memory, found.processors, found.tasks) == (64 * GB, 16.0, 4096)


def test_limits_of_cgroups_version_1_where_the_path_is_the_host_s(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/docker/4f2c\n3:cpu,cpuacct:/docker/4f2c\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{32 * GB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GB}\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    found = read_limits(put(tmp_path, files))
    assert (found.memory, found.memory_used, found.processors) == (32 * GB, GB, 1.5)


def test_no_limit_of_version_1_is_no_limit(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "5:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert read_limits(put(tmp_path, files)).memory is None


# Cores


def test_lists_of_cores() -> None:
    assert listed(cores("0-3,8,10-11")) == "0-3,8,10-11"
    assert cores("N/A") == frozenset()


def test_cores_near_gpus() -> None:
    nodes = {0: cores("0-31"), 1: cores("32-63")}
    gpus = [("GPU0", Near(0, nodes[0])), ("GPU1", Near(1, nodes[1]))]
    assert wrong(judge_cpus(Cpus(cores("0-63"), nodes), gpus, None, "h")) == {}
    bound = judge_cpus(Cpus(cores("0-31"), nodes), gpus, None, "h")
    assert wrong(bound) == {"cores near GPUs": "warning"}
    assert one(bound, "cores near GPUs").found == "none allowed for GPU1"
    assert wrong(judge_cpus(Cpus(cores("0-63"), nodes), gpus, 1.5, "h")) == {"cores": "warning"}
    hidden = [("GPU0", Near(None, frozenset()))]
    assert wrong(judge_cpus(Cpus(cores("0-63"), nodes), hidden, None, "h")) == {"GPUs' NUMA nodes": "note"}


def test_where_a_gpu_sits(tmp_path: Path) -> None:
    folder = "sys/bus/pci/devices/0000:3b:00.0"
    put(tmp_path, {f"{folder}/numa_node": "1\n", f"{folder}/local_cpulist": "32-63\n"})
    assert read_near(tmp_path, "0000:3b:00.0") == Near(1, cores("32-63"))
    put(tmp_path, {f"{folder}/numa_node": "-1\n"})
    assert read_near(tmp_path, "0000:3b:00.0").numa is None


# Container and PCI


def test_containers_are_told_apart(tmp_path: Path) -> None:
    assert read_platform({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path).kind == "Kubernetes"
    assert read_platform({}, tmp_path).kind is None
    assert read_platform({}, put(tmp_path, {".dockerenv": ""})).kind == "docker"


HERE = PlatformFacts("docker", gpu_files=8, on_bus=8, of_driver=8)


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "reboot"),
        ("Failed to initialize NVML: Unknown Error", "daemon-reload"),
        ("nvidia-smi is not installed", "--gpus all"),
    ],
)
def test_gpus_that_are_there_and_cannot_be_used(problem: str, advice: str) -> None:
    look = one(judge_container(HERE, {}, 0, problem, "h"), "NVIDIA driver")
    assert look.level == "error" and advice in look.advice and problem in look.why


def test_a_container_with_some_of_the_gpus() -> None:
    assert wrong(judge_container(HERE, {}, 8, None, "h")) == {}
    assert wrong(judge_container(HERE, {}, 2, None, "h")) == {"GPUs of this container": "note"}
    bare = PlatformFacts(None, gpu_files=0, on_bus=0, of_driver=0)
    assert wrong(judge_container(bare, {}, 0, "nvidia-smi is not installed", "h")) == {}


def acs(control: int) -> bytes:
    """A bridge's configuration space: an AER capability, then ACS."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x150 << 20).to_bytes(4, "little")
    space[0x150:0x154] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x156:0x158] = control.to_bytes(2, "little")
    return bytes(space)


def test_acs() -> None:
    assert acs_redirects(acs(0x1D)) is True  # what Linux sets where an IOMMU is on
    assert acs_redirects(acs(0x01)) is False
    assert acs_redirects(bytes(4096)) is False
    assert acs_redirects(acs(0x1D)[:64]) is None  # what others than root may read


def test_iommu_and_acs_matter_on_bare_metal_without_nvlink() -> None:
    translated = replace(HERE, translated=("0000:3b:00.0", "0000:af:00.0"), redirecting=("0000:3a:00.0",))
    looks = judge_pcie_ways(translated, False, False, 2, "h")
    assert wrong(looks) == {"IOMMU": "warning", "ACS": "warning"}
    assert wrong(judge_pcie_ways(translated, False, True, 2, "h")) == {"IOMMU": "note", "ACS": "note"}
    assert wrong(judge_pcie_ways(translated, True, False, 2, "h")) == {}
    assert wrong(judge_pcie_ways(HERE, False, False, 2, "h")) == {}


def test_nvswitch_without_its_manager(tmp_path: Path) -> None:
    files = {
        "dev/nvidia-nvswitch0": "",
        "dev/nvidia-nvswitch1": "",
        "dev/nvidia-nvswitchctl": "",
        "proc/1/comm": "systemd",
    }
    bare = read_platform({}, put(tmp_path, files))
    assert wrong(judge_fabric_manager(bare, False, 8, "h")) == {"NVSwitch fabric": "error"}
    assert judge_fabric_manager(bare, True, 8, "h") == ()
    inside = replace(bare, kind="docker")
    assert judge_fabric_manager(inside, False, 8, "h")[0].level == "not_evaluated"
    running = read_platform({}, put(tmp_path, {"proc/812/comm": "nv-fabricmanage\n"}))
    assert wrong(judge_fabric_manager(running, False, 8, "h")) == {}


def test_gpudirect_rdma() -> None:
    eight = ["NVIDIA H100"] * 8
    assert judge_gdr(HERE, True, False, eight, "h").level == "warning"
    assert judge_gdr(replace(HERE, peermem=True), True, False, eight, "h").level == "ok"
    assert judge_gdr(replace(HERE, dmabuf=True), True, False, eight, "h").level == "ok"
    assert judge_gdr(HERE, False, False, eight, "h").level == "not_evaluated"
    assert judge_gdr(HERE, True, False, ["NVIDIA GB10"], "h").level == "ok"  # nothing there could load it
    assert judge_gdr(HERE, True, False, ["NVIDIA GeForce RTX 4090"] * 2, "h").level == "note"


# Network

ETH0 = Interface("eth0", 2, mbits=100_000, default=True)
DOCKER = Interface("docker0", 3, physical=False)
BRIDGE = Interface("br-1f2e3d", 1, physical=False)
LO = Interface("lo", 1, physical=False)


def test_what_nccl_takes_by_itself() -> None:
    assert [one.name for one in taken_by_nccl([LO, ETH0, DOCKER])] == ["eth0"]
    assert [one.name for one in taken_by_nccl([LO, DOCKER])] == ["docker0"]
    assert [one.name for one in taken_by_nccl([LO, ETH0, Interface("ib0", 4)])] == ["ib0"]
    assert [one.name for one in taken_by_nccl([LO, replace(ETH0, up=False)])] == ["lo"]


def test_a_bridge_that_comes_first() -> None:
    assert wrong(judge_interfaces([LO, ETH0, DOCKER], False, "h")) == {}
    first = judge_interfaces([LO, BRIDGE, ETH0], False, "h")
    assert wrong(first) == {"interfaces": "warning"}
    assert "NCCL_SOCKET_IFNAME==eth0" in first[0].advice
    assert wrong(judge_interfaces([LO, ETH0, replace(BRIDGE, index=9)], False, "h")) == {"interfaces": "note"}
    assert wrong(judge_interfaces([], False, "h")) == {}


def test_interfaces_as_the_kernel_shows_them(tmp_path: Path) -> None:
    net = "sys/class/net"
    files = {
        f"{net}/bond0/ifindex": "4", f"{net}/bond0/flags": "0x1403", f"{net}/bond0/operstate": "up",
        f"{net}/bond0/speed": "200000", f"{net}/bond0/mtu": "9000", f"{net}/bond0/bonding/slaves": "ens1 ens2",
        f"{net}/ens1/ifindex": "2", f"{net}/ens1/flags": "0x1803", f"{net}/ens1/operstate": "up",
        f"{net}/ens2/ifindex": "3", f"{net}/ens2/flags": "0x1803", f"{net}/ens2/operstate": "down",
        f"{net}/bonding_masters": "bond0",
        "proc/net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "bond0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\n",
        "proc/net/if_inet6": "fe80000000000000 04 40 20 80    bond0\n",
    }  # fmt: skip
    found = read_interfaces(put(tmp_path, files))
    assert [interface.name for interface in found] == ["ens1", "ens2", "bond0"]
    bond = found[2]
    assert (bond.mbits, bond.ports, bond.ports_down, bond.default) == (200_000, ("ens1", "ens2"), ("ens2",), True)
    assert not found[0].address
    looks = judge_interfaces(found, False, "h")
    assert wrong(looks) == {"bond bond0": "warning"}
    assert one(looks, "bond bond0").why == "1 of its 2 ports carries all traffic"
    lost = replace(bond, ports_down=bond.ports)
    assert one(judge_interfaces([lost], False, "h"), "bond bond0").why == "none of its 2 ports is up"


def port(folder: str, state: str, rate: str, layer: str) -> dict[str, str]:
    return {f"{folder}/state": state, f"{folder}/rate": rate, f"{folder}/link_layer": layer}


def test_roce_as_the_kernel_shows_it(tmp_path: Path) -> None:
    folder = "sys/class/infiniband/mlx5_0/ports/1"
    gids = {
        "0": ("fe80:0000:0000:0000:ba3f:d2ff:fe00:0001", "IB/RoCE v1"),
        "1": ("fe80:0000:0000:0000:ba3f:d2ff:fe00:0001", "RoCE v2"),
        "2": ("0000:0000:0000:0000:0000:ffff:0a00:0005", "IB/RoCE v1"),
        "3": ("0000:0000:0000:0000:0000:ffff:0a00:0005", "RoCE v2"),
        "4": ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
    }
    files = port(folder, "4: ACTIVE", "400 Gb/sec (4X NDR)", "Ethernet")
    for index, (address, kind) in gids.items():
        files |= {f"{folder}/gids/{index}": address, f"{folder}/gid_attrs/types/{index}": kind}
    files[f"{folder}/gid_attrs/ndevs/0"] = "ens1"
    (device,) = read_rdma(put(tmp_path, files))
    assert (device.family, device.active, device.ports[0].gbits) == ("RoCE", True, 400.0)
    assert device.ports[0].interface == "ens1" and len(device.ports[0].gids) == 4
    looks = judge_rdma((device,), True, "h")
    assert wrong(looks) == {}
    assert one(looks, "RoCE v2 address").found == "mlx5_0:1 index 3"


MAC, IP = "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a00:0005"


def roce(name: str, *gids: tuple[int, str, str]) -> Rdma:
    return Rdma(name, (Port(1, "ACTIVE", 400.0, "Ethernet", gids),), "MT4129", "mlx5_core")


def test_a_link_local_address_leads_to_no_other_subnet() -> None:
    """A port whose interface has no IP address has that of its MAC alone; it was taken for a RoCE v2 address."""
    bare = roce("mlx5_0", (0, "IB/RoCE v1", MAC), (1, "RoCE v2", MAC))
    first = roce("mlx5_1", (0, "IB/RoCE v1", IP))
    sound = roce("mlx5_2", (0, "IB/RoCE v1", MAC), (1, "RoCE v2", MAC), (3, "RoCE v2", IP))
    look = one(judge_rdma([bare, first], True, "h"), "RoCE v2 address")
    assert (look.level, look.found, look.rule) == ("warning", "none on mlx5_0:1, mlx5_1:1", "TO-D205")
    assert "IP address" in look.advice
    assert wrong(judge_rdma([bare, sound], True, "h")) == {"RoCE v2 address": "note"}  # a port that nobody uses
    assert wrong(judge_rdma([sound], True, "h")) == {}
    assert one(judge_rdma([sound], True, "h"), "RoCE v2 address").found == "mlx5_2:1 index 3"


def hca(index: int, state: str = "ACTIVE", gbits: float = 400.0, layer: str = "InfiniBand") -> Rdma:
    return Rdma(f"mlx5_{index}", (Port(1, state, gbits, layer),), "MT4129", "mlx5_core")


def test_rdma_ports() -> None:
    assert wrong(judge_rdma([hca(0), hca(1)], True, "h")) == {}
    assert wrong(judge_rdma([hca(0), hca(1)], False, "h")) == {"/dev/infiniband": "warning"}
    assert wrong(judge_rdma([hca(0), hca(1, "DOWN")], True, "h")) == {"ports down": "warning"}
    assert wrong(judge_rdma([hca(0), hca(1, gbits=200.0)], True, "h")) == {"port speed": "warning"}
    waiting = judge_rdma([hca(0, "INIT")], True, "h")
    assert wrong(waiting) == {"RDMA devices": "warning"} and "opensm" in waiting[0].advice
    efa = Rdma("rdmap0s6", (Port(1, "ACTIVE", 100.0, "Unspecified"),), None, "efa")
    assert wrong(judge_rdma([efa], True, "h")) == {}


def test_a_card_s_second_port_is_often_without_a_cable() -> None:
    first = replace(hca(0), bus_id="0000:1a:00.0")
    second = replace(hca(1, "DOWN"), bus_id="0000:1a:00.1")
    assert wrong(judge_rdma([first, second], True, "h")) == {"ports down": "note"}
    assert one(judge_rdma([first, second], True, "h"), "ports down").why == "1 port of the same model is up"
    other = replace(second, bus_id="0000:3c:00.0")
    assert wrong(judge_rdma([first, other], True, "h")) == {"ports down": "warning"}


def test_efa_needs_its_plugin(tmp_path: Path) -> None:
    efa = Rdma("rdmap0s6", (Port(1, "ACTIVE", 100.0, "Unspecified"),), None, "efa")
    assert wrong(judge_efa([efa], read_plugin({}, tmp_path), 8, "h")) == {"NCCL's EFA plugin": "warning"}
    put(tmp_path, {"opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so": ""})
    path = {"LD_LIBRARY_PATH": "/usr/lib:/opt/amazon/ofi-nccl/lib"}
    for environ in ({}, path):  # NCCL opens libnccl-net.so unless it is told of another one
        (look,) = judge_efa([efa], read_plugin(environ, tmp_path), 8, "h")
        folder = "/opt/amazon/ofi-nccl/lib"
        assert look.advice == f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH NCCL_NET_PLUGIN=ofi"
    told = read_plugin({**path, "NCCL_NET_PLUGIN": "ofi"}, tmp_path)
    assert wrong(judge_efa([efa], told, 8, "h")) == {}
    put(tmp_path, {"opt/amazon/ofi-nccl/lib/libnccl-net.so": ""})
    (look,) = judge_efa([efa], read_plugin({}, tmp_path), 8, "h")
    assert look.advice == "export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:$LD_LIBRARY_PATH"
    assert wrong(judge_efa([efa], read_plugin(path, tmp_path), 8, "h")) == {}


def test_the_efa_plugin_of_a_container_without_its_path(tmp_path: Path) -> None:
    """As in NVIDIA-NeMo/RL#1973: it was said to be missing."""
    efa = Rdma("rdmap0s6", (Port(1, "ACTIVE", 100.0, "Unspecified"),), None, "efa")
    put(tmp_path, {"opt/amazon/aws-ofi-nccl/lib/libnccl-net.so": ""})
    path = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat/lib:/usr/local/nvidia/lib"}
    (look,) = judge_efa([efa], read_plugin(path, tmp_path), 8, "h")
    assert look.advice == "export LD_LIBRARY_PATH=/opt/amazon/aws-ofi-nccl/lib:$LD_LIBRARY_PATH"
    (off,) = judge_efa([efa], read_plugin({**path, "NCCL_NET_PLUGIN": "none"}, tmp_path), 8, "h")
    assert off.advice == "unset NCCL_NET_PLUGIN" and off.level == "warning"
    assert judge_efa([hca(0)], read_plugin({}, tmp_path), 8, "h") == ()


def test_the_loader_s_cache_has_whole_names(tmp_path: Path) -> None:
    put(tmp_path, {"etc/ld.so.cache": "glibc-ld.so.cache1.1\0libnccl-net-ofi.so\0/opt/libnccl-net-ofi.so\0"})
    assert not read_plugin({}, tmp_path).loadable
    assert read_plugin({"NCCL_NET_PLUGIN": "ofi"}, tmp_path).loadable


# Software


def test_torch_tells_what_it_was_built_for_without_being_loaded() -> None:
    assert parse_torch_version("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n") == ("13.0", None)
    assert parse_torch_version("__version__ = '1.9'\ncuda = None\n") == (None, None)


CU130 = Software("3.12", "2.11.0+cu130", "13.0", wheels=(("cu13", "2.28.9"),), needs="2.28.9")


@pytest.mark.parametrize(
    ("software", "driver", "gpus", "found"),
    [
        (CU130, "13.0", 8, {}),
        (CU130, "13.1", 8, {}),
        (CU130, "12.8", 8, {"torch": "error"}),
        (replace(CU130, compat=True), "12.8", 8, {"torch": "note"}),
        (replace(CU130, cuda="12.8"), "12.4", 8, {"torch": "note"}),
        (Software("3.12", "2.11.0+cpu"), "13.0", 8, {"torch": "error"}),
        (Software("3.12", "2.11.0+cpu"), None, 0, {}),
        (Software("3.12", None), None, 8, {"torch": "error"}),
        (replace(CU130, wheels=(("cu12", "2.27.3"), ("cu13", "2.28.9"))), "13.0", 8, {"NCCL": "warning"}),
        (replace(CU130, wheels=(("cu13", "2.27.3"),)), "13.0", 8, {"NCCL": "note"}),
        (replace(CU130, preloaded=(("/x/libnccl.so.2", "2.19.3"),)), "13.0", 8, {"NCCL by LD_PRELOAD": "warning"}),
        (replace(CU130, preloaded=(("/x/libnccl.so.2", "2.28.9"),)), "13.0", 8, {}),
        (replace(CU130, found=(("/x/libnccl.so.2", "2.19.3"),)), "13.0", 8, {"NCCL by LD_LIBRARY_PATH": "note"}),
    ],
)
def test_versions(software: Software, driver: str | None, gpus: int, found: dict[str, str]) -> None:
    assert wrong(judge_software(software, driver, gpus, "h")) == found


def test_nccl_of_the_system_counts_where_torch_brings_none() -> None:
    ngc = Software("3.12", "2.9.0a0+nv25.9", "13.0", shared=(("/usr/lib/x86_64-linux-gnu/libnccl.so.2", "2.27.7"),))
    assert ngc.nccl == "2.27.7"
    assert replace(CU130, shared=ngc.shared).nccl == "2.28.9"


def test_the_version_of_a_library(tmp_path: Path) -> None:
    plain = tmp_path / "libnccl.so.2"
    plain.write_bytes(b"\x7fELF" + bytes(5000) + b"NCCL version 2.27.3+cuda12.9\x00")
    assert library_version(plain) == "2.27.3"
    linked = tmp_path / "linked" / "libnccl.so.2"
    linked.parent.mkdir()
    (tmp_path / "linked" / "libnccl.so.2.28.9").write_bytes(b"")
    linked.symlink_to("libnccl.so.2.28.9")
    assert library_version(linked) == "2.28.9"
    assert library_version(tmp_path / "none") is None


def test_acs_at_a_port_of_the_root_alone_leads_nothing_astray(tmp_path: Path) -> None:
    """Linux turns it on there with the IOMMU; what GPUs below two such ports exchange goes through the root anyway."""
    config = bytearray(4096)
    config[0x100:0x104] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x106:0x108] = (0x1D).to_bytes(2, "little")
    bus = "sys/devices/pci0000:00"
    gpu = {"vendor": "0x10de\n", "class": "0x030200\n"}

    def machine(root: Path, *bridges: str) -> PlatformFacts:
        way = "/".join((bus, *bridges))
        put(root, {f"{way}/0000:0a:00.0/{name}": value for name, value in gpu.items()})
        for at in range(len(bridges)):
            folder = root / "/".join((bus, *bridges[: at + 1]))
            (folder / "class").write_text("0x060400\n")
            (folder / "config").write_bytes(bytes(config))
        devices = root / "sys/bus/pci/devices"
        devices.mkdir(parents=True)
        (devices / "0000:0a:00.0").symlink_to(root / way / "0000:0a:00.0")
        return read_platform({}, root)

    assert machine(tmp_path / "root", "0000:00:01.0").redirecting in (None, ())
    switch = machine(tmp_path / "switch", "0000:00:01.0", "0000:01:00.0", "0000:02:00.0")
    assert switch.redirecting == ("0000:01:00.0", "0000:02:00.0")


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
