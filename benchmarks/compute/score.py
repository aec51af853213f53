"""How well recoverable device time is found, and whether a cause is gone once it is fixed.

    python -m benchmarks.compute.score FOLDER [TRUTH] [--half seen|aside]

FOLDER holds NAME/sick.pt.trace.json.gz and NAME/cured… or NAME/fixed…; TRUTH is FOLDER/truth.json or the one beside it.
Per program: whether the first cause is one that an expert accepts, whether the time that the device is left with after
the fix is within 25 % of the measured one (and 0.3 ms), whether the range of the step meets the measured one (or, where
the fix brings none, does not promise any), whether a clean program stays quiet, and whether the cause is gone.
--half: those that detectors were written by (`seen`), or were held aside: as the truth has it, else by a hash of names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET

from traceops.pipeline.analyze import analyze
from traceops.report.inventory import ComputeRows, LossRow

_LARGE = 0.05  # of the busy time
_NEAR, _NEAR_MS = 0.25, 0.3
COLUMNS = ("cause", "device", "step", "quiet", "gone")


def half_of(name: str) -> str:
    """Which half of the examples a program belongs to."""
    return "aside" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 else "seen"


def judge(row: Mapping[str, Any], sick: Sequence[LossRow], cured: ComputeRows | None) -> dict[str, bool | None]:
    """Per column right or wrong; None where it is not asked."""
    busy = row["busy_sick_ms"]
    large = [one for one in sick if one.device_ms > _LARGE * busy]
    right: dict[str, bool | None] = dict.fromkeys(COLUMNS)
    if row["clean"]:
        return {**right, "quiet": not large}
    fits = [one for one in sick if one.cause in row["labels_ok"]]
    if not fits:
        fine = "none" in row["labels_ok"] and not large
        return {**right, "cause": fine, "device": None if fine else False, "step": None if fine else False}
    two = row["group"] == "two"
    made = next((one for one in fits if one.cause == row["labels_ok"][0]), fits[0])  # the fix that was measured
    saved = sum(one.device_ms for one in fits) if two else made.device_ms
    low, high = row["device_after_ok_ms"]
    middle = (low + high) / 2
    ranges = [one.step_after_ms for one in (fits if two else [made])]
    least, most = min(one[0] for one in ranges), min(one[1] for one in ranges)
    promised = row["promise_ok_ms"]
    left = [] if cured is None else [one.cause for one in cured.losses if one.device_ms > _LARGE * cured.busy_ms]
    return {
        "cause": sick[0].cause in row["labels_ok"],
        "device": (1 - _NEAR) * middle - _NEAR_MS <= busy - saved <= (1 + _NEAR) * middle + _NEAR_MS,
        "step": most >= 0.95 * row["sick_ms"]
        if row["no_step_promise"]
        else least <= promised[1] and most >= promised[0],
        "quiet": None,
        "gone": None if cured is None else row["labels_ok"][0] not in left,
    }


def compute_of(path: Path) -> ComputeRows | None:
    """What the report says of the kernels; None where there is no such trace."""
    if not path.exists():
        return None
    found = analyze(path, jobs=1).compute
    return None if found is UNSET else found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a program, and the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("truth", type=Path, nargs="?")
    parser.add_argument("--half", choices=("seen", "aside"))
    args = parser.parse_args(arguments)
    beside = [args.folder / "truth.json", args.folder.parent / "truth.json"]
    truth = json.loads((args.truth or next(path for path in beside if path.exists())).read_text())
    sums = {column: [0, 0] for column in COLUMNS}
    for row in truth:
        half = ("aside" if row["set_aside"] else "seen") if "set_aside" in row else half_of(row["name"])
        if args.half and half != args.half:
            continue
        folder = args.folder / row["name"]
        sick = compute_of(folder / "sick.pt.trace.json.gz")
        cured = compute_of(folder / "cured.pt.trace.json.gz") or compute_of(folder / "fixed.pt.trace.json.gz")
        losses = () if sick is None else sick.losses
        right = judge(row, losses, cured)
        for column, value in right.items():
            if value is not None:
                sums[column][0] += value
                sums[column][1] += 1
        shown = " ".join(
            f"{key} {'-' if value is None else 'right' if value else 'WRONG':5}" for key, value in right.items()
        )
        print(f"{row['name']:26} {shown} {[(one.cause, one.device_ms, one.step_after_ms) for one in losses[:2]]}")
    print("; ".join(f"{column} {got} of {asked}" for column, (got, asked) in sums.items()))


if __name__ == "__main__":
    main()
