"""Where the step of a program goes that runs by itself: by its own clock and by CUPTI alone (`site`)."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceops.core.rank_files import KERNEL, LIGHT_LOG_FIELDS, MEMCPY

_STARTING = 3  # steps: compilation, first allocations
_BEFORE = 5  # steps from then on until the profiler warms up, in traceops's default schedule
_USUAL = 1.2  # times the median step
_SENDS = ("sendrecv", "send_recv")
_DTYPE = np.dtype([(name, kind) for name, kind in LIGHT_LOG_FIELDS])
Rows = NDArray[Any]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class Shares:
    """Of one rank's step, percent. transfer: all of the communication where waiting cannot be told from it."""

    busy: float
    waiting: float
    transfer: float
    idle: float


@dataclass(frozen=True)
class Truth:
    """Of one run. step_ms: the median of the steps that CUPTI did not touch. early_ms, late_ms: of their two halves.

    before_ms: of the first five of them: under traceops, nothing is recorded yet.
    cupti_ms: a step while CUPTI recorded, in the median. shares: of each rank, the mean of all windows; empty where
    CUPTI did not record, `why` not. windows: of each by itself.
    thread_cpu_ms: of the main thread, a step. divided: whether waiting is told from transfer.
    """

    step_ms: float
    early_ms: float
    late_ms: float
    before_ms: float
    thread_cpu_ms: float
    cupti_ms: float | None
    shares: dict[int, Shares]
    windows: list[dict[int, Shares]]
    divided: bool
    why: list[str]

    def to_json(self) -> dict[str, Any]:
        """As kept in results.json."""
        return asdict(self)


def read_truth(folder: Path) -> Truth | None:
    """What the clocks of all ranks left in `folder`."""
    told = {int(path.stem.split("_")[1]): json.loads(path.read_text()) for path in folder.glob("rank_*.json")}
    if not told:
        return None
    plain = [_plain(one) for one in told.values()]
    half = len(plain[0]) // 2
    windows = [one for one in (_window(folder, told, at) for at in range(_windows(told))) if one]
    divided = [is_divided(one) for one in windows]
    shares = [shares_of(one) for one in windows]
    return Truth(
        step_ms=_median(plain),
        early_ms=_median([one[:half] for one in plain]),
        late_ms=_median([one[half:] for one in plain]),
        before_ms=_median([one[:_BEFORE] for one in plain]),
        thread_cpu_ms=_median([_plain(one, "thread_cpu_ms") for one in told.values()]),
        cupti_ms=statistics.median(one.step_ms for window in windows for one in window.values()) if windows else None,
        shares=_mean(shares), windows=shares, divided=bool(divided) and all(divided),
        why=[str(window["why"]) for one in told.values() for window in one["windows"] if window["why"]],
    )  # fmt: skip


def own_words(text: str) -> dict[str, str]:
    """What a program of programs/ says at its end: ms a step, steps, and the hash of its weights."""
    found = (re.findall(r"training [\d.]+ s, ([\d.]+) ms a step", text), re.findall(r"steps (\d+) weights (\w+)", text))
    return {"ms": found[0][-1], "steps": found[1][-1][0], "weights": found[1][-1][1]} if all(found) else {}


def _plain(told: dict[str, Any], kind: str = "") -> list[float]:
    """Steps from the fourth on that CUPTI did not touch."""
    steps: list[float] = told[kind or ("device_ms" if told["device_ms"] else "host_ms")]
    return [ms for number, ms in enumerate(steps, 2) if number > _STARTING and is_plain(told, number)]


def is_plain(told: dict[str, Any], number: int) -> bool:
    """Whether CUPTI had nothing to do with this step, numbered from 1 on."""
    return not any(one["first"] < number <= one["last"] + 1 for one in told["windows"])


def _median(ranks: list[list[float]]) -> float:
    """Over ranks, of their medians."""
    return statistics.median(statistics.median(steps or [0.0]) for steps in ranks)


@dataclass(frozen=True)
class Device:
    """What one rank's device did: where steps end, its work, and its collectives by the name of their kernel."""

    edges: list[int]
    work: list[tuple[int, int]]
    collectives: dict[str, list[tuple[int, int]]]

    @property
    def steps(self) -> list[tuple[int, int]]:
        return list(pairwise(self.edges))

    @property
    def step_ms(self) -> float:
        return statistics.median(end - begin for begin, end in self.steps) / 1e6


