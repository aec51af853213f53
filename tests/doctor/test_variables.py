"""Variables: names, values, costs and contradictions."""

from __future__ import annotations

from pathlib import Path

import pytest
from looks_help import one, put, wrong

from traceops.machine.look import HostContext
from traceops.machine.network import Interface, Port, Rdma, parse_choice
from traceops.machine.probe import nccl_files, parse_nccl_file
from traceops.machine.variables import as_number, known_variables
from traceops.rules.machine.variables import check_variables

GIDS = ((0, "IB/RoCE v1", "fe80::1"), (3, "RoCE v2", "0000:0000:0000:0000:0000:ffff:0a00:0005"))
INTERFACES = (
    Interface("lo", 1, physical=False), Interface("eth0", 2, default=True), Interface("eth1", 3, up=False),
    Interface("docker0", 4, physical=False),
)  # fmt: skip
RDMA = tuple(Rdma(f"mlx5_{index}", (Port(1, "ACTIVE", 400.0, "Ethernet", GIDS),)) for index in (0, 1, 10))
HERE = HostContext(INTERFACES, RDMA, 4, ("GPU-aaaa", "GPU-bbbb", "GPU-cccc", "GPU-dddd"), "2.28.9", "2.11.0+cu130")


def said(context: HostContext = HERE, **environ: str) -> dict[str, str]:
    return wrong(check_variables(environ, "h", context))


def test_the_registry_agrees_with_itself() -> None:
    assert len(known_variables().variables) > 350
    assert all(new in known_variables().variables for new, _ in known_variables().renamed.values())
    assert not set(known_variables().unread) & set(known_variables().variables)
    assert not known_variables().unrelated & set(known_variables().variables)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "INIT,^NET", "NCCL_DEBUG_FILE": "/var/log/nccl.%h.%p"},
        {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"},
        {"NCCL_IB_HCA": "^=mlx5_10"},
        {"NCCL_IB_GID_INDEX": "3"},
        {"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "", "NCCL_P2P_LEVEL": "SYS"},
        {"NCCL_NET_GDR_LEVEL": "PHB", "NCCL_IB_TIMEOUT": "22", "NCCL_BUFFSIZE": "0x800000"},
        {"CUDA_VISIBLE_DEVICES": "0,2"},
        {"CUDA_VISIBLE_DEVICES": "GPU-bb,GPU-cccc"},
        {"CUDA_VISIBLE_DEVICES": "MIG-5b1c"},
        {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
        {"TORCH_HOME": "/x", "TORCH_CUDA_ARCH_LIST": "9.0", "NCCL_VERSION": "2.28.3-1", "CUDA_HOME": "/usr"},
        {"FI_PROVIDER": "efa", "OFI_NCCL_PROTOCOL": "RDMA"},
    ],
)
def test_settings_that_are_fine(environ: dict[str, str]) -> None:
    assert said(**environ) == {}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_DEBGU", "NCCL_DEBUG"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        ("TORCH_NCCL_IB_DISABLE", "NCCL_IB_DISABLE"),
        ("GLOO_SOCKET_IFACE", "GLOO_SOCKET_IFNAME"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
    ],
)
def test_a_misspelt_name_gets_the_right_one(name: str, right: str) -> None:
    looks = check_variables({name: "1"}, "h", HERE)
    assert wrong(looks) == {name: "warning"}
    assert one(looks, name).facts["right"] == right
    assert one(looks, name).advice.startswith(f"unset {name}; if {right} is meant: export {right}=")


def test_unknown_names_are_a_note_and_their_values_are_not_shown() -> None:
    looks = check_variables({"NCCL_OUR_PLUGIN_TOKEN": "hunter2", "NCCL_TIMEOUT": "hunter2"}, "h", HERE)
    assert wrong(looks) == {"NCCL_OUR_PLUGIN_TOKEN": "note", "NCCL_TIMEOUT": "warning"}
    assert "hunter2" not in repr(looks)
    assert "hunter2" not in repr(check_variables({"NCCL_SOCKET_IFNAMEE": "hunter2"}, "h", HERE))


