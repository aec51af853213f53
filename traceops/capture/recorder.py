"""Drives torch.profiler through a window of the schedule, and through the short first window at a program's start."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceops.capture.detaching import Detaching
from traceops.capture.guard import contained, raised_by_a_handler, text
from traceops.capture.schedule import Phase, Schedule
from traceops.capture.threads import native_threads_are_ours
from traceops.capture.timing import Durations, StepTimer, uses_gpu
from traceops.capture.trace_file import Adoption, TraceFolder, recorded_collectives
from traceops.core.capture_failure import FIRST_STEPS, CaptureOperation

if TYPE_CHECKING:
    from torch.profiler import profile

# What a window may record: torch's profiler takes time and memory for each operator when it stops, and the other ranks
# wait in a collective meanwhile, whose process group has a timeout. Measured with torch 2.13 on two shared cores.
_S_PER_OPERATOR, _BYTES_PER_OPERATOR = 0.15e-3, 9_000
MOST_OPERATORS = 300_000
_PART_OF_TIMEOUT = 0.25
_RECORDED_BYTES = 1_500  # of an operator while it is recorded
_MUCH_BYTES = 256 << 20  # by which the process grows in a window for no other reason, as programs go
_PAGE = 4096


class Ceiling:
    """Counts the operators of a window, from where it opens: those that autograd sees, or by the memory they take."""

    def __init__(self) -> None:
        self._counted, self._held = _operators(), _resident_bytes()
        self._recorded = 0

    def step_ended(self, *, recorded: bool) -> str | None:
        """Why the next step must not be recorded; None where it may. recorded: the step was, and no warmup."""
        before, self._counted = self._counted, _operators()
        held, self._held = self._held, _resident_bytes()
        grown = self._held - held
        step = max(self._counted - before, grown // _RECORDED_BYTES if recorded and grown > _MUCH_BYTES else 0)
        self._recorded += step if recorded else 0
        next_one = self._recorded + step
        if next_one <= _most():
            return None
        took_s, took_gb = next_one * _S_PER_OPERATOR, next_one * _BYTES_PER_OPERATOR / 1e9
        return text("window_full", step=step, seconds=took_s, gb=took_gb)


def may_record_early(steps: int) -> bool:
    """Whether so many steps may be recorded after the first one, by all that ran until now."""
    return steps * _operators() <= _most()


def _most() -> int:
    within = contained(_timeout_s)
    return MOST_OPERATORS if within is None else min(MOST_OPERATORS, int(_PART_OF_TIMEOUT * within / _S_PER_OPERATOR))


def _operators() -> int:
    """How many operators autograd has seen in this thread."""
    torch = sys.modules.get("torch")
    count = contained(lambda: torch._C._autograd._get_sequence_nr()) if torch is not None else None
    return count or 0


def _resident_bytes() -> int:
    pages = contained(Path("/proc/self/statm").read_text)
    return 0 if pages is None else int(pages.split()[1]) * _PAGE


def _timeout_s() -> float:
    """Of the default process group. Raises what torch does where there is none."""
    group: Any = sys.modules["torch.distributed.distributed_c10d"]._get_default_group()
    timeout: timedelta = group._get_backend(group._device_types[0]).options._timeout
    return timeout.total_seconds()


_watched = False


def end_forked_processes() -> None:
    """Have processes that the script forks after a window end as they would without us; called once, before the first.

    Kineto, which is in torch's profiler, starts a thread and joins it where the process exits. A forked process does
    not have that thread and would wait for it forever. So its exit ends here: what Python and the script do at an exit
    is done by then, C's files are written, and C and C++ libraries loaded before the fork are not torn down.

    Where the C library has no `on_exit` (it is glibc's), nothing is done.
    """
    global _watched
    if _watched:
        return
    _watched = True
    libc = ctypes.CDLL(None)
    try:
        on_exit, before = libc.on_exit, libc.__cxa_atexit
        end = ctypes.cast(libc._exit, ctypes.c_void_p)
        flush = ctypes.cast(libc.fflush, ctypes.c_void_p)
    except AttributeError:
        return

    # The last that is registered comes first: fflush(NULL), then _exit(status).
    def forked() -> None:
        _exit_in_c.close()
        on_exit(end, None)
        before(flush, None, None)

    os.register_at_fork(after_in_child=lambda: contained(forked))


class _ExitInC:
    """Stops the profiler where C's `exit` ends the process inside a window: torch crashes there (SIGSEGV).

    `exit` begins with what belongs to the thread that calls it, among it the callbacks of torch's profiler. So the stop
    is registered there, and behind torch, as its last entry goes first. Such an entry cannot be taken back, and at a
    normal end Python is gone by then. Therefore it is a call of `__cxa_finalize` with a handle of ours, which calls
    what is registered for that handle: nothing once the window is closed.

    It comes there with each window's close too, where Python is and a signal may be waiting for it. An error out of a
    call from C goes nowhere, and so would Ctrl-C: what is called is C until there is something to stop.

    Only in the main thread, and where the C library is glibc.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        # By text: in a class Python would take two underscores for the class's own.
        names = ("__cxa_thread_atexit_impl", "__cxa_atexit", "__cxa_finalize")
        self._calls = [getattr(libc, name, None) for name in names]
        self._handle = ctypes.create_string_buffer(1)
        self._is_registered = False
        self._stops: list[Callable[[], None]] = []
        self._called = ctypes.CFUNCTYPE(None)(functools.partial(sorted, self._stops, key=self._stop_now))

    def open(self, stop: Callable[[], None]) -> None:
        """Have `stop` called at C's exit until `close`."""
        if threading.current_thread() is not threading.main_thread():
            return
        at_thread_end, at_exit, finalize = self._calls
        if at_thread_end is None or at_exit is None or finalize is None:
            return
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.close)
        # Again, as a new window has callbacks of its own.
        at_thread_end(ctypes.cast(finalize, ctypes.c_void_p), self._handle, None)
        at_exit(self._called, None, self._handle)
        self._stops[:] = [stop]

    def close(self) -> None:
        """Have nothing called any more."""
        finalize = self._calls[-1]
        if self._stops and finalize is not None:
            self._stops.clear()
            finalize(self._handle)

    def _stop_now(self, stop: Callable[[], None]) -> None:
        self._stops.clear()
        contained(stop)


