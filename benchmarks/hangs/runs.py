"""Plants hangs, has `traceops run` notice them, and compares who is named with who did it.

python -m benchmarks.hangs.runs make /tmp/hangs --nproc 4 --parallel 4     # on GPUs, or gloo without
python -m benchmarks.hangs.runs score /tmp/hangs                           # needs torch for its own analyser
python -m benchmarks.hangs.runs cost --nproc 2                             # what watching costs a step
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import ROOT

TRAIN = Path(__file__).with_name("train.py")
HOST, MISMATCH, GPU, DIED, START = "TO-H001", "TO-H002", "TO-H003", "TO-H004", "TO-H005"
EXPECTED = {
    "none": "", "sleep": HOST, "lock": HOST, "gil": HOST, "stop": HOST, "loader": HOST, "skip": MISMATCH,
    "op": MISMATCH, "size": MISMATCH, "exit0": DIED, "exit3": DIED, "raise": DIED, "kill": DIED, "gpu": GPU,
    "gpu_sync": GPU, "init": START,
}  # fmt: skip
GPU_ONLY = ("gpu", "gpu_sync")
_LIMIT_S = 240


@dataclass(frozen=True)
class Case:
    """One job: what was planted on which rank, and how it came out."""

    name: str
    strategy: str
    fault: str
    rank: int
    nproc: int
    exit_code: int | None = None
    verdict_s: float | None = None  # from the moment the limit had passed to the verdict on the terminal
    ended_s: float | None = None  # to the end of the last process


def plan(nproc: int, gpu: bool, strategies: list[str], faults: list[str], shift: int = 0) -> list[Case]:
    """Every fault under the first strategy, and those that depend on groups under the others."""
    cases = []
    for number, strategy in enumerate(strategies):
        if strategy == "hsdp" and (nproc < 4 or nproc % 2):
            continue
        chosen = faults or [f for f in EXPECTED if number == 0 or f in ("none", "sleep", "op", "gpu", "kill", "gil")]
        for index, fault in enumerate(chosen):
            if fault in GPU_ONLY and not gpu:
                continue
            rank = (index + number + 1 + shift) % nproc
            cases.append(Case(f"{strategy}_{fault}_r{rank}_x{nproc}", strategy, fault, rank, nproc))
    return cases


def run_case(case: Case, out: Path, timeout: float, init_timeout: float, at: int) -> Case:
    """Start the job under `traceops run` and read off when it said what."""
    command = [
        sys.executable, "-c", "import sys; from traceops.cli import main; sys.exit(main())", "run",
        "--nproc", str(case.nproc), "--out", str(out / case.name), "--overwrite", "--hang-timeout", str(timeout),
        "--init-timeout", str(init_timeout), "--kill-on-hang", "--", str(TRAIN), "--strategy", case.strategy,
        "--fault", case.fault, "--rank", str(case.rank), "--at", str(at),
    ]  # fmt: skip
    said = None
    lines = []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    stop = time.time() + _LIMIT_S
    for line in process.stdout:
        lines.append(line)
        if said is None and re.search(r"TO-H00\d", line):
            said = time.time()
        if time.time() > stop:
            process.kill()
    code = process.wait()
    ended = time.time()
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{case.name}.txt").write_text("".join(lines))
    noticed = _noticed(out / case.name)
    return Case(
        **{
            **asdict(case),
            "exit_code": code,
            "verdict_s": None if said is None or noticed is None else said - noticed,
            "ended_s": None if noticed is None else ended - noticed,
        }
    )


def _noticed(folder: Path) -> float | None:
    for path in (folder / "evidence").glob("hang.*.json"):
        return float(json.loads(path.read_text())["noticed_ns"]) / 1e9
    return None


def make(args: argparse.Namespace) -> None:
    gpu = Path("/dev/nvidiactl").exists()
    faults = [f for f in args.faults.split(",") if f]
    cases = plan(args.nproc, gpu, args.strategies.split(","), faults, args.shift)
    out = Path(args.out)
    path = out / "cases.json"
    known = {case["name"]: case for case in (json.loads(path.read_text()) if path.exists() else [])}
    with ThreadPoolExecutor(args.parallel) as pool:
        running = [pool.submit(run_case, case, out, args.timeout, args.init_timeout, args.at) for case in cases]
        for one in as_completed(running):  # written after each: a machine may be taken away
            known[one.result().name] = asdict(one.result())
            path.write_text(json.dumps(list(known.values()), indent=1))
    if not args.no_score:
        score(args)


def score(args: argparse.Namespace) -> None:
    """A line a case: planted, named by us, named by torch's own analyser on the same dumps."""
    from traceops.core.errors import TraceopsError
    from traceops.hangs.diagnose import diagnose

    out = Path(args.out)
    cases = [Case(**case) for case in json.loads((out / "cases.json").read_text())]
    right = theirs = hung = 0
    print(
        f"{'case':28} {'planted':14} {'named':26} {'conf.':7} {'exit':>4} {'verdict':>8} {'ended':>7}  torch's analyser"
    )
    for case in sorted(cases, key=lambda case: (case.nproc, case.strategy, case.fault)):
        rule = EXPECTED[case.fault]
        named, sure = "", ""
        try:
            found = diagnose(out / case.name)
            named = "; ".join(f"{root.rule} {','.join(map(str, root.ranks))}" for root in found.roots)
            sure = found.roots[0].confidence if found.roots else ""
        except TraceopsError as error:
            named = "" if case.fault == "none" else str(error)[:40]
        planted = f"{rule} {case.rank}" if rule else ""
        good = named == planted
        analyser = torch_analyser(out / case.name / "evidence")
        if rule:
            hung += 1
            right += good
            theirs += analyser == str(case.rank)
        print(
            f"{case.name:28} {planted:14} {named + ('' if good else '  <<<'):26} {sure:7} {case.exit_code!s:>4} "
            f"{_seconds(case.verdict_s):>8} {_seconds(case.ended_s):>7}  {analyser}"
        )
    print(f"{right} of {hung} planted named with rank and class; torch's analyser names the rank alone in {theirs}")


