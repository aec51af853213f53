"""The step ledger by its definition in METRICS: paint every nanosecond, then look at each gap by itself."""

import itertools
import re
from bisect import bisect_left

import numpy as np

MEMORY, COMM, COMPUTE = 1, 2, 3
LAUNCH = ("cuda_runtime", "cuda_driver")
MEMORY_CATS = ("gpu_memcpy", "gpu_memset")
HOST = (*LAUNCH, "cpu_op", "user_annotation", "python_function")
BLOCKING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def slow_ledger(events):
    """(step numbers, edges, bucket -> ns per step) of a GPU trace, in plain loops."""
    rows = [
        {"name": events.names[events.name[i]], "cat": events.cats[events.cat[i]], "ts": int(events.ts[i]),
         "end": int(events.ts[i] + events.dur[i]), "tid": int(events.tid[i]), "stream": int(events.stream[i]),
         "correlation": int(events.correlation[i])}
        for i in range(len(events))
    ]  # fmt: skip
    launches = {}
    for row in sorted(rows, key=lambda row: row["ts"]):
        if row["cat"] in LAUNCH and row["correlation"] >= 0:
            launches.setdefault(row["correlation"], row)
    device = [row for row in rows if row["cat"] == "kernel" or row["cat"] in MEMORY_CATS]
    for row in device:
        row["launch"] = launches.get(row["correlation"]) if row["correlation"] >= 0 else None
        if row["launch"] and "DtoH" in row["name"] and "-> Pageable" in row["name"]:
            row["launch"]["to_pageable"] = True
    numbers, edges = _steps(rows, device)

    zero = edges[0]
    paint = np.zeros(edges[-1] - zero, dtype=np.int8)
    for row in sorted(device, key=_kind):
        paint[max(row["ts"] - zero, 0) : max(row["end"] - zero, 0)] = _kind(row)
    device.sort(key=lambda row: row["ts"])
    begins = [row["ts"] for row in device]
    threads = _threads(rows)
    host = next((row["tid"] for row in rows if row["name"].startswith("ProfilerStep")), None)
    held, recorded_from = {}, min((row["ts"] for row in rows if row["cat"] in HOST), default=edges[-1])
    result = {
        name: [0] * len(numbers)
        for name in (
            "compute",
            "comm",
            "memory",
            "idle_input",
            "idle_sync",
            "idle_host",
            "idle_dependency",
            "idle_unknown",
            "idle_gap",
        )
    }
    for step, (start, end) in enumerate(itertools.pairwise(edges)):
        piece = paint[start - zero : end - zero]
        for name, kind in (("compute", COMPUTE), ("comm", COMM), ("memory", MEMORY)):
            result[name][step] = int(np.count_nonzero(piece == kind))
        idle = np.flatnonzero(np.diff(np.concatenate(([False], piece == 0, [False]))))
        for gap_start, gap_end in (idle.reshape(-1, 2) + start).tolist():
            following = device[(place := bisect_left(begins, gap_end)) : place + 1]
            if not following:  # behind all activity: the host of the steps goes on alone
                following = [{"launch": {"tid": host, "end": gap_end + 1}, "ts": gap_end, "stream": None}]
            if gap_start < recorded_from < gap_end:
                before = recorded_from - gap_start
                result["idle_gap" if before < 1000 else "idle_unknown"][step] += before
                gap_start = recorded_from
            if gap_end <= recorded_from:
                following = []
            for name, ns in _causes(threads, device, following, gap_start, gap_end, held).items():
                result[name][step] += ns
    return numbers, edges, result


def _kind(row):
    return MEMORY if row["cat"] in MEMORY_CATS else COMM if row["name"].startswith("nccl") else COMPUTE