def _windows(told: dict[int, dict[str, Any]]) -> int:
    return min(len(one["windows"]) for one in told.values())


def _window(folder: Path, told: dict[int, dict[str, Any]], at: int) -> dict[int, Device]:
    """What each rank's device did in this window; empty where that is not known of all."""
    found = {rank: _device(folder / f"rank_{rank}.{at}.rows", one, at) for rank, one in told.items()}
    known = {rank: one for rank, one in found.items() if one is not None}
    return known if len(known) == len(told) else {}


def _device(path: Path, told: dict[str, Any], at: int) -> Device | None:
    packed = path.with_name(f"{path.name}.gz")  # as it was brought back
    window = told["windows"][at]
    if window["why"] or not (path.exists() or packed.exists()):
        return None
    raw = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    return device_of(np.frombuffer(raw, _DTYPE), window["names"], told["mark_bytes"])


def device_of(rows: Rows, names: list[str], mark_bytes: int) -> Device | None:
    """What `rows` hold; None where the ends of steps are not to be found in them."""
    marks = rows[(rows["kind"] == MEMCPY) & (rows["size"] == mark_bytes)]
    marks = marks[np.argsort(marks["start"])]
    if len(marks) < 2:
        return None
    order = rows[np.argsort(rows["correlation"], kind="stable")]
    work: list[tuple[int, int]] = []
    collectives: dict[str, list[tuple[int, int]]] = defaultdict(list)
    first, last = int(marks["correlation"][0]), int(marks["correlation"][-1])
    for row in order:
        span = int(row["start"]), int(row["end"])
        name = names[row["name"]] if row["kind"] == KERNEL and row["name"] < len(names) else ""
        if "nccl" not in name.lower():
            if not (row["kind"] == MEMCPY and row["size"] == mark_bytes):
                work.append(span)
        elif first < row["correlation"] <= last:  # launched in these steps, on each rank the same
            collectives[name].append(span)
    return Device([int(end) for end in marks["end"]], work, dict(collectives))


def is_divided(devices: dict[int, Device]) -> bool:
    """Whether waiting is told from transfer: all members leave a collective together."""
    counted = {tuple(sorted((name, len(spans)) for name, spans in d.collectives.items())) for d in devices.values()}
    sends = any(word in name.lower() for d in devices.values() for name in d.collectives for word in _SENDS)
    return len(counted) == 1 and not sends


def shares_of(devices: dict[int, Device]) -> dict[int, Shares]:
    """Each rank's usual step."""
    divided = is_divided(devices)
    lasted = [max(b - a for a, b in same) for same in zip(*(d.steps for d in devices.values()), strict=True)]
    usual = [at for at, ns in enumerate(lasted) if ns <= _USUAL * statistics.median(lasted)]
    shares = {}
    for rank, device in devices.items():
        waiting: list[tuple[int, int]] = []
        transfer: list[tuple[int, int]] = []
        for name, spans in device.collectives.items():
            for at, (begin, end) in enumerate(spans):
                least = end - begin
                if divided:
                    least = min(b - a for a, b in (other.collectives[name][at] for other in devices.values()))
                waiting.append((begin, end - least))
                transfer.append((end - least, end))
        shares[rank] = _painted([device.steps[at] for at in usual], device.work, transfer, waiting)
    return shares


def _mean(windows: list[dict[int, Shares]]) -> dict[int, Shares]:
    return {
        rank: Shares(*(statistics.fmean(getattr(one[rank], kind.name) for one in windows) for kind in fields(Shares)))
        for rank in (windows[0] if windows else ())
    }


def _painted(steps: list[tuple[int, int]], *kinds: list[tuple[int, int]]) -> Shares:
    """Of these steps, each instant in the first kind that holds it."""
    covered: list[tuple[int, int]] = []
    shares = []
    before = 0
    for kind in kinds:
        covered = _union(covered + kind)
        total = sum(max(min(b, end) - max(a, begin), 0) for begin, end in steps for a, b in covered)
        shares.append(100 * (total - before) / sum(end - begin for begin, end in steps))
        before = total
    busy, transfer, waiting = shares
    return Shares(busy, waiting, transfer, 100 - busy - waiting - transfer)


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    union: list[tuple[int, int]] = []
    for begin, end in sorted(span for span in spans if span[1] > span[0]):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((begin, end))
    return union
