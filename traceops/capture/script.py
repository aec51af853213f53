"""Runs a script that knows nothing of traceops under a capture; `as_script.py` starts it."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from traceops.capture.folder import record_exit
from traceops.capture.guard import contained, describe, is_peer_failure, say
from traceops.capture.progress import print_to_launcher
from traceops.capture.responder import responder_of
from traceops.capture.run_as_main import run_as_main
from traceops.capture.session import Capture
from traceops.capture.settings import IMPORTS_ENV, CaptureSettings, from_environment, keep_to_this_process
from traceops.capture.steps import on_training_step
from traceops.core.capture_failure import CaptureOperation
from traceops.core.errors import UsageError

_USAGE = "usage: python as_script.py SCRIPT [ARGS…] | -m MODULE [ARGS…]"
_HERE = f"{Path(__file__).parent}{os.sep}"


def run_and_end(argv: Sequence[str], loaded: frozenset[str]) -> NoReturn:
    """Run ``SCRIPT [ARGS…]`` or ``-m MODULE [ARGS…]``, and end the process, as Python would: of an uncaught Ctrl-C by
    SIGINT, behind all that runs at the end. loaded: modules that were there before ours."""
    code, error = run(argv, loaded)
    if isinstance(error, KeyboardInterrupt):
        sys.excepthook = lambda *_told: None  # it is on stderr already
        raise error
    sys.exit(code)


def run(argv: Sequence[str], loaded: frozenset[str]) -> tuple[int, BaseException | None]:
    """The exit code, and what the program ended with, None where it ended well."""
    if not argv or argv == ["-m"]:
        print(_USAGE, file=sys.stderr)
        return 2, None
    session: Capture | None = None
    contained(_print_to_launcher)
    contained(keep_to_this_process, os.environ)
    try:
        settings = from_environment(CaptureSettings())
        if settings.out is None and os.environ.get("WORLD_SIZE", "1") == "1":
            name = Path(argv[1] if argv[0] == "-m" else argv[0]).stem
            settings = replace(settings, out=f"profile/{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        session = Capture(settings, automatic=True).__enter__()
    except UsageError as refused:
        print(f"traceops: {refused}", file=sys.stderr)
        return refused.exit_code, None
    except Exception as trouble:  # before there is a guard; the script runs all the same
        say(f"nothing is captured: {describe(trouble)}")
    responder = None
    if session is not None:
        responder = session.guard.run(CaptureOperation.ANSWER, responder_of, session.settings)
        session.guard.run(CaptureOperation.HOOK, _watch_steps, session)
    code = 0
    error: BaseException | None = None
    try:
        run_as_main(argv, loaded)
    except SystemExit as leaving:
        if leaving.code is None:
            code = 0
        elif isinstance(leaving.code, int):
            code = leaving.code & 0xFF
        else:
            print(leaving.code, file=sys.stderr)  # sys.exit("message") prints it and means 1
            code = 1
        error = leaving if code else None
    except KeyboardInterrupt as interrupted:
        code, error = 128 + signal.SIGINT, interrupted
        traceback.print_exception(_own_traceback(interrupted))
    except BaseException as failure:  # reported as Python itself would; the code is the script's own
        code, error = 1, failure
        own = _own_traceback(failure)
        sys.excepthook(type(own), own, own.__traceback__)
        if responder is not None and is_peer_failure(describe(failure)):
            contained(responder.save)  # what it waited in tells who did not come
    if session is not None:
        with _no_interrupt():
            session.close(error)
        reason = None if error is None else describe(error)
        session.guard.run(CaptureOperation.MANIFEST, record_exit, session.out, session.settings, code, reason)
    if os.environ.get(IMPORTS_ENV):
        contained(_record_imports, Path(os.environ[IMPORTS_ENV]))
    return code, error


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C pass: a rank that ends as its peer did gets the launcher's while its trace is written."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _frame: signal.signal(number, before))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _print_to_launcher() -> None:
    if (progress := from_environment(CaptureSettings()).progress) is not None:
        print_to_launcher(Path(progress), os.environ)


def _watch_steps(session: Capture) -> None:
    boundary = on_training_step(session.step, session.guard, session.skipped, session.settings.step_on, session.passed)
    session.on_failure(boundary.remove)
    session.ends_of_steps = boundary.ends


def _own_traceback(error: BaseException) -> BaseException:
    """`error`, and those that led to it, as Python itself would show them: without our frames. Where the last frames
    are ours, the error is too, and they stay."""
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        frames, trace = [], one.__traceback__
        while trace is not None:
            frames.append(trace)
            trace = trace.tb_next
        raised = next((i for i in range(len(frames), 0, -1) if not _is_ours(frames[i - 1])), 0)
        kept = [frame for i, frame in enumerate(frames) if not _is_ours(frame) or i >= raised > 0]
        for frame, following in zip(kept, [*kept, None][1:], strict=True):
            frame.tb_next = following
        one.__traceback__ = kept[0] if kept else None
        one = one.__cause__ or one.__context__
    return error


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_HERE)


def _record_imports(folder: Path) -> None:
    """Leave in `folder` a file that names the file of every module that this process has loaded."""
    # Not getattr: some packages put objects there that import on every look.
    found = [vars(module).get("__file__") for module in sys.modules.values() if isinstance(module, ModuleType)]
    names = sorted({str(Path(name).absolute()) for name in found if isinstance(name, str)})
    (folder / f"{os.getpid()}.txt").write_text("".join(f"{name}\n" for name in names))
