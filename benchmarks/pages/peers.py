"""One run, read by traceops and by what else people use: CPU seconds, files, bytes.

    python -m benchmarks.pages.peers --keep OUT [--run RUN] [--tracelens CHECKOUT] [--python VENV/bin/python]

--run: a folder of whole traces; those in tests/data are cut, and not every tool reads them. --python: an interpreter
that has torch_tb_profiler, HTA (HolisticTraceAnalysis, with pandas below 3), memray, pyinstrument and torch. TraceLens
is AMD's, from a checkout: the package of that name on PyPI is another program. memray and pyinstrument read no traces:
they record benchmarks/pages/peers_train.py, two ranks with gloo of which rank 1 loads slowly. `traceops run` records it
too.

What each shows, and how many clicks away, docs/page.md tells from opening it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT

TRAIN = ROOT / "benchmarks" / "pages" / "peers_train.py"
_VERSION = "import importlib.metadata as m; print(m.version({!r}))"
_HTA = """
import sys
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
run = TraceAnalysis(trace_dir=sys.argv[1])
out = Path(sys.argv[2])
asked = {
    "temporal_breakdown": lambda: run.get_temporal_breakdown(visualize=False),
    "idle_time": lambda: run.get_idle_time_breakdown(ranks=None, visualize=False)[0],
    "overlap": lambda: run.get_comm_comp_overlap(visualize=False),
    "kernel_kinds": lambda: run.get_gpu_kernel_breakdown(visualize=False)[0],
    "kernels": lambda: run.get_gpu_kernel_breakdown(visualize=False)[1],
    "stragglers": lambda: run.get_potential_stragglers(),
}
for name, ask in asked.items():
    try:
        table = ask()
    except Exception as error:
        print(f"{name}: {error!r}", file=sys.stderr)
        continue
    table.to_csv(out / f"{name}.csv") if hasattr(table, "to_csv") else (out / f"{name}.txt").write_text(str(table))
"""
# TensorBoard with its plugin, asked for what its page shows of a run, as soon as it has loaded it.
_TENSORBOARD = """
import json, subprocess, sys, time, urllib.request
from pathlib import Path
server = subprocess.Popen(
    [sys.executable, "-m", "tensorboard.main", "--logdir", sys.argv[1], "--port", "6018", "--load_fast=false"]
)
out, at = Path(sys.argv[2]), "http://127.0.0.1:6018/data/plugin/pytorch_profiler"
def get(path):
    return urllib.request.urlopen(f"{at}/{path}").read()
try:
    while True:
        time.sleep(0.5)
        try:
            if not json.loads(get("runs"))["loading"] and json.loads(get("runs"))["runs"]:
                break
        except OSError:
            if server.poll() is not None:
                sys.exit("TensorBoard ended")
    for worker in json.loads(get("workers?run=run&view=Overview")):
        for view in ("overview", "kernel/table", "operation/table"):
            name = f"{view}?run=run&worker={worker}&span=1&view=Overview&group_by=Operation"
            (out / f"{worker}_{view.replace('/', '_')}.json").write_bytes(get(name))
    for view in ("gpuinfo", "overlap", "waittime", "commops"):
        (out / f"{view}.json").write_bytes(get(f"distributed/{view}?run=run&worker=All&span=1&view=Distributed"))
finally:
    server.terminate()
    server.wait()
"""


@dataclass(frozen=True)
class Result:
    """What a tool did: CPU of it and its children, and the files it left."""

    tool: str
    version: str
    cpu_s: float
    files: int
    size: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=ROOT / "tests" / "data" / "slow_loader4")
    parser.add_argument("--keep", type=Path, required=True, help="folder for the results")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the other tools")
    parser.add_argument("--tracelens", type=Path, help="a checkout of AMD-AGI/TraceLens")
    args = parser.parse_args()
    shutil.rmtree(args.keep, ignore_errors=True)
    out, python = args.keep.resolve(), args.python
    run = _traces_alone(args.run.resolve(), out / "input" / "traces")
    ours = [sys.executable, "-m", "traceops"]
    results = [
        _result(
            "traceops", "traceops-torch", python, out / "traceops",
            [[*ours, "analyze", str(run), "-q", "-o", "{out}"]],
        ),
        _result("HTA", "HolisticTraceAnalysis", python, out / "hta", [[python, "-c", _HTA, str(run), "{out}"]]),
        _result(
            "TensorBoard plugin", "torch-tb-profiler", python, out / "tensorboard",
            [[python, "-c", _TENSORBOARD, str(_named_for_tensorboard(run, out).parent), "{out}"]],
        ),
    ]  # fmt: skip
    if args.tracelens:
        results.append(_tracelens(run, out / "tracelens", python, args.tracelens))
    results += _of_processes(out, python, ours)
    _print(results)
    return 0


def _tracelens(run: Path, out: Path, python: str, checkout: Path) -> Result:
    """Its two reports: of one rank, and of all ranks' collectives."""
    traces = sorted(run.glob("rank_*.json.gz"))
    report = [python, "-m", "TraceLens.Reporting.generate_perf_report_pytorch"]
    collective = [python, "-m", "TraceLens.Reporting.generate_multi_rank_collective_report_pytorch"]
    commands = [
        [*report, "--profile_json_path", str(trace), "--output_xlsx_path", f"{{out}}/{trace.name.split('.')[0]}.xlsx"]
        for trace in traces
    ]  # fmt: skip
    pattern = str(run / "rank_*.json.gz")
    commands.append(
        [
            *collective,
            "--world_size",
            str(len(traces)),
            "--trace_glob",
            pattern,
            "--output_xlsx_path",
            "{out}/collectives.xlsx",
        ]
    )
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return _result(
        "TraceLens", head.stdout.strip() or "a checkout", python, out, commands, {"PYTHONPATH": str(checkout)}
    )


