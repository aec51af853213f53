"""The capture of a process that nobody told that it is a rank: it opens where the first training step ends.

Under ``traceops run --launcher none`` the command starts the ranks itself. `joining/sitecustomize.py` calls `join` in
each of its Python processes that loads torch's optimizers.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from traceops.capture.folder import is_first, record_exit, who_am_i
from traceops.capture.guard import Guard, contained, describe, say
from traceops.capture.responder import responder_of
from traceops.capture.session import Capture, capture_here
from traceops.capture.settings import CaptureSettings, from_environment
from traceops.capture.steps import on_training_step
from traceops.core.capture_failure import CaptureOperation

_joined: _Joined | None = None
_forks_watched = False


def join(settings: CaptureSettings | None = None) -> None:
    """Have the capture open in this process with its first training step, and in processes that are forked from it.
    settings: those of the launcher where none are given."""
    global _joined, _forks_watched
    _joined = _Joined(settings or _settings_here())
    if not _forks_watched:
        os.register_at_fork(after_in_child=lambda: contained(_forked))
        _forks_watched = True


def leave() -> None:
    """End what `join` began in this process; its ranks are done."""
    global _joined
    joined, _joined = _joined, None
    if joined is not None:
        joined.stop()
        joined.close()


def _forked() -> None:
    """A process that is forked from a rank is one of its helpers, else it may become a rank."""
    global _joined
    if _joined is not None and not _joined.opened:
        _joined.stop()
        _joined = _Joined(_joined.settings)


def _settings_here() -> CaptureSettings:
    """Those of the launcher; without its folder for heartbeats on a machine that it is not on."""
    settings = from_environment(CaptureSettings())
    if settings.progress is not None and not Path(settings.progress).is_dir():
        settings = replace(settings, progress=None, evidence=None)
    return settings


class _Joined:
    """This process, once it ends a training step."""

    def __init__(self, settings: CaptureSettings) -> None:
        self.settings = settings
        self._capture: Capture | None = None
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self.opened = False
        self._guard = Guard(lambda operation, error: say(f"nothing is captured: {describe(error)}"))
        self._boundary = on_training_step(self._stepped, self._guard, self._skipped, settings.step_on)
        self.stop = self._boundary.remove

    def _stepped(self) -> None:
        if self._capture is not None:
            self._capture.step()
        elif not self.opened:
            self.opened = True
            self._open()

    def _skipped(self) -> None:
        if self._capture is not None:
            self._capture.skipped()

    def _open(self) -> None:
        rank = who_am_i().rank
        if capture_here() is not None or not is_first(Path(str(self.settings.out)), rank):
            self.stop()
            return
        session = Capture(self.settings, automatic=True)
        session.__enter__()
        session.guard.run(CaptureOperation.ANSWER, responder_of, self.settings)
        session.on_failure(self.stop)
        session.ends_of_steps = self._boundary.ends
        self._capture = session
        self._at_the_end()
        session.step()  # the step that has just ended

    def _at_the_end(self) -> None:
        """Close the capture however the process ends; a child of multiprocessing leaves Python's `atexit` out."""
        from multiprocessing import parent_process, util

        if parent_process() is None:
            atexit.register(self.close)
        else:
            util.Finalize(None, self.close, exitpriority=100)
        before = sys.excepthook

        def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._error = error
            before(kind, error, trace)

        sys.excepthook = failed

    def close(self) -> None:
        """End the capture; does nothing where none is open, or in a process that was forked since."""
        if self._capture is None or os.getpid() != self._pid:
            return
        session, self._capture = self._capture, None
        session.close(self._error)
        if self._error is not None:
            # As Python ends of them; what sys.exit was given is not told here.
            code = 128 + signal.SIGINT if isinstance(self._error, KeyboardInterrupt) else 1
            reason = describe(self._error)
            session.guard.run(CaptureOperation.MANIFEST, record_exit, session.out, session.settings, code, reason)
