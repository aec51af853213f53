"""`traceops capture`: has the ranks of a run that is going on record a window, all from the same step on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
from msgspec import Struct

from traceops.capture.later_windows import LaterWindow, ask
from traceops.capture.manifest import readable_ranks
from traceops.capture.progress import Progress
from traceops.capture.schedule import Schedule
from traceops.core.errors import UsageError
from traceops.core.files import write_whole
from traceops.core.run_lock import in_use
from traceops.launch.second_window import SecondWindow, Why

REQUEST, ANSWER = "capture.request.json", "capture.window.json"  # in the run folder, while the run goes on
_LOOK_EVERY_S = 1.0
_AHEAD_S = 3.0  # until then each rank has looked, whatever its launcher and the file system take
_LEAST_AHEAD = 2  # steps: a rank may be a step ahead of what its heartbeat says
_REASONS = {
    Why.SLOWER: "steps have become shorter since the first window",
    Why.COMPILED: "the first window recorded compilations",
    Why.INTERRUPTED: "a step as long as in the first window comes only now and then (evaluation, a checkpoint)",
}


class Request(Struct, frozen=True):
    """How many steps to warm up and to record, and whether with memory; `id` tells one request from another."""

    id: str
    warmup: int = 2
    active: int = 4
    with_memory: bool = False


class OnDemand:
    """A launcher's part: asks its ranks. That of rank 0's node chooses the step, the others do as it says.

    out: run folder. progress: the folder of this node's heartbeats. say: tells the user.
    """

    def __init__(self, out: Path, progress: Path, say: Callable[[str], None]) -> None:
        self._out, self._progress, self._say = out, progress, say
        self._next = 0.0
        self._before: tuple[float, int] | None = None
        self._answered: int | None = None  # inode of the last answer
        self._number = self._free_from = 0  # of the next window, and the first step that none has
        self._signalled = False
        self._second = SecondWindow(out)

    def signalled(self) -> None:
        """SIGUSR2 came, to which no rank listens: a window of the usual size."""
        self._signalled = True

    def look(self, records: Sequence[Progress]) -> None:
        """Do what was asked since the last look, if that is a second ago. Raises OSError."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK_EVERY_S
        step = max((record.step for record in records), default=0)
        per_s = 0.0
        if self._before is not None:
            per_s = (step - self._before[1]) / (now - self._before[0])
        self._before = now, step
        if all(record.rank for record in records):
            self._follow()
        elif (request := self._request()) is not None:
            self._second.close()
            self._answer(request, step + _ahead(per_s))
        elif (unlike := self._second.due(step)) is not None:
            request, start = Request("second"), max(step + _ahead(per_s), self._free_from)
            if unlike.rhythm is not None:
                start = unlike.rhythm.free_from(start, request.warmup + request.active)
            self._answer(request, start, unlike.why)

    def close(self) -> None:
        """Nobody is asked any more."""
        for name in (REQUEST, ANSWER):
            (self._out / name).unlink(missing_ok=True)

    def _request(self) -> Request | None:
        path = self._out / REQUEST
        if path.exists():
            try:
                return Request(**json.loads(path.read_bytes()))
            except (ValueError, TypeError):
                path.unlink(missing_ok=True)
        return Request("signal") if self._signalled else None

    def _answer(self, request: Request, start: int, why: Why | None = None) -> None:
        ranks, _ = readable_ranks(self._out)
        taken = [rank.schedule.get("repeat", 1) for rank in ranks]
        taken += [window.index + 1 for rank in ranks for window in rank.windows]
        self._number = max([self._number, *taken])
        self._free_from = max([self._free_from, *(Schedule(**rank.schedule).total_steps for rank in ranks)])
        start = max(start, self._free_from)
        window = LaterWindow(self._number, start, request.warmup, request.active, request.with_memory)
        if why is not None:
            window = replace(window, why=why.value)
        self._number, self._free_from = self._number + 1, window.end
        ask(self._progress, window)
        write_whole(self._out / ANSWER, json.dumps({"id": request.id, **asdict(window)}).encode())
        (self._out / REQUEST).unlink(missing_ok=True)
        self._signalled = False
        told = "" if why is None else f": {_REASONS[why]}"
        self._say(
            f"window {window.number} is requested: {request.active} steps, "
            f"from step {window.end - window.active} on{told}"
        )

    def _follow(self) -> None:
        """Ask this node's ranks for what the first node's launcher chose."""
        path = self._out / ANSWER
        try:
            inode = path.stat().st_ino
        except FileNotFoundError:
            return
        if inode != self._answered:
            self._answered = inode
            told = json.loads(path.read_bytes())
            told.pop("id", None)
            ask(self._progress, LaterWindow(**told))


def _ahead(per_s: float) -> int:
    return max(_LEAST_AHEAD, math.ceil(per_s * _AHEAD_S))


class Recorded(Struct, frozen=True):
    """What came of a request: the steps of each rank that has recorded the window, and how many ranks there are."""

    window: int
    steps: dict[int, list[int]]
    ranks: int


def request_window(out: Path, request: Request) -> None:
    """Ask the launcher of the run in `out`. Raises UsageError where no run goes on there, or it cannot be asked."""
    if not in_use(out):
        raise UsageError(
            f"no run is active in {out}; give the folder of a run that traceops run started, on a machine that sees "
            "that folder"
        )
    try:
        write_whole(out / REQUEST, json.dumps(msgspec.to_builtins(request)).encode())
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written ({error.strerror}); ask as the user that runs the training"
        ) from error


def answer_to(out: Path, request: Request, wait_s: float = 10.0) -> LaterWindow:
    """The window that the launcher chose. Raises UsageError where none answers within `wait_s`."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            told = json.loads((out / ANSWER).read_bytes())
            if told.pop("id", None) == request.id:
                return LaterWindow(**told)
        except (OSError, ValueError, TypeError):
            pass
        if not in_use(out):
            raise UsageError(f"the run in {out} ended before the request reached it")
        time.sleep(0.1)
    (out / REQUEST).unlink(missing_ok=True)
    raise UsageError(
        f"the launcher of {out} did not answer within {wait_s:.0f} s: no rank has begun its first step, or rank 0 runs "
        "on a machine that does not see this folder. Ask again on that machine"
    )


def recorded(out: Path, window: int) -> Recorded:
    """Who has recorded the window so far."""
    ranks, _ = readable_ranks(out)
    steps = {
        rank.rank: kept.steps
        for rank in ranks
        for kept in rank.windows
        if kept.index == window and kept.trace is not None
    }
    return Recorded(window, steps, max((rank.world_size for rank in ranks), default=0))
