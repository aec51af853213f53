"""Two default captures of `traceops run`, with a slowdown of known size or none: what does `traceops compare` decide?

python -m benchmarks.compare.pairs make --out /tmp/pairs                   # launches of every size, in turn
python -m benchmarks.compare.pairs make --out /tmp/pairs --lanes 4 --budget 280 --pack $OUT/pairs.tar.xz
python -m benchmarks.compare.pairs score /tmp/pairs                        # pairs: one capture a side, then two
python -m benchmarks.compare.pairs recorded LIST                           # pairs of a list: KIND, TRUE %, BASE, HEAD
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks import ROOT
from traceops.compare import CompareConfig, ComparedCapture, compare
from traceops.compare.capture import capture_of, read_capture
from traceops.compare.judge import shows_from_pct, waited_pct
from traceops.compare.metrics import enough_unprofiled, metrics_for
from traceops.compare.model import metric_of
from traceops.core.documents import json_text
from traceops.pipeline.analyze import analyze
from traceops.report.document import document_of

_REPORT = "report.json.gz"
_DEADLOCK_S = 300
SIZES = (0, 2, 5, 12, 20, 50, 100, 200)  # percent more work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="capture; needs torch")
    making.add_argument("--out", type=Path, required=True)
    making.add_argument("--equal", type=int, default=24, help="launches without a slowdown")
    making.add_argument("--each", type=int, default=4, help="launches of each other size")
    making.add_argument("--nproc", type=int, default=2)
    making.add_argument("--steps", type=int, default=120)
    making.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="PERCENT", help="more work")
    making.add_argument("--lanes", type=int, default=1, help="launches at a time, each on cores of its own")
    making.add_argument("--budget", type=float, default=math.inf, help="begin no launch that may end later, seconds")
    making.add_argument("--pack", type=Path, metavar="FILE", help="the reports as one .tar.xz")
    scoring = commands.add_parser("score", help="compare pairs of what is there")
    scoring.add_argument("folder", type=Path)
    scoring.add_argument("--seed", type=int, default=1)
    scoring.add_argument("--equal", type=int, default=150, help="pairs without a slowdown")
    listed = commands.add_parser("recorded", help="compare the pairs of a list, a line each, separated by tabs")
    listed.add_argument("list", type=Path)
    args = parser.parse_args()
    return {"make": make, "score": score, "recorded": recorded}[args.command](args)


def recorded(args: argparse.Namespace) -> int:
    """A row for each pair: the true change, what was measured and decided, the change that could be found, and the one
    that `traceops run` had said after base: empty where base's steps are too few, which it says too.

    Exit code 1 after a false alarm (a change that is not there, or one of the wrong sign), and after one of 10 % and
    more that is neither decided nor below what `run` said.
    """
    print("kind\ttrue %\tmeasured %\toutcome\tfound from %\tsaid after base %")
    wrong = unsaid = 0
    for line in args.list.read_text().splitlines():
        kind, true, *paths = line.split("\t")
        base, head = ([_capture(Path(path))] for path in paths)
        step = metric_of(compare(base, head, force=True).metrics, "step_time")
        assert step is not None
        moved = {"regression": 1, "improvement": -1}.get(step.outcome, 0)
        wrong += moved * float(true) < 0 or (moved != 0 and abs(float(true)) < 1)
        found, least = (f"{x:.1f}" if x is not None else "" for x in (step.change_pct, step.mde_pct))
        said = _said_after(base[0])
        unsaid += abs(float(true)) >= 10 and not moved and said is not None and abs(float(true)) >= said
        print(f"{kind}\t{true}\t{found}\t{step.outcome}\t{least}\t{'' if said is None else f'{said:.1f}'}", flush=True)
    print(f"{wrong} false; {unsaid} of 10 % and more neither decided nor said beforehand", file=sys.stderr)
    return int(wrong + unsaid > 0)


def _said_after(capture: ComparedCapture) -> float | None:
    """From which change on two captures decide, as `traceops run` says it after this one."""
    step = next(metric for metric in metrics_for([[capture]]) if metric.name == "step_time")
    timed = enough_unprofiled([[capture]])
    steps = step.series(capture) if timed else np.empty(0)
    return shows_from_pct(steps, capture.run.device_type or "cpu", waited_pct([capture]), CompareConfig())


def _capture(path: Path) -> ComparedCapture:
    """Of a run or traces, or of what `make` left of a launch."""
    kept = path / _REPORT
    if not kept.exists():
        return read_capture(str(path))
    return capture_of(json.loads(gzip.decompress(kept.read_bytes())), str(path))


def make(args: argparse.Namespace) -> int:
    """Launch the sizes in turn, so that drift of the machine meets all of them."""
    until = time.monotonic() + args.budget
    rounds = max(args.equal, args.each)
    todo = (
        (size, number)
        for number in range(rounds)
        for size in args.sizes
        if number < (args.equal if size == 0 else args.each)
    )
    drawing = threading.Lock()
    cores = _physical_cores()
    share = len(cores) // args.lanes

    def lane(cores: list[int]) -> None:
        """Launch what is next as long as time is left: a launch may take half as long again as the longest so far."""
        os.sched_setaffinity(0, cores)  # of this thread, and of what it starts
        longest = 0.0
        while True:
            with drawing:
                launch = next(todo, None)
            began = time.monotonic()
            if launch is None or began + 1.5 * longest > until:
                return
            _launch(*launch, args)
            took = time.monotonic() - began
            longest = max(longest, took)
            print(f"+{launch[0]} % launch {launch[1]}: {took:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)

    with ThreadPoolExecutor(args.lanes) as lanes:
        running = [lanes.submit(lane, list(chain(*cores[at * share : (at + 1) * share]))) for at in range(args.lanes)]
    for one in running:
        one.result()
    if args.pack:
        args.pack.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(args.pack, "w:xz") as tar:
            for report in sorted(args.out.glob(f"plus_*/launch_*/{_REPORT}")):
                tar.add(report, report.relative_to(args.out))
        print(f"{args.pack}: {args.pack.stat().st_size / 1e6:.2f} MB", flush=True)
    return 0


def _physical_cores() -> list[list[int]]:
    """The threads of each core that this process may use, so that no two lanes share one."""
    allowed = os.sched_getaffinity(0)
    found: dict[str, set[int]] = {}
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        found.setdefault(siblings.read_text() if siblings.exists() else str(cpu), set()).add(cpu)
    return [sorted(threads) for threads in found.values()]


def _launch(size: int, number: int, args: argparse.Namespace) -> None:
    out = args.out / f"plus_{size}" / f"launch_{number}"
    command = [
        sys.executable, "-m", "traceops", "run", "--nproc", str(args.nproc), "--out", str(out), "--overwrite",
        "--", str(Path(__file__).with_name("units.py")), f"--units={100 + size}", f"--steps={args.steps}",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(command, env=env, capture_output=True, text=True, timeout=_DEADLOCK_S, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
        print(f"{out}: {failed}: {(failed.stderr or '')[-500:]!r}", file=sys.stderr)
        return
    text = json_text(document_of(analyze(out, jobs=1, cache=False)))
    (out / _REPORT).write_bytes(gzip.compress(text.encode()))
    for folder in out.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)


def load(folder: Path) -> dict[int, list[ComparedCapture]]:
    """Size -> captures, in the order in which they were taken."""
    found: dict[int, list[ComparedCapture]] = {}
    for size in sorted(int(path.name.removeprefix("plus_")) for path in folder.glob("plus_*")):
        files = folder.glob(f"plus_{size}/launch_*/{_REPORT}")
        captures = [capture_of(json.loads(gzip.decompress(file.read_bytes())), str(file.parent)) for file in files]
        found[size] = sorted(captures, key=lambda capture: capture.info.started_ns or 0)
    return found


def score(args: argparse.Namespace) -> int:
    """What is decided of the step time of pairs, and of several captures a side. Exit code 1 after a false alarm."""
    captures = load(args.folder)
    print(
        "| more work | captures a side | pairs | slower | faster | no change | open | change % |\n" + "|---" * 8 + "|"
    )
    wrong = 0
    for count in (1, 2, 3):
        for size in captures:
            counted, changes = _draw(captures, size, count, args)
            names = ("regression", "improvement", "unchanged", "inconclusive")
            wrong += counted["improvement"] + (counted["regression"] if size == 0 else 0)
            if changes:
                cells = [f"{size} %", count, len(changes), *(counted[name] for name in names)]
                print("| " + " | ".join(map(str, [*cells, f"{statistics.median(changes):+.1f}"])) + " |")
    print(f"{wrong} false")
    return int(wrong > 0)


def _draw(
    captures: dict[int, list[ComparedCapture]], size: int, count: int, args: argparse.Namespace
) -> tuple[Counter[str], list[float]]:
    """Pairs of neighbours in time, each with one capture of either side, in an order that is drawn."""
    draw = random.Random(f"{args.seed} {size} {count}")
    counted: Counter[str] = Counter()
    changes: list[float] = []
    for _ in range(args.equal if size == 0 else 40):
        if len(captures[size]) < count * (2 if size == 0 else 1) or len(captures[0]) < 2 * count:
            break
        chosen = sorted(draw.sample(range(len(captures[0])), 2 * count))
        heads = draw.sample(captures[size], count)
        sides: tuple[list[ComparedCapture], list[ComparedCapture]] = ([], [])
        for i in range(0, 2 * count, 2):
            flip = draw.random() < 0.5
            sides[0].append(captures[0][chosen[i + flip]])
            sides[1].append(captures[0][chosen[i + 1 - flip]] if size == 0 else heads[i // 2])
        step = metric_of(compare(*sides).metrics, "step_time")
        assert step is not None
        counted[step.outcome] += 1
        changes.append(step.change_pct or 0.0)
    return counted, changes


if __name__ == "__main__":
    sys.exit(main())
