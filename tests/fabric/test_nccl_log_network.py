"""What NCCL and its plugins say of networks: used, absent, switched off and failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.fabric.nccl import NcclLog
from traceops.fabric.readers.nccl_log import read_nccl_log

NOT_THERE = "cannot open shared object file: No such file or directory"
TOO_OLD = "ncclNetPlugin symbols v4 and lower are not supported."


def read(tmp_path: Path, *lines: str) -> NcclLog:
    path = tmp_path / "log.txt"
    path.write_text("\n".join(lines) + "\n")
    return read_nccl_log([str(path)])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        # No plugin is installed, in the words of 2.10, 2.12, 2.17, 2.19, 2.21, 2.22, 2.27 and RCCL.
        ("NET/Plugin : No plugin found (libnccl-net.so), using internal implementation", "no_plugin"),
        (f"NET/Plugin : Plugin load returned 17 : libnccl-net.so: {NOT_THERE}.", "no_plugin"),
        # Wrapped by a terminal, or cut off (rwth-i6/returnn issue 1469).
        (f"NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: {NOT_THERE[:39]}", "no_plugin"),
        (f"NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: {NOT_THERE[:20]}", "no_plugin"),
        ("NET/Plugin : No plugin found, using internal implementation", "no_plugin"),
        (f"NET/Plugin : dlerror=libnccl-net.so: {NOT_THERE} No plugin found (libnccl-net.so), using internal "
         "implementation",
         "no_plugin"),
        ("NET/Plugin: No plugin found (libnccl-net.so)", "no_plugin"),
        ("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", "no_plugin"),
        ("NET/Plugin: Could not find: libnccl-net.so", "no_plugin"),
        ("NET/Plugin: Could not find: none libnccl-net-none.so. Using internal network plugin.", "no_plugin"),
        (f"NET/Plugin: Plugin load returned 2 : librccl-net.so: {NOT_THERE} : when loading librccl-net.so",
         "no_plugin"),
        # One was asked for.
        ("NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so", "plugin_missing"),
        (f"NET/Plugin : Plugin load returned 2 : libnccl-net-fast.so: {NOT_THERE}.", "plugin_missing"),
        # It is there and cannot be loaded.
        (f"NET/Plugin: libfabric.so.1: {NOT_THERE}", "plugin_failed"),
        ("NET/Plugin: libnccl-net.so: undefined symbol: fi_getinfo", "plugin_failed"),
        (f"NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). {TOO_OLD}", "plugin_failed"),
        ("NET/OFI No eligible providers were found", "plugin_failed"),
        ("Failed to initialize NET plugin AWS Libfabric", "plugin_failed"),
        ("NET/OFI Failed to initialize sendrecv protocol", "plugin_failed"),
        ("Failed to initialize NET plugin IBext_v10", "plugin_failed"),  # and it did not say that there is no device
        ("Failed to initialize NET plugin IB", "disabled"),  # NCCL_IB_DISABLE, where its lines are not printed
        ("NET/IB : No device found.", "no_device"),
        ("Failed to open libibverbs.so[.1]", "no_library"),
    ],
)  # fmt: skip
def test_network_events(tmp_path: Path, text: str, kind: str) -> None:
    (event,) = read(tmp_path, f"vm:7:7 [0] NCCL INFO {text}").network_events
    assert event.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.",
        f"NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5). {TOO_OLD}".replace("ncclNet", "ncclCollNet"),
        "NET/Plugin: Loaded net plugin Libfabric (v10)",
        "NET/OFI Selected Provider is efa (found 4 nics)",
        "TUNER/Plugin: Could not find: libnccl-tuner.so",
        "PROFILER/Plugin: Could not find: libnccl-profiler.so",
        "ENV/Plugin: Could not find: libnccl-env.so",
        "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.2<0>",
    ],
)
def test_no_events_in_the_noise(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"vm:7:7 [0] NCCL INFO {text}").network_events == ()


def test_infiniband_that_exists_and_cannot_be_opened_is_a_failure(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "vm:7:7 [0] transport/net_ib.cc:117 NCCL WARN NET/IB : Unable to open device mlx5_0",
        "vm:7:7 [0] NCCL INFO NET/IB : No device found.",
        "vm:7:7 [0] NCCL INFO Failed to initialize NET plugin IB",
        "vm:8:8 [1] NCCL INFO NET/IB : No device found.",  # another process's container has none
        "vm:8:8 [1] NCCL INFO Failed to initialize NET plugin IB",
    )
    assert [(event.kind, event.pid) for event in log.network_events] == [
        ("device_failed", 7), ("device_failed", 7), ("plugin_failed", 7), ("no_device", 8), ("no_device", 8),
    ]  # fmt: skip
    assert [quote.line for quote in log.plugin_failures] == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        # Of 2.30 on machines with older libraries, which it can do without.
        "misc/ibvwrap.cc:401 (wrap_ibv_query_port_speed) NCCL WARN Call to ibv_query_port_speed failed with error "
        "Protocol not supported errno 93",
        "misc/mlx5dvsymbols.cc:55 NCCL WARN dlvsym failed on mlx5dv_is_supported - undefined symbol version MLX5_1.8",
    ],
)
def test_libraries_that_lack_the_latest_are_no_broken_infiniband(tmp_path: Path, text: str) -> None:
    log = read(
        tmp_path,
        f"vm:7:7 [0] {text}",
        "vm:7:7 [0] NCCL INFO NET/IB : No device found.",
        "vm:7:7 [0] NCCL INFO Failed to initialize NET plugin IB",
    )
    assert log.plugin_failures == ()
    assert len(log.warnings) == 1


@pytest.mark.parametrize(
    ("reason", "plugin", "kinds"),
    [
        ("NET/IB : No device found.", "IBext_v10", ["no_device", "no_device"]),  # NVIDIA's images have it
        ("NET/IB : No device found.", "SPCX", ["no_device", "no_device"]),
        ("Failed to open libibverbs.so[.1]", "IB", ["no_library", "no_device"]),
        ("NCCL_IB_DISABLE set by environment to 1.", "IB", ["disabled"]),
        ("NET/IB : No device found.", "AWS Libfabric", ["no_device", "plugin_failed"]),
    ],
)
def test_a_plugin_for_infiniband_is_no_failure_where_there_is_none(
    tmp_path: Path, reason: str, plugin: str, kinds: list[str]
) -> None:
    head = "vm:7:7 [0] NCCL INFO "
    log = read(tmp_path, head + reason, f"{head}Failed to initialize NET plugin {plugin}")
    assert [event.kind for event in log.network_events] == kinds


def test_sockets_over_infiniband_interfaces_are_a_failure_unless_asked_for(tmp_path: Path) -> None:
    lines = ["NET/IB : No device found.", "NET/Socket : Using [0]ibp24s0:10.100.9.37<0> [1]ibp41s0:10.100.9.38<0>"]
    lines = [f"vm:7:7 [0] NCCL INFO {line}" for line in lines]
    assert [quote.line for quote in read(tmp_path, *lines).plugin_failures] == [2]
    asked = "vm:7:7 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1."
    assert read(tmp_path, asked, *lines).plugin_failures == ()
    assert read(tmp_path, lines[0], lines[1].replace("ibp", "enp")).plugin_failures == ()


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB ; OOB eth0:192.0.2.2<0>",
         ((0, "mlx5_0:1/RoCE"), (1, "mlx5_1:1/IB"))),
        ("NET/IB : Using [0]mlx5_0:1/IB/SHARP [RO]; OOB ibp25s0:10.20.0.120<0>", ((0, "mlx5_0:1/IB/SHARP"),)),
        ("NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [1]mlx5_2:1/IB [RO]; OOB eth0:192.0.2.2<0>",
         ((0, "[0] mlx5_0:1/IB, [1] mlx5_1:1/IB"), (1, "mlx5_2:1/IB"))),
    ],
)  # fmt: skip
def test_devices_in_use(tmp_path: Path, text: str, devices: tuple[tuple[int, str], ...]) -> None:
    log = read(
        tmp_path,
        f"vm:7:7 [0] NCCL INFO {text}",
        "vm:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:fe80::42:acff:fe11:2%eth0<0>",
        "vm:7:7 [0] NCCL INFO Using network IB",
        "vm:7:7 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        "vm:7:7 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1' (no module)",
    )
    (network,) = log.networks
    assert (network.plugin, network.devices, network.gdr) == ("IB", devices, {"mlx5_0": True, "mlx5_1": False})
