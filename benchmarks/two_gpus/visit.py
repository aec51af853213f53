"""What one GPU cannot show: compute losses of several ranks, comparisons of default captures, signals and a full disk.

python -m benchmarks.two_gpus.visit compute|compare|harm WORK --until S     # on the machine; see visit.sh
python -m benchmarks.two_gpus.visit decide WORK                             # compares the pairs that were made
python -m benchmarks.two_gpus.visit score FOLDER                            # unpacked: what is right, part by part
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import ROOT
from benchmarks.observed_ranks.runs import end
from traceops.core.errors import TraceopsError
from traceops.pipeline.analyze import analyze
from traceops.report.document import to_json_object

RANKS_PY = ROOT / "benchmarks/compute/programs/ranks.py"
PAIRS = (
    "ddp_vocabulary", "fsdp_attention", "ddp_float32", "ddp_optimizer_loop", "ddp_channels_first", "tp_attention",
    "pipeline_attention", "fsdp_float32",
)  # fmt: skip
SLOWER_PCT = (0, 3, 6, 12)
ROUNDS = 4
SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")
SIGNALLED = [(name, how) for how in ("plain", "handled") for name in SIGNALS]
_LIMIT_S = 250.0  # with the wait for the GPUs
_LEAST_S = 20.0  # a job that has less is not begun
_END_S = 9.0  # to end what is not done


@dataclass(frozen=True)
class Job:
    """A program of several ranks. folder: its output and what it writes. options: of `traceops run`; None: torchrun."""

    folder: Path
    words: tuple[str, ...]
    options: tuple[str, ...] | None = ()
    lock: str = "lock"  # jobs with the same one use the GPUs one after the other
    profile: str = "profile"

    def command(self, ranks: int) -> list[str]:
        if self.options is None:
            launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        else:
            out = str(self.folder / self.profile)
            launch = ["traceops", "run", "--nproc", str(ranks), "--out", out, *self.options, "--"]
        return [sys.executable, "-m", *launch, str(RANKS_PY), *self.words]


class Part:
    """Jobs in lanes, until the time is up; what came of each is a row of WORK/jobs.jsonl."""

    def __init__(self, work: Path, until: float, ranks: int) -> None:
        self.work, self.ranks, self._until = work, ranks, time.monotonic() + until - _END_S
        work.mkdir(parents=True, exist_ok=True)

    def all(self, jobs: Iterator[Job], lanes: int) -> None:
        """A job is drawn when a lane is free and enough time is left."""
        drawing = threading.Lock()

        def lane() -> None:
            while True:
                with drawing:
                    job = next(jobs, None)
                if job is None:
                    return
                left = self._until - time.monotonic()
                if left < _LEAST_S:
                    print(f"{job.folder.name}: left out", flush=True)
                    return
                self._one(job, min(_LIMIT_S, left))

        threads = [threading.Thread(target=lane) for _ in range(lanes)]
        for thread in threads:
            thread.start()
            time.sleep(0.5)  # the first job gets the lock first
        for thread in threads:
            thread.join()

    def _one(self, job: Job, limit_s: float) -> None:
        job.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with (job.folder / "out.txt").open("wb") as out:
            process = subprocess.Popen(
                job.command(self.ranks), cwd=job.folder, env={**os.environ, "LOCK": str(self.work / job.lock)},
                stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = 124
            finally:
                end(process)
        row = {"name": job.folder.name, "code": code, "seconds": round(time.monotonic() - began, 1)}
        with (self.work / "jobs.jsonl").open("a") as rows:
            rows.write(json.dumps(row) + "\n")
        print(row, flush=True)


def make_compute(part: Part, seconds: float) -> None:
    """All pairs timed without traceops in one job, then the sick programs under it."""
    work = part.work
    timed = Job(work / "timed", ("time", str(work), str(round(max(0.5 * seconds, 20)))), None)
    shapes = ("--record-shapes",)  # they tell what a kernel does
    part.all(iter([timed, *(Job(work / f"{name}.run", ("run", name), shapes) for name in PAIRS)]), 4)


def make_compare(part: Part, seconds: float) -> None:
    """Rounds of a capture of the same program and of one slower by each share, in an order that changes."""
    known = part.work / "calibrated.json"

    def jobs() -> Iterator[Job]:
        yield Job(part.work / "calibrate", ("calibrate", str(known)), None)
        kinds = [("base", 0), *((str(pct), pct) for pct in SLOWER_PCT)]
        for number in range(ROUNDS):
            for name, pct in Random(number).sample(kinds, len(kinds)):
                yield Job(part.work / f"{name}.{number}", ("slower", str(known), str(pct)))

    part.all(jobs(), int(os.environ.get("COMPARE_LANES", "6")))


def decide(work: Path) -> list[dict[str, Any]]:
    """What `traceops compare` says of any two captures of the plain program, and of slower ones beside each of them."""

    def one(base: Path, head: Path) -> dict[str, Any]:
        out = work / "compared" / f"{base.name}-{head.name}"
        sides = [str(side / "profile") for side in (base, head)]
        command = [sys.executable, "-m", "traceops", "compare", *sides, "-q", "--jobs", "2", "-o", str(out)]
        done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False)
        row: dict[str, Any] = {
            "base": base.name,
            "head": head.name,
            "code": done.returncode,
            "said": done.stdout.strip()[:300],
        }
        if (out / "compare.json").exists():
            document = json.loads((out / "compare.json").read_text())
            step = next(row for row in document["metrics"] if row["metric"] == "step_time")
            row |= {"verdict": document["verdict"], **{key: step.get(key) for key in ("change_pct", "mde_pct")}}
        else:
            row["said"] = (row["said"] + done.stderr)[:300]
        return row

    captures = [path.parent.parent for path in sorted(work.glob("*/profile/run.json"))]
    alike = [one for one in captures if one.name.startswith(("base.", "0."))]
    pairs = [*combinations(alike, 2), *product(alike, (one for one in captures if one not in alike))]
    with ThreadPoolExecutor(max((os.cpu_count() or 2) // 2, 1)) as pool:
        rows = list(pool.map(lambda pair: one(*pair), pairs))
    (work / "compared.json").write_text(json.dumps(rows, indent=1))
    return rows


def make_harm(part: Part, seconds: float) -> None:
    """The same programs by torchrun and by `traceops run`, some at once: nothing is timed."""
    jobs = []
    for name, how in [("none", "plain"), *SIGNALLED]:
        for way, options in (("torchrun", None), ("traceops", ())):
            folder = part.work / f"{name}_{how}.{way}"
            jobs.append(Job(folder, ("signalled", str(folder), name, how), options, lock=f"lock.{folder.name}"))
    folder = part.work / "full_disk.traceops"
    profile = folder / "profile"
    profile.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", profile], check=False).returncode == 0:
        words = ("signalled", str(folder), "none", "plain")
        jobs.insert(0, Job(folder, words, lock="lock.full", profile="profile/run"))
    else:
        print("full_disk: left out, no file system can be mounted here")
    part.all(iter(jobs), min(5, (os.cpu_count() or 1) // 2 + 1))
    if profile.is_mount():
        shutil.copytree(profile, folder / "kept", dirs_exist_ok=True)
        subprocess.run(["umount", "-l", profile], check=False)


def score_compute(folder: Path) -> None:
    """Whether cause, device time and step after the fix come out as measured."""
    recorded = {row["name"]: row for row in _rows(folder / "truth.jsonl")}
    print("| program | step, capture's | fixed | first causes | device saved: said, true | step after: said | right |")
    print("|---" * 7 + "|")
    right = []
    for timed in _rows(folder / "times.jsonl"):
        name, profile = timed["name"], folder / f"{timed['name']}.run/profile"
        try:
            report = to_json_object(analyze(profile))
        except TraceopsError as error:
            print(f"| {name} | {str(error)[:80]!r} | | | | | not captured |")
            continue
        own = json.loads((profile / "run.json").read_text()).get("unprofiled_step_ms")
        losses = (report.get("compute") or {}).get("losses", [])
        said = ", ".join(f"{loss['cause']} {loss['device_ms']:.2f}" for loss in losses[:3]) or "nothing"
        good, saved, after = judge(losses, {**timed, **recorded.get(name, {})})
        right.append(good)
        cells = (name, f"{timed['sick_ms']:.2f}, {own}", f"{timed['cured_ms']:.2f}", said, saved, after)
        print(f"| {' | '.join(cells)} | {'yes' if good else '**no**'} |")
    print(f"compute: {sum(right)} of {len(right)} right (cause first, device within 25 %, step within 10 %)\n")


def judge(losses: Sequence[dict[str, Any]], truth: dict[str, Any]) -> tuple[bool, str, str]:
    """Of the first loss whose cause an expert accepts. Where the fixed program was not recorded, the step decides."""
    loss = next((loss for loss in losses if loss["cause"] in truth["labels_ok"]), None)
    if loss is None:
        return False, "", ""
    device, saved = True, ""
    if "busy_cured_ms" in truth:
        busy, fixed = truth["busy_sick_ms"], truth["busy_cured_ms"]
        device = abs(busy - loss["device_ms"] - fixed) <= 0.25 * fixed + 0.3
        saved = f"{loss['device_ms']:.2f}, {busy - fixed:.2f}"
    least, most = loss["step_after_ms"]
    becomes = (truth["cured_ms"], truth.get("cured_after_ms", truth["cured_ms"]))
    step = least <= 1.1 * max(becomes) and most >= 0.9 * min(becomes)
    return losses[0] is loss and device and step, saved, f"{least:.2f} to {most:.2f}"


def score_compare(folder: Path) -> None:
    rows = decide(folder)
    print("| slower by | pairs | regression | inconclusive | no regression | improvement | change % |")
    print("|---" * 7 + "|")
    for pct in SLOWER_PCT:
        own = [row for row in rows if row["head"].split(".")[0].replace("base", "0") == str(pct)]
        said = [row.get("verdict") for row in own]
        kinds = [said.count(kind) for kind in ("regression", "inconclusive", "no_regression", "improvement")]
        changes = ", ".join(f"{row['change_pct']:+.1f}" for row in own if row.get("change_pct") is not None)
        print(f"| {pct} % | {len(own)} | {' | '.join(map(str, kinds))} | {changes} |")
    wrong = [row for row in rows if row["code"] != int(row.get("verdict") == "regression")]
    print(f"exit codes unlike the verdict: {[(row['head'], row['code'], row['said']) for row in wrong]}\n")


def score_harm(folder: Path) -> None:
    """Whether exit codes, handlers and what the program got to are those of torchrun alone."""
    codes = {row["name"]: row["code"] for row in _rows(folder / "jobs.jsonl")}
    print("| rank 1 gets | torchrun alone | traceops run | kept of the run | the same |\n" + "|---" * 5 + "|")
    for name in [*(f"{one}_{how}" for one, how in SIGNALLED), "none_plain", "full_disk"]:
        plain = folder / f"{'none_plain' if name == 'full_disk' else name}.torchrun"
        traced = folder / f"{name}.traceops"
        if plain.name not in codes or traced.name not in codes:
            print(f"| {name} | left out | | | |")
            continue
        first = re.search(r"Root Cause.*?exitcode\s*: (-?\d+)", (plain / "out.txt").read_text(errors="replace"), re.S)
        code = int(first[1]) if first else codes[plain.name]
        both = [(code if code >= 0 else 128 - code, _files(plain)), (codes[traced.name], _files(traced))]
        run = next(traced.rglob("run.json"), None)
        status = json.loads(run.read_text() or "{}").get("status") if run else "no run.json"
        kept = f"{status}, {len(list(traced.rglob('*.trace.json*')))} traces"
        print(f"| {name} | {both[0]} | {both[1]} | {kept} | {'yes' if both[0] == both[1] else '**no**'} |")
    print()


def _files(folder: Path) -> list[str]:
    return sorted(path.name for end in ("handled", "passed", "finished") for path in folder.glob(f"?.{end}"))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def score(folder: Path) -> None:
    parts = {"compute": score_compute, "compare": score_compare, "harm": score_harm}
    for name, function in parts.items():
        if (folder / name).exists():
            function(folder / name)
        else:
            print(f"{name}: nothing here\n")
    for module, name in (("planted", "planted"), ("hangs", "hangs")):
        if (folder / name).exists():
            subprocess.run([sys.executable, "-m", f"benchmarks.{module}.runs", "score", folder / name], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compute", "compare", "harm", "decide", "score"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--until", type=float, default=1e9, metavar="S")
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = args.folder.resolve()
    if args.what == "score":
        score(folder)
    elif args.what == "decide":
        decide(folder)
    else:
        make = {"compute": make_compute, "compare": make_compare, "harm": make_harm}[args.what]
        make(Part(folder, args.until, args.ranks), args.until)


if __name__ == "__main__":
    main()
