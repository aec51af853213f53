"""Kernels' speed as the trace shows it against Nsight Compute's counters: python -m benchmarks.compute.counted FOLDER…

FOLDER has what `programs/counters.py` writes. Both sides are shares of the same peaks, the H200's data sheet: of the
trace the operations and least bytes that traceops finds, over the recorded time; of Nsight Compute what its counters
count, over its time. The larger of the two shares, of operations and of bytes, is the speed. METHOD in RESULTS.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from traceops.compute.attainable import gpu_of
from traceops.compute.judged import Judged, judge_uses
from traceops.measure.activity import find_activity
from traceops.measure.launched import find_launched
from traceops.measure.steps import find_steps
from traceops.traces.kineto import load_trace

WITHIN = 7.0  # points
MEMORY = 4.8e12
PEAKS = {"bf16": 989.4e12, "tf32": 494.7e12, "fp8": 1978.9e12, "fp32": 66.9e12}
TIME, READ, WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
CACHED, SECTOR = "lts__t_sectors_srcunit_tex_op_write.sum", 32  # what is written to the cache, in sectors
TENSOR = {
    "bf16": "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "tf32": "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "fp8": "sm__ops_path_tensor_src_fp8.sum",
}  # fmt: skip
CYCLES, CLOCK = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "sm__cycles_elapsed.avg.per_second"
SHEET_CLOCK = 1.83e9  # of the data sheet's peak: 132 processors times 4,096 operations of 16 bits in a cycle
SIMT = {"fadd": 1, "fmul": 1, "ffma": 2}


class Recorded(Struct):
    """A case in the trace: seconds of each of its calls, kernels of one call, and its operators with calls of each."""

    seconds: list[float]
    kernels: list[str]
    uses: dict[int, tuple[Judged, set[int]]]


def recorded(folder: Path) -> dict[str, Recorded]:
    """The cases of a trace, by name."""
    trace = load_trace(str(folder / "kernels.pt.trace.json.gz"))
    events, activity = trace.events, find_activity(trace.events)
    launched = find_launched(events, activity, find_steps(events, activity))
    kernels = judge_uses(launched, gpu_of(trace.meta.device))
    ranges = np.flatnonzero(events.in_cats("user_annotation"))
    ranges = np.array([r for r in ranges if " " in events.names[events.name[r]]])
    ranges = ranges[np.argsort(events.ts[ranges])]
    calls = np.flatnonzero(events.in_cats("cuda_runtime", "cuda_driver"))
    began = dict(zip(events.correlation[calls].tolist(), events.ts[calls].tolist(), strict=True))
    is_kernel = events.in_cats("kernel")
    seconds: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    names: defaultdict[str, defaultdict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    uses: defaultdict[str, dict[int, tuple[Judged, set[int]]]] = defaultdict(dict)
    of_launch = zip(launched.row.tolist(), kernels.of_kernel.tolist(), launched.operator.tolist(), strict=True)
    for row, which, operator in of_launch:
        at = int(np.searchsorted(events.ts[ranges], began[int(events.correlation[row])], "right")) - 1
        name = events.names[events.name[ranges[at]]]
        seconds[name][at] += events.dur[row] / 1e9
        if is_kernel[row]:
            names[name][at].append(events.names[events.name[row]])
        uses[name].setdefault(which, (kernels.all[which], set()))[1].add(operator)
    return {
        name: Recorded(list(took.values()), next(iter(names[name].values()), []), uses[name])
        for name, took in seconds.items()
    }


def counted(folder: Path, cases: dict[str, Recorded]) -> dict[str, dict[str, float]]:
    """Nsight Compute's sums by case: rows follow the cases' order, and each has as many as the trace has kernels."""
    lines = [line for line in (folder / "ncu.csv").read_text(errors="replace").splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))[1:]  # the first has units
    left: Iterator[dict[str, str]] = iter(rows)
    found = {}
    for name in json.loads((folder / "counted.json").read_text()):
        own = [next(left) for _ in cases[name].kernels]
        for row, kernel in zip(own, cases[name].kernels, strict=True):
            base = row["Kernel Name"].removeprefix("void ").partition("<")[0].partition("(")[0]
            if base.split("::")[-1] not in kernel:
                raise SystemExit(f"{name}: Nsight Compute counted {base}, the trace has {kernel[:80]}")
        sums: defaultdict[str, float] = defaultdict(float)
        for row in own:
            took = float(row[TIME].replace(",", ""))
            for metric, text in row.items():
                value = text.replace(",", "") if "__" in metric else ""
                if value.replace(".", "").isdigit():
                    sums[metric] += float(value) * (took if ".avg." in metric else 1.0)
        found[name] = {metric: value / (sums[TIME] if ".avg." in metric else 1.0) for metric, value in sums.items()}
    return found


class Compared(Struct):
    """Shares of the peak, %, of one case. bound: which is the larger share by the counters."""

    name: str
    kind: str
    bound: str
    trace: float
    counters: float
    kernels: int
    times: tuple[float, float, float]  # trace ÷ counters, of operations, bytes and seconds


def compare(row: dict[str, str | float], one: Recorded, sums: dict[str, float]) -> Compared:
    dtype = str(row["dtype"])
    flops = moved = 0.0
    for judged, operators in one.uses.values():
        calls = len(operators) / len(one.seconds)
        attention = judged.work.attention
        flops += judged.work.flops * calls * (0.5 if attention is not None and "causal" in str(row["shape"]) else 1.0)
        moved += (judged.work.bytes or 0.0) * calls
    took, counted_took = statistics.median(one.seconds), sums[TIME] / 1e9
    peak = PEAKS[dtype]
    if dtype == "fp32":
        done = sum(sums[f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum"] * n for op, n in SIMT.items())
    elif TENSOR[dtype] in sums:
        done = sums[TENSOR[dtype]]
    else:
        done = sums[CYCLES] / 100 * sums[CLOCK] / SHEET_CLOCK * peak * counted_took
    if not flops:
        done = 0.0  # of what only moves bytes
    # What a kernel writes reaches the memory after its end, as far as the cache holds it.
    counted_bytes = sums[READ] + max(sums[WRITTEN], SECTOR * sums.get(CACHED, 0.0))
    shares = [
        (flops / took / peak, done / counted_took / peak),
        (moved / took / MEMORY, counted_bytes / counted_took / MEMORY),
    ]
    bound = "operations" if shares[0][1] >= shares[1][1] else "bytes"
    times = (flops / done if done else 0.0, moved / counted_bytes, took / counted_took)
    ours, theirs = (100 * max(side) for side in zip(*shares, strict=True))
    return Compared(str(row["name"]), str(row["kind"]), bound, ours, theirs, len(one.kernels), times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    found: list[Compared] = []
    for folder in parser.parse_args().folder:
        cases = recorded(folder)
        sums = counted(folder, cases)
        rows = {row["name"]: row for row in json.loads((folder / "launched.json").read_text())}
        found += [compare(rows[name], cases[name], one) for name, one in sums.items() if one]
    unknown = [one for one in found if not one.trace]
    found = [one for one in found if one.trace]
    for one in sorted(found, key=lambda one: -abs(one.trace - one.counters)):
        times = " ".join(f"{t:5.2f}" for t in one.times)
        points = f"{one.trace - one.counters:+6.1f} {one.trace:6.1f} {one.counters:6.1f}"
        print(f"{points} {times} {one.kernels} {one.bound:10} {one.name}")
    groups: defaultdict[str, list[Compared]] = defaultdict(list)
    for one in found:
        groups["all"].append(one)
        groups[one.kind if one.bound == "operations" else f"{one.kind}, by bytes"].append(one)
    for kind, own in groups.items():
        near = [one for one in own if abs(one.trace - one.counters) <= WITHIN]
        kernels = f"{sum(one.kernels for one in near)} of {sum(one.kernels for one in own)} kernels"
        print(f"{kind}: {len(near)} of {len(own)} cases, {kernels} within {WITHIN:g} points")
    print(f"work unknown to traceops: {', '.join(one.name for one in unknown)}")


if __name__ == "__main__":
    main()
