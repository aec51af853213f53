"""Drives torch.profiler through one window and writes its trace, whole, under its final name."""

from __future__ import annotations

import functools
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceops.capture.environment import host
from traceops.capture.schedule import Phase, Schedule
from traceops.capture.timing import uses_gpu

if TYPE_CHECKING:
    from torch.profiler import profile


class Recorder:
    """Records one window after the other: opened in a window's first warmup step, closed after its last."""

    def __init__(self, out: Path, rank: int, schedule: Schedule, options: Mapping[str, Any]) -> None:
        self._out = out
        self._rank = rank
        self._schedule = schedule
        self._options = options
        self._profile: profile | None = None
        self._window = 0
        self._trace: str | None = None
        self._ended = False
        self._keep = True
        self._scope = ExitStack()

    @property
    def is_open(self) -> bool:
        return self._profile is not None

    def open(self, step: int, give_way: Callable[[], None]) -> None:
        """Start the profiler where step number `step` begins.

        `give_way` is called just before a profiler of the training's own starts.
        Raises RuntimeError if another profiler is running in this process.
        """
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("another profiler is running")

        def action(number: int) -> ProfilerAction:
            now = max(number, step)  # the constructor asks about 0; every window has a profiler of its own
            if self._schedule.window(now) != self._window:
                return ProfilerAction.NONE
            if self._schedule.phase(now) is Phase.WARMUP:
                return ProfilerAction.WARMUP
            if self._schedule.phase(now) is not Phase.ACTIVE:
                return ProfilerAction.NONE
            ends = self._schedule.ends_window(now)
            return ProfilerAction.RECORD_AND_SAVE if ends else ProfilerAction.RECORD

        self._window = self._schedule.window(step)
        self._trace = None
        self._ended = False
        activities = [ProfilerActivity.CPU]
        if uses_gpu():
            activities.append(ProfilerActivity.CUDA)
        session = profile(
            activities=activities, schedule=action, on_trace_ready=self._export, **self._options
        )
        session.step_num = step  # the ProfilerStep# in the trace is the step's number in the training
        with warnings.catch_warnings():
            # True of cycles; a window has a profiler of its own, so nothing is cleared.
            warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
            session.start()
        self._profile = session
        self._scope.enter_context(_before_other_profilers(session, give_way))

    def step(self) -> None:
        """The step ended; after the window's last one, the trace is written and the recorder closed."""
        if self._profile is None:
            return
        self._profile.step()
        if self._ended:
            self.close()

    def close(self) -> None:
        """Stop now; what was recorded of the window is written."""
        session, self._profile = self._profile, None
        if session is not None:
            self._scope.close()
            session.stop()

    def take_trace(self) -> str | None:
        """Path of the window's trace relative to the run folder, if one was written since `open`."""
        trace, self._trace = self._trace, None
        return trace

    def discard(self) -> None:
        """Stop now and keep nothing of the window."""
        self._keep = False
        self.close()

    def _export(self, session: profile) -> None:
        self._ended = True
        if not self._keep:
            return
        folder = self._out / f"rank_{self._rank}"
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{host()}_{os.getpid()}.window_{self._window}.{time.time_ns() // 1_000_000}"
        final = folder / f"{stem}.pt.trace.json.gz"
        plain, packed = folder / f".{stem}.json.part", folder / f".{stem}.gz.part"
        try:
            session.export_chrome_trace(str(plain))
            _compress(plain, packed)
            packed.replace(final)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
        self._trace = str(final.relative_to(self._out))


def _compress(source: Path, target: Path) -> None:
    # The other ranks wait while this one writes: isal packs several times faster than zlib. A training
    # machine that runs from a checkout may lack it.
    try:
        from isal import igzip as packer
    except ImportError:
        import gzip as packer

    with source.open("rb") as reader, packer.open(target, "wb", compresslevel=1) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)


@contextmanager
def _before_other_profilers(own: profile, give_way: Callable[[], None]) -> Iterator[None]:
    """Inside the block, call `give_way` just before any profiler but `own` starts.

    Kineto holds one session a process: without this the training would fail in its own profiler.
    """
    from torch.autograd import profiler

    saved = {name: getattr(profiler.profile, name) for name in ("_prepare_trace", "_start_trace")}

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(session: Any, *args: Any, **kwargs: Any) -> Any:
            if session is not own.profiler:
                give_way()
            return original(session, *args, **kwargs)

        return method

    for name, original in saved.items():
        setattr(profiler.profile, name, guarded(original))
    try:
        yield
    finally:
        for name, original in saved.items():
            setattr(profiler.profile, name, original)
