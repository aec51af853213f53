"""Reads run.json as far as it can be believed: a field of the wrong type is named and not used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from traceops.core.capture_failure import FIRST_STEPS, CaptureFailure, read_failure
from traceops.core.errors import InputError, problem_of
from traceops.core.rank_files import HELD, round_steps, rounds, seldom, usual_ends
from traceops.core.units import count
from traceops.traces.source import is_remote, read_whole

# Steps of two kinds, as a WGAN has: what ended steps and what was within some of them only, as run.json tells.

_CALL = ".forward"


class StepKinds(Struct, frozen=True):
    """ends: what ended the steps; another: what was within `count` of `steps` only, perhaps of the same name."""

    ends: tuple[str, ...]
    another: str
    count: int
    steps: int

    @property
    def every(self) -> float:
        """How many steps a round of the training has."""
        return round_steps(self.steps, self.count)

    def may_be(self, numbers: Sequence[int], recorded: int) -> bool:
        """Whether these of so many recorded steps may be those that have it: they are as many, and in its rhythm."""
        lengths = rounds(self.steps, self.count)
        in_rhythm = not lengths or any(
            all((number - numbers[0]) % length == 0 for number in numbers) for length in lengths
        )
        return len(numbers) <= recorded / self.every + 1 and in_rhythm


def step_kinds(manifest: Mapping[str, Any]) -> StepKinds | None:
    """Of the first rank that tells; None where all steps are alike, as far as known."""
    for entry in manifest.get("ranks") or ():
        ends, within = _counts(entry.get("step_ends")), _counts(entry.get("steps_within"))
        if not ends:
            continue
        steps = sum(ends.values())
        if not (names := seldom(steps, within)):
            return None
        return StepKinds(tuple(usual_ends(ends, within)), names[0], within[names[0]], steps)
    return None


def ends_by_calls(manifest: Mapping[str, Any]) -> bool:
    """Whether a step ended where a model's forward returned, on each rank that tells (`--step-on forward`)."""
    told = [_counts(entry.get("step_ends")) for entry in manifest.get("ranks") or ()]
    return any(told) and all(name.endswith(_CALL) for ends in told for name in ends)


def _counts(told: Any) -> dict[str, int]:
    items = told.items() if isinstance(told, dict) else ()
    return {
        str(name)[:200]: count
        for name, count in items
        if isinstance(count, int) and not isinstance(count, bool) and count > 0
    }


_MOST_BYTES = 1 << 26  # ten thousand ranks have a tenth of it
MOST_RANKS = 1 << 20  # more is garbage, and lists of missing ranks must fit in memory


class ManifestRank(Struct, frozen=True):
    """What run.json says of one rank; None where it does not say, or cannot be believed.

    unprofiled_step_ms: the steps before the profiler started, in order. peak_memory_bytes, peak_reserved_bytes: the
    most that its tensors, and that the allocator, held of the device. device_bytes: all of it. held: bytes that tensors
    held at the end of a step (`allocated`), and which of it parameters, gradients and the optimizer's state were.
    """

    rank: int
    unprofiled_step_ms: tuple[float | None, ...] = ()
    peak_memory_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_bytes: int | None = None
    held: Mapping[str, int] = field(default_factory=dict)


