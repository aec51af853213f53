"""What each stage of `traceops analyze` costs, so that a change of 3 % is seen: counted instructions, not seconds.

    python -m benchmarks.speed.stages                    # against the stored reference, stages.json: half a minute
    python -m benchmarks.speed.stages --store            # this commit is the reference from now on
    python -m benchmarks.speed.stages --against COMMIT   # CPU time in turn with that commit: where valgrind is missing

Instructions are valgrind's (callgrind), the same to a thousandth in every run on any machine, whatever else it does.
They depend on the versions of Python and NumPy: a reference of others is not compared. Without valgrind the reference's
commit runs in turn with this one, and the least CPU time of each counts. All on tests/data/ddp4, without the cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "tests" / "data" / "ddp4"
REFERENCE = Path(__file__).with_name("stages.json")
STAGES = ("import", "load", "load and measure", "reduce and judge", "write")
SEEN = 0.03  # a change that is told
_TURNS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write the reference, in place of comparing with it")
    parser.add_argument("--against", metavar="COMMIT", help="CPU time in turn with this commit")
    parser.add_argument("--one", choices=("callgrind", "cpu"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        _run_stages(_dump if args.one == "callgrind" else _print_cpu)
        return 0
    if args.store:
        REFERENCE.write_text(json.dumps({**_of_here(), "instructions": count_instructions()}, indent=2) + "\n")
        return 0
    reference = json.loads(REFERENCE.read_text())
    counted = args.against is None and shutil.which("valgrind") is not None
    if counted and {name: reference[name] for name in _versions()} == _versions():
        print(f"millions of instructions, against {reference['commit']} of {reference['date']}")
        print(table(reference["instructions"], count_instructions(), 1e6))
        return 0
    commit = args.against or reference["commit"]
    print(f"ms of CPU, the least of {_TURNS} runs in turn with {commit}")
    print(table(*paired_cpu_ms(commit), 1.0))
    return 0


def table(before: Mapping[str, float], now: Mapping[str, float], unit: float) -> str:
    """A row a stage and one of all; what changed by 3 % or more has a sign."""
    rows = [*((stage, before[stage], now[stage]) for stage in now), ("all", sum(before.values()), sum(now.values()))]
    lines = ["| stage | before | now | change |", "|---|---:|---:|---:|"]
    for stage, old, new in rows:
        change = new / old - 1
        sign = "" if abs(change) < SEEN else " ▲" if change > 0 else " ▼"
        lines.append(f"| {stage} | {old / unit:.1f} | {new / unit:.1f} | {change:+.1%}{sign} |")
    return "\n".join(lines)


def count_instructions() -> dict[str, int]:
    """Instructions by stage, of this checkout."""
    with tempfile.TemporaryDirectory() as work:
        out = Path(work, "out")
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
        for command in ([], valgrind):  # the first run leaves byte code behind
            one = "callgrind" if command else "cpu"
            run = [*command, sys.executable, __file__, "--one", one]
            subprocess.run(run, check=True, env=_environment(ROOT), capture_output=True)
        # out.1 is of what comes before the first stage.
        dumps = [Path(f"{out}.{number}").read_text() for number in range(2, len(STAGES) + 2)]
    totals = [next(line for line in dump.splitlines() if line.startswith("totals:")) for dump in dumps]
    return {stage: int(line.split()[1]) for stage, line in zip(STAGES, totals, strict=True)}


def paired_cpu_ms(commit: str) -> tuple[dict[str, float], dict[str, float]]:
    """The least CPU time by stage of that commit and of this checkout."""
    with _checkout(commit) as tree:
        runs = [(_cpu_ms(tree), _cpu_ms(ROOT)) for _ in range(_TURNS)]
    before, now = ({stage: min(run[which][stage] for run in runs) for stage in STAGES} for which in (0, 1))
    return before, now


def _cpu_ms(tree: Path) -> dict[str, float]:
    run = [sys.executable, __file__, "--one", "cpu"]
    said = subprocess.run(run, check=True, env=_environment(tree), capture_output=True, text=True).stdout
    return {stage: float(ms) for stage, _, ms in (line.partition("\t") for line in said.splitlines() if "\t" in line)}


@contextlib.contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """A work tree of that commit, with its compiled parts."""
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work, "tree")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], check=True, cwd=ROOT)
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(build, check=True, cwd=tree, env=_environment(tree), capture_output=True)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True, cwd=ROOT)


def _environment(tree: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "PYTHONPATH": str(tree),
        "PYTHONHASHSEED": "0",
        "TRACEOPS_CACHE": "off",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _versions() -> dict[str, str]:
    import numpy

    return {"python": platform.python_version(), "numpy": numpy.__version__, "machine": platform.machine()}


def _of_here() -> dict[str, str]:
    said = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    return {"commit": said.stdout.strip(), "date": f"{date.today():%Y-%m-%d}", **_versions()}


def _run_stages(over: Callable[[str], None]) -> None:
    """The stages in this process. over: called with the name of each when it is over."""
    over("start")
    import traceops.render.files
    import traceops.render.writers.html
    from traceops.measure.summary import summarize
    from traceops.pipeline.analyze import find_traces, load_reduce
    from traceops.traces.kineto import load_trace

    load_reduce()
    from traceops.pipeline.conclude import conclude

    over("import")
    found = find_traces(str(TRACES))
    files = found.latest.files
    for file in files:
        load_trace(file.path)
    over("load")
    ranks = [summarize(file) for file in files]
    over("load and measure")
    report = conclude(found, ranks, ()).report
    over("reduce and judge")
    with tempfile.TemporaryDirectory() as work:
        traceops.render.files.write_report(report, Path(work))
    over("write")


def _dump(stage: str) -> None:
    """Have valgrind write what was counted since the last time."""
    subprocess.run(["callgrind_control", f"--dump={stage}", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


_since = [0.0]


def _print_cpu(stage: str) -> None:
    if stage != "start":
        print(f"{stage}\t{1e3 * (time.process_time() - _since[0]):.3f}")
    _since[0] = time.process_time()


if __name__ == "__main__":
    sys.exit(main())
