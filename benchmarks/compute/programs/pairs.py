"""All pairs and tuned programs on one GPU in one visit: python pairs.py WORK TO.tar [--budget SECONDS] [--only NAMES]

A worker takes one program after the other, in an order drawn once, and measures its sick and fixed variant in one
process; another follows where it dies. Both halves alternate, with tuned programs in between, so that a cut hits all
alike. TO.tar gets truth.jsonl, failures.jsonl, run.log and the traces packed by columns, sick ones first.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
BEGAN = time.monotonic()
DEVICE_LOST = 3  # how a worker ends after an error that leaves its device unusable
LIMIT, LIMIT_COMPILED = 30, 75  # seconds per program
PACKED_MOST = 14_000_000  # bytes
KEPT_FOR_PACKING = 25.0


class TooLong(Exception):
    pass


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def order(cases: dict[str, Any]) -> list[str]:
    """The half set aside, the half worked on and the tuned programs, each spread evenly over the whole."""
    from case import set_aside

    kinds: dict[tuple[bool, bool], list[str]] = {}
    for name, case in cases.items():
        kinds.setdefault((case.clean, set_aside(name)), []).append(name)
    drawn = []
    for kind, names in sorted(kinds.items()):
        random.Random("further").shuffle(names)
        drawn += [((i + 0.5) / len(names), kind, name) for i, name in enumerate(names)]
    return [name for _, _, name in sorted(drawn)]


def claimed(out: Path, name: str) -> bool:
    """Claims the program, unless a worker that died had it."""
    try:
        os.close(os.open(out / "claims" / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _stop(number: int, frame: object) -> None:
    raise TooLong("longer than its limit")


def measure_one(out: Path, case: Any, packers: list[subprocess.Popen[bytes]]) -> dict[str, Any]:
    import measured

    found, queued = [], []
    for sick in [True] if case.clean else [True, False]:
        step = measured.make(case, sick)
        path = out / "traces" / case.name / f"{'sick' if sick else 'fixed'}.pt.trace.json.gz"
        found.append(measured.measure(case, step, path))
        queued.append(round(measured.queued_ms(step), 3))
        packers.append(
            subprocess.Popen(["nice", "-n", "19", sys.executable, HERE.with_name("packing.py"), "pack", path])
        )
        step = None
    row = measured.truth(case, found[0], found[-1])
    return {**row, "queued_sick_ms": queued[0], "queued_cured_ms": queued[-1]}


def work(out: Path, until: float, only: list[str]) -> None:
    import cases
    import measured
    import torch

    measured.STEPS = 2
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.automatic_dynamic_shapes = False
    for name in ("timm", "transformers", "peft", "torchvision", "torchaudio", "torch_geometric.nn", "lightning.fabric"):
        try:
            __import__(name)
        except Exception as error:
            say(f"{name} isn't there: {error}")
    signal.signal(signal.SIGALRM, _stop)
    packers: list[subprocess.Popen[bytes]] = []
    say("imported")
    for name in only or order(cases.CASES):
        case = cases.CASES[name]
        if until - time.time() < (35 if case.compiled else 14) or not claimed(out, name):
            continue
        began = time.monotonic()
        signal.alarm(
            min(LIMIT_COMPILED if case.compiled or case.group == "fusion" else LIMIT, int(until - time.time()))
        )
        try:
            row = measure_one(out, case, packers)
            append(out / "truth.jsonl", row)
            say(
                f"{name}: {time.monotonic() - began:.1f} s; step {row['sick_ms']} -> {row['cured_ms']}, busy "
                f"{row['busy_sick_ms']} -> {row['busy_cured_ms']}, queued {row['queued_sick_ms']} -> "
                f"{row['queued_cured_ms']}, kernels {row['kernels_sick']} -> {row['kernels_cured']}, GiB "
                f"{row['peak_gib']}"
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            append(out / "failures.jsonl", {"name": name, "reason": reason})
            say(f"{name}: failed after {time.monotonic() - began:.1f} s: {reason[:250]!r}")
            if "CUDA error" in str(error) and "out of memory" not in str(error):
                sys.exit(DEVICE_LOST)
        finally:
            signal.alarm(0)
        torch._dynamo.reset()
        torch.use_deterministic_algorithms(False)
        gc.collect()
        for process in packers[:-4]:
            process.wait()
    for process in packers:
        process.wait()


def started(out: Path, until: float, cores: int, only: list[str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(cores), "OMP_NUM_THREADS": str(cores),
        "TORCHINDUCTOR_CACHE_DIR": str(out / "inductor"), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore",
        "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    command = [sys.executable, str(HERE), str(out), "--work", str(until), *(["--only", *only] if only else [])]
    return subprocess.Popen(command, env=environment)


def pack(out: Path, to: Path, until: float) -> None:
    recorded = list(out.glob("traces/*/*.pt.trace.json.gz"))
    columns = [path.with_name(path.name.split(".")[0] + ".columns.xz") for path in recorded]
    while time.time() < until and not all(path.exists() for path in columns):
        time.sleep(0.5)
    total = 0
    to.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(to, "w") as archive:
        for what in ("sick", "fixed"):
            for path in sorted(out.glob(f"traces/*/{what}.columns.xz"), key=lambda p: p.stat().st_size):
                length = path.stat().st_size + 1536
                if total + length > PACKED_MOST:
                    say(f"left out: {path.parent.name} {what}, {length} bytes")
                    continue
                total += length
                archive.add(path, f"{path.parent.name}/{path.name}")
        say(f"packed {total} bytes of traces")
        for name in ("truth.jsonl", "failures.jsonl", "run.log"):
            if (out / name).exists():
                archive.add(out / name, name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, metavar="WORK")
    parser.add_argument("to", type=Path, nargs="?", metavar="TO.tar")
    parser.add_argument("--budget", type=float, default=560)
    parser.add_argument("--work", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    out = args.out.resolve()
    if args.work:
        work(out, args.work, args.only)
        return
    (out / "claims").mkdir(parents=True, exist_ok=True)
    began = time.time()
    until = began + args.budget - KEPT_FOR_PACKING
    cores = len(os.sched_getaffinity(0))
    for _ in range(6):
        process = started(out, until, cores, args.only)
        try:
            ended = process.wait(until - time.time())
        except subprocess.TimeoutExpired:
            process.kill()
            break
        say(f"worker ended with {ended}")
        if ended == 0:
            break
    pack(out, args.to or out / "pairs.tar", began + args.budget - 6)


if __name__ == "__main__":
    main()