def is_step_time(value: Any) -> bool:
    """Whether this is a duration of a step that can be believed, ms."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_ranks(value: Any) -> bool:
    entries = value if isinstance(value, list) else [None]
    return all(isinstance(one, dict) and _is_whole(one.get("rank", 0), 0, MOST_RANKS - 1) for one in entries)


_VALID: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("name", "strategy", "backend", "torch_version", "nccl_version"), _is_text),
    "world_size": lambda value: _is_whole(value, 1, MOST_RANKS),
    "hosts": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "ranks": _are_ranks,
    "training": lambda value: isinstance(value, dict),
    "unprofiled_step_ms": is_step_time,
    "profiled_step_ms": is_step_time,
}


def read_run_manifest(root: str) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """run.json beside the traces, {} where there is none; and (path, problem) where it is not all usable."""
    path = f"{root.rstrip('/')}/run.json"
    if not is_remote(root) and not Path(path).is_file():
        return {}, None
    try:
        value = json.loads(read_whole(path, _MOST_BYTES))
    except InputError as error:
        return {}, None if is_remote(root) else (path, problem_of(error))
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        return {}, (path, f"not valid JSON ({error}); what it says of the run is not used")
    if not isinstance(value, dict):
        return {}, (path, "not a JSON object; what it says of the run is not used")
    wrong = [key for key, valid in _VALID.items() if value.get(key) is not None and not valid(value[key])]
    usable = {key: item for key, item in value.items() if key not in wrong}
    told = [f"has unusable fields: {', '.join(wrong)}"] if wrong else []
    told += [] if is_remote(root) else _how_it_ended(usable, Path(root))
    return usable, (path, "; ".join(told)) if told else None


def _how_it_ended(manifest: dict[str, Any], folder: Path) -> list[str]:
    """That the run was cut short, where it was: what is there is of a part of it."""
    if manifest.get("status") == "cut_short":
        return ["the run was cut short: its launcher was killed; what was captured until then is used"]
    if manifest.get("status") != "running":
        return []
    from traceops.core.run_lock import Launcher, launcher_state

    if (launcher := Launcher.of(manifest.get("launcher"))) is None:
        return []
    where = f"pid {launcher.pid} on {launcher.host[:64]}"
    if (state := launcher_state(folder, launcher)) == "gone":
        return [f"the run was cut short: its launcher ({where}) is gone; what was captured until then is used"]
    if state == "unknown":
        return [f"the run was cut short, or is still going elsewhere (launcher: {where})"]
    return []


class RecordedSteps(Struct, frozen=True):
    """The steps of one window that were recorded whole; complete: the window reached its end."""

    numbers: tuple[int, ...]
    complete: bool


def recorded_steps(manifest: dict[str, Any], root: str) -> dict[str, RecordedSteps]:
    """Trace path -> the steps of its window that were recorded whole. Their numbers tell them from a step that was cut
    off, and from those of a profiler that the program has itself."""
    steps = {}
    for _, window in told_windows(manifest):
        numbers, complete = window.get("steps"), bool(window.get("complete", True))
        if not isinstance(numbers, list) or not all(map(_is_number, numbers)) or not window.get("trace"):
            continue
        if numbers or not complete:
            steps[f"{root.rstrip('/')}/{window['trace']}"] = RecordedSteps(tuple(numbers), complete)
    return steps


def told_windows(manifest: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each window of each rank of run.json, with what is said of the rank."""
    for rank in manifest.get("ranks") or ():
        windows = rank.get("windows")
        yield from ((rank, one) for one in (windows if isinstance(windows, list) else ()) if isinstance(one, dict))


def ended_steps(manifest: dict[str, Any]) -> dict[int, int]:
    """How many steps each rank made that has finished; nothing where one of them did not."""
    ranks = [entry for entry in manifest.get("ranks") or () if isinstance(entry.get("rank"), int)]
    if any(entry.get("status") != "finished" for entry in ranks):
        return {}
    counted = {entry["rank"]: entry.get("steps") for entry in ranks}
    return {rank: steps for rank, steps in counted.items() if isinstance(steps, int) and steps > 0}


def manifest_ranks(manifest: dict[str, Any]) -> tuple[ManifestRank, ...]:
    """The ranks of a manifest that `read_run_manifest` read, without entries that name no rank."""
    return tuple(
        ManifestRank(
            rank=entry["rank"],
            unprofiled_step_ms=_step_times(entry.get("unprofiled_step_ms")),
            peak_memory_bytes=count(entry.get("peak_memory_bytes")),
            peak_reserved_bytes=count(entry.get("peak_reserved_bytes")),
            device_bytes=count(device.get("memory_bytes")) if isinstance(device := entry.get("device"), dict) else None,
            held=_held(entry.get("memory")),
        )
        for entry in manifest.get("ranks") or ()
        if isinstance(entry.get("rank"), int)
    )