def _steps(rows, device):
    marks = sorted(
        (row["ts"], row["end"], int(row["name"].split("#")[1]))
        for row in rows if row["name"].startswith("ProfilerStep") and row["cat"] == "user_annotation"
    )  # fmt: skip
    ends = {k: [] for k in range(-1, len(marks))}
    launched_on = set()  # streams run in order: what comes before any recorded launch is from before the window
    by_start = sorted(device, key=lambda row: row["ts"])
    firsts = {row["stream"]: row["ts"] for row in by_start[::-1] if row["launch"]}
    inside = [row for row in by_start if row["ts"] >= firsts.get(row["stream"], float("inf"))]
    filtered = 2 * sum(not row["launch"] for row in inside) > len(inside)
    for at, row in enumerate(by_start):
        moment = row["launch"]["ts"] if row["launch"] else row["ts"]
        if filtered:
            behind = [other for other in by_start[at:] if other["launch"] and other["stream"] == row["stream"]]
            moment = min([moment, *(other["launch"]["ts"] for other in behind)])
        if row["launch"]:
            launched_on.add(row["stream"])
        if row["stream"] not in launched_on and any(other["launch"] for other in device) and not filtered:
            ends[-1].append(row["end"])
        elif moment < marks[-1][1]:
            ends[sum(start <= moment for start, _, _ in marks) - 1].append(row["end"])
    recorded_from = min([marks[0][0], *(row["ts"] for row in rows if row["cat"] in HOST)])
    numbers, edges = [], [max(*ends[-1], recorded_from) if ends[-1] else marks[0][0]]
    for k, (_, _, number) in enumerate(marks):
        reached = max([edges[-1], *ends[k]])
        if reached > edges[-1]:  # a step in which the device did nothing has no device time
            numbers.append(number)
            edges.append(reached)
    if not numbers:  # as if no step were marked
        return [-1], [min(row["ts"] for row in device), max(row["end"] for row in device)]
    tail = [end - reached for (_, end, _), reached in zip(marks, edges[1:], strict=False)]
    if 1 < len(marks) == len(numbers) and np.median(tail) > 0.1 * np.median([end - start for start, end, _ in marks]):
        edges = [
            max(edge, mark) for edge, mark in zip(edges, [marks[0][0], *(end for _, end, _ in marks)], strict=True)
        ]
    return numbers, edges


def _threads(rows):
    """Thread -> the rows in which it loads data, and those in which it is blocked."""
    found = {}
    operators = sorted((row for row in rows if row["cat"] == "cpu_op"), key=lambda row: row["ts"])
    for row in rows:
        if row["cat"] in LAUNCH and (
            row["name"] in BLOCKING or row["name"].startswith("cudaMemcpy") or row.get("to_pageable")
        ):
            around = [op for op in operators if op["tid"] == row["tid"] and op["ts"] <= row["ts"] < op["end"]]
            inner = min(around, key=lambda op: op["end"] - op["ts"], default=row)
            row["read"] = inner if inner["name"].startswith("aten::") else row
        loading, blocking, copying = found.setdefault(row["tid"], ([], [], []))
        if row["cat"] in ("user_annotation", "cpu_op"):
            if re.search("dataloader_next|enumerate.DataLoader", row["name"]):
                loading.append(row)
        elif row["cat"] in LAUNCH and (row["name"] in BLOCKING or row.get("to_pageable")):
            blocking.append(row)
        elif row["cat"] in LAUNCH and row["name"].startswith("cudaMemcpy"):
            copying.append(row)
    return found


def _causes(threads, device, following, start, end, held):
    """held: by thread until when what it was blocked is counted, and how much of it no gap has taken, ns."""
    launch = following[0]["launch"] if following else None
    if end - start < 1000:
        return {"idle_gap": end - start}
    if not launch:
        return {"idle_unknown": end - start}
    over, begins = launch["end"], following[0]["ts"]
    earlier = [row["ts"] for row in device if row["launch"] is launch and row["ts"] < begins]
    over = min([over, *earlier])  # the kernels before in a graph show that its launch is over
    host_until = end if start < over and begins - over <= 20_000 else min(max(over, start), end)
    stream = following[0]["stream"]
    queued = host_until == start and end - start <= 20_000
    own = queued and any(row["end"] == start and row["stream"] == stream for row in device)
    rest = {"idle_gap" if own else "idle_dependency": end - host_until}
    if host_until == start:
        return rest
    loading, blocking, copying = threads[launch["tid"]]
    painted = np.zeros(host_until - start, dtype=bool)
    for row in loading:
        painted[max(row["ts"] - start, 0) : max(row["end"] - start, 0)] = True
    blocked = any(row["ts"] <= start < row["end"] for row in blocking)
    since, left = held.get(launch["tid"], (0, 0))
    reads = sorted((row["read"] for row in (*blocking, *copying)), key=lambda one: (one["ts"], one["end"]))
    began_in = [one["name"] for one in reads if one["ts"] <= start][-1:]
    waits = [(one["ts"], one["end"], one["name"]) for one in reads if one["end"] > since]
    reached = since
    for begin, over, name in waits:
        if begin <= start or (blocked and [name] == began_in):  # another that begins later waits for nothing
            begin, over = max(begin, reached), min(over, host_until)
            left, reached = left + max(over - begin, 0), max(reached, over)
    held[launch["tid"]] = host_until, max(left - (host_until - start), 0)
    most = min(left, host_until - start) if blocked else 0
    synced = int((~painted[:most]).sum())
    taken = int(painted.sum())
    return {**rest, "idle_input": taken, "idle_sync": synced, "idle_host": host_until - start - taken - synced}
