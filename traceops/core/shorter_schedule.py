"""Which schedule of a capture would have been complete in a program that ended before the one it had."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

# What a schedule that is too long gives up first, and how many steps it keeps of it.
_GIVEN_UP = (
    ("unprofiled", 2),
    ("warmup", 1),
    ("skip_first", 1),
    ("active", 2),
    ("unprofiled", 0),
    ("skip_first", 0),
    ("active", 1),
    ("warmup", 0),
)
_PHASES = ("skip_first", "unprofiled", "warmup", "active")
_MOST = 1 << 31
FIRST_STEPS = 3  # steps of a program that its first window takes, with the one that holds its start


@dataclass(frozen=True)
class ShorterSchedule:
    """A schedule that fits. needed: steps that the one before it takes. flags: it as options of `traceops run`."""

    needed: int
    active: int
    flags: str


def shorter_schedule(schedule: Any, steps: int) -> ShorterSchedule | None:
    """For a `schedule` as run.json has it, in a program of so many steps.

    None where it was complete, where nothing fits, or where this is no schedule.
    """
    phases = _phases(schedule)
    if phases is None or steps < 1 or (needed := sum(phases.values())) <= steps:
        return None
    for name, least in _GIVEN_UP:
        excess = sum(phases.values()) - steps
        if excess > 0:
            phases[name] = max(min(phases[name], least), phases[name] - excess)
    flags = " ".join(f"--{name.replace('_', '-')} {phases[name]}" for name in _PHASES)
    return ShorterSchedule(needed, phases["active"], flags)


def steps_needed(schedule: Any) -> int | None:
    """After how many steps the last window of a `schedule` as run.json has it is complete; None where it is none."""
    phases = _phases(schedule)
    if phases is None:
        return None
    repeat = schedule.get("repeat", 1)
    windows = repeat if isinstance(repeat, int) and 1 <= repeat < _MOST else 1
    return phases["skip_first"] + windows * (sum(phases.values()) - phases["skip_first"])


def timed_before_first(schedule: Any) -> int | None:
    """How many steps a `schedule` as run.json has it times before its first window; None where it is none."""
    phases = _phases(schedule)
    return None if phases is None else phases["unprofiled"]


def counted(steps: int) -> str:
    """'1 step' or '8 steps'."""
    return "1 step" if steps == 1 else f"{steps} steps"


def only_first_steps(schedule: Any, recorded: Collection[int]) -> bool:
    """Whether the steps that were `recorded` are a program's first ones, and the `schedule` has its window later.

    Those are a first window, or of a profiler of the program's own.
    """
    return bool(recorded) and max(recorded) < FIRST_STEPS and any_before_window(schedule, [max(recorded)])


def any_before_window(schedule: Any, steps: Any) -> bool:
    """Whether one of these numbers of steps lies before the first window of a `schedule` as run.json has it."""
    phases = _phases(schedule)
    if phases is None or not isinstance(steps, Collection):
        return False
    begin = sum(n for name, n in phases.items() if name != "active")
    return any(isinstance(step, int) and 0 <= step < begin for step in steps)


def _phases(schedule: Any) -> dict[str, int] | None:
    if not isinstance(schedule, Mapping):
        return None
    phases = {name: schedule.get(name) for name in _PHASES}
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _MOST for n in phases.values()):
        return None
    return {name: int(n or 0) for name, n in phases.items()}