def torch_analyser(evidence: Path) -> str:
    """The ranks that torch's own flight-recorder analyser names in these dumps; a word where it gives none."""
    if not list(evidence.glob("flight_recorder_*")):
        return "no dumps"
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(evidence), "-p",
            "flight_recorder_", "--allow-incomplete-ranks",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    text = done.stdout + done.stderr
    ranks = {
        int(n) for found in re.findall(r"missing ranks: \{([\d, ]*)\}", text) for n in found.split(",") if n.strip()
    }
    ranks |= {int(n) for n in re.findall(r"[Cc]ulprit rank:? (\d+)", text)}
    if ranks:
        return ",".join(map(str, sorted(ranks)))
    if "Traceback" in text:
        return f"fails ({text.strip().splitlines()[-1][:40]})"
    return "nobody"


def cost(args: argparse.Namespace) -> None:
    """Median unprofiled step with and without watching, alternating, on a model that its host bounds."""
    times: dict[str, list[float]] = {"watched": [], "unwatched": []}
    for _ in range(args.rounds):
        for name, timeout in (("watched", "60"), ("unwatched", "0")):
            folder = Path(args.out) / f"cost_{name}"
            subprocess.run(
                [
                    sys.executable, "-c", "import sys; from traceops.cli import main; sys.exit(main())", "run",
                    "--nproc", str(args.nproc), "--out", str(folder), "--overwrite", "--hang-timeout", timeout,
                    "--skip-first", "20", "--unprofiled", "300", "--active", "1", "--", str(TRAIN), "--steps", "330",
                    "--dim", "256", "--layers", "12",
                ],
                check=True, capture_output=True,
            )  # fmt: skip
            manifest = json.loads((folder / "run.json").read_text())
            times[name].append(float(manifest["unprofiled_step_ms"]))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        print(f"{name:10} {medians[name]:.3f} ms a step  ({', '.join(f'{value:.3f}' for value in values)})")
    print(f"ratio {medians['watched'] / medians['unwatched']:.4f}")


def many(args: argparse.Namespace) -> None:
    """Time to diagnose dumps of many ranks, made here: data-parallel all-reduces, and one rank misses the last."""
    from traceops.hangs.diagnose import diagnose

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    late = args.ranks * 3 // 5
    frames = [{"name": f"f{i}", "filename": f"/home/me/model_{i}.py", "line": 10 * i} for i in range(8)]
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(range(args.ranks)))}
    for rank in range(args.ranks):
        calls = args.entries - (rank == late)
        entries = [
            {
                "frames": frames, "record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"),
                "collective_seq_id": i + 1, "p2p_seq_id": 0, "op_id": i + 1, "profiling_name": "nccl:all_reduce",
                "time_created_ns": 10**18 + i, "input_sizes": [[1024 + i % 7]], "input_dtypes": ["Float"],
                "output_sizes": [[1024 + i % 7]], "output_dtypes": ["Float"], "is_p2p": False, "timeout_ms": 600000,
                "state": "completed" if i < args.entries - 1 else "started", "retired": i < args.entries - 1,
                "time_discovered_started_ns": 10**18 + i, "time_discovered_completed_ns": None,
            }
            for i in range(calls)
        ]  # fmt: skip
        status = {"last_enqueued_collective": calls, "last_completed_collective": args.entries - 1}
        document = {"version": "2.10", "pg_config": {"0": group}, "pg_status": {"0": status}, "entries": entries}
        (out / f"dump_rank_{rank}").write_bytes(pickle.dumps(document, protocol=2))
    size = sum(path.stat().st_size for path in out.glob("dump_rank_*"))
    began = time.perf_counter()
    found = diagnose(out)
    took = time.perf_counter() - began
    assert [root.ranks for root in found.roots] == [(late,)], found.roots
    print(f"{args.ranks} ranks, {args.entries} entries each, {size / 1e6:.0f} MB: rank {late} named in {took:.1f} s")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function in (("make", make), ("score", score), ("cost", cost), ("many", many)):
        sub = commands.add_parser(name)
        sub.set_defaults(function=function)
        sub.add_argument("out", nargs="?" if name in ("cost", "many") else None, default="/tmp/traceops-hangs")
        sub.add_argument("--nproc", type=int, default=2)
        sub.add_argument("--parallel", type=int, default=1, help="jobs at a time")
        sub.add_argument("--strategies", default="ddp,fsdp2,hsdp")
        sub.add_argument("--faults", default="", help="of train.py (all)")
        sub.add_argument("--timeout", type=float, default=6.0, help="--hang-timeout of the jobs")
        sub.add_argument("--init-timeout", type=float, default=40.0)
        sub.add_argument("--rounds", type=int, default=5)
        sub.add_argument("--shift", type=int, default=0, help="plant on other ranks")
        sub.add_argument("--at", type=int, default=6, help="step of the fault (%(default)s)")
        sub.add_argument("--no-score", action="store_true", help="only make the jobs")
        sub.add_argument("--ranks", type=int, default=512)
        sub.add_argument("--entries", type=int, default=2000)
    args = parser.parse_args()
    with contextlib.suppress(BrokenPipeError):
        args.function(args)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    main()
