"""Reads what ranks and launchers kept of a whole run beside its traces, as far as it can be believed.

Formats: `core/rank_files.py`. A line or record that is damaged is left out, a file that is none
at all is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.errors import InputError, problem_of
from traceops.core.rank_files import FIELDS, FLAGS, LOADER_GLOB, OBSERVED_FILE, PREFIX, STEPS_FILE, SUFFIX, split_log
from traceops.traces.source import is_remote, read_whole

_MOST_BYTES = 1 << 28
_MOST = 1 << 62
_MOST_LOADERS = 64
T = TypeVar("T")


class SampledFrame(Struct, frozen=True):
    """A line of a program that a host was in; text: what stands there. no_grad: whether it is in a block of its
    function in which torch keeps no gradients."""

    function: str
    file: str
    first_line: int
    line: int
    text: str | None
    no_grad: bool = False


class Compilation(Struct, frozen=True):
    """torch.compile at work: in which step, for how long, on what, and why again."""

    step: int
    us: int
    function: str
    file: str
    line: int
    reason: str | None


class Observed(Struct, frozen=True):
    """One rank's whole run.

    steps: a structured array, a record a step from number `first` on (`core/rank_files.py`). began_ns: Unix time of the
    first one. stacks: frames by number, outermost first. samples: columns step, stack, µs. since_begin: µs from the
    step's begin to each sample; empty in earlier logs. allocator: columns step, cudaMalloc calls, retries, cudaFree
    calls. memory: columns step, and bytes that tensors held at its end, reserved,
    in pieces between blocks in use, most held and most reserved until then. loaders: looks at workers of its data
    loaders, one of these a process; they know no steps, and began_ns is when the looks begin, 0 where that is not told.
    core_waits: whether steps tell how long they waited for a core, where that is 0 too; earlier logs do not say so.
    """

    rank: int
    first: int
    began_ns: int
    steps: NDArray[Any]
    frames: tuple[SampledFrame, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    samples: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    compilations: tuple[Compilation, ...] = ()
    allocator: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    memory: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 6), np.int64))
    loaders: tuple[Observed, ...] = ()
    core_waits: bool = False
    since_begin: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


class GpuFacts(Struct, frozen=True):
    """A GPU as its driver describes it."""

    index: int
    uuid: str | None
    name: str | None
    most_mhz: float | None
    limit_w: float | None


class MachineLog(Struct, frozen=True):
    """What one launcher saw of its machine: the lines of each kind, in order of time (`core/rank_files.py`)."""

    host: str
    gpus: dict[int, GpuFacts]
    devices: tuple[tuple[Any, ...], ...]
    ranks: tuple[tuple[Any, ...], ...]
    hosts: tuple[tuple[Any, ...], ...]
    others: tuple[tuple[Any, ...], ...]
    network: tuple[tuple[Any, ...], ...] = ()
    reads: tuple[tuple[Any, ...], ...] = ()
    storage: Mapping[int, tuple[str, str]] = {}


def read_observed(root: str, rank: int) -> tuple[Observed | None, str | None]:
    """What the rank's folder holds, None where nothing was observed; and what is wrong with it."""
    folder = f"{root.rstrip('/')}/rank_{rank}"
    if (raw := _bytes(f"{folder}/{STEPS_FILE}")) is None:
        return None, None
    try:
        told, records = split_log(raw)
        first, began = (_whole(told[key]) for key in ("first", "started_ns"))
    except (ValueError, TypeError, KeyError):
        return None, f"{folder}/{STEPS_FILE} is no record of steps; every step of the run is not shown"
    steps, problem = np.frombuffer(records, np.dtype(list(FIELDS))), None
    unknown = np.flatnonzero(steps["flags"] & ~np.uint8(FLAGS))
    if len(unknown):  # a damaged disk or a bad copy
        steps = steps[: unknown[0]]
        problem = f"{folder}/{STEPS_FILE} is damaged: of its steps the first {len(steps)} are used"
    lines = _bytes(f"{folder}/{OBSERVED_FILE}") or b""
    paths = [] if is_remote(folder) else sorted(Path(folder).glob(LOADER_GLOB))[:_MOST_LOADERS]
    logs = (_bytes(str(path)) or b"" for path in paths)
    loaders = tuple(Observed(rank, first, _begun(log), steps[:0], **_read_lines(log)) for log in logs)
    tells = told.get("core_waits") is True
    read = Observed(rank, first, began, steps, **_read_lines(lines), loaders=loaders, core_waits=tells)
    return read, problem


def read_machines(root: str) -> list[MachineLog]:
    """What the launchers of a local run folder saw."""
    if is_remote(root) or not Path(root).is_dir():
        return []
    found = []
    for path in sorted(Path(root).glob(f"{PREFIX}*{SUFFIX}"))[:4096]:
        if (raw := _bytes(str(path))) is not None:
            found.append(_machine(path.name[len(PREFIX) : -len(SUFFIX)], raw))
    return found


def _bytes(path: str) -> bytes | None:
    if not is_remote(path) and not Path(path).is_file():
        return None
    try:
        return read_whole(path, _MOST_BYTES)
    except InputError as error:
        problem_of(error)
        return None


def _begun(raw: bytes) -> int:
    """When the looks at a worker begin, Unix ns; 0 where that is not told."""
    told = next((rest for kind, rest in _lines(raw) if kind == "w"), ())
    return (_believed(_numbers, [told], _MOST) or (0,))[0]


