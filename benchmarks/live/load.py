"""1,024 ranks at 10 steps a second into one monitor: its CPU time and memory, and what a rank writes per step.

python -m benchmarks.live.load --ranks 1024 --seconds 60
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path
from random import Random

from benchmarks.live.generated import START_NS, GeneratedRank, StepParts
from traceops.live.monitor import Monitor


def main() -> None:
    """Write a second of all ranks, have the monitor take it in, and count what that takes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--per-s", type=int, default=10)
    args = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="live"))
    random = Random(1)
    ranks = [GeneratedRank(out / f"rank_{rank}", rank, random, looks_s=2.5) for rank in range(args.ranks)]
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monitor = Monitor(out, lambda line: None, windows=0)
    took = []
    try:
        for second in range(args.seconds):
            ms = 1000 / args.per_s
            for _ in range(args.per_s):
                for rank in ranks:
                    rank.take(StepParts(own=60, backward=30), ms * random.lognormvariate(0, 0.03))
            now_ns = START_NS + (second + 1) * 1_000_000_000
            for rank in ranks:
                rank.write(now_ns, now_ns - 1000)
            begin = time.process_time()
            monitor.look()
            took.append(time.process_time() - begin)
        written = sum(path.stat().st_size for path in out.glob("rank_*/*.bin"))
        state = (out / "live.json").stat().st_size
    finally:
        monitor.close()
        shutil.rmtree(out)
    took.sort()
    steps = args.ranks * args.seconds * args.per_s
    print(json.dumps({
        "ranks": args.ranks, "steps_per_s": args.ranks * args.per_s, "cpu_s_per_s": sum(took) / len(took),
        "most_cpu_s": took[-1], "bytes_per_rank_and_step": written / steps, "live_json_bytes": state,
        "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