def _of_processes(out: Path, python: str, ours: Sequence[str]) -> list[Result]:
    """The small training under what records processes; the last of each is what turns the record into a page."""
    plain = [[python, str(TRAIN), "2"]]
    memray = [[python, str(TRAIN), "2", "memray", "{out}"]]
    for rank in ("rank0", "rank1"):
        page = ["-m", "memray", "flamegraph", "--force", "-o", f"{{out}}/{rank}.html", f"{{out}}/{rank}.bin"]
        memray.append([python, *page])
    pyinstrument = [[python, str(TRAIN), "2", "pyinstrument", "{out}"]]
    with_us = [
        [*ours, "run", "--nproc", "2", "--out", "{out}/run", "--", str(TRAIN)],
        [*ours, "analyze", "{out}/run", "-q", "-o", "{out}/report"],
    ]
    return [
        _result("the training alone", "torch", python, out / "plain", plain),
        _result("traceops, of it", "traceops-torch", python, out / "ours", with_us),
        _result("memray, of it", "memray", python, out / "memray", memray),
        _result("pyinstrument, of it", "pyinstrument", python, out / "pyinstrument", pyinstrument),
    ]


def _traces_alone(run: Path, folder: Path) -> Path:
    """HTA takes every .json beside the traces for one of them."""
    folder.mkdir(parents=True)
    for trace in sorted(run.glob("rank_*.json.gz")):
        shutil.copy(trace, folder)
    return folder


def _named_for_tensorboard(run: Path, out: Path) -> Path:
    """The traces under the names that its plugin takes: worker.span.pt.trace.json.gz."""
    folder = out / "input" / "tensorboard" / "run"
    folder.mkdir(parents=True)
    for trace in sorted(run.glob("rank_*.json.gz")):
        shutil.copy(trace, folder / f"{trace.name.split('.')[0]}.1700000000000.pt.trace.json.gz")
    return folder


def _result(
    tool: str,
    package: str,
    python: str,
    out: Path,
    commands: Sequence[Sequence[str]],
    more: Mapping[str, str] | None = None,
) -> Result:
    """Run a tool's commands, `{out}` in them being its folder. more: variables."""
    out.mkdir(parents=True, exist_ok=True)
    asked = subprocess.run([python, "-c", _VERSION.format(package)], capture_output=True, text=True)
    version = asked.stdout.strip() or package if not asked.returncode or more else ""
    version = package if more else version or ("this checkout" if tool.startswith("traceops") else "")
    before = _cpu()
    for command in commands:
        made = [part.replace("{out}", str(out)) for part in command]
        done = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **(more or {})})
        (out.parent / f"{out.name}.log").open("a").write(f"$ {' '.join(made)[:300]}\n{done.stdout}{done.stderr}\n")
        if done.returncode:
            print(f"{tool}: {done.stderr.strip().splitlines()[-1:] or done.returncode}", file=sys.stderr)
    spent = _cpu() - before
    files = [path for path in out.rglob("*") if path.is_file() and ".trace." not in path.name and path.suffix != ".bin"]
    return Result(tool, version, spent, len(files), sum(path.stat().st_size for path in files))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _print(results: Sequence[Result]) -> None:
    print("| tool | version | CPU s | files | kB |\n|---|---|---|---|---|")
    for one in results:
        print(f"| {one.tool} | {one.version} | {one.cpu_s:.1f} | {one.files} | {one.size / 1000:,.0f} |")


if __name__ == "__main__":
    sys.exit(main())