_COLUMNS = {"m": 4, "b": 6}  # of the rows of each kind


def _read_lines(raw: bytes) -> dict[str, Any]:
    frames: list[SampledFrame] = []
    stacks: list[tuple[int, ...]] = []
    samples: list[int] = []
    since_begin: list[int] = []
    rows: dict[str, list[int]] = {kind: [] for kind in _COLUMNS}
    compilations: list[Compilation] = []
    for kind, rest in _lines(raw):
        if kind == "f":
            frames.append(_believed(_frame, rest) or SampledFrame("?", "?", 0, 0, None))
        elif kind == "s":
            stacks.append(_believed(_numbers, rest[:1], len(frames)) or ())
        elif kind == "n":
            for number in _believed(_numbers, rest[:1], len(frames)) or ():
                frames[number] = replace(frames[number], no_grad=True)
        elif kind == "t":
            samples += _believed(_samples, rest[:1], len(stacks)) or ()
            since_begin += _believed(_numbers, rest[1:], _MOST) or ()
        elif kind in rows and len(rest) == _COLUMNS[kind]:
            rows[kind] += _believed(_numbers, [rest], _MOST) or ()
        elif kind == "c" and (one := _believed(_compilation, rest)):
            compilations.append(one)
    return {
        "frames": tuple(frames),
        "stacks": tuple(stacks),
        "samples": np.array(samples, np.int64).reshape(-1, 3),
        "since_begin": np.array(since_begin if 3 * len(since_begin) == len(samples) else (), np.int64),
        "compilations": tuple(compilations),
        "allocator": np.array(rows["m"], np.int64).reshape(-1, _COLUMNS["m"]),
        "memory": np.array(rows["b"], np.int64).reshape(-1, _COLUMNS["b"]),
    }


def _lines(raw: bytes) -> Iterator[tuple[str, list[Any]]]:
    for line in raw.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list) and value and isinstance(value[0], str):
            yield value[0], value[1:]


def _believed(make: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return make(*arguments)
    except (ValueError, TypeError, IndexError, KeyError):
        return None


def _frame(rest: list[Any]) -> SampledFrame:
    function, file, first, line, text = rest
    return SampledFrame(
        _text(function), _text(file), _whole(first), _whole(line), None if text is None else _text(text)
    )


def _numbers(rest: list[Any], most: int) -> tuple[int, ...]:
    numbers = tuple(_whole(one) for one in rest[0])
    if any(one >= most for one in numbers):
        raise ValueError
    return numbers


def _samples(rest: list[Any], stacks: int) -> list[int]:
    numbers = [_whole(one) for one in rest[0]]
    if len(numbers) % 3 or any(one >= stacks for one in numbers[1::3]):
        raise ValueError
    return numbers


def _compilation(rest: list[Any]) -> Compilation:
    step, us, function, file, line, reason = rest
    return Compilation(
        _whole(step), _whole(us), _text(function), _text(file), _whole(line), None if reason is None else _text(reason)
    )


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value[:1000]


def _is_number(value: Any) -> bool:
    # NaN is none: no comparison with it holds.
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST)


_LENGTHS: Mapping[str, int] = {"G": 10, "r": 8, "h": 5, "p": 5, "n": 3, "d": 4}
_LEAST_OF_HOST = 3  # as long were a host's rows before they told what was wanted of its cores, and used


def _machine(host: str, raw: bytes) -> MachineLog:
    gpus: dict[int, GpuFacts] = {}
    rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in _LENGTHS}
    storage: dict[int, tuple[str, str]] = {}
    for kind, rest in _lines(raw):
        if kind == "m" and (place := _believed(_storage, rest)) is not None:
            storage[place[0]] = place[1:]
        if kind == "g" and (one := _believed(_gpu, rest)) is not None:
            gpus[one.index] = one
            continue
        if kind == "h" and _LEAST_OF_HOST <= len(rest) < _LENGTHS["h"]:
            rest = [*rest, *[None] * (_LENGTHS["h"] - len(rest))]
        if kind in rows and len(rest) == _LENGTHS[kind] and _believed(_row_holds, kind, rest):
            rows[kind].append(tuple(rest))
    devices, ranks, hosts, others, network, reads = (tuple(rows[kind]) for kind in ("G", "r", "h", "p", "n", "d"))
    return MachineLog(host, gpus, devices, ranks, hosts, others, network, reads, storage)


def _storage(rest: list[Any]) -> tuple[int, str, str]:
    rank, mount, kind = rest
    return _whole(rank), _text(mount), _text(kind)


def _gpu(rest: list[Any]) -> GpuFacts:
    index, uuid, name, most, limit = rest
    if not (_is_number(most) and _is_number(limit)):
        raise ValueError
    told = [None if one is None else _text(one) for one in (uuid, name)]
    return GpuFacts(_whole(index), told[0], told[1], most, limit)


def _row_holds(kind: str, rest: list[Any]) -> bool:
    _whole(rest[0])
    _whole(rest[1]) if kind != "h" else None
    plain = [*rest[:2], *rest[3:]] if kind == "p" else rest[:8] if kind == "G" else rest
    pairs = rest[8:] if kind == "G" else []
    return all(_is_number(one) for one in plain) and all(
        isinstance(many, list) and all(len(pair) == 2 and all(map(_is_number, pair)) for pair in many) for many in pairs
    )
