"""`traceops analyze` against HTA's own load plus the same six analyses: same files, same run, in turn.

    python -m benchmarks.speed.analyze_vs_hta FOLDER_OF_TRACES [--runs 3]

Prints medians and the ratios pair by pair. traceops runs without its cache; a further line is of a run that
finds in it what an earlier one kept. Memory comes from one more run each, because sampling it takes time: the peak
over time of the proportional set size summed over the process and its children, every 10 ms (both use several
processes, so a single process's maximum says little).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.speed.measuring import Timed, run_timed, run_watched
from traceops.traces.discover import discover

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
_SAMPLE_S = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    files = [str(Path(file.path).resolve()) for file in discover(args.folder).windows[-1].files]
    runs: dict[str, list[Timed]] = {"HTA": [], "traceops": [], "traceops, cached": []}
    with tempfile.TemporaryDirectory() as work:
        out = Path(work, "report")
        hta = [sys.executable, "-c", HTA_SCRIPT, *files]
        traceops = [sys.executable, "-m", "traceops", "analyze", args.folder, "-o", str(out), "-q"]
        uncached = [*traceops, "--no-cache"]
        cache = {**os.environ, "TRACEOPS_CACHE": str(Path(work, "cache"))}
        run_timed(traceops, cache)  # fills the cache, and the system's own of files
        for _ in range(args.runs):
            runs["HTA"].append(run_timed(hta))
            runs["traceops"].append(run_timed(uncached))
            runs["traceops, cached"].append(run_timed(traceops, cache))
        peak = {
            "HTA": run_watched(hta, _SAMPLE_S).peak_mb,
            "traceops": run_watched(uncached, _SAMPLE_S).peak_mb,
            "traceops, cached": run_watched(traceops, _SAMPLE_S, cache).peak_mb,
        }
        written = sum(file.stat().st_size for file in out.iterdir())
    size = sum(Path(file).stat().st_size for file in files)
    print(f"{len(files)} traces, {size / 1e6:.1f} MB zipped; {args.runs} runs each")
    print("| | median s | CPU s | peak MB |\n|---|---|---|---|")
    for name, own in runs.items():
        cpu = statistics.median(run.cpu_seconds for run in own)
        print(f"| {name} | {_median(own):.2f} | {cpu:.2f} | {peak[name]:.0f} |")
    ratios = [h.seconds / t.seconds for h, t in zip(runs["HTA"], runs["traceops"], strict=True)]
    print(f"time: {statistics.median(ratios):.1f} times as fast (pairs: {' '.join(f'{r:.1f}' for r in ratios)})")
    print(f"memory: {peak['traceops'] / peak['HTA']:.3f} of HTA's")
    print(f"traceops also matches collectives, judges the rules and writes {written / 1e6:.1f} MB of reports")
    return 0


def _median(runs: list[Timed]) -> float:
    return statistics.median(run.seconds for run in runs)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