_exit_in_c = _ExitInC()


class OtherThread(Exception):
    """A step ended in another thread than the one that opened torch's profiler, whose own that is."""


class Recorder:
    """Records one window after the other: opened in a window's first warmup step, closed after its last. doing: told
    what comes next, for the record where that fails. detaching: at the end of the last window."""

    def __init__(
        self,
        out: Path,
        rank: int,
        schedule: Schedule,
        options: Mapping[str, Any],
        doing: Callable[[CaptureOperation], None],
        detaching: Detaching | None = None,
    ) -> None:
        self._out, self.detaching = out, detaching
        self._traces = TraceFolder(out / f"rank_{rank}")
        self.schedule, self._options, self._doing = schedule, options, doing
        self._profile: profile | None = None
        self._window = 0
        self._trace: str | None = None
        self._ended = False
        self._held: profile | None = None
        self._thread = 0  # that opened; torch's profiler is this thread's own
        self._ceiling = Ceiling()
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
        """Start the profiler where step number `step` begins. `give_way` is called just before a profiler of the
        training's own starts. Raises RuntimeError if another profiler is running in this process."""
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
        self._ceiling = Ceiling()
        self._thread = threading.get_native_id()  # get_ident passes to the next thread when this one ends
        self._trace = None
        self._ended = False
        activities = [ProfilerActivity.CPU]
        if uses_gpu():
            activities.append(ProfilerActivity.CUDA)
        session = profile(activities=activities, schedule=action, on_trace_ready=self._recorded, **self._options)
        session.step_num = step  # the ProfilerStep# in the trace is the step's number in the training
        try:
            with _without_remark(), native_threads_are_ours(), _without_dispatch_modes():
                session.start()
                self._profile = session
            contained(_exit_in_c.open, self.abandon)
            self._scope.enter_context(before_other_profilers(session.profiler, give_way))
        except BaseException:
            if self._profile is None:  # stopped where it was not prepared, Kineto crashes
                contained(_end_kineto)
            self.abandon()
            raise

    def step(self) -> None:
        """The step ended; after the window's last one, the trace is written and the recorder closed. Raises OtherThread
        where nothing more can be recorded."""
        if self._profile is None:
            return
        self._doing(CaptureOperation.RECORD)
        if not self._in_own_thread:
            self.abandon()
            raise OtherThread
        with self._last_stop(), _without_dispatch_modes():
            self._profile.step()
        if self._ended:
            self.close()

    @property
    def ceiling(self) -> Ceiling | None:
        """Of the window that is open, if one is."""
        return self._ceiling if self._profile is not None else None

    def _last_stop(self) -> AbstractContextManager[None]:
        step = self._profile.step_num if self._profile is not None else 0
        last = self.schedule.ends_window(step) and self.schedule.phase(step + 1) is Phase.DONE
        return self.detaching.around_stop() if self.detaching is not None and last else nullcontext()

    def close(self, *, keep: bool = True) -> None:
        """Stop now; what was recorded of the window is written, unless it is not to be kept. In another thread than the
        one that opened nothing can be stopped or written."""
        if (session := self._stopped()) is not None and keep:
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
        contained(_exit_in_c.close)
        self._doing(CaptureOperation.STOP)
        if not self._in_own_thread:
            self._leave(session)
            return None
        try:
            self._scope.close()
        finally:  # once only: Kineto crashes where a session is stopped again that stopped half-way
            try:
                with _without_dispatch_modes():
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
        contained(_exit_in_c.close)
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
        """Stop what was left open, if its own thread has come: until then it records what that thread does. Where that
        has ended, the process would crash at its end if Kineto still had the session."""
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


def _without_dispatch_modes() -> AbstractContextManager[Any]:
    """Inside the block no TorchDispatchMode of the program's sees operators: the profiler marks steps with some."""
    from torch.utils import _python_dispatch

    modes = getattr(_python_dispatch, "_get_current_dispatch_mode_stack", None)
    if modes is None or not modes():
        return nullcontext()
    return _python_dispatch._disable_current_modes()


