"""Drives torch.profiler through one window."""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceops.capture.adopted import Adoption
from traceops.capture.collectives import recorded_collectives
from traceops.capture.detaching import Detaching
from traceops.capture.forked_exit import end_forked_processes
from traceops.capture.guard import contained
from traceops.capture.schedule import Phase, Schedule
from traceops.capture.timing import uses_gpu
from traceops.capture.trace_file import TraceFolder
from traceops.core.capture_failure import CaptureOperation

if TYPE_CHECKING:
    from torch.profiler import profile


class OtherThread(Exception):
    """A step ended in another thread than the one that opened torch's profiler, whose own that is."""


class Recorder:
    """Records one window after the other: opened in a window's first warmup step, closed after its last.

    doing: told what comes next, for the record where that fails. detaching: at the end of the last window.
    """

    def __init__(
        self,
        out: Path,
        rank: int,
        schedule: Schedule,
        options: Mapping[str, Any],
        doing: Callable[[CaptureOperation], None],
        detaching: Detaching | None = None,
    ) -> None:
        self._out = out
        self.detaching = detaching
        self._traces = TraceFolder(out / f"rank_{rank}")
        self.schedule = schedule
        self._options = options
        self._doing = doing
        self._profile: profile | None = None
        self._window = 0
        self._trace: str | None = None
        self._ended = False
        self._held: profile | None = None
        self._thread = 0  # that opened; torch's profiler is this thread's own
        self._left: profile | None = None  # open, but only that thread can stop it
        self._scope = ExitStack()

    def adopt(self, window: int) -> Adoption:
        """Wait for the trace of the profiler that this one gives way to, as that window's."""
        return Adoption(self._traces, window)

    @property
    def is_open(self) -> bool:
        return self._profile is not None

    @property
    def has_left(self) -> bool:
        """Whether something is open that only another thread can stop."""
        return self._left is not None

    @property
    def _in_own_thread(self) -> bool:
        """Whether this is the thread that opened, which alone can stop torch's profiler."""
        return threading.get_native_id() == self._thread

    def open(self, step: int, give_way: Callable[[], None]) -> None:
        """Start the profiler where step number `step` begins.

        `give_way` is called just before a profiler of the training's own starts.
        Raises RuntimeError if another profiler is running in this process.
        """
        self._doing(CaptureOperation.START)
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("another profiler is running")
        contained(end_forked_processes)

        def action(number: int) -> ProfilerAction:
            now = max(number, step)  # the constructor asks about 0; every window has a profiler of its own
            if self.schedule.window(now) != self._window:
                return ProfilerAction.NONE
            if self.schedule.phase(now) is Phase.WARMUP:
                return ProfilerAction.WARMUP
            if self.schedule.phase(now) is not Phase.ACTIVE:
                return ProfilerAction.NONE
            ends = self.schedule.ends_window(now)
            return ProfilerAction.RECORD_AND_SAVE if ends else ProfilerAction.RECORD

        self._window = self.schedule.window(step)
        self._thread = threading.get_native_id()  # get_ident passes to the next thread when this one ends
        self._trace = None
        self._ended = False
        activities = [ProfilerActivity.CPU]
        if uses_gpu():
            activities.append(ProfilerActivity.CUDA)
        session = profile(activities=activities, schedule=action, on_trace_ready=self._recorded, **self._options)
        session.step_num = step  # the ProfilerStep# in the trace is the step's number in the training
        try:
            with _without_remark():
                session.start()
                self._profile = session
            self._scope.enter_context(before_other_profilers(session.profiler, give_way))
        except BaseException:
            if self._profile is None:  # stopped where it was not prepared, Kineto crashes
                contained(_end_kineto)
            self.abandon()
            raise

    def step(self) -> None:
        """The step ended; after the window's last one, the trace is written and the recorder closed.

        Raises OtherThread where nothing more can be recorded.
        """
        if self._profile is None:
            return
        self._doing(CaptureOperation.RECORD)
        if not self._in_own_thread:
            self.abandon()
            raise OtherThread
        with self._last_stop():
            self._profile.step()
        if self._ended:
            self.close()

    def _last_stop(self) -> AbstractContextManager[None]:
        step = self._profile.step_num if self._profile is not None else 0
        last = self.schedule.ends_window(step) and self.schedule.phase(step + 1) is Phase.DONE
        return self.detaching.around_stop() if self.detaching is not None and last else nullcontext()

    def close(self, *, keep: bool = True) -> None:
        """Stop now; what was recorded of the window is written, unless it is not to be kept.

        In another thread than the one that opened nothing can be stopped or written.
        """
        session = self._stopped()
        if session is not None and keep:
            self._write(session)

    def hold(self) -> None:
        """Stop now; what was recorded stays in memory until `write_held` or `abandon`."""
        self._held = self._stopped()

    def write_held(self) -> None:
        """Write what `hold` kept."""
        session, self._held = self._held, None
        if session is not None:
            self._write(session)

    def _stopped(self) -> profile | None:
        """The session that was open, if it has something to write."""
        session, self._profile = self._profile, None
        if session is None:
            return None
        self._doing(CaptureOperation.STOP)
        if not self._in_own_thread:
            self._leave(session)
            return None
        try:
            self._scope.close()
        finally:  # once only: Kineto crashes where a session is stopped again that stopped half-way
            try:
                session.stop()
            except BaseException:
                contained(_end_kineto)
                raise
        return session if self._ended else None

    def _write(self, session: profile) -> None:
        path = self._traces.write(session, self._window, self._doing, recorded_collectives())
        self._trace = str(path.relative_to(self._out))

    def abandon(self) -> None:
        """Stop whatever state the profiler is in, write nothing, and raise nothing."""
        session, self._profile = self._profile, None
        self._held = None
        contained(self._scope.close)
        if session is None:
            return
        if not self._in_own_thread:
            self._leave(session)
            return
        try:
            session.stop()
        except Exception:
            contained(_end_kineto)

    def _leave(self, session: profile) -> None:
        """Not stopped here: torch would find no session, and crash where its results are asked for."""
        contained(self._scope.close)
        if self._left is None:
            contained(atexit.register, self.stop_left)
        self._left = session
        self.stop_left()

    def stop_left(self) -> None:
        """Stop what was left open, if its own thread has come: until then it records what that thread does.

        Where that has ended, the process would crash at its end if Kineto still had the session.
        """
        if self._left is None:
            return
        if self._in_own_thread:
            session, self._left = self._left, None
            contained(session.stop)
        elif not Path(f"/proc/self/task/{self._thread}").exists():
            self._left = None
            contained(_end_session)

    def take_trace(self) -> str | None:
        """Path of the window's trace relative to the run folder, if one was written since `open`."""
        trace, self._trace = self._trace, None
        return trace

    def _recorded(self, session: profile) -> None:
        # No more than this: what torch calls here must not fail in the middle of its own bookkeeping.
        self._ended = True


