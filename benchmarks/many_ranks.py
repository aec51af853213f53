"""`traceops analyze` on more and more ranks: is its time linear in them, and what memory does it need?

    python benchmarks/make_traces.py ranks FOLDER_OF_TRACES /tmp/ranks --ranks 64 256 1024
    python benchmarks/many_ranks.py /tmp/ranks

The folder holds one folder of traces a number of ranks, named by it. Memory is sampled during the run that is timed,
five times a second. The map lasts until the last worker process has ended, the rest is the reduce, and the report.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from measuring import Watched, run_watched

_SAMPLE_S = 0.2
_COLUMNS = (
    "ranks", "wall s", "ms a rank", "map s", "rest s", "CPU s", "peak MB", "of it main process MB", "report MB",
    "matched %", "findings",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="*", help="some of the folders only")
    args = parser.parse_args()
    worlds = sorted(int(folder.name) for folder in args.folder.iterdir() if folder.name.isdigit())
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|")
    for world in args.ranks or worlds:
        with tempfile.TemporaryDirectory() as work:
            out = Path(work, "report")
            run = run_watched(_command(args.folder / str(world), out), _SAMPLE_S, _without_cache(work))
            written = sum(file.stat().st_size for file in out.iterdir())
            report = json.loads((out / "report.json").read_text())
        print(_row(world, run, written, report), flush=True)
    return 0


def _command(folder: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "traceops", "analyze", str(folder), "-o", str(out), "-q"]


def _without_cache(work: str) -> dict[str, str]:
    return {**os.environ, "TRACEOPS_CACHE": str(Path(work, "cache"))}


def _row(world: int, run: Watched, written: int, report: dict[str, Any]) -> str:
    mapped = run.alone_after_s
    found = Counter(f"{f['rule']} {f['severity']}" for f in report["findings"])
    return (
        f"| {world} | {run.seconds:.1f} | {run.seconds / world * 1000:.0f} | "
        + ("– | – | " if mapped is None else f"{mapped:.1f} | {run.seconds - mapped:.1f} | ")
        + f"{run.cpu_seconds:.1f} | {run.peak_mb:.0f} | {run.main_peak_mb:.0f} | {written / 1e6:.1f} | "
        + f"{report['summary']['matching']['matched_pct']} | {', '.join(sorted(found)) or 'none'} |"
    )


if __name__ == "__main__":
    sys.exit(main())
