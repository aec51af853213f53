"""Captures one configuration many times, with and without a planted slowdown, and scores the gate on the pairs.

python -m benchmarks.compare.gate make --out /tmp/gate --launches 30                  # gloo, two ranks
python -m benchmarks.compare.gate make --out /tmp/gate --launches 20 --lanes 2        # GPUs: two launches at a time
python -m benchmarks.compare.gate score /tmp/gate                                     # false alarms and power
python -m benchmarks.compare.gate planted /tmp/planted     # planted runs against the healthy one of their strategy
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.planted.cases import BY_NAME, GATE_CASES, HEALTHY, Case
from traceops.compare import CompareConfig, ComparedCapture, compare, read_capture
from traceops.compare.capture import capture_of
from traceops.compare.model import Comparison
from traceops.core.documents import json_text
from traceops.core.errors import UsageError
from traceops.pipeline.analyze import analyze
from traceops.report.document import document_of

_REPORT = "report.json.gz"
_CPU = ("--device", "cpu", "--layers", "4", "--dim", "128", "--vocab", "1024", "--seq", "64", "--batch", "4")


@dataclass(frozen=True)
class Drawn:
    """What came of the pairs of one kind: verdicts, how often the plant was named first, how much was seen."""

    head: str
    captures: int
    threshold_pct: float
    verdicts: Counter[str]
    first: Counter[str]
    changes_pct: list[float]
    detectable_pct: list[float]


def main() -> int:
    args = _parser().parse_args()
    return {"make": make, "score": score, "planted": planted}[args.command](args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="capture; needs torch")
    making.add_argument("--out", type=Path, required=True)
    making.add_argument("--launches", type=int, default=30)
    making.add_argument("--nproc", type=int, default=2)
    making.add_argument("--lanes", type=int, default=1, help="launches at a time, each on GPUs of its own")
    making.add_argument("--budget-s", type=float, default=1e9, help="no launch is begun after this")
    making.add_argument("--cpu", action="store_true")
    making.add_argument("--drop-traces", action="store_true", help="keep the reports only")
    scoring = commands.add_parser("score", help="compare pairs of what is there")
    scoring.add_argument("folder", type=Path)
    scoring.add_argument("--pairs", type=int, default=50)
    scoring.add_argument("--captures", type=int, nargs="*", default=[1, 3, 5])
    scoring.add_argument("--seed", type=int, default=1)
    scoring.add_argument("--noise", type=float, help="launch_noise_pct")
    faults = commands.add_parser("planted", help="what is said of runs with a planted fault")
    faults.add_argument("folder", type=Path)
    return parser


def make(args: argparse.Namespace) -> int:
    """Launch the training again and again, all cases in each launch, their order rotated."""
    until = time.time() + args.budget_s
    names = [case.name for case in GATE_CASES]
    numbers = list(range(1, args.launches + 1))
    with ThreadPoolExecutor(args.lanes) as lanes:
        for lane in range(args.lanes):
            lanes.submit(_lane, numbers[lane :: args.lanes], lane, names, args, until)
    folders = [p.parent for p in sorted(args.out.glob("launch_*/*/truth.json"))]
    with ProcessPoolExecutor() as pool:
        for done in pool.map(_analyse, folders, [args.drop_traces] * len(folders)):
            if done:
                print(done, file=sys.stderr)
    print(f"{len(list(args.out.glob(f'launch_*/*/{_REPORT}')))} captures in {args.out}")
    return 0


def _lane(numbers: Iterable[int], lane: int, names: list[str], args: argparse.Namespace, until: float) -> None:
    for number in numbers:
        if time.time() > until:
            return
        out = args.out / f"launch_{number}"
        out.mkdir(parents=True, exist_ok=True)
        at = number % len(names)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.nproc}",
            "-m", "benchmarks.planted.train",
            f"--cases={','.join(names[at:] + names[:at])}", f"--out={out}", "--steps=8",
            "--unprofiled=12", *(_CPU if args.cpu else ()),
        ]  # fmt: skip
        env = {"OMP_NUM_THREADS": "1", **os.environ}
        if not args.cpu:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(lane * args.nproc + i) for i in range(args.nproc))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        with (out / "log.txt").open("wb") as log:
            code = subprocess.run(command, env=env, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            print(f"launch {number} ended with exit code {code}: {out / 'log.txt'}", file=sys.stderr)


def _analyse(folder: Path, drop_traces: bool) -> str:
    report = folder / _REPORT
    if not report.exists():
        try:
            text = json_text(document_of(analyze(folder, jobs=1, cache=False)))
        except Exception as error:
            return f"{folder}: {error}"
        report.write_bytes(gzip.compress(text.encode()))
    if drop_traces:
        for rank in folder.glob("rank_*"):
            shutil.rmtree(rank)
    return ""


def score(args: argparse.Namespace) -> int:
    """False alarms of pairs of the same, power for pairs with a plant; written to scores.json as well."""
    captures = load(args.folder)
    print({name: len(found) for name, found in captures.items()})
    results = []
    for count in args.captures:
        for head in captures:
            for threshold in (5.0, 3.0):
                if head != "same" or threshold == 5.0:
                    results.append(draw(captures, head, count, threshold, args))
    print("| head | captures a side | threshold % | regression | inconclusive | no regression | improvement "
          "| planted cause first | median change % | median detectable % |")  # fmt: skip
    print("|---" * 10 + "|")
    for drawn in results:
        print(_row(drawn, args.pairs))
    (args.folder / "scores.json").write_text(json.dumps([vars(drawn) for drawn in results], indent=1))
    return 0


def planted(args: argparse.Namespace) -> int:
    """Compare each run with a fault with the healthy one: is the fault the first explanation?"""
    captures = {
        name: read_capture(str(args.folder / name), jobs=os.cpu_count())
        for name in BY_NAME
        if any((args.folder / name).glob("rank_*"))
    }
    right = wrong = 0
    print("| run | step time | verdict | first explanation |\n|---|---|---|---|")
    for name, head in captures.items():
        healthy = HEALTHY[BY_NAME[name].strategy]
        if name == healthy or healthy not in captures:
            continue
        try:
            result = compare([captures[healthy]], [head])
        except UsageError as error:
            good, said = BY_NAME[name].shape != "full", str(error).splitlines()[1].strip()
            print(f"| {name} | | refused | {'' if good else 'WRONG '}{said} |")
        else:
            step = next(row for row in result.metrics if row.metric == "step_time")
            first = result.explanations[0] if result.explanations else None
            good = first is not None and first.cause in expected_causes(BY_NAME[name])
            said = f"{first.cause}: {first.text[:160]}" if first else "none"
            print(f"| {name} | {step.change_pct or 0.0:+.1f} % | {result.verdict} | {'' if good else 'WRONG '}{said} |")
        right, wrong = right + good, wrong + (not good)
    print(f"{right} of {right + wrong} name what was planted first, or are refused for another batch or model")
    return int(wrong > 0)


def expected_causes(case: Case) -> tuple[str, ...]:
    """What the first explanation of a case may be."""
    if case.env:
        return ("bandwidth",)
    if case.name == "one_bucket":
        return ("collectives",)
    kinds = {plant.kind for plant in case.plants}
    if "fetch" in kinds:
        return ("input",)
    return ("straggler", "compute") if case.name == "slow_gpu_small" else ("straggler",)


def load(folder: Path) -> dict[str, dict[int, ComparedCapture]]:
    """Case -> launch -> capture."""
    found: dict[str, dict[int, ComparedCapture]] = {case.name: {} for case in GATE_CASES}
    for path in sorted(folder.glob(f"launch_*/*/{_REPORT}")):
        launch = int(path.parent.parent.name.partition("_")[2])
        report: Any = json.loads(gzip.decompress(path.read_bytes()))
        found[path.parent.name][launch] = capture_of(report, str(path))
    return found


def draw(
    captures: dict[str, dict[int, ComparedCapture]], head: str, count: int, threshold: float, args: argparse.Namespace
) -> Drawn:
    """Compare random captures of 'same' with as many of `head`, no launch on both sides."""
    rng = random.Random(f"{args.seed} {head} {count}")
    config = CompareConfig(thresholds={"step_time": threshold, "throughput": None}, launch_noise_pct=args.noise)
    planted = "compute" if head.startswith("compute") else "input"
    drawn = Drawn(head, count, threshold, Counter(), Counter(), [], [])
    launches = sorted(captures["same"].keys() & captures[head].keys())
    for _ in range(args.pairs):
        chosen = rng.sample(launches, 2 * count)
        # By turns, as `traceops run --against` takes them: neighbours in time are a pair.
        chosen.sort()
        sides: tuple[list[ComparedCapture], list[ComparedCapture]] = ([], [])
        for i in range(0, 2 * count, 2):
            flip = rng.random() < 0.5
            sides[0].append(captures["same"][chosen[i + flip]])
            sides[1].append(captures[head][chosen[i + 1 - flip]])
        result: Comparison = compare(*sides, config)
        step = next(row for row in result.metrics if row.metric == "step_time")
        drawn.verdicts[result.verdict if step.outcome != "regression" else "regression"] += 1
        if result.explanations and result.explanations[0].cause == planted:
            drawn.first[planted] += 1
        drawn.changes_pct.append(round(step.change_pct or 0.0, 3))
        if step.mde_pct is not None:
            drawn.detectable_pct.append(round(step.mde_pct, 3))
    return drawn


def _row(drawn: Drawn, pairs: int) -> str:
    shares = [drawn.verdicts[name] for name in ("regression", "inconclusive", "no_regression", "improvement")]
    middle = [sorted(values)[len(values) // 2] if values else None
              for values in (drawn.changes_pct, drawn.detectable_pct)]  # fmt: skip
    first = "–" if drawn.head == "same" else f"{sum(drawn.first.values())}/{pairs}"
    cells = [drawn.head, drawn.captures, f"{drawn.threshold_pct:g}", *(f"{n}/{pairs}" for n in shares), first, *middle]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())
