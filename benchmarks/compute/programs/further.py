"""The further pairs on two GPUs in one visit: python further.py WORK TO.tar [--budget SECONDS] [--only NAME ...]

A worker per GPU claims one program after the other, in an order drawn once, and measures its sick and fixed variant in
one process. TO.tar gets truth.jsonl, failures.jsonl, run.log and the traces packed by columns, sick ones first.
The second worker starts late, when others are done with its GPU.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from pairs import DEVICE_LOST, TooLong, append, say

HERE = Path(__file__).resolve()
MODULES = ("zoo", "answering", "loops")
LIMIT, LIMIT_COMPILED = 30, 75  # seconds per program
PACKED_MOST = 14_000_000  # bytes
KEPT_FOR_PACKING = 25.0


def order(cases: dict[str, Any]) -> list[str]:
    """Pairs as drawn, with a tuned program after every fifth of them."""
    pairs = [name for name, case in cases.items() if not case.clean]
    clean = [name for name, case in cases.items() if case.clean]
    random.Random("further").shuffle(pairs)
    drawn = []
    for i, name in enumerate(pairs, 1):
        drawn.append(name)
        if i % 5 == 0 and clean:
            drawn.append(clean.pop(0))
    return drawn + clean


def claimed(out: Path, name: str) -> bool:
    """Claims the program, unless another worker has it."""
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
    chosen = {name: case for name, case in cases.CASES.items() if case.module in MODULES}
    packers: list[subprocess.Popen[bytes]] = []
    say(f"worker {os.environ.get('CUDA_VISIBLE_DEVICES')}: imported")
    for name in only or order(chosen):
        case = chosen[name]
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


def started(out: Path, until: float, gpu: int, cores: list[int], only: list[str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, "CUDA_VISIBLE_DEVICES": str(gpu), "TORCHINDUCTOR_COMPILE_THREADS": str(len(cores)),
        "OMP_NUM_THREADS": str(len(cores)), "TORCHINDUCTOR_CACHE_DIR": str(out / f"inductor{gpu}"),
        "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(HERE), str(out), "--work", str(until), *(["--only", *only] if only else [])],
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, set(cores) & os.sched_getaffinity(0) or os.sched_getaffinity(0)),
    )


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
    parser.add_argument("--second", type=float, default=150, help="when the worker of GPU 0 starts; -1: never")
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
    lanes = [(1, 0.0, [*range(4, 8), *range(20, 24)]), (0, args.second, [*range(4), *range(16, 20)])]
    running: dict[int, subprocess.Popen[bytes]] = {}
    deaths, ended = 0, set()
    while len(ended) < len(lanes) and time.time() < until:
        for gpu, start, cores in lanes:
            process = running.get(gpu)
            if start < 0:
                ended.add(gpu)
            elif process is None:
                if time.time() - began >= start:
                    running[gpu] = started(out, until, gpu, cores, args.only)
            elif process.poll() is not None and gpu not in ended:
                say(f"worker {gpu} ended with {process.returncode}")
                deaths += process.returncode != 0
                if process.returncode == 0 or deaths > 6:
                    ended.add(gpu)
                else:
                    running[gpu] = started(out, until, gpu, cores, args.only)
        time.sleep(0.2)
    for process in running.values():
        if process.poll() is None:
            process.kill()
    pack(out, args.to or out / "pairs.tar", began + args.budget - 6)


if __name__ == "__main__":
    main()
