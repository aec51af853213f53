"""`traceops analyze` against HTA's own load plus the same six analyses: same files, same run, in turn.

    python benchmarks/analyze_vs_hta.py FOLDER_OF_TRACES [--runs 3]

Prints medians and the ratios pair by pair. Memory is the peak over time of the proportional set size summed over the
process and its children, sampled every 10 ms (both use several processes, so a single process's maximum says little).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from traceops.load.discover import discover

HTA_SCRIPT = """
import os, sys, warnings, logging
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
files = dict(enumerate(sys.argv[1:]))
ranks = list(files)
analysis = TraceAnalysis(trace_files=files)
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
for rank in ranks:
    analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)
analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
analysis.get_queue_length_summary(ranks=ranks)
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    files = [str(Path(file.path).resolve()) for file in discover(args.folder).windows[-1].files]
    results: dict[str, list[tuple[float, float]]] = {"hta": [], "traceops": []}
    with tempfile.TemporaryDirectory() as out:
        commands = {
            "hta": [sys.executable, "-c", HTA_SCRIPT, *files],
            "traceops": [sys.executable, "-m", "traceops", "analyze", args.folder, "-o", out, "-q"],
        }
        measure(commands["traceops"])  # warms the file cache for both
        for _ in range(args.runs):
            for name, command in commands.items():
                results[name].append(measure(command))
        written = sum(file.stat().st_size for file in Path(out).iterdir())
    print(
        f"{len(files)} traces, {sum(Path(f).stat().st_size for f in files) / 1e6:.1f} MB zipped; {args.runs} runs each"
    )
    print("| | median s | median peak MB |\n|---|---|---|")
    for name, runs in results.items():
        seconds, megabytes = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"| {name} | {seconds:.2f} | {megabytes:.0f} |")
    pairs = list(zip(results["hta"], results["traceops"], strict=True))
    print(f"time: {' '.join(f'{h[0] / t[0]:.1f}' for h, t in pairs)} times as fast")
    print(f"memory: {' '.join(f'{t[1] / h[1]:.3f}' for h, t in pairs)} of HTA's")
    print(f"traceops also matches collectives, judges the rules and writes {written / 1e6:.1f} MB of reports")
    return 0


def measure(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak memory (MB) of a command and its children."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watched = psutil.Process(process.pid)
    peak = 0
    while process.poll() is None:
        total = 0
        for each in (watched, *_children(watched)):
            total += _pss(each)
        peak = max(peak, total)
        time.sleep(0.01)
    seconds = time.perf_counter() - started
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(f"{command[:4]} failed:\n{process.stderr.read().decode()[-3000:]}")
    return seconds, peak / 1e6


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
        return children
    except psutil.Error:
        return []


def _pss(process: psutil.Process) -> int:
    """Proportional set size, bytes: shared pages are counted once over the processes that share them."""
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # it has just ended
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
