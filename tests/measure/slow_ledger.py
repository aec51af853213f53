"""The step ledger by its definition in METRICS: paint every nanosecond, then look at each gap by itself."""

import itertools
import re

import numpy as np

MEMORY, COMM, COMPUTE = 1, 2, 3
LAUNCH = ("cuda_runtime", "cuda_driver")
MEMORY_CATS = ("gpu_memcpy", "gpu_memset")
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
    numbers, edges = _steps(rows, device)

    zero = edges[0]
    paint = np.zeros(edges[-1] - zero, dtype=np.int8)
    for row in sorted(device, key=_kind):
        paint[max(row["ts"] - zero, 0) : max(row["end"] - zero, 0)] = _kind(row)
    device.sort(key=lambda row: row["ts"])
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
            "idle_gap",
        )
    }
    for step, (start, end) in enumerate(itertools.pairwise(edges)):
        piece = paint[start - zero : end - zero]
        for name, kind in (("compute", COMPUTE), ("comm", COMM), ("memory", MEMORY)):
            result[name][step] = int((piece == kind).sum())
        idle = np.flatnonzero(np.diff(np.concatenate(([0], piece == 0, [0])).astype(int)))
        for gap_start, gap_end in (idle.reshape(-1, 2) + start).tolist():
            for name, ns in _causes(rows, device, gap_start, gap_end).items():
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
    launched_on = (
        set()
    )  # streams run in order: what comes before any recorded launch is from before the window
    for row in sorted(device, key=lambda row: row["ts"]):
        moment = row["launch"]["ts"] if row["launch"] else row["ts"]
        if row["launch"]:
            launched_on.add(row["stream"])
        if row["stream"] not in launched_on and any(other["launch"] for other in device):
            ends[-1].append(row["end"])
        elif moment < marks[-1][1]:
            ends[sum(start <= moment for start, _, _ in marks) - 1].append(row["end"])
    numbers, edges = [], [max(ends[-1]) if ends[-1] else marks[0][0]]
    for k, (_, _, number) in enumerate(marks):
        reached = max([edges[-1], *ends[k]])
        if reached > edges[-1]:  # a step in which the device did nothing has no device time
            numbers.append(number)
            edges.append(reached)
    if not numbers:  # as if no step were marked
        return [-1], [min(row["ts"] for row in device), max(row["end"] for row in device)]
    return numbers, edges


def _causes(rows, device, start, end):
    following = next((row for row in device if row["ts"] >= end), None)
    launch = following and following["launch"]
    if end - start < 1000:
        return {"idle_gap": end - start}
    if not launch or launch["ts"] <= start:
        return {"idle_dependency": end - start}
    thread = [row for row in rows if row["tid"] == launch["tid"]]
    loading = np.zeros(end - start, dtype=bool)
    for row in thread:
        if re.search("dataloader_next|enumerate.DataLoader", row["name"]) and row["cat"] in (
            "user_annotation",
            "cpu_op",
        ):
            loading[max(row["ts"] - start, 0) : max(row["end"] - start, 0)] = True
    blocked = any(
        row["name"] in BLOCKING and row["cat"] in LAUNCH and row["ts"] <= start < row["end"] for row in thread
    )
    taken = int(loading.sum())
    return {"idle_input": taken, "idle_sync" if blocked else "idle_host": end - start - taken}
