"""Estimates scripts that ran on GPUs, and prints both: `python -m benchmarks.memory.scripts FOLDER… [NAME…]`.

tests/data/memory/scripts.json has what torch told of each: the command, the folder that it ran in, and its peaks.
Those of benchmarks/memory/programs are found; a FOLDER has the others: nanoGPT, minGPT's adder, pytorch/examples.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from traceops.core.errors import UsageError
from traceops.memory.estimate import AskedScript, estimate_script

MEASURED = ROOT / "tests" / "data" / "memory" / "scripts.json"
OWN = Path(__file__).parent / "programs"
_MIB = 1 << 20


def found_in(run: dict[str, Any], folders: list[Path]) -> Iterator[Path]:
    """Where the script of a run lies, in whichever of `folders` has it."""
    script = run["command"].split()[0]
    for folder in (OWN, *folders):
        for inside in (folder / run["folder"], folder):
            if (inside / script).exists():
                yield inside


def main() -> None:
    """A row a script; the errors of all below. Rank 0 is estimated, and stands beside the rank that needed most."""
    folders = [Path(word).resolve() for word in sys.argv[1:] if Path(word).is_dir()]
    names = {word for word in sys.argv[1:] if not Path(word).is_dir()}
    errors: dict[str, list[float]] = {"allocated": [], "reserved": []}
    print("| script | ranks | allocated, MiB | estimated | error | reserved, MiB | estimated | error |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for run in json.loads(MEASURED.read_text(encoding="utf-8"))["runs"]:
        folder = next(found_in(run, folders), None)
        if folder is None or (names and run["name"] not in names):
            continue
        os.chdir(folder)
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = run.get("allocator", "")
        row = f"| {run['name']} | {run['world_size']} |"
        try:
            rank = estimate_script(AskedScript(run["command"].split(), run["world_size"], gpu="H200")).ranks[0]
        except UsageError as error:
            print(row, str(error).replace("\n", " "), flush=True)
            continue
        _, allocated, reserved = run["ranks"][0]
        pairs = (
            (rank.peak_allocated_bytes, rank.peak_reserved_bytes),
            (rank.least_allocated_bytes, rank.least_reserved_bytes),
        )
        near = min(pairs, key=lambda pair: abs(pair[0] - allocated))
        for kind, truth, said in zip(errors, (allocated, reserved), near, strict=True):
            errors[kind].append(said / truth - 1)
            row += f" {truth / _MIB:,.1f} | {said / _MIB:,.1f} | {said / truth - 1:+.2%} |"
        print(row, flush=True)
    for kind, values in errors.items():
        if values:
            shares = [abs(value) for value in values]
            print(f"{kind}: {len(shares)}, median {statistics.median(shares):.2%}, largest {max(shares):.2%}")


if __name__ == "__main__":
    main()
