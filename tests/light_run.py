"""Writes light windows as ranks leave them, as tests want them: ms on a device's timeline."""

import gzip
import json
from pathlib import Path

from traceops.core.rank_files import KERNEL, LIGHT_FILE, LIGHT_LOG_MAGIC, MEMCPY, NO_NAME, ROW

BEGAN_NS = 1_800_000_000 * 10**9
MARK = 5105


def raw_light(rank, steps, step_ms, ran, *, marks=True, first=20, source="cupti", clocks=(), to_clock=None, **more):
    """A light window of `steps` steps of `step_ms`; `ran` gives what ran in a step as (name, begin ms, end ms, stream).

    Names None are copies of a megabyte. to_clock: from Unix ns to the clock of the rows.
    """
    to_clock = to_clock or (lambda ns: ns)
    names, rows, launched = {}, [], 0

    def add(name, begin, end, stream, size=1 << 20):
        nonlocal launched
        launched += 1
        kind, number = (MEMCPY, NO_NAME) if name is None else (KERNEL, names.setdefault(name, len(names)))
        times = (to_clock(BEGAN_NS + round(moment * 1e6)) for moment in (begin, end))
        rows.append(ROW.pack(*times, size, number, stream, launched, kind, 0, 0, 0))

    for step in range(steps + 1):  # the one before the measured ones too
        for name, begin, end, stream in ran(step):
            add(name, step * step_ms + begin, step * step_ms + end, stream)
        if marks:
            add(None, (step + 1) * step_ms - 0.002, (step + 1) * step_ms, 7, MARK)
    header = {
        "rank": rank, "source": source, "steps": list(range(first, first + steps)), "step_ms": [step_ms] * steps,
        "mark_bytes": MARK if marks else 0, "clocks": clocks, "names": list(names), "discarded": 0, **more,
    }  # fmt: skip
    return LIGHT_LOG_MAGIC + json.dumps(header).encode() + b"\n" + b"".join(rows)


def write_light(root: Path, rank: int, *arguments, file: str = LIGHT_FILE, **options) -> None:
    """rank_<rank>/light.bin.gz, or another file there."""
    folder = Path(root, f"rank_{rank}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(gzip.compress(raw_light(rank, *arguments, **options), 1))
