"""NCCL Inspector's lines as it writes them: keys, order and number forms of NVIDIA/nccl@35d819ec (v4.2) and @3254c695
(v4.3):plugins/profiler/inspector/inspector_json.cc and README.md. No line is copied; values are made up."""

from __future__ import annotations

from collections.abc import Iterable

START_US = 1_748_030_377_000_000


def _header(rank: int, ranks: int, comm: str, name: str) -> str:
    return f'"header":{{"id":"{comm}","comm_name":"{name}","rank":{rank},"n_ranks":{ranks},"nnodes":1}}'


def _metadata(version: str, at_us: int, pid: int) -> str:
    return (
        f'"metadata":{{"inspector_output_format_version":"{version}","git_rev":"","rec_mechanism":'
        f'"nccl_profiler_interface","dump_timestamp_us":{at_us},"hostname":"host-1","pid":{pid}}}'
    )


def coll(number: int, op: str = "AllReduce", nbytes: int = 268_435_456, gbs: float = 341.0) -> str:
    """One completed collective."""
    return (
        f'"coll_perf":{{"coll":"{op}","coll_algo":"RING","coll_proto":"SIMPLE","coll_sn":{number},'
        f'"coll_msg_size_bytes":{nbytes},"coll_exec_time_us":1378,"coll_timing_source":"kernel_gpu",'
        f'"coll_algobw_gbs":{gbs / 1.5:f},"coll_busbw_gbs":{gbs:f}}}'
    )


def p2p(number: int, peer: int, nbytes: int = 1 << 20) -> str:
    """One completed send."""
    return (
        f'"p2p_perf":{{"p2p":"Send","p2p_sn":{number},"p2p_peer":{peer},"p2p_msg_size_bytes":{nbytes},'
        f'"p2p_exec_time_us":40,"p2p_timing_source":"kernel_gpu","p2p_algobw_gbs":26.000000,"p2p_busbw_gbs":26.000000}}'
    )


def dump(
    bodies: Iterable[str],
    rank: int,
    ranks: int = 4,
    at_s: float = 0,
    version: str = "v4.2",
    comm: str = "0x7f8c496ae9f661",
    name: str = "unknown",
) -> str:
    """One dump of one communicator: the marker, then a line an operation."""
    bodies = list(bodies)
    both = f"{_header(rank, ranks, comm, name)},{_metadata(version, START_US + int(at_s * 1e6), 1000 + rank)}"
    stats = (
        f'"dump_stats":{{"coll_records":{sum("coll_perf" in body for body in bodies)},"coll_dropped_total":0,'
        f'"coll_dropped_since_last_dump":0,"p2p_records":{sum("p2p_perf" in body for body in bodies)},'
        '"p2p_dropped_total":0,"p2p_dropped_since_last_dump":0}'
    )
    own = "" if version == "v4.3" else f"{both},"
    return "".join(f"{{{line}}}\n" for line in [f"{both},{stats}", *(own + body for body in bodies)])