_REMARK = "clears events at the end of each cycle"


@contextmanager
def _without_remark() -> Iterator[None]:
    """Inside the block torch does not warn that cycles clear events: true, but a window has a profiler of its own. Not
    by a filter: `warnings.catch_warnings` makes Python forget which of the training's own warnings it has shown."""
    from torch.autograd import profiler as autograd
    from torch.profiler import profiler

    modules: tuple[Any, ...] = (autograd, profiler)
    saved = [(module, module.warn) for module in modules if hasattr(module, "warn")]
    shown: set[str] = getattr(profiler, "_WARNINGS_SHOWN", set())
    before = frozenset(shown)

    def heard(warn: Callable[..., None], message: Any, *rest: Any, **options: Any) -> None:
        if _REMARK not in str(message):
            warn(message, *rest, **options)

    try:
        for module, warn in saved:
            module.warn = functools.partial(heard, warn)
        yield
    finally:
        for module, warn in saved:
            module.warn = warn
        shown -= {text for text in shown - before if _REMARK in text}  # for a profiler of the training's own


@contextmanager
def before_other_profilers(own: Any, give_way: Callable[[], None]) -> Iterator[None]:
    """Inside the block, call `give_way` just before any of torch's autograd profilers but `own` starts. Kineto holds
    one session a process: without this the training would fail in its own profiler."""
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


_START = 1  # step 0 holds the program's start
FIRST = Schedule(skip_first=_START, unprofiled=0, warmup=0, active=FIRST_STEPS - _START)
_DEVICES = ("nvidia[0-9]*", "kfd", "dxg")  # what drivers of GPUs make in /dev


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether this machine shows a GPU; looks at names only, and wakes none."""
    return any(next(devices.glob(name), None) is not None for name in _DEVICES)


@dataclass(frozen=True)
class KeptWindow:
    """What was written: the trace, relative to the run folder, and the whole steps in it."""

    trace: str
    steps: list[int]
    durations: Durations


class FirstWindow:
    """Two steps at a program's start, kept only where the program ends before its schedule does.

    The number of steps of a program is not known. So two are recorded at once and stay in memory. They are written if
    the program ends before its own window holds a whole step, and dropped as soon as that window is complete. Only on
    machines without a GPU: there torch's profiler leaves CUPTI attached after its window, which slows the steps that
    are timed without it (docs/observe.md).

    An error ends only the first window, until it is to be written.
    """

    def __init__(
        self, out: Path, rank: int, options: Mapping[str, Any], doing: Callable[[CaptureOperation], None]
    ) -> None:
        self._recorder = Recorder(out, rank, FIRST, options, doing)
        self._timer: StepTimer | None = None
        self._steps: list[int] = []
        self.is_open = False

    @property
    def steps(self) -> list[int]:
        """The whole steps that it holds."""
        return list(self._steps)

    @property
    def has_left(self) -> bool:
        """See `Recorder`."""
        return self._recorder.has_left

    def stop_left(self) -> None:
        """See `Recorder`."""
        self._recorder.stop_left()

    def step_begins(self, step: int, give_way: Callable[[], None]) -> None:
        """Open, if it is time. give_way: called just before a profiler of the training's own starts. In the main thread
        only: torch's profiler is its thread's, and crashes the process where that has ended."""
        if step != FIRST.skip_first or uses_gpu() or threading.current_thread() is not threading.main_thread():
            return
        if not may_record_early(FIRST.active):
            return
        try:
            self._recorder.open(step, give_way)
            self._timer = StepTimer()
            self.is_open = True
        except Exception as error:
            self._end(error)

    def step_ended(self, step: int) -> None:
        """Count the step if it was recorded; stop behind the last one."""
        if not self.is_open:
            return
        try:
            assert self._timer is not None
            self._timer.mark()
            if not FIRST.ends_window(step):
                self._recorder.step()
            self._steps.append(step)
            if FIRST.ends_window(step):
                self.stop()
        except Exception as error:
            self._end(error)

    def stop(self) -> None:
        """Record no more; what is recorded stays in memory."""
        if self.is_open:
            self.is_open = False
            self._recorder.hold()

    def give_way(self) -> None:
        """A profiler of the training's own starts: the whole steps until now stay."""
        try:
            self.stop()
        except Exception as error:
            self._end(error)

    def keep(self) -> KeptWindow | None:
        """Write what it holds; None where that is no whole step. Raises what writing a trace does."""
        self.stop()
        if not self._steps or self._timer is None:
            return None
        self._recorder.write_held()
        trace = self._recorder.take_trace()
        return None if trace is None else KeptWindow(trace, self._steps, self._timer.durations())

    def drop(self) -> None:
        """Let go of everything, and raise nothing."""
        self.is_open = False
        self._steps = []
        contained(self._recorder.abandon)

    def _end(self, error: Exception) -> None:
        self.drop()
        if raised_by_a_handler(error):
            raise error
