"""Measures what the docs say of the speed of analysis and writes it there, with commit and date: `make figures`.

    python -m benchmarks.figures            # some minutes on a quiet machine; HTA is compared where it is installed
    python -m benchmarks.figures --age      # how old the figures are

The inputs are made of the recorded run in tests/data/ddp4: four ranks of 71 MB of JSON, 64 and 256 ranks of its own
size. Everything runs without the cache. The figures stand between two marks in the docs, and nobody edits them.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import psutil

from benchmarks import ROOT
from benchmarks.speed.analyze_vs_hta import HTA_SCRIPT
from benchmarks.speed.make_traces import make_long, make_ranks
from benchmarks.speed.measuring import run_timed, run_watched

PAGE = ROOT / "docs" / "evidence.md"
CODE = (
    "traceops/traces", "traceops/measure", "traceops/across", "traceops/rules", "traceops/pipeline",
    "traceops/render",
)  # fmt: skip
BEGIN, END = "<!-- figures: written by `make figures` -->\n", "<!-- end of figures -->\n"
_RUN = ROOT / "tests" / "data" / "ddp4"
_MEASURED_AT = re.compile(r"At ([0-9a-f]{8}) \((\d{4}-\d\d-\d\d)\)")
_LONG_MB = 71.0
_WORLDS = (64, 256)
_RUNS = 3
_SAMPLE_S = 0.01


@dataclass(frozen=True)
class Figure:
    """Of one program on one input. CPU time is the median of some runs, memory the most of all its processes together.

    Seconds of the wall would say more of what else the machine does.
    """

    what: str
    cpu_seconds: float
    peak_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--age", action="store_true", help="say how old the figures are, and measure nothing")
    args = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    if args.age:
        commit, when = measured_at(text)
        print(f"measured at {commit} ({when}); commits to the code since: {commits_since(commit)}")
        return 0
    PAGE.write_text(replaced(text, block(measure(), _git("rev-parse", "--short=8", "HEAD"), date.today())))
    return 0


def measure() -> list[Figure]:
    """All figures; those of HTA last, if it is installed."""
    with tempfile.TemporaryDirectory() as work:
        inputs = {f"4 ranks of {_LONG_MB:.0f} MB": Path(work, "long")}
        for trace in sorted(_RUN.glob("*.json.gz")):
            inputs[f"4 ranks of {_LONG_MB:.0f} MB"].mkdir(exist_ok=True)
            make_long(trace, Path(work, "long", trace.name), _LONG_MB)
        for world in _WORLDS:
            size = make_ranks(_RUN, Path(work, str(world)), world)
            inputs[f"{world} ranks of {size / 1e6 / world:.1f} MB"] = Path(work, str(world))
        out = ["-q", "--no-cache", "-o", str(Path(work, "out"))]
        found = [
            _figure(what, [sys.executable, "-m", "traceops", "analyze", str(folder), *out])
            for what, folder in inputs.items()
        ]
        if find_spec("hta") is not None:
            what, folder = next(iter(inputs.items()))
            files = [str(file) for file in sorted(folder.iterdir())]
            found.append(_figure(f"HTA, {what}", [sys.executable, "-c", HTA_SCRIPT, *files]))
    return found


def block(figures: Sequence[Figure], commit: str, when: date) -> str:
    """The figures as they stand in the docs."""
    rows = [f"| {one.what} | {one.cpu_seconds:.2f} | {one.peak_mb:.0f} |" for one in figures]
    ours, theirs = figures[0], figures[-1]
    compared = (
        f"\nHTA takes {theirs.cpu_seconds / ours.cpu_seconds:.1f} times the CPU time and "
        f"{theirs.peak_mb / ours.peak_mb:.1f} times the memory.\n"
        if theirs.what.startswith("HTA")
        else ""
    )
    return (
        f"At {commit} ({when}), {psutil.cpu_count()} cores, medians of {_RUNS} runs without the cache:\n\n"
        "| input | CPU s | peak MB |\n|---|---:|---:|\n" + "\n".join(rows) + f"\n{compared}"
    )


def replaced(text: str, figures: str) -> str:
    """The page with these figures between its marks. Raises ValueError where it has no marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no marks for figures: {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}\n{figures}\n{end}{after}"


def measured_at(text: str) -> tuple[str, date]:
    """The commit and the day of the figures in a page. Raises ValueError where it has none."""
    found = _MEASURED_AT.search(text.partition(BEGIN)[2].partition(END)[0])
    if found is None:
        raise ValueError("no figures between the marks")
    return found[1], date.fromisoformat(found[2])


def commits_since(commit: str) -> int:
    """How many commits changed the measured code since. Raises CalledProcessError for a commit that is not here."""
    return int(_git("rev-list", "--count", f"{commit}..HEAD", "--", *CODE))


def _figure(what: str, command: Sequence[str]) -> Figure:
    cpu = statistics.median(run_timed(command).cpu_seconds for _ in range(_RUNS))
    return Figure(what, cpu, run_watched(command, _SAMPLE_S).peak_mb)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
