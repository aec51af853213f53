"""Does the first change that `traceops memory` lists fit? `python -m benchmarks.memory.proposals --out FILE` on a GPU.

Twelve trainings get a share of the memory that they need, by torch.cuda.set_per_process_memory_fraction. Each runs as
it is, which must run out of memory, and with the options of the first change, which must not. CPU=1 tries the program:
the trainings are small, nothing caps them, and only their ends count.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from traceops.core.errors import InputError, UsageError
from traceops.memory.estimate import EstimateRequest, estimate, worker
from traceops.memory.model import CONTEXT_BYTES
from traceops.train.config import TrainConfig
from traceops.train.options import to_argv

GIB = 1 << 30
CPU = os.environ.get("CPU") == "1"
# What the training is, and the share of its need that it gets.
CASES: tuple[tuple[dict[str, Any], float], ...] = (
    ({}, 0.7),
    ({"batch_size": 32}, 0.6),
    ({"layers": 24, "precision": "bf16"}, 0.75),
    ({"layers": 24, "batch_size": 2}, 0.8),
    ({"precision": "bf16", "batch_size": 32, "seq_len": 1024}, 0.5),
    ({"precision": "bf16", "batch_size": 1, "seq_len": 4096}, 0.6),
    ({"vocab": 128_000, "precision": "bf16"}, 0.7),
    ({"dim": 2048, "layers": 12, "precision": "bf16", "batch_size": 4}, 0.8),
    ({"optimizer": "sgd", "batch_size": 16}, 0.6),
    ({"precision": "fp16", "batch_size": 24}, 0.5),
    ({"activation_checkpointing": True, "layers": 16, "batch_size": 64, "precision": "bf16"}, 0.7),
    ({"dim": 1536, "layers": 16, "batch_size": 16}, 0.4),
)
_TRAIN = """
import json, runpy, sys, torch
cap = int(sys.argv[1])
if cap:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(cap / total, 0)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
if cap:
    print("PEAK", torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated())
"""


def train(words: list[str], cap: int, until: float) -> dict[str, Any]:
    """One training with `cap` bytes for torch: how it ended (ran, memory, failed), and its peaks in bytes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environ = {**os.environ, **ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _TRAIN, str(cap), str(ROOT / "runners" / "train.py"), *words, "--steps", "14"]
    left = max(until - time.monotonic(), 1)
    with tempfile.TemporaryDirectory() as folder:  # where its capture goes
        try:
            ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired:
            return {"end": "no time"}
    if ended.returncode == 0:
        peaks = [line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("PEAK")]
        return {"end": "ran", "reserved": int(peaks[0][0]) if peaks else 0}
    memory = "OutOfMemoryError" in ended.stderr or "CUDA out of memory" in ended.stderr
    return {
        "end": "memory" if memory else "failed",
        "last": [line for line in ended.stderr.splitlines() if "Error" in line][-1:],
    }


def played(fields: dict[str, Any], share: float, until: float) -> dict[str, Any]:
    """A case: the estimate, the capacity made of it, and both trainings."""
    config = TrainConfig(strategy="simple_ddp", device="cuda", **fields)
    small = ["--layers", "1", "--dim", "32", "--batch-size", "2", "--seq-len", "16", "--device", "cpu"]
    words = small if CPU else to_argv(config)
    with worker() as helper, ThreadPoolExecutor(1) as beside:
        need = estimate(EstimateRequest(config, 1, gpu="H200"), helper, changes=False).device_bytes
        capacity = round(share * need)
        cap = 0 if CPU else capacity - CONTEXT_BYTES
        as_it_is = beside.submit(train, words, cap, until)
        left = max(until - time.monotonic() - 40, 1)
        found = estimate(EstimateRequest(config, 1, capacity, "H200"), helper, within_s=left)
    row: dict[str, Any] = {"case": fields, "need": need, "capacity": capacity, "verdict": found.verdict}
    if not found.changes:
        return row
    first = found.changes[0]
    row |= {"first": first.options, "promised": first.verdict, "estimated": first.device_bytes - CONTEXT_BYTES}
    changed = train(words if CPU else [*words, *first.options], cap, until)
    return row | {"as_it_is": as_it_is.result(), "changed": changed}


def main() -> int:
    """A line a case; with --out also JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--budget", type=float, default=190)
    parser.add_argument("--lanes", type=int, default=1 if CPU else 4)
    parser.add_argument("--cases", type=int, default=len(CASES))
    args = parser.parse_args()
    begun = time.monotonic()
    until = begun + args.budget

    def play(case: tuple[dict[str, Any], float]) -> dict[str, Any]:
        if time.monotonic() > until - 30:
            return {"case": case[0], "problem": "no time"}
        try:
            row = played(*case, until)
        except (InputError, UsageError) as error:
            row = {"case": case[0], "problem": str(error)}
        print(f"{time.monotonic() - begun:5.0f} s {json.dumps(row)}", flush=True)
        return row

    with ThreadPoolExecutor(args.lanes) as pool:
        rows = list(pool.map(play, CASES[: args.cases]))
    fit = [row for row in rows if row.get("as_it_is", {}).get("end") == "memory" and row["changed"]["end"] == "ran"]
    print(f"ran out of memory as it is and ran with the first change: {len(fit)} of {len(rows)}")
    if args.out:
        Path(args.out).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
