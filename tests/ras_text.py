"""Reports of NCCL's RAS made of counts, in the form of src/ras/client_support.cc (NVIDIA/nccl, commit 5067397c)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
Counts = Mapping[int, Mapping[str, int]]  # rank of the communicator -> operation -> launched


def is_outlier(count: int, total: int) -> bool:
    """Which counts the text breaks down to ranks."""
    return count == 1 or (count <= 10 and count <= total * 0.25)


def where(rank: int) -> str:
    return f"GPU {rank % 8} managed by process {1000 + rank} on node 10.0.0.{1 + rank // 8}"


def report(communicators: Mapping[str, Counts], missing: Mapping[str, tuple[int, ...]] | None = None) -> str:
    """missing: ranks of a communicator whose process did not answer."""
    missing = missing or {}
    errors, warnings = "", ""
    for number, (hash_, counts) in enumerate(communicators.items()):
        gone = missing.get(hash_, ())
        if gone:
            errors += f"#{number}-0 ({hash_}) INCOMPLETE\n  Missing communicator data from {len(gone)} rank"
            errors += "s\n" if len(gone) > 1 else "\n"
            errors += "".join(f"  Rank {rank} -- {where(rank)}\n" for rank in gone) + "\n"
        told = "".join(_different(op, counts, len(counts) + len(gone)) for op in OPS)
        if told:
            warnings += f"#{number}-0 ({hash_}) MISMATCH\n{told}"
    status = "MISMATCH" if warnings else "INCOMPLETE" if errors else "OK"
    return (
        "NCCL version 2.28.9 compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 12090\n\n"
        "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n"
        "(total)   per node  per process    (total)  (total)\n      1          8            1          8        8\n\n"
        "Communicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        f"    0         1         1         8         8         8   RUNNING  {status}\n"
        f"\nErrors\n======\n\n{errors}\nWarnings\n========\n\n{warnings}"
    )


def _different(op: str, counts: Counts, total: int) -> str:
    launched = {rank: its.get(op, 0) for rank, its in counts.items()}
    ranks_of = Counter(launched.values())
    if len(ranks_of) < 2:
        return ""
    told = f"  Communicator ranks have different {op} operation counts\n"
    for count, ranks in sorted(ranks_of.items(), key=lambda item: -item[1]):
        did = f"launched up to operation {count}" if count else "not launched any operations"
        if ranks > 1:
            told += f"  {ranks} ranks have {did}\n"
        if is_outlier(ranks, total):
            for rank in (rank for rank, its in launched.items() if its == count):
                told += (
                    f"  Rank {rank} -- {where(rank)}\n" if ranks > 1 else f"  Rank {rank} has {did} -- {where(rank)}\n"
                )
    return f"{told}\n"


def report_json(communicators: Mapping[str, Counts], missing: Mapping[str, tuple[int, ...]] | None = None) -> str:
    missing = missing or {}
    return json.dumps(
        {
            "nccl_version": "2.28.9", "cuda_runtime_version": 12090, "cuda_driver_version": 12090,
            "timestamp": "2026-11-22 10:00:00", "communicators_count": len(communicators),
            "communicators": [
                {
                    "hash": f"0x{hash_}", "secondary_hash": "0x1:0x2", "size": len(counts),
                    "ranks_count": len(counts), "missing_ranks_count": len(missing.get(hash_, ())),
                    "ranks": [_rank(rank, its) for rank, its in counts.items()],
                    "missing_ranks": [_gone(rank) for rank in missing.get(hash_, ())],
                }
                for hash_, counts in communicators.items()
            ],
            "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
        },
        indent=2,
    )  # fmt: skip


def _rank(rank: int, counts: Mapping[str, int]) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": rank, "host": "10.0.0.1", "pid": 1000 + rank, "cuda_dev": rank, "nvml_dev": rank, "status": status,
        "collective_counts": {op: counts.get(op, 0) for op in OPS},
    }  # fmt: skip


def _gone(rank: int) -> dict[str, Any]:
    status = {"unresponsive": True, "considered_dead": True}
    return {"rank": rank, "host": "10.0.0.1", "pid": 1000 + rank, "cuda_dev": rank, "nvml_dev": rank, "status": status}