def test_old_names_go_by_the_version_in_use() -> None:
    assert said(NCCL_ASYNC_ERROR_HANDLING="1") == {"NCCL_ASYNC_ERROR_HANDLING": "note"}
    old = HostContext(torch="2.7.1", nccl="2.26.2")
    assert said(TORCH_NCCL_TRACE_BUFFER_SIZE="2000") == {"TORCH_NCCL_TRACE_BUFFER_SIZE": "note"}
    assert said(old, TORCH_NCCL_TRACE_BUFFER_SIZE="2000") == {}
    assert said(NCCL_RMA_DISABLE="1") == {"NCCL_RMA_DISABLE": "note"}  # new in 2.30
    assert said(NCCL_GDRCOPY_TAIL_ENABLE="1") == {"NCCL_GDRCOPY_TAIL_ENABLE": "note"}  # gone after 2.11


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("NCCL_P2P_DISABLE", "true", "warning"),  # read as 0
        ("NCCL_P2P_LEVEL", "NVLINK", "warning"),
        ("NCCL_DEBUG", "INFOS", "warning"),
        ("NCCL_IB_TIMEOUT", "50", "note"),
        ("NCCL_ALGO", "Ringg", "error"),
        ("NCCL_PROTO", "^LL256", "error"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAILS", "error"),
        ("TORCH_NCCL_NAN_CHECK", "maybe", "error"),
    ],
)
def test_values_that_are_none(name: str, value: str, level: str) -> None:
    assert said(**{name: value}) == {name: level}


def test_words_nccl_does_not_know_were_ignored_before_2_24() -> None:
    assert said(HostContext(nccl="2.21.5"), NCCL_ALGO="Ringg") == {"NCCL_ALGO": "warning"}
    assert said(NCCL_ALGO="ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring") == {"NCCL_ALGO": "note"}
    assert said(NCCL_PROTO="^LL128;allreduce:LL128") == {"NCCL_PROTO": "note"}


def test_numbers_as_c_reads_them() -> None:
    assert [as_number(text) for text in ("1", " -2", "0x10", "010", "1abc", "08", "yes", "")] == [
        1, -2, 16, 8, 1, 0, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "warning"}),
        ({"NCCL_P2P_LEVEL": "LOC"}, {"NCCL_P2P_LEVEL": "warning"}),
        ({"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_DISABLE": "warning"}),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, {"CUDA_LAUNCH_BLOCKING": "warning"}),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {"TORCH_DISTRIBUTED_DEBUG": "warning"}),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, {"TORCH_NCCL_BLOCKING_WAIT": "warning"}),
        ({"NCCL_MAX_NCHANNELS": "1"}, {"NCCL_MAX_NCHANNELS": "warning"}),
        ({"NCCL_DEBUG": "TRACE"}, {"NCCL_DEBUG": "warning"}),
        ({"NCCL_NVLS_ENABLE": "0"}, {"NCCL_NVLS_ENABLE": "note"}),
    ],
)
def test_settings_that_cost_speed(environ: dict[str, str], found: dict[str, str]) -> None:
    assert said(**environ) == found


def test_a_setting_costs_nothing_where_there_is_nothing_to_lose() -> None:
    one_gpu = HostContext(INTERFACES, (), 1)
    assert said(one_gpu, NCCL_P2P_DISABLE="1") == {"NCCL_P2P_DISABLE": "note"}
    assert said(one_gpu, NCCL_IB_DISABLE="1") == {}
    efa = HostContext(INTERFACES, (Rdma("efa_0", (Port(1, "ACTIVE"),), None, "efa"),), 8)
    assert said(efa, NCCL_IB_DISABLE="1") == {}
    assert said(efa, FI_PROVIDER="tcp") == {"FI_PROVIDER": "warning"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"NCCL_SOCKET_IFNAME": "enp"}, {"NCCL_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "eth1"}, {"NCCL_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, {"NCCL_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "^eth,lo,docker"}, {"NCCL_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "eth0, eth1"}, {"NCCL_SOCKET_IFNAME": "warning"}),
        ({"NCCL_SOCKET_IFNAME": "eth0,ens5"}, {"NCCL_SOCKET_IFNAME": "note"}),
        ({"GLOO_SOCKET_IFNAME": "^lo"}, {"GLOO_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "docker0"}, {"GLOO_SOCKET_IFNAME": "note"}),
        ({"NCCL_IB_HCA": "mlx4"}, {"NCCL_IB_HCA": "warning"}),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_7"}, {"NCCL_IB_HCA": "warning"}),
        ({"NCCL_IB_HCA": "mlx5_1"}, {"NCCL_IB_HCA": "warning"}),  # takes mlx5_10 too
        ({"NCCL_IB_HCA": "mlx5", "NCCL_IB_DISABLE": "1"}, {"NCCL_IB_HCA": "warning", "NCCL_IB_DISABLE": "warning"}),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "error", "NCCL_IB_DISABLE": "warning"}),
        (
            {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"},
            {"NCCL_P2P_LEVEL": "warning", "NCCL_P2P_DISABLE": "warning"},
        ),
        ({"NCCL_IB_GID_INDEX": "0"}, {"NCCL_IB_GID_INDEX": "warning"}),
        ({"NCCL_IB_GID_INDEX": "7"}, {"NCCL_IB_GID_INDEX": "error"}),
        ({"CUDA_VISIBLE_DEVICES": "0,1,4"}, {"CUDA_VISIBLE_DEVICES": "error"}),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, {"CUDA_VISIBLE_DEVICES": "error"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-eeee"}, {"CUDA_VISIBLE_DEVICES": "error"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "warning"}),
    ],
)
def test_contradictions(environ: dict[str, str], found: dict[str, str]) -> None:
    assert said(**environ) == found


