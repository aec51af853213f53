"""Real jobs of 4 to 8 ranks with gloo, some at a time, each on cores of its own; scored from what they wrote.

    python -m benchmarks.live.lanes --out lanes --cores 0-7,16-23 --lanes 4 --budget 560   # run and pack them
    python -m benchmarks.live.lanes --score lanes --half tune            # or held; what the monitor reported then
    python -m benchmarks.live.lanes --score lanes --half tune --again    # what today's rules find in the same records

A job's number decides what it does, and its half: it is held back where the first byte of sha256("traceops gloo job
<number>") is even. A third is healthy, with a harmless habit or none; a fifth has two faults at once. Some jobs in
between are started by other launchers, under `traceops.attach`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import ROOT
from benchmarks.live.jobs import end_job
from benchmarks.live.replay import replay
from traceops.core.live_pulses import read_pulses

PROGRAMS = Path(__file__).parent / "programs"
HABITS = ("none", "longer", "evaluation", "checkpoint", "none", "epochs")
FAULTS = ("loader", "host", "garbage", "core", "hog", "leak", "network", "storm", "stop", "hang")
SECOND = ("host", "loader", "garbage", "leak", "storm")
ATTACHED = ("torchrun", "accelerate", "lightning", "plain")  # "ray" is run where Ray is installed, by --jobs ray
OUTSIDE = ("core", "hog")  # the runner starts these: busy processes beside the job
# Of each fault: the kind of detection that names it, and of slowdowns the cause.
RIGHT = {
    "loader": ("slower", "input"), "host": ("slower", "host"), "garbage": ("slower", "garbage"),
    "core": ("slower", "cores"), "hog": ("slower", "cores"), "leak": ("memory_grows", None),
    "network": ("slower", "exchange"), "storm": ("slower", "checkpoint"), "stop": ("stuck", None),
    "hang": ("stuck", None),
}  # fmt: skip
ANY_RANK = ("hog", "network")
_JOBS, _BEFORE_ATTACHED = 90, 52
_AROUND_S = 9.0  # of a job: starting and ending it
_PACK_S = 14.0
_KEPT = ("steps.bin", "live.bin", "observed.jsonl", "live.events.jsonl", "card.txt", "plan.json", "log.txt")


def is_held(number: int) -> bool:
    """Whether rules must not be tuned on this job."""
    return hashlib.sha256(f"traceops gloo job {number}".encode()).digest()[0] % 2 == 0


def plan_of(number: int) -> dict[str, Any]:
    """What a job does; the truth."""
    random = Random(f"gloo job {number}")
    ranks = random.choice((4, 4, 4, 5, 6, 8))
    plan: dict[str, Any] = {
        "number": number, "habit": "none", "faults": [], "seconds": 17.0, "base_ms": random.uniform(8, 30),
        "compute_ms": random.uniform(6, 18) if ranks == 4 else random.uniform(3, 6), "longer_at": random.uniform(8, 10),
    }  # fmt: skip
    if number % 3 == 0:
        plan["habit"] = HABITS[number // 3 % len(HABITS)]
        return plan | {"ranks": ranks}
    kinds = [FAULTS[(number - number // 3 - 1) % len(FAULTS)]]
    if number % 10 in (1, 4, 7, 8) and kinds[0] not in ("stop", "hang"):
        kinds.append(random.choice([kind for kind in SECOND if kind != kinds[0]]))
    if "core" in kinds:
        ranks, plan["compute_ms"] = 4, random.uniform(12, 18)
    at = random.uniform(9.0, 13.0)  # a healthy pace is known by then
    step_ms = plan["base_ms"] + plan["compute_ms"] + 3
    where = random.sample(range(ranks), len(kinds))
    for kind, rank in zip(kinds, where, strict=True):
        fault = {"fault": kind, "rank": rank, "at": at, "ms": max(random.uniform(0.5, 1.2) * step_ms, 12.0),
                 "mb_s": random.uniform(90, 130)}  # fmt: skip
        plan["faults"].append(fault)
        at += random.uniform(0, 2)
    if random.random() < 0.2:
        plan["habit"] = random.choice(("evaluation", "checkpoint"))
    after = 13.0 if kinds[0] in ("stop", "hang") else 19.0 if len(kinds) > 1 or "network" in kinds else 14.0
    return plan | {"ranks": ranks, "seconds": plan["faults"][-1]["at"] + after}


# Running them.


def run_planned(out: Path, plan: dict[str, Any], cores: Sequence[int]) -> None:
    """One job, until it ends by itself or has been stuck for long enough."""
    out.mkdir(parents=True)
    kinds = [fault["fault"] for fault in plan["faults"]]
    plan = plan | {"truth": str(out), "pin": _pins(cores, plan["ranks"]) if "core" in kinds else None}
    sizes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    (out / "plan.json").write_text(json.dumps(plan | {"host_bytes": sizes}))
    run = out / "run"
    command = [
        sys.executable, "-m", "traceops", "run", "--live", "--nproc", str(plan["ranks"]), "--out", str(run),
        "--hang-timeout", "0", "--", str(PROGRAMS / "gloo_job.py"), str(out / "plan.json"),
    ]  # fmt: skip
    late = {}
    if "network" in kinds:
        ms = next(fault["ms"] for fault in plan["faults"] if fault["fault"] == "network")
        us = 1000 * ms / (_WRITES * (plan["ranks"] - 1))
        late = {"LD_PRELOAD": str(_late_writes()), "LATE_WRITES": str(out / "late"), "LATE_WRITES_US": f"{us:.0f}"}
    beside: list[subprocess.Popen[bytes]] = []
    with (out / "log.txt").open("wb") as log:
        process = _started(command, cores, log, late)
        deadline = time.monotonic() + plan["seconds"] + 40
        try:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
                _begin_outside(out, plan, cores, beside)
                if _stuck_for(out, kinds) > 13:
                    break
        finally:
            for one in beside:
                one.kill()
                one.wait()
            end_job(process)


_WRITES = 10  # of a rank to each other in a step, about


def _pins(cores: Sequence[int], ranks: int) -> list[int]:
    """A core for each rank."""
    return [cores[rank % len(cores)] for rank in range(ranks)]


def _late_writes() -> Path:
    """The library that is preloaded, compiled once."""
    library = Path(tempfile.gettempdir()) / f"late_writes.{os.getpid()}.so"
    with _COMPILING:
        if not library.exists():
            source = str(PROGRAMS / "late_writes.c")
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", source, "-o", str(library), "-ldl"], check=True)
    return library


_COMPILING = threading.Lock()


def _started(command: Sequence[str], cores: Sequence[int], log: Any, more: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process on these cores, in a session of its own."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}
    words = ["taskset", "-c", ",".join(map(str, cores)), *command]
    return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=env)


def _begin_outside(
    out: Path, plan: dict[str, Any], cores: Sequence[int], beside: list[subprocess.Popen[bytes]]
) -> None:
    """Start the busy processes of the faults that come from outside, once their moment is there."""
    for at, fault in enumerate(plan["faults"]):
        began = out / f"began.{at}.json"
        if beside or fault["fault"] not in OUTSIDE or not began.exists():
            continue
        on = [plan["pin"][fault["rank"]]] if fault["fault"] == "core" else list(cores)
        for _ in range(3 if fault["fault"] == "core" else 3 * len(cores)):
            words = ["taskset", "-c", ",".join(map(str, on)), sys.executable, "-S", "-c", "while True: pass"]
            beside.append(subprocess.Popen(words))
        began.write_text(json.dumps({**json.loads(began.read_text()), "began_ns": time.time_ns()}))


def _stuck_for(out: Path, kinds: Sequence[str]) -> float:
    """Seconds since a fault began after which nothing goes on; 0 in other jobs."""
    began = out / "began.0.json"
    if not kinds or kinds[0] not in ("stop", "hang") or not began.exists():
        return 0.0
    return time.time() - began.stat().st_mtime


def run_attached(out: Path, how: str, cores: Sequence[int]) -> None:
    """A job that another launcher starts, and `traceops live` beside it."""
    out.mkdir(parents=True)
    rank, seconds = 0 if how == "plain" else 1, 24.0
    (out / "plan.json").write_text(json.dumps({"attached": how, "faults": [{"fault": "loader", "rank": rank}]}))
    script = [str(PROGRAMS / "framework_job.py"), "plain" if how in ("plain", "torchrun") else how,
              str(out / "began.0.json"), "9", str(seconds), str(rank)]  # fmt: skip
    attached = ["-m", "traceops.attach", *script]
    port = str(29_600 + cores[0])
    command = {
        "torchrun": ["-m", "torch.distributed.run", "--master-port", port, "--nproc-per-node", "2", *attached],
        "accelerate": ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                       "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", port, *attached],
        "lightning": script, "plain": attached, "ray": script,
    }[how]  # fmt: skip
    run = out / "run"
    run.mkdir()
    with (out / "log.txt").open("wb") as log:
        more = {"TRACEOPS_LIVE": str(run), "MASTER_PORT": port}
        process = _started([sys.executable, *command], cores, log, more)
        monitor = _started([sys.executable, "-m", "traceops", "live", str(run)], cores, log, {})
        try:
            process.wait(seconds + 60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_job(process)
            end_job(monitor)


def run_all(out: Path, lanes: Sequence[Sequence[int]], jobs: Sequence[int | str], budget: float) -> None:
    """As many as the budget allows, a lane's one after the other."""
    until = time.monotonic() + budget - _PACK_S
    left, lock = list(jobs), threading.Lock()

    def lane(cores: Sequence[int]) -> None:
        while True:
            with lock:
                fits = [job for job in left if time.monotonic() + _seconds(job) + _AROUND_S < until]
                if not fits:
                    return
                left.remove(fits[0])
            begin, folder = time.monotonic(), out / f"job_{fits[0]}"
            try:
                if isinstance(fits[0], str):
                    run_attached(folder, fits[0], cores)
                else:
                    run_planned(folder, plan_of(fits[0]), cores)
                keep_records(folder)
            except Exception as error:
                print(f"{folder.name}: {type(error).__name__}: {error}", flush=True)
            print(f"{folder.name} {time.monotonic() - begin:.0f} s, {until - time.monotonic():.0f} left", flush=True)

    threads = [threading.Thread(target=lane, args=(cores,)) for cores in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _seconds(job: int | str) -> float:
    return 24.0 if isinstance(job, str) else float(plan_of(job)["seconds"])


def keep_records(folder: Path) -> None:
    """Delete what scoring does not need."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.name not in _KEPT and not path.name.startswith(("machine.", "began.")):
            path.unlink()


def pack(out: Path) -> Path:
    """One file of everything."""
    packed = out.with_suffix(".tar.xz")
    if shutil.which("xz"):
        subprocess.run(["tar", "-C", str(out.parent), "-c", "-I", "xz -T8 -3", "-f", str(packed), out.name], check=True)
    else:
        with tarfile.open(packed, "w:xz", preset=1) as file:
            file.add(out, out.name)
    return packed


# Scoring.


@dataclass
class Scored:
    """One job. seen, named: seconds from each fault's beginning on, None where it never was; false: pages before any
    fault; wrong: pages that fit no fault."""

    name: str
    ranks: int
    habit: str
    faults: list[dict[str, Any]] = field(default_factory=list)
    seen: list[float | None] = field(default_factory=list)
    named: list[float | None] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    hours: float = 0.0


def scored(folder: Path, *, again: bool) -> Scored | None:
    """Hold what was found in a job against its truth; None where it never trained."""
    plan = json.loads((folder / "plan.json").read_text())
    run = folder / "run"
    began = [json.loads(path.read_text()) for path in sorted(folder.glob("began.*.json"))]
    times = [pulse.time_ns for path in run.glob("rank_*/live.bin") for pulse in read_pulses(path)]
    if not times:
        return None
    events = _found_again(run, plan.get("host_bytes", 64 << 30)) if again else _events(run)
    told = Scored(folder.name, plan.get("ranks", 2), plan.get("habit", plan.get("attached", "")))
    told.hours = (max(times) - min(times)) / 3.6e12
    for fault in began:
        after = [(event, (event["seen_ns"] - fault["began_ns"]) / 1e9) for event in events]
        since = [(event, s) for event, s in after if s >= 0]
        told.faults.append(fault)
        told.seen.append(min((s for event, s in since if event["kind"] in _SEEN), default=None))
        told.named.append(min((s for event, s in since if fits(event, fault)), default=None))
    for event in events:
        if not event["page"]:
            continue
        known = [fault for fault in began if event["seen_ns"] >= fault["began_ns"]]
        if not known:
            told.false.append(event["headline"])
        elif not any(fits(event, fault) for fault in known):
            told.wrong.append(event["headline"])
    return told


_SEEN = ("changed", "slower", "stuck", "memory_grows")


def fits(event: dict[str, Any], fault: dict[str, Any]) -> bool:
    """Whether a detection names this fault, and its rank."""
    kind, cause = RIGHT[fault["fault"]]
    if event["kind"] != kind or (cause is not None and event["facts"].get("cause") != cause):
        return False
    return fault["fault"] in ANY_RANK or fault["rank"] in event["facts"].get("ranks", ())


def _events(run: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (run / "live.events.jsonl").read_text().splitlines()]
    except OSError:
        return []


def _found_again(run: Path, host_bytes: int) -> list[dict[str, Any]]:
    """What today's rules find; closer looks at hosts are those that the monitor asked for then."""
    with tempfile.TemporaryDirectory() as folder:
        return [found.document() for found in replay(run, Path(folder), host_bytes)]


def report(found: Sequence[Scored]) -> None:
    """A line for each job that went wrong, and the counts."""
    whole, seen, named = Counter[str](), Counter[str](), Counter[str]()
    for told in found:
        bad = bool(told.false or told.wrong)
        for fault, at, name in zip(told.faults, told.seen, told.named, strict=True):
            whole[fault["fault"]] += 1
            seen[fault["fault"]] += at is not None and at <= 10
            named[fault["fault"]] += name is not None and name <= 30
            bad |= at is None or at > 10 or name is None
        if bad:
            faults = [
                f"{fault['fault']} of rank {fault['rank']}: seen {_s(at)}, named {_s(name)}"
                for fault, at, name in zip(told.faults, told.seen, told.named, strict=True)
            ]
            print(f"{told.name} ({told.ranks} ranks, {told.habit}): {'; '.join(faults) or 'healthy'}")
            print(
                *(f"    false: {text}" for text in told.false), *(f"    wrong: {text}" for text in told.wrong), sep="\n"
            )
    healthy = [told for told in found if not told.faults]
    for kind in whole:
        print(f"  {kind:10} {whole[kind]:3}  seen within 10 s {seen[kind]:3}  cause within 30 s {named[kind]:3}")
    print(f"  all        {whole.total():3}  seen {seen.total()}  cause {named.total()}; "
          f"{sum(len(told.faults) > 1 for told in found)} jobs with two faults")  # fmt: skip
    print(f"  {len(found)} jobs, {len(healthy)} healthy with {sum(len(told.false) for told in healthy)} pages; pages "
          f"before any fault {sum(len(told.false) for told in found)} in {sum(told.hours for told in found):.2f} h; "
          f"pages of a wrong cause {sum(len(told.wrong) for told in found)}")  # fmt: skip


def _s(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _is_of(folder: Path, half: str) -> bool:
    number = folder.name.removeprefix("job_")
    if half == "both" or not number.isdigit():
        return half in ("both", "attached")
    return half == ("held" if is_held(int(number)) else "tune")


def _cores_of(text: str) -> list[int]:
    """Those of a list of ranges."""
    ends = [part.split("-") for part in text.split(",")]
    return [core for part in ends for core in range(int(part[0]), int(part[-1]) + 1)]


def _jobs_of(text: str) -> list[int | str]:
    """Numbers, in ranges too, and launchers' names; of a range, those that are held back first."""
    jobs: list[int | str] = []
    for word in text.split(","):
        cores = sorted(_cores_of(word), key=is_held, reverse=True) if word[0].isdigit() else []
        jobs += cores or [word]
    return jobs


def main() -> None:
    """Run jobs and pack them, or score what is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("lanes"))
    parser.add_argument("--cores", default="0-1", help="as taskset takes them: 0-7,16-23")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--budget", type=float, default=560.0, help="seconds, packing included")
    parser.add_argument("--jobs", help="numbers (120-179) or launchers' names, with commas, in place of all")
    parser.add_argument("--score", type=Path, metavar="OUT")
    parser.add_argument("--half", choices=("tune", "held", "attached", "both"), default="tune")
    parser.add_argument("--again", action="store_true", help="by today's rules, not as the monitor reported then")
    args = parser.parse_args()
    if args.score:
        folders = sorted((path for path in args.score.glob("job_*") if _is_of(path, args.half)), key=lambda p: p.name)
        report([told for path in folders if (told := scored(path, again=args.again)) is not None])
        return
    cores = _cores_of(args.cores)
    lanes = [cores[at :: args.lanes] for at in range(args.lanes)]
    jobs: list[int | str] = [*range(_BEFORE_ATTACHED), *ATTACHED, *range(_BEFORE_ATTACHED, _JOBS)]
    if args.jobs:
        jobs = _jobs_of(args.jobs)
    args.out.mkdir(parents=True, exist_ok=True)
    run_all(args.out, lanes, jobs, args.budget)
    packed = pack(args.out)
    print(f"{packed}: {packed.stat().st_size / 1e6:.1f} MB, {len(list(args.out.glob('job_*')))} jobs", flush=True)


if __name__ == "__main__":
    main()
