"""Makes traces of GPU programs as people make them, with plain torch.profiler, and measures the truth beside them.

    python make.py OUT GROUP     # one process for each group of programs; run.sh starts them all

OUT/traces/NAME/ gets the files that the program's profiler writes, OUT/truths.jsonl a line of each program: measured
before any profiler runs in the process.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
import traceback
from pathlib import Path

from case import Case, truth, wait

GROUPS = {
    "plain": ("plain", "CASES"),
    "host": ("host", "CASES"),
    "input": ("input", "CASES"),
    "stranger": ("input", "STRANGERS"),
    "middle": ("plain", "MIDDLE"),
    "cold": ("input", "COLD"),
    "frames": ("frames", "CASES"),
    "accelerate": ("frames", "ACCELERATE"),
    "lightning": ("frames", "LIGHTNING"),
    "compiled": ("compiled", "CASES"),
    # The fourth set: promises that can be held to the cured step, and what was told wrong of whole runs.
    "fourth_busy": ("fourth_busy", "CASES"),
    "fourth_host": ("fourth_host", "CASES"),
    "fourth_input": ("fourth_host", "INPUT"),
    "fourth_compiled": ("fourth_busy", "COMPILED"),
}


def run(group: str, out: Path) -> None:
    """Truths first, then traces; one that fails does not keep the others from running."""
    began = time.monotonic()
    module = importlib.import_module(GROUPS[group][0])
    cases: tuple[Case, ...] = getattr(module, GROUPS[group][1])
    loops = {}
    if group == "cold":
        for case in cases:
            folder = out / "traces" / case.name
            folder.mkdir(parents=True, exist_ok=True)
            case.record(case.make(False, folder), folder)
    for case in cases:
        folder = out / "traces" / case.name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            loops[case.name], told = truth(case, folder)
            with (out / "truths.jsonl").open("a") as file:
                print(json.dumps(told), file=file)
        except Exception:
            traceback.print_exc()
        print(f"{group} {case.name}: truth after {time.monotonic() - began:.1f} s", flush=True)
    for case in cases:
        if case.name in loops and group != "cold":
            try:
                wait()
                case.record(loops[case.name], out / "traces" / case.name)
                wait()
            except Exception:
                traceback.print_exc()
            print(f"{group} {case.name}: trace after {time.monotonic() - began:.1f} s", flush=True)
    for other in getattr(module, "others", []):
        other.kill()


if __name__ == "__main__":
    logging.getLogger("torch").setLevel(logging.ERROR)
    run(sys.argv[2], Path(sys.argv[1]))