class OwnProfiler(Struct, frozen=True):
    """In which steps a profiler of the script's own was at work, and the file and line that began it, where known."""

    first: int
    last: int
    steps: int
    where: str | None


def own_profilers(manifest: Mapping[str, Any]) -> Iterator[OwnProfiler]:
    """Of each rank whose script profiled itself, as far as run.json tells it in full."""
    for entry in manifest.get("ranks") or ():
        told = entry.get("script_profiler")
        told = told if isinstance(told, dict) else {}
        first, last, steps, where = (told.get(key) for key in ("first", "last", "steps", "where"))
        if isinstance(first, int) and isinstance(last, int) and isinstance(steps, int) and 0 <= first <= last:
            yield OwnProfiler(first, last, max(steps, 1), where[:500] if isinstance(where, str) else None)


def profiled_itself_early(manifest: dict[str, Any]) -> bool:
    """Whether a profiler of the program's own was at work where its first window would have recorded."""
    told = [entry.get("script_profiler") for entry in manifest.get("ranks") or ()]
    firsts = [one.get("first") for one in told if isinstance(one, dict)]
    return any(isinstance(first, int) and first < FIRST_STEPS for first in firsts)


def ended_cupti(manifest: Mapping[str, Any]) -> bool:
    """Whether each rank says that CUPTI was ended behind its windows: steps there are undisturbed too."""
    entries = manifest.get("ranks") or ()
    told = [entry.get("detached") for entry in entries]
    known = bool(told) and len(told) >= (manifest.get("world_size") or 1)
    theirs = any(entry.get("script_profiler") for entry in entries)  # which brings CUPTI back
    return known and not theirs and all(isinstance(one, dict) and one.get("done") is True for one in told)


def last_recorded(manifest: Mapping[str, Any]) -> int | None:
    """The last step that torch's profiler recorded in a window; None where no rank says."""
    told = [window.get("steps") for _, window in told_windows(manifest)]
    return max((step for steps in told if isinstance(steps, list) for step in steps if _is_number(step)), default=None)


class CuptiStayed(Struct, frozen=True):
    """Ranks in which CUPTI stayed behind the windows for one reason; None where run.json has none."""

    ranks: tuple[int, ...]
    why_not: str | None


def cupti_stayed(manifest: Mapping[str, Any]) -> tuple[CuptiStayed, ...]:
    """By the reason, in the order of ranks."""
    by_reason: dict[str | None, list[int]] = {}
    for entry in manifest.get("ranks") or ():
        told, rank = entry.get("detached"), entry.get("rank")
        told = told if isinstance(told, dict) else {}
        why_not = told.get("why_not")
        if entry.get("script_profiler"):
            why_not = "the script's own profiler was at work"
        elif told.get("done") is True:
            continue
        if isinstance(rank, int):
            by_reason.setdefault(why_not[:200] if isinstance(why_not, str) else None, []).append(rank)
    return tuple(CuptiStayed(tuple(sorted(ranks)), why) for why, ranks in by_reason.items())


def capture_failures(manifest: dict[str, Any]) -> tuple[CaptureFailure, ...]:
    """Captures that ended early, as run.json tells of them; what cannot be believed is left out."""
    told = manifest.get("failures")
    found = [read_failure(value) for value in told] if isinstance(told, list) else []
    return tuple(failure for failure in found if failure is not None)


def _is_number(step: Any) -> bool:
    return isinstance(step, int) and not isinstance(step, bool) and abs(step) < 1 << 62


def _step_times(value: Any) -> tuple[float | None, ...]:
    return tuple(float(ms) if is_step_time(ms) else None for ms in value) if isinstance(value, list) else ()


def _held(memory: Any) -> Mapping[str, int]:
    told = memory if isinstance(memory, dict) else {}
    found = {name: count(told.get(name)) for name in ("allocated", *HELD)}
    known = {name: size for name, size in found.items() if size is not None}
    return known if len(known) == len(found) else {}
