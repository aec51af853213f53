"""Why a rank's capture ended before it was complete: the record in run.json, and its words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from errno import errorcode
from typing import Any

from traceops.core.units import size_text


class CaptureOperation(str, Enum):
    """What the capture was doing; EXIT: nothing, the process ended itself in the middle of it."""

    PREPARE = "prepare"
    HOOK = "hook"
    TIME = "time"
    START = "start"
    RECORD = "record"
    STOP = "stop"
    ROOM = "room"
    EXPORT = "export"
    COMPRESS = "compress"
    MANIFEST = "manifest"
    HEARTBEAT = "heartbeat"
    ANSWER = "answer"
    EXIT = "exit"


_DOING: Mapping[str, str] = {
    CaptureOperation.PREPARE: "while it was set up",
    CaptureOperation.HOOK: "while it watched the optimizers",
    CaptureOperation.TIME: "while it timed the steps",
    CaptureOperation.START: "while it started the profiler",
    CaptureOperation.RECORD: "while it recorded",
    CaptureOperation.STOP: "while it stopped the profiler",
    CaptureOperation.ROOM: "before it wrote the trace",
    CaptureOperation.EXPORT: "while it wrote the trace",
    CaptureOperation.COMPRESS: "while it compressed the trace",
    CaptureOperation.MANIFEST: "while it wrote its manifest",
    CaptureOperation.HEARTBEAT: "while it told the launcher of a step",
    CaptureOperation.ANSWER: "while it got ready for the launcher's questions",
}
_MOST_TEXT = 300  # of an error's message: a record has to fit into one write to a pipe


@dataclass(frozen=True)
class CaptureFailure:
    """What ended the capture of `rank` in step number `step`. operation: see `CaptureOperation`. error, message: class
    and text of the exception. errno: its name (ENOSPC), if any. needed_bytes, free_bytes: room on the disk, where it
    was too small. exit_code: of a process that ended itself."""

    rank: int
    operation: str
    step: int
    error: str | None = None
    message: str | None = None
    errno: str | None = None
    needed_bytes: int | None = None
    free_bytes: int | None = None
    exit_code: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @property
    def no_space(self) -> bool:
        """Whether the disk, or what this user may have of it, is full."""
        return self.errno in ("ENOSPC", "EDQUOT")


def failure_of(rank: int, operation: CaptureOperation, step: int, error: BaseException) -> CaptureFailure:
    """The record of an exception."""
    message, name = str(error), None
    if isinstance(error, OSError) and error.errno is not None:
        name = errorcode.get(error.errno)
        message = error.strerror or message
    return CaptureFailure(
        rank, operation.value, step, type(error).__name__, message[:_MOST_TEXT] or None, name,
        getattr(error, "needed_bytes", None), getattr(error, "free_bytes", None),
    )  # fmt: skip


def read_failure(value: object) -> CaptureFailure | None:
    """The record that `value`, part of a manifest, holds; None where it is none, or cannot be believed."""
    if not isinstance(value, Mapping):
        return None
    numbers = {"rank", "step", "needed_bytes", "free_bytes", "exit_code"}
    needed = {"rank", "operation", "step"}
    kept: dict[str, Any] = {}
    for field in fields(CaptureFailure):
        item = value.get(field.name)
        right = type(item) is int if field.name in numbers else isinstance(item, str)
        if right:
            kept[field.name] = item
        elif item is not None or field.name in needed:
            return None
    return CaptureFailure(**kept)


def steps_unseen(failure: CaptureFailure) -> bool:
    """Whether the launcher hears of this rank's steps no more."""
    return failure.operation in (CaptureOperation.PREPARE, CaptureOperation.HOOK, CaptureOperation.HEARTBEAT)


def cause_text(failure: CaptureFailure) -> str:
    """What went wrong, as in "no space left on device while it wrote the trace, in step 14"."""
    where = f"in step {failure.step}"
    if failure.operation == CaptureOperation.EXIT:
        if failure.exit_code is None:
            return f"the process was gone while it was being captured, {where}; how it ended is not known"
        return f"the process ended itself with exit code {failure.exit_code} while it was being captured, {where}"
    doing = _DOING.get(failure.operation, "")
    what = failure.message or failure.error or "an unknown error"
    if failure.no_space:
        what = "no space left on device"
        if failure.needed_bytes is not None and failure.free_bytes is not None:
            what += f" (needs about {size_text(failure.needed_bytes)}, {size_text(failure.free_bytes)} free)"
    elif failure.errno is None and failure.error is not None and failure.message is not None:
        what = f"{failure.error}: {what}"
    return f"{what} {doing}, {where}" if doing else f"{what}, {where}"


def advice_text(failure: CaptureFailure) -> str:
    """What to do about it."""
    if failure.operation == CaptureOperation.EXIT:
        return (
            f"os._exit, {'SIGKILL, ' if failure.exit_code is None else ''}or an exit in compiled code, runs no "
            "clean-up, so the trace is lost: end the script after the recorded steps, or record earlier ones with a "
            "lower --skip-first, --unprofiled, --warmup or --active"
        )
    if failure.no_space:
        return "free some space there, choose another --out, or record less: a lower --active, no --with-stack"
    if failure.errno in ("EACCES", "EPERM", "EROFS"):
        return "get permission to write there, or choose another --out"
    return "repeat the run; if it fails again, please report it with run.json"


def by_cause(failures: Sequence[CaptureFailure]) -> list[tuple[list[int], CaptureFailure]]:
    """Ranks to which the same happened, and one of their records."""
    groups: dict[str, tuple[list[int], CaptureFailure]] = {}
    for failure in sorted(failures, key=lambda one: one.rank):
        groups.setdefault(cause_text(failure), ([], failure))[0].append(failure.rank)
    return list(groups.values())


# What a schedule that is too long gives up first, and how many steps it keeps of it.
_GIVEN_UP = (
    ("unprofiled", 2), ("warmup", 1), ("skip_first", 1), ("active", 2),
    ("unprofiled", 0), ("skip_first", 0), ("active", 1), ("warmup", 0),
)  # fmt: skip
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
    """For a `schedule` as run.json has it, in a program of so many steps. None where it was complete, where nothing
    fits, or where this is no schedule."""
    if (phases := _phases(schedule)) is None or steps < 1 or (needed := sum(phases.values())) <= steps:
        return None
    for name, least in _GIVEN_UP:
        excess = sum(phases.values()) - steps
        if excess > 0:
            phases[name] = max(min(phases[name], least), phases[name] - excess)
    flags = " ".join(f"--{name.replace('_', '-')} {phases[name]}" for name in _PHASES)
    return ShorterSchedule(needed, phases["active"], flags)


def steps_needed(schedule: Any) -> int | None:
    """After how many steps the last window of a `schedule` as run.json has it is complete; None where it is none."""
    if (phases := _phases(schedule)) is None:
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
    """Whether the steps that were `recorded` are a program's first ones, and the `schedule` has its window later. Those
    are a first window, or of a profiler of the program's own."""
    return bool(recorded) and max(recorded) < FIRST_STEPS and any_before_window(schedule, [max(recorded)])


def any_before_window(schedule: Any, steps: Any) -> bool:
    """Whether one of these numbers of steps lies before the first window of a `schedule` as run.json has it."""
    if (phases := _phases(schedule)) is None or not isinstance(steps, Collection):
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


UNSEEN_STEPS_ADVICE = (
    "mark the steps in the script with traceops.capture and profile.step(), or count the model's calls with "
    "--step-on forward; parameters that are updated by hand, and optimizers that are not torch's (Keras's, JAX's), "
    "end no step that is seen"
)
