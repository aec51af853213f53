"""`traceops analyze` on more and more ranks: is its time linear in them, and what memory does it need?

    python -m benchmarks.speed.make_traces ranks FOLDER_OF_TRACES /tmp/ranks --ranks 64 256 1024
    python -m benchmarks.speed.many_ranks /tmp/ranks
    python -m benchmarks.speed.many_ranks /tmp/ranks --dask   # again through a dask LocalCluster: the same report.json?

The folder holds one folder of traces a number of ranks, named by it. No cache is used. Memory is sampled during the
run that is timed, five times a second; with dask, over the cluster's scheduler and workers too, whose CPU time is not
in the table. The map lasts until the last worker process has ended, the rest is the reduce and the report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.speed.measuring import Watched, run_watched

_SAMPLE_S = 0.2
_COLUMNS = (
    "ranks", "wall s", "ms a rank", "map s", "rest s", "CPU s", "peak MB", "of it main process MB", "report MB",
    "matched %", "findings",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="*", help="some of the folders only")
    parser.add_argument("--dask", action="store_true", help="compare with a dask LocalCluster, a worker a core")
    args = parser.parse_args()
    worlds = sorted(int(folder.name) for folder in args.folder.iterdir() if folder.name.isdigit())
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|")
    same = True
    with _dask_cluster() if args.dask else contextlib.nullcontext() as address:
        for world in args.ranks or worlds:
            report = _analyze(args.folder / str(world), str(world))
            if address:
                again = _analyze(args.folder / str(world), f"{world}, dask", "--executor", address)
                same = same and again == report
    if args.dask:
        print(f"\nreport.json through dask is {'the same, byte for byte' if same else 'another one'}")
    return 0 if same else 1


def _analyze(folder: Path, label: str, *options: str) -> bytes:
    """Analyse, print the row of the table, return report.json."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "traceops", "analyze", str(folder), "-o", work, "-q", "--no-cache"]
        run = run_watched([*command, *options], _SAMPLE_S, beside=[psutil.Process()] if options else ())
        written = sum(file.stat().st_size for file in Path(work).iterdir())
        report = Path(work, "report.json").read_bytes()
    print(_row(label, int(folder.name), run, written, json.loads(report)), flush=True)
    return report


@contextlib.contextmanager
def _dask_cluster() -> Iterator[str]:
    """The address of a cluster on this machine: its scheduler in this process, a worker process a core."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=psutil.cpu_count(), threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address.replace("tcp://", "dask://")


def _row(label: str, world: int, run: Watched, written: int, report: dict[str, Any]) -> str:
    mapped = run.alone_after_s
    found = Counter(f"{f['rule']} {f['severity']}" for f in report["findings"])
    return (
        f"| {label} | {run.seconds:.1f} | {run.seconds / world * 1000:.0f} | "
        + ("– | – | " if mapped is None else f"{mapped:.1f} | {run.seconds - mapped:.1f} | ")
        + f"{run.cpu_seconds:.1f} | {run.peak_mb:.0f} | {run.main_peak_mb:.0f} | {written / 1e6:.1f} | "
        + f"{report['summary']['matching']['matched_pct']} | {', '.join(sorted(found)) or 'none'} |"
    )


if __name__ == "__main__":
    sys.exit(main())
