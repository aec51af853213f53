"""Real jobs under `traceops run --live`, each with a fault from a random moment on, against what the monitor reported.

python -m benchmarks.live.jobs --out /tmp/jobs --count 12 --seconds 45 --ranks 2
python -m benchmarks.live.gpu --out live_gpu          # on two GPUs: also RAS and NVML's counters
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import ROOT
from traceops.launch.supervise import descendants

JOB = Path(__file__).parent / "programs" / "job.py"
HEALTHY = ("none", "evaluation", "checkpoint", "longer", "recompile")
# Of each fault: the kinds of detections that name it, and of those that are slowdowns the causes that do.
RIGHT: dict[str, tuple[str, tuple[str, ...]]] = {
    "loader": ("slower", ("input",)), "host": ("slower", ("host",)), "work": ("slower", ("host", "cores")),
    "garbage": ("slower", ("garbage",)), "leak": ("memory_grows", ()), "hang": ("stuck", ()), "stop": ("stuck", ()),
    "stranger": ("slower", ("stranger",)), "load": ("slower", ("device", "host", "throttle")),
    "power": ("slower", ("throttle",)),
}  # fmt: skip
_NAMED_BY_RANK = ("loader", "host", "work", "garbage", "leak", "hang", "stop", "stranger", "power")

_FAULTS = "none,loader,host,none,work,hang,evaluation,garbage,leak,checkpoint,stop,longer"


@dataclass
class Outcome:
    """One job. seen_s, named_s: after the fault began; pages: detections that want somebody; wrong: of them, those
    that are of nothing that was planted."""

    name: str
    fault: str
    rank: int
    seconds: float
    seen_s: float | None = None
    named_s: float | None = None
    right: bool | None = None
    wrong: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    exit_code: int | None = None


def run_job(
    out: Path, fault: str, rank: int, at: float, seconds: float, ranks: int, more: Sequence[str] = (),
    lock: Path | None = None, waits: float = 60.0,
) -> Outcome:  # fmt: skip
    """Train it, and hold what was found against the truth. lock: of `programs/job.py`. waits: seconds besides."""
    truth = out.with_suffix(".truth.json")
    for before in (truth, Path(f"{truth}.begins")):
        before.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "traceops", "run", "--live", "--nproc", str(ranks),
        "--out", str(out), "--overwrite", "--hang-timeout", "0",
        "--", str(JOB), "--fault", fault, "--rank", str(rank), "--at", str(at),
        "--seconds", str(seconds), "--truth", str(truth), *more,
    ]  # fmt: skip
    log = out.with_suffix(".log")
    stranger: subprocess.Popen[bytes] | None = None
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                 **({} if lock is None else {"LOCK": str(lock)})},
        )  # fmt: skip
        deadline = time.monotonic() + seconds + waits
        stuck = fault in ("hang", "stop")
        try:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.5)
                if not truth.exists() or not truth.stat().st_size:
                    continue
                since_s = time.time() - json.loads(truth.read_text())["began_ns"] / 1e9
                if fault == "stranger" and stranger is None:
                    stranger = _stranger(rank)
                if stranger is not None and since_s > seconds - at:  # before the next job begins
                    stranger.kill()
                if stuck and since_s > 16:
                    break
        finally:
            if stranger is not None:
                stranger.kill()
                stranger.wait()
            end_job(process)
    told = Outcome(out.name, fault, rank, seconds, exit_code=process.returncode)
    return judged(told, out, json.loads(truth.read_text()) if truth.exists() else None)


def end_job(process: subprocess.Popen[bytes]) -> None:
    """End a job that does not end by itself, as its user would; a rank that is stopped only ends by SIGKILL."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in descendants({process.pid}):
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        try:
            process.wait(8)
            return
        except subprocess.TimeoutExpired:
            continue


def _stranger(rank: int) -> subprocess.Popen[bytes]:
    """Another process on that rank's GPU."""
    code = (
        "import torch\n"
        f"x = torch.randn(8192, 8192, device='cuda:{rank}')\n"
        "while True:\n"
        "    for _ in range(20): y = x @ x\n"
        f"    torch.cuda.synchronize({rank})\n"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def judged(told: Outcome, out: Path, truth: dict[str, Any] | None) -> Outcome:
    """The outcome with what was found in the run folder."""
    try:
        lines = (out / "live.events.jsonl").read_text().splitlines()
    except OSError:
        lines = []
    kind, causes = RIGHT.get(told.fault, ("", ()))
    for line in lines:
        event = json.loads(line)
        began = float("inf") if truth is None else truth["began_ns"] / 1e9
        after = event["seen_ns"] / 1e9 - began
        told.messages.append(f"{after:+.1f} s{'' if event['page'] else ' (remark)'}: {event['message']}")
        fits = event["kind"] == kind and after > -1 and told.fault not in HEALTHY
        if event["kind"] in ("slower", "changed") and told.fault not in HEALTHY and after >= 0 and told.seen_s is None:
            told.seen_s = after
        if fits:
            told.seen_s = after if told.seen_s is None else told.seen_s
            facts = event["facts"]
            named = not causes or facts.get("cause") in causes
            named = named and (told.fault not in _NAMED_BY_RANK or told.rank in facts.get("ranks", ()))
            if named and told.named_s is None:
                told.named_s = after
        elif event["page"] and not (event["kind"] == "slower" and after > -1 and told.fault not in HEALTHY):
            told.wrong.append(event["headline"])
    if told.fault not in HEALTHY:
        told.right = told.named_s is not None and told.named_s <= 30
    return told


def main() -> None:
    """Run some, and print a line each and the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default=_FAULTS)
    args = parser.parse_args()
    outcomes = run_all(args.out, args.faults.split(","), args.count, args.seconds, args.ranks, Random(args.seed))
    summary(outcomes, args.out)


def run_all(out: Path, faults: Sequence[str], count: int, seconds: float, ranks: int, random: Random) -> list[Outcome]:
    """So many jobs, each with the next fault, from a random moment on a random rank on."""
    out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number in range(count):
        fault = faults[number % len(faults)]
        at = random.uniform(0.35, 0.5) * seconds
        rank = random.randrange(ranks)
        told = run_job(out / f"job_{number}_{fault}", fault, rank, at, seconds, ranks)
        outcomes.append(told)
        print(f"{told.name} rank {rank}: seen {told.seen_s} s, named {told.named_s} s, right {told.right}", flush=True)
        for message in told.messages:
            print(f"    {message}", flush=True)
    return outcomes


def summary(outcomes: Sequence[Outcome], out: Path) -> None:
    """Print the counts, and keep everything in results.json."""
    faulty = [one for one in outcomes if one.fault not in HEALTHY]
    quick = [one for one in faulty if one.seen_s is not None and one.seen_s <= 10]
    hours = sum(one.seconds for one in outcomes) / 3600
    print(
        f"{len(outcomes)} jobs, {len(faulty)} with a fault: seen within 10 s {len(quick)}, cause right within 30 s "
        f"{sum(bool(one.right) for one in faulty)}; wrong pages {sum(len(one.wrong) for one in outcomes)} "
        f"in {hours:.2f} job hours"
    )
    (out / "results.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1))


if __name__ == "__main__":
    main()