def test_infiniband_by_name_where_there_is_none() -> None:
    assert said(HostContext(INTERFACES, (), 4), NCCL_NET="ib") == {"NCCL_NET": "error"}
    assert said(HostContext(INTERFACES, None, 4), NCCL_NET="IB") == {}  # nobody knows
    assert said(NCCL_NET="IB") == {}
    assert said(NCCL_P2P_DISABLE="0", NCCL_P2P_LEVEL="SYS") == {}


def test_p2p_and_shm_off_leave_the_network() -> None:
    off = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert said(HostContext(INTERFACES, (), 4), **off)["P2P and SHM"] == "error"
    assert said(**off)["P2P and SHM"] == "warning"  # RDMA is faster than sockets
    assert "P2P and SHM" not in said(HostContext(INTERFACES, (), 1), **off)


def test_lists_of_interfaces_and_devices_are_read_as_nccl_reads_them() -> None:
    def takes(value: str, name: str, port: int = -1) -> bool:
        return parse_choice(value).takes(name, port)

    assert takes("eth", "eth10") and not takes("=eth1", "eth10")
    assert takes("^docker,lo", "eth0") and not takes("^docker,lo", "docker0")
    assert takes("^=docker0", "docker01")
    assert takes("mlx5_0:1", "mlx5_0", 1) and not takes("mlx5_0:1", "mlx5_0", 2)
    assert takes("=mlx5_0,mlx5_1:2", "mlx5_0", 2)


def test_files_that_set_variables_unseen(tmp_path: Path) -> None:
    files = {
        "etc/nccl.conf": "NCCL_DEBUG=WARN\nNCCL_P2P_DISABLE=1\n",
        "home/u/.nccl.conf": "# mine\nNCCL_SOCKET_IFNAME==eth0\nNCCL_DEBUG=INFO\nNCCL_OUR_TOKEN=hunter2\n",
    }
    found = nccl_files({"HOME": "/home/u"}, put(tmp_path, files))
    assert [path for path, _ in found] == ["/home/u/.nccl.conf", "/etc/nccl.conf"]
    looks = check_variables({"NCCL_SOCKET_IFNAME": "eth0"}, "h", HERE, found)
    assert wrong(looks) == {
        "/home/u/.nccl.conf": "note", "/etc/nccl.conf": "note", "NCCL_OUR_TOKEN": "note", "NCCL_P2P_DISABLE": "warning",
    }  # fmt: skip
    assert "the environment beats its NCCL_SOCKET_IFNAME" in one(looks, "/home/u/.nccl.conf").why
    assert "hunter2" not in repr(looks)
    other = nccl_files({"HOME": "/home/u", "NCCL_CONF_FILE": "/etc/other.conf"}, tmp_path)
    assert [path for path, _ in other] == ["/etc/nccl.conf"]


def test_a_line_of_such_a_file_keeps_its_blanks_and_the_first_one_wins() -> None:
    assert parse_nccl_file("NCCL_DEBUG=INFO \nNCCL_DEBUG=WARN\nnonsense\n") == {"NCCL_DEBUG": "INFO "}
