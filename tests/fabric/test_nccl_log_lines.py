"""Single lines of NCCL as each version prints them: connections, networks, the machine, and hostile ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.fabric.nccl import NcclLog
from traceops.fabric.readers.nccl_log import read_nccl_log

START = (
    "vm:7:7 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 64 cudaDev 0 nvmlDev 0 busId 60 commId 0xa "
    "- Init START"
)
LINK = "vm:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"


def read(tmp_path: Path, *lines: str | bytes) -> NcclLog:
    path = tmp_path / "log.txt"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return read_nccl_log([str(path)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Channel 03 : 0[1000] -> 1[2000] via P2P/IPC", ("P2P", "IPC", None, False)),
        ("Channel 03 : 0[1000] -> 1[2000] via P2P/direct pointer/read", ("P2P", "direct pointer", None, False)),
        ("Channel 03 : 0[1000] -> 1[2000] via P2P/indirect/2[3000]", ("P2P", "indirect", None, False)),
        ("Channel 03/0 : 0[0] -> 1[1] via P2P/indirect/2[2]/read", ("P2P", "indirect", None, False)),
        ("Channel 03/1 : 0[0] -> 1[1] via P2P/CUMEM/read/CE", ("P2P", "CUMEM", None, False)),
        ("Channel 03/0 : 0[0] -> 1[1] via P2P/MNNVL", ("P2P", "MNNVL", None, False)),
        ("Channel 03 : 0[1000] -> 1[2000] via direct shared memory", ("SHM", "direct", None, False)),
        ("Channel 03 : 0[0] -> 1[1] via SHM/CE/direct", ("SHM", "CE/direct", None, False)),
        ("Channel 03 : 0[1000] -> 1[2000] [send] via NET/IB/2/GDRDMA/Shared", ("NET", "IB", 2, True)),
        ("Channel 03/0 : 0[0] -> 1[1] [send] via NET/IBext_v8/3(2)/GDRDMA", ("NET", "IBext_v8", 3, True)),
        ("Channel 03/1 : 0[0] -> 1[1] [send] via NET/Socket/0/Shared", ("NET", "Socket", 0, False)),
        ("Channel 03/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/1/GDRDMA(PCI)", ("NET", "AWS Libfabric", 1, True)),
        ("Channel 03/0 : 1[1] -> 0[0] [receive] via NET/IB/4/GDRDMA", ("NET", "IB", 4, True)),
        ("CollNet 03/0 : 0 [send] via COLLNET/SHARP/1/GDRDMA", ("COLLNET", "SHARP", 1, True)),
    ],
)
def test_ways(tmp_path: Path, text: str, expected: tuple[str, str, int | None, bool]) -> None:
    (communicator,) = read(tmp_path, START, f"vm:7:7 [0] NCCL INFO {text}").communicators
    (c,) = communicator.connections
    assert (c.transport, c.detail, c.device, c.gdr) == expected
    assert c.channels == 1


@pytest.mark.parametrize(
    "text",
    [
        "Channel 03/0 : 0[0] -> 1[1] via P2P/CUM",
        "Channel 03/0 : 0[0] -> 1[1] via ",
        "Channel 03/0 : 0[0] -> 64[1] via P2P/CUMEM",  # no such rank
        "Channel 03/0 : 5[5] -> 6[6] via P2P/CUMEM",  # another process's
        f"Channel {10**30} : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 9999/0 : 0[0] -> 1[1] via P2P/CUMEM",
        f"Channel 03/0 : 0[0] -> {10**30}[1] via P2P/CUMEM",
        f"Channel 03/0 : 0[{'f' * 400}] -> 1[1] via P2P/CUMEM",
        f"Pattern 4, crossNic 0, nChannels {10**30}, bw 30.0/30.0, type NVL/PIX, sameChannels 1",
        f"Pattern 4, crossNic 0, nChannels 12, bw {'9' * 400}.0/30.0, type NVL/PIX, sameChannels 1",
        "Pattern 4, crossNic 0, nChannels 12, bw 30.00",
        f"comm 0x1 rank 0 nRanks 64 nNodes {10**30} localRanks 1 localRank 0 MNNVL 0",
        "24 coll channels, 24 collnet cha",
    ],
)
def test_cut_and_hostile_lines_tell_nothing(tmp_path: Path, text: str) -> None:
    (communicator,) = read(tmp_path, START, f"vm:7:7 [0] NCCL INFO {text}").communicators
    assert (communicator.connections, communicator.graphs, communicator.nodes) == ((), (), None)


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank 3] ", "[default3]:", "[rank3]:", "3: ", " 3: ", "[1,3]<stdout>:", "[1,3]<stderr>: ",
        "[2026-11-21 17:06:30] ", "2025-05-16T16:39:51.208-07:00", "2025-05-16T16:39:51.208Z ",
        "\x1b[36m(Worker pid=1019)\x1b[0m ", "epoch 1:  6%|#\r",
        "I1121 17:06:30.1 train.py:3] ", "(RayWorkerWrapper pid=1019) ",
    ],
)  # fmt: skip
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    (communicator,) = read(tmp_path, prefix + START, prefix + LINK).communicators
    assert [(place.host, place.pid) for place in communicator.places.values()] == [("vm", 7)]
    (connection,) = communicator.connections
    assert (connection.quote.line, connection.quote.text) == (2, LINK)


def test_lines_of_two_ranks_run_together(tmp_path: Path) -> None:
    other = (
        START.replace("vm:7:7 [0]", "vm:8:8 [1]")
        .replace("rank 0", "rank 1")
        .replace("cudaDev 0 nvmlDev 0", "cudaDev 1 nvmlDev 1")
    )
    second = "vm:8:8 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM"
    (communicator,) = read(tmp_path, START, other, LINK + second).communicators
    assert [(c.source, c.quote.text) for c in communicator.connections] == [(0, LINK), (1, second)]
    # Who writes there is not known: neither where the first line ends.
    (communicator,) = read(tmp_path, START, other, LINK + second.replace("vm:8:8", "vm:9:9")).communicators
    assert communicator.connections == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_P2P_DISABLE set by environment to 1", ("NCCL_P2P_DISABLE", "1")),
        ("NCCL_SHM_DISABLE set by environment to 1.", ("NCCL_SHM_DISABLE", "1")),
        ("NCCL_P2P_LEVEL set by environment to LOC", ("NCCL_P2P_LEVEL", "LOC")),
        ("NCCL_SOCKET_IFNAME set by environment to eth0.100", ("NCCL_SOCKET_IFNAME", "eth0.100")),
        (
            "NCCL_ALGO set by environment to allreduce:ring;broadcast:tree",
            ("NCCL_ALGO", "allreduce:ring;broadcast:tree"),
        ),
        ("NCCL_OOB_NET_IFNAME set to eth1", ("NCCL_OOB_NET_IFNAME", "eth1")),
        ("NET/Plugin: Plugin name set by env to libnccl-net-x.so", ("NCCL_NET_PLUGIN", "libnccl-net-x.so")),
    ],
)
def test_settings(tmp_path: Path, text: str, expected: tuple[str, str]) -> None:
    log = read(tmp_path, *(f"vm:{pid}:{pid} [0] NCCL INFO {text}" for pid in range(3)))
    assert [(setting.name, setting.value, setting.quote.line) for setting in log.settings] == [(*expected, 1)]


def test_choices_of_all_versions(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        *["vm:7:7 [0] NCCL INFO AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"] * 3,
        "vm:7:7 [0] NCCL INFO AllReduce: 800 Bytes -> Algo Ring proto Ll channel{Lo..Hi}={0..1}",
        "vm:7:7 [0] NCCL INFO 65536 Bytes -> Algo 0 proto 2 time 33.2",
        "vm:7:7 [0] NCCL INFO AllGather: 65536 Bytes -> Algo 5 proto 1 time 33.2",
    )
    assert [(c.op, c.algorithm, c.protocol, c.calls, c.least_bytes, c.most_bytes) for c in log.choices] == [
        ("AllReduce", "RING", "LL", 4, 4, 800),
        (None, "TREE", "SIMPLE", 1, 65536, 65536),
        ("AllGather", "NVLS_TREE", "LL128", 1, 65536, 65536),
    ]


def test_speed_and_bandwidth_are_the_same(tmp_path: Path) -> None:
    text = "vm:7:7 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, {} 5.000000/3.000000, type PHB/SYS, sameChannels 1"
    graphs = [read(tmp_path, START, text.format(word)).communicators[0].graphs[0] for word in ("speed", "bw")]
    assert [(graph.intra_gbs, graph.inter_gbs, graph.inter_type) for graph in graphs] == [(10.0, 6.0, "SYS")] * 2


def test_warnings_once_and_p2p_that_is_off(tmp_path: Path) -> None:
    text = "P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P"
    log = read(
        tmp_path,
        *(f"vm:{pid}:{pid} [0] NCCL INFO {text}" for pid in range(3)),
        *(
            f"[2026-11-21 17:06:30] vm:{pid}:{pid} [0] shmutils.cc:72 NCCL WARN Error: no /dev/shm/nccl-x"
            for pid in range(3)
        ),
    )
    assert [quote.line for quote in log.p2p_disabled] == [1]
    assert [(quote.line, quote.text) for quote in log.warnings] == [
        (4, "vm:0:0 [0] shmutils.cc:72 NCCL WARN Error: no /dev/shm/nccl-x")
    ]


def test_cuda_says_that_gpus_cannot_reach_each_other(tmp_path: Path) -> None:
    """NVIDIA/nccl issue 1637: NCCL 2.25 asks CUDA for it with P2P switched off, too."""
    text = "NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'"
    log = read(tmp_path, f"vm:7:7 [1] transport/shm.cc:590 {text}")
    assert len(log.p2p_disabled) == 1


def test_functions_of_plugins_may_have_spaces(tmp_path: Path) -> None:
    text = "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 103"
    function = "int cm_req_handle_error_entry(nccl_net_ofi_context_t*, fid_cq*, uint16_t):46"
    log = read(tmp_path, f"[2026-01-01 12:08:32] node-0:194:710 [0] {function} {text}")
    assert [quote.text for quote in log.warnings] == [f"node-0:194:710 [0] {function} {text}"]


def test_functions_of_nccl_follow_in_brackets(tmp_path: Path) -> None:
    head = "node-0:194:710 [1] misc/strongstream.cc:424 (ncclStrongStreamSynchronize)"  # as 2.29 writes it
    log = read(tmp_path, f"[2026-07-23 04:16:01] {head} NCCL WARN Cuda failure 'unspecified launch failure'")
    assert [quote.text for quote in log.warnings] == [f"{head} NCCL WARN Cuda failure 'unspecified launch failure'"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # vllm-project/vllm issues 15769, 5405 and 2734: plain, escapes spelt out, and without their first character
        ("(RayWorkerWrapper pid=7) ", " [repeated 15x across cluster]"),
        ("ESC[36m(RayWorkerVllm pid=7)ESC[0m ", "ESC[32m [repeated 15x across cluster]ESC[0m"),
        (
            " [36m(RayWorkerVllm pid=7) [0m ",
            " [32m [repeated 4x across cluster] (Ray deduplicates logs by default. Set …) [0m",
        ),
        ("\x1b[36m(Worker pid=7)\x1b[0m ", "\x1b[32m [repeated 4x across cluster]\x1b[0m"),
    ],
)
def test_what_ray_says_once_for_several(tmp_path: Path, before: str, after: str) -> None:
    head = "vm:7:7 [0] NCCL INFO"
    said = ("Using network Socket", "NCCL_CUMEM_ENABLE set by environment to 0.", LINK.removeprefix(f"{head} "))
    log = read(tmp_path, START, *(f"{before}{head} {text}{after}" for text in said))
    assert [network.plugin for network in log.networks] == ["Socket"]
    assert [(setting.name, setting.value) for setting in log.settings] == [("NCCL_CUMEM_ENABLE", "0")]
    ((connection,),) = (communicator.connections for communicator in log.communicators)
    assert (connection.detail, connection.quote.line) == ("CUMEM", 4)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"log":"', '\\n","stream":"stderr","time":"2026-11-21T17:06:30.123456789Z"}'),  # Docker's json-file
        ('"2026-11-21T17:06:30Z","', '"'),
        ('"2026-11-21T17:06:30Z";"', '\\n",\r'),
        ("2026-11-21T17:06:30.123456789Z stderr F ", ""),  # containerd's
    ],
)
def test_lines_as_other_programs_keep_them(tmp_path: Path, before: str, after: str) -> None:
    address = "vm:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5\\u003c0\\u003e"
    setting = "vm:7:7 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to LOC"
    said = (START, address, "vm:7:7 [0] NCCL INFO Using network Socket", setting, LINK)
    log = read(tmp_path, 'print("before it")', *(f"{before}{line}{after}" for line in said))
    assert [(network.plugin, network.devices) for network in log.networks] == [("Socket", ((0, "eth0"),))]
    assert [setting.value for setting in log.settings] == ["LOC"]
    ((connection,),) = (communicator.connections for communicator in log.communicators)
    assert (connection.quote.line, connection.quote.text) == (6, LINK)


def test_a_table_that_says_each_message_twice(tmp_path: Path) -> None:
    """aws/aws-ofi-nccl issue 889."""
    said = "ip-1:79:79 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0"
    log = read(tmp_path, f"  | 2025-05-16T16:39:51.208-07:00{said} | {said}")
    assert [(setting.value, setting.quote.text) for setting in log.settings] == [("eth0", said)]


@pytest.mark.parametrize("host", ["<cluster_name>", "[pod-name]"])
def test_hosts_whose_names_were_taken_out(tmp_path: Path, host: str) -> None:
    """NVIDIA/nccl issue 952, vllm-project/vllm issue 2734."""
    lines = (line.replace("vm:", f"{host}:") for line in (START, LINK))
    (communicator,) = read(tmp_path, *(f"(Worker pid=7) {line}" for line in lines)).communicators
    assert [(place.host, place.pid) for place in communicator.places.values()] == [(host[1:-1], 7)]
    assert [connection.quote.text for connection in communicator.connections] == [LINK.replace("vm:", f"{host}:")]


def test_lines_without_a_process_still_tell(tmp_path: Path) -> None:
    """People paste logs without the part that names their hosts."""
    log = read(
        tmp_path,
        "20:13:32 - NCCL WARN NET/OFI Only EFA provider is supported",
        "NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
        "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
        "NCCL version 2.10.3+cuda11.3",
        "NCCL error in: ProcessGroupNCCL.cpp:1, invalid usage, NCCL version 2.28.9",
    )
    assert [event.kind for event in log.network_events] == ["plugin_failed"]
    assert [(setting.name, setting.value) for setting in log.settings] == [("NCCL_IB_DISABLE", "1")]
    [[connection]] = [communicator.connections for communicator in log.communicators]
    assert (connection.source, connection.destination, connection.transport) == (0, 8, "NET")
    assert log.nccl_versions == ("2.10.3+cuda11.3",)


def test_rubbish_between_marks(tmp_path: Path) -> None:
    """Thousands of marks in a line, brackets without end, bytes that are no text."""
    log = read(
        tmp_path,
        b"NCCL INFO " * 5000,
        b"vm:7:7 [0] NCCL INFO " * 2000,
        b" [0] " * 3000 + b"NCCL WARN x",
        b"a" * 600 + b":1:1 [0] NCCL INFO NCCL_X set by environment to \xff\xfe",
        START.encode().replace(b"rank 0", b"rank 99"),
    )
    assert log.communicators == ()
    assert [setting.value for setting in log.settings] == ["\ufffd\ufffd"]


def test_connections_of_lines_that_name_no_process_are_read(tmp_path):
    """As people paste them: `grep -o "NCCL INFO.*"`, or a logger that prints the message only."""
    (tmp_path / "nccl.log").write_text(
        "NCCL INFO Check P2P Type isAllDirectP2p 1 directMode 0\n"
        "NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n"
        "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
    )
    log = read_nccl_log([str(tmp_path / "nccl.log")])
    (communicator,) = log.communicators
    rows = [(row.source, row.destination, row.transport, row.detail, row.channels, row.quote.line)
            for row in communicator.connections]  # fmt: skip
    assert rows == [(0, 1, "P2P", "CUMEM", 2, 3), (1, 0, "P2P", "CUMEM", 1, 2)]
    assert (communicator.size, communicator.at_least) == (2, True)
    assert [(place.host, place.pid, place.nvml_device) for place in communicator.places.values()] == [
        (None, None, 0), (None, None, 1)
    ]  # fmt: skip


def test_lines_without_a_process_add_nothing_to_those_with_one(tmp_path):
    (tmp_path / "nccl.log").write_text(
        "a:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\n"
    )
    (communicator,) = read_nccl_log([str(tmp_path / "nccl.log")]).communicators
    assert [(row.source, row.transport) for row in communicator.connections] == [(0, "P2P")]


NOT_THERE = "cannot open shared object file: No such file or directory"
TOO_OLD = "ncclNetPlugin symbols v4 and lower are not supported."


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


def test_diverted_paths_of_gpus_on_one_switch(tmp_path: Path) -> None:
    head = "vm:7:7 [0] NCCL INFO "
    lines = [
        "=== System : maxBw 12.0 totalBw 12.0 ===",
        "CPU/0-1 (1/1/2)",
        "+ PCI[24.0] - PCI/0-17000 (1000c03015d91d25)",
        "              + PCI[24.0] - GPU/0-19000 (0)",
        "              + PCI[24.0] - GPU/0-1a000 (1)",
        "              + PCI[24.0] - PCI/0-1b000 (1000c03015d91d25)",
        "                            + PCI[24.0] - GPU/0-1c000 (2)",
        "+ PCI[24.0] - GPU/0-2d000 (3)",
        "==========================================",
        "GPU/0-19000 :GPU/0-1a000 (4/24.0/PHB) GPU/0-1c000 (4/24.0/PHB) GPU/0-2d000 (4/24.0/PHB) ",
    ]
    (machine,) = read(tmp_path, *(head + line for line in lines)).machines
    kinds = {pair: path.kind for pair, path in machine.paths.items()}
    assert kinds == {("GPU0", "GPU1"): "PIX", ("GPU0", "GPU2"): "PXB", ("GPU0", "GPU3"): "PHB"}
    assert [gpu.numa for gpu in machine.gpus] == [1, 1, 1, 1]


def test_devices_around_gpus(tmp_path: Path) -> None:
    """From 2.29 on a GPU is inside a device, which has the links."""
    lines = [
        "=== System : maxBw 24.0 totalBw 48.0 ===",
        "CPU/0-0 (1/1/2)",
        "+ PCI[12.0] - PCI/0-7000 (10b5874710b58747)",
        "              + PCI[12.0] - DEV/0-b000 (100266a3106b0203)",
        "                            + LOC[5000.0] - GPU/0-b000",
        "                            + XGMI[24.0] - DEV/0-e000",
        "              + PCI[12.0] - DEV/0-e000 (100266a3106b0203)",
        "                            + LOC[5000.0] - GPU/0-e000",
        "                            + XGMI[24.0] - DEV/0-b000",
        "+ PCI[1.5] - NIC/0-3000",
        "GPU/0-b000 :GPU/0-e000 (3/24.0/XGMI) DEV/0-b000 (1/5000.0/LOC) DEV/0-e000 (2/24.0/XGMI) ",
    ]
    (machine,) = read(tmp_path, *(f"vm:7:7 [0] NCCL INFO {line}" for line in lines)).machines
    assert [(gpu.bus_id, gpu.numa) for gpu in machine.gpus] == [("0000:0b:00.0", 0), ("0000:0e:00.0", 0)]
    assert {pair: path.kind for pair, path in machine.paths.items()} == {("GPU0", "GPU1"): "XGMI"}


def test_amd(tmp_path: Path) -> None:
    head = "vm:7:7 [0] NCCL INFO "
    lines = [
        "=== System : maxBw 96.0 totalBw 144.0 ===",
        "CPU/0 (1/2/-1)",
        "+ PCI[24.0] - GPU/C1000 (0)",
        "              + XGMI[48.0] - GPU/C6000",
        "+ PCI[24.0] - GPU/C6000 (1)",
        "              + XGMI[48.0] - GPU/C1000",
        "GPU/C1000 :GPU/C1000 (0/5000.000000/LOC) GPU/C6000 (1/48.000000/XGMI) CPU/0 (1/24.000000/PHB) ",
        "Pattern 4, crossNic 0, nChannels 2, bw 48.000000/48.000000, type XGMI/PIX, sameChannels 1",
    ]
    init = "comm 0x9e rank 0 nranks 2 cudaDev 0 busId c1000 localSize 2 used 2048 bytes on core 3 - Init COMPLETE"
    log = read(tmp_path, "RCCL version : 2.21.5-main:a29a210+", *(head + line for line in [*lines, init]))
    assert log.nccl_versions == ("RCCL 2.21.5-main:a29a210+",)
    assert log.communicators[0].graphs[0].intra_type == "XGMI"
    path = log.machines[0].paths["GPU0", "GPU1"]
    assert (path.kind, path.gbs) == ("XGMI", 48.0)