def _end_kineto() -> None:
    """End the process's one session, which is ours, where torch.profiler does not come to it."""
    import torch

    if torch._C._autograd._profiler_enabled():
        _end_session()


def _end_session() -> None:
    import torch

    torch._C._autograd._disable_profiler()


@contextmanager
def _without_remark() -> Iterator[None]:
    """Inside the block torch does not warn that cycles clear events: true, but a window has a profiler of its own.

    Not by a filter: `warnings.catch_warnings` makes Python forget which of the training's own warnings it has shown.
    """
    from torch.autograd import profiler as autograd
    from torch.profiler import profiler

    modules: tuple[Any, ...] = (autograd, profiler)
    saved = [(module, module.warn) for module in modules if hasattr(module, "warn")]

    def heard(warn: Callable[..., None], message: Any, *rest: Any, **options: Any) -> None:
        if "clears events at the end of each cycle" not in str(message):
            warn(message, *rest, **options)

    try:
        for module, warn in saved:
            module.warn = functools.partial(heard, warn)
        yield
    finally:
        for module, warn in saved:
            module.warn = warn


@contextmanager
def before_other_profilers(own: Any, give_way: Callable[[], None]) -> Iterator[None]:
    """Inside the block, call `give_way` just before any of torch's autograd profilers but `own` starts.

    Kineto holds one session a process: without this the training would fail in its own profiler.
    """
    from torch.autograd import profiler

    saved = [(name, getattr(profiler.profile, name)) for name in ("_prepare_trace", "_start_trace")]

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(session: Any, *args: Any, **kwargs: Any) -> Any:
            if session is not own:
                give_way()
            return original(session, *args, **kwargs)

        return method

    try:
        for name, original in saved:
            setattr(profiler.profile, name, guarded(original))
        yield
    finally:
        for name, original in saved:
            setattr(profiler.profile, name, original)
