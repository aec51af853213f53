"""Reads a rank's light window: the device alone in a few steps. Format: `core/rank_files.py`."""

from __future__ import annotations

import gzip
import json
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.core.errors import InputError, problem_of
from traceops.core.rank_files import LIGHT_FILE, LIGHT_LOG_FIELDS, LIGHT_LOG_MAGIC, ROW
from traceops.traces.source import is_remote, read_whole

_MOST_BYTES = 1 << 28
_MOST_NS = 1 << 62
_MOST_MISSING = 0.01  # of what ran: what is missing looks like idle time
_SLACK = 0.05  # of the time between the two looks at the clocks, and a millisecond


class LightLog(Struct, frozen=True):
    """One rank's light window. source: 'cupti' or 'torch'. steps, step_ms: the measured steps, and what each took by
    events on the device. rows: a structured array (`core/rank_files.py`) in order of begin, start and end in Unix ns.
    mark_bytes: of the copies that mark where a step ends, 0 without. discarded: activities that are missing."""

    rank: int
    source: str
    steps: tuple[int, ...]
    step_ms: tuple[float, ...]
    rows: NDArray[Any]
    names: tuple[str, ...]
    mark_bytes: int = 0
    discarded: int = 0


def read_light(root: str, rank: int, file: str = LIGHT_FILE) -> tuple[LightLog | None, str | None]:
    """What the rank's folder holds, None where no light window was recorded; and what is wrong with it."""
    path = f"{root.rstrip('/')}/rank_{rank}/{file}"
    if not is_remote(path) and not Path(path).is_file():
        return None, None
    try:
        packed = read_whole(path, _MOST_BYTES)
    except InputError as error:
        problem_of(error)
        return None, None
    try:
        with gzip.GzipFile(fileobj=BytesIO(packed)) as unpacked:
            raw = unpacked.read(_MOST_BYTES)
        log = parse_light(raw)
        if log.rank != rank:
            raise ValueError(f"it is of rank {log.rank}")
        if log.discarded > _MOST_MISSING * len(log.rows):
            raise ValueError(f"{log.discarded} of {log.discarded + len(log.rows)} activities are missing")
        return log, None
    except RecursionError:
        return (None, f"{path} is no light window that can be used (its head is no header); the report does without")
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError, OverflowError) as error:
        return None, f"{path} is no light window that can be used ({error}); the report does without"


def parse_light(raw: bytes) -> LightLog:
    """Raises ValueError, TypeError or KeyError for what is none, or whose times are on no known clock."""
    if not raw.startswith(LIGHT_LOG_MAGIC):
        if raw.startswith(LIGHT_LOG_MAGIC.rstrip(b"1\n")):
            raise ValueError("it is of another version of traceops")
        raise ValueError("it does not begin as one")
    head, _, body = raw[len(LIGHT_LOG_MAGIC) :].partition(b"\n")
    told = json.loads(head)
    rows = np.frombuffer(body[: len(body) // ROW.size * ROW.size], np.dtype(list(LIGHT_LOG_FIELDS))).copy()
    steps, step_ms = tuple(map(_count, told["steps"])), tuple(float(ms) for ms in told["step_ms"])
    if len(steps) != len(step_ms) or not all(0 < ms < 1e9 for ms in step_ms):
        raise ValueError("its steps and their times do not fit each other")
    if not len(rows):
        raise ValueError("it holds nothing that ran")
    rows = _on_unix_time(rows, told["clocks"])
    names = tuple(str(name) for name in told["names"])
    if (rows["name"][rows["name"] != np.uint32(-1 & 0xFFFFFFFF)] >= len(names)).any():
        raise ValueError("a kernel has no name")
    rows = rows[np.argsort(rows["start"], kind="stable")]
    return LightLog(
        _count(told["rank"]), str(told["source"]), steps, step_ms, rows, names,
        _count(told["mark_bytes"]), _count(told["discarded"]),
    )  # fmt: skip


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_NS:
        raise ValueError(f"{value!r} is no number of anything")
    return value


def _on_unix_time(rows: NDArray[Any], clocks: Any) -> NDArray[Any]:
    """Times on the realtime clock. clocks: before and after, as in the format; empty where they are already. CUPTI's
    records are on the realtime clock, unless somebody has given it another one; torch's profiler gives it the
    processor's counter. Which one it is shows in where the records lie."""
    first, last = int(rows["start"].min()), int(rows["end"].max())
    if not (0 <= first <= last < _MOST_NS) or (rows["end"] < rows["start"]).any():
        raise ValueError("its times are none")
    if not clocks:
        return rows
    began, ended = ([_count(moment) for moment in look] for look in clocks)
    for begin, end in zip(began, ended, strict=True):
        slack = _SLACK * (end - begin) + 1_000_000
        if 0 < begin < end and begin - slack <= first and last <= end + slack:
            rate = (ended[0] - began[0]) / (end - begin)
            for column in ("start", "end"):
                after: Int = rows[column].astype(np.int64) - begin
                rows[column] = began[0] + np.round(after * rate).astype(np.int64)
            return rows
    raise ValueError("its times are on none of the clocks of its machine")
