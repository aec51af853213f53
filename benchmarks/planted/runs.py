"""Makes runs with planted faults, analyses them and scores the findings against what was planted.

python -m benchmarks.planted.runs make --nproc 4 --out /tmp/planted            # needs torch; ends with score
python -m benchmarks.planted.runs make --nproc 2 --out /tmp/planted --only healthy_ddp slow_gpu -- --layers 4
python -m benchmarks.planted.runs score /tmp/planted
python -m benchmarks.planted.runs pack /tmp/planted --to /tmp/packed           # on the machine with the GPUs
python -m benchmarks.planted.runs unpack /tmp/packed/*.tar --to /tmp/planted   # at home
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.planted.cases import CASES, Case
from benchmarks.planted.pack import pack, unpack
from benchmarks.planted.score import confusion, markdown, score, totals
from traceops.capture.settings import ENV
from traceops.core.documents import json_text


def main() -> int:
    # What comes after -- goes to train.py as it is.
    words, own = sys.argv[1:], sys.argv[1:]
    if "--" in words:
        own = words[: words.index("--")]
    args = _parser().parse_args(own)
    if args.command == "make":
        return make(args, words[len(own) + 1 :])
    if args.command == "score":
        return run_score(args.folder, args.only, analyse=not args.keep_reports)
    if args.command == "pack":
        cases = [args.folder / case.name for case in CASES if (args.folder / case.name / "truth.json").exists()]
        if args.only:
            cases = [case for case in cases if case.name in args.only]
        pack(cases, args.to, tars=args.tars, tar_mb=args.tar_mb, total_mb=args.total_mb)
        return 0
    unpack(args.archives, args.to)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    names = [case.name for case in CASES]

    make = commands.add_parser("make", help="train, capture and score; options after -- go to the training")
    make.add_argument("--nproc", type=int, default=2)
    make.add_argument("--out", type=Path, required=True)
    make.add_argument("--only", nargs="*", choices=names, default=[])
    make.add_argument("--shift", type=int, default=0, help="move every planted rank on by this many")
    make.add_argument("--overwrite", action="store_true", help="make cases again that are there")
    make.add_argument("--no-score", action="store_true")
    make.add_argument("--budget-s", type=float, default=480, help="no case is begun after this (%(default)s)")
    make.add_argument("--case-s", type=float, default=60, help="a case that takes longer hangs (%(default)s)")
    make.add_argument("--start-s", type=float, default=90, help="allowed for starting up (%(default)s)")

    scoring = commands.add_parser("score", help="analyse the cases in a folder and score the findings")
    scoring.add_argument("folder", type=Path)
    scoring.add_argument("--only", nargs="*", choices=names, default=[])
    scoring.add_argument("--keep-reports", action="store_true", help="score reports/ as it is, analyse nothing")

    packing = commands.add_parser("pack", help="write the cases into a few tar files of limited size")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--to", type=Path, required=True)
    packing.add_argument("--only", nargs="*", choices=names, default=[])
    packing.add_argument("--tars", type=int, default=6, help="at most so many (%(default)s)")
    packing.add_argument("--tar-mb", type=float, default=14, help="of at most this size (%(default)s)")
    packing.add_argument("--total-mb", type=float, default=64, help="and this together (%(default)s)")

    unpacking = commands.add_parser("unpack", help="put packed cases back")
    unpacking.add_argument("archives", nargs="+", type=Path)
    unpacking.add_argument("--to", type=Path, required=True)
    return parser


def make(args: argparse.Namespace, options: list[str]) -> int:
    """Make the cases, one launch for all with the same environment; a case that fails costs only itself."""
    until = time.time() + args.budget_s
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if not args.only or case.name in args.only]
    failed: list[str] = []
    skipped: list[str] = []
    for env in dict.fromkeys(case.env for case in chosen):
        waiting = []
        for case in (case for case in chosen if case.env == env):
            if args.nproc < case.min_world:
                print(f"{case.name}: skipped, it needs {case.min_world} ranks")
            elif not args.overwrite and _made(args.out, case):
                print(f"{case.name}: kept, it is there already")
            else:
                (args.out / case.name / "truth.json").unlink(missing_ok=True)
                waiting.append(case)
        barren = 0
        while waiting and time.time() < until:
            code = _launch(waiting, args, options, until)
            left = [case for case in waiting if not _made(args.out, case)]
            barren = barren + 1 if left == waiting else 0
            waiting = left
            if code == 0:
                break
            if waiting:  # cases are made in order: the first one left is the one that failed
                print(f"{waiting[0].name}: FAILED ({'it hung' if code is None else f'exit code {code}'})")
                failed.append(waiting.pop(0).name)
            if barren == 2:
                print(f"given up: {', '.join(case.name for case in waiting)}")
                failed += [case.name for case in waiting]
                waiting = []
        skipped += [case.name for case in waiting]
    if skipped:
        print(f"skipped, the budget of {args.budget_s:.0f} s is spent: {', '.join(skipped)}")
    incomplete = int(bool(failed or skipped))
    return incomplete if args.no_score else run_score(args.out, args.only) or incomplete


def _made(out: Path, case: Case) -> bool:
    return (out / case.name / "truth.json").exists()


def _launch(cases: list[Case], args: argparse.Namespace, options: list[str], until: float) -> int | None:
    """Train `cases` in one process group; the exit code, or None if it was ended because it made no progress."""
    names = ",".join(case.name for case in cases)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.nproc}",
        "-m", "benchmarks.planted.train",
        f"--cases={names}", f"--out={args.out}", f"--shift={args.shift}", f"--until={until}", *options,
    ]  # fmt: skip
    env = {"OMP_NUM_THREADS": "1", **os.environ, **dict(cases[0].env)}
    env.pop(ENV, None)
    root = str(ROOT)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    log = args.out / "logs" / f"{cases[0].name}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        code = _watch(process, cases, args)
    lines = log.read_text(errors="replace").splitlines()
    told = [line for line in lines if line.partition(":")[0] in names.split(",")]
    print("\n".join(told if code == 0 else [*told, *lines[-60:]]), flush=True)
    return code


def _watch(process: subprocess.Popen[bytes], cases: list[Case], args: argparse.Namespace) -> int | None:
    made, deadline = 0, time.monotonic() + args.start_s + args.case_s
    while process.poll() is None:
        now_made = sum(_made(args.out, case) for case in cases)
        if now_made > made:
            made, deadline = now_made, time.monotonic() + args.case_s
        if time.monotonic() > deadline:
            _end(process)
            return None
        time.sleep(0.2)
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks: it asks them, and kills them after 30 s."""
    for number, patience_s in ((signal.SIGTERM, 45.0), (signal.SIGKILL, 15.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return


def run_score(folder: Path, only: list[str], analyse: bool = True) -> int:
    """Print the score of the cases in `folder` and write it to scores.json and scores.md; 1 if any is wrong."""
    truths: dict[str, dict[str, Any]] = {}
    reports: dict[str, dict[str, Any]] = {}
    for case in CASES:
        path = folder / case.name / "truth.json"
        if path.exists() and (not only or case.name in only):
            truths[case.name] = json.loads(path.read_text())
    (folder / "reports").mkdir(exist_ok=True)
    for name in truths:
        path = folder / "reports" / f"{name}.json"
        if analyse and not any((folder / name).glob("rank_*")):
            continue  # only its truth was brought here
        if analyse and not _analyse(folder / name, path):
            return 1
        if path.exists():
            reports[name] = json.loads(path.read_text())
    absent = [name for name in truths if not any((folder / name).glob("rank_*")) and name not in reports]
    if absent:
        print(f"not scored, their traces are not here: {', '.join(absent)}")
    scores = [result for result in score(truths, reports) if result.case not in absent]
    text = markdown(scores)
    print(text)
    (folder / "scores.md").write_text(text + "\n")
    result = {
        "cases": [{**asdict(s), "ok": s.ok} for s in scores],
        "confusion": confusion(scores),
        "totals": totals(scores),
    }
    (folder / "scores.json").write_text(json.dumps(result, indent=1) + "\n")
    return int(not scores or not all(s.ok for s in scores))


def _analyse(case: Path, target: Path) -> bool:
    """Write the report of a case; False where traceops analyze cannot run at all."""
    try:
        from traceops.core.errors import TraceopsError
        from traceops.pipeline.analyze import analyze
        from traceops.report.document import document_of
    except ImportError as error:
        print(f"not scored: {error}; pack the runs and score them where traceops is installed")
        return False
    target.unlink(missing_ok=True)
    try:
        target.write_text(json_text(document_of(analyze(case))))
    except (TraceopsError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        traceback.print_exc()  # one report less; the others are scored
    return True


if __name__ == "__main__":
    sys.exit(main())
