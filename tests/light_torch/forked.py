"""Ranks that are forked from a process that has loaded torch, where each would load it again.

`install` has `subprocess` fork where it would execute the same Python with variables that make the same of it. What
`execve` and the start of Python do to a process is done here: descriptors, signals, variables, arguments, path,
standard streams and ``__main__``. tests/test_started.py holds the two ways together.
"""

import atexit
import ctypes
import gc
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

# What Python, torch and their libraries read while they are loaded, but for what torch.distributed.run sets for ranks.
_READ_WHEN_LOADED = ("PYTHON", "OMP_", "KMP_", "MKL_", "GOMP_", "LD_", "LC_", "LANG", "KINETO_", "TORCH_")
_READ_LATER = ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)
_UNSET = (None, -1, True)

_at_start = dict(os.environb)
_path = list(sys.path)


def install(*ways):
    """Have `subprocess` try these before it executes a program. Returns what undoes it.

    A way gets words, variables (NAME=VALUE, or None for our own), the three standard descriptors (-1: ours) and whether
    the process leads a session, and returns its pid, or None where it has to be executed.
    """
    holder, name = subprocess, "_fork_exec"
    if not hasattr(holder, name):  # Python 3.10
        holder, name = subprocess._posixsubprocess, "fork_exec"
    execute = getattr(holder, name)

    def fork_or_execute(args, programs, close_fds, keep, folder, env, *others):
        descriptors, (_, new_session, *rest) = others[:8], others[8:]
        if close_fds and folder is None and len(keep) == 1 and all(one in _UNSET for one in rest):
            asked = (
                list(map(os.fsdecode, args)),
                env,
                (descriptors[0], descriptors[3], descriptors[5]),
                new_session,
            )
            for way in ways:
                if pid := way(*asked):
                    return pid
        return execute(args, programs, close_fds, keep, folder, env, *others)

    setattr(holder, name, fork_or_execute)
    return lambda: setattr(holder, name, execute)


def itself(words, env, standard, new_session):
    """Forks this process, if it has loaded torch."""
    if "torch" not in sys.modules or not _same_python(words, env):
        return None
    pid = os.fork()
    if not pid:
        become(words, env, standard, new_session)
    return pid


def _same_python(words, env):
    """Whether this process can become what these words and variables (NAME=VALUE) would start."""
    words = [word for number, word in enumerate(words) if (number, word) != (1, "-u")]
    if (
        words[0] != sys.executable or len(words) < 2 or words[1:3] == ["-m", "traceops"]
    ):  # whose start loads no torch
        return False
    if words[1] != "-m" and not Path(words[1]).is_file():
        return False
    return env is None or read_when_loaded(variables(env)) == read_when_loaded(_at_start)


def variables(env):
    return dict(one.split(b"=", 1) for one in env)


def read_when_loaded(variables):
    names = tuple(map(os.fsencode, _READ_WHEN_LOADED))
    later = set(map(os.fsencode, _READ_LATER))
    found = {name: value for name, value in variables.items() if name.startswith(names) and name not in later}
    folders = dict.fromkeys(
        found.get(b"PYTHONPATH", b"").split(os.fsencode(os.pathsep))
    )  # as sys.path, each once
    return {**found, b"PYTHONPATH": tuple(folders)}


def become(args, env, standard, new_session):
    """In the child, which ends here."""
    code = 70
    try:
        gc.freeze()  # what was there before stays where it is
        if new_session:
            os.setsid()
        _take_descriptors(*standard)
        if env is not None:
            os.environb.clear()
            os.environb.update(variables(env))
        _reset_signals()
        for callback in list(weakref.finalize._registry):
            callback.detach()  # of the launcher's temporary folders
        sys.orig_argv = list(args)
        _show_arguments(args)
        unbuffered = args[1] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
        _open_streams(unbuffered)
        code = _run(args[2:] if args[1] == "-u" else args[1:])
    finally:
        os._exit(code)


def _show_arguments(args):
    """In /proc/self/cmdline, which is a piece of this process's memory, where they have room there."""
    try:
        begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    except (OSError, ValueError):
        return
    text = b"".join(os.fsencode(word) + b"\0" for word in args)
    if len(text) <= end - begin:
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _take_descriptors(*wanted):
    """`wanted` as 0, 1 and 2, where they are not -1; all others are closed."""
    safe = [fd if fd < 0 else os.dup(fd) for fd in wanted]  # none of them is below 3, or already in its place
    for number, fd in enumerate(safe):
        if fd >= 0:
            os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _reset_signals():
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _open_streams(unbuffered):
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, f"__{name}__")
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        raw.name = f"<{name}>"
        buffered = io.BufferedWriter if number else io.BufferedReader
        buffer = raw if unbuffered and number else buffered(raw)
        stream = io.TextIOWrapper(
            buffer, encoding=before.encoding, errors=before.errors, newline="\n" if number else None,
            line_buffering=not unbuffered and (number == 2 or os.isatty(number)), write_through=unbuffered,
        )  # fmt: skip
        stream.mode = "w" if number else "r"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(words):
    """Run ``-m MODULE`` or a script as Python itself would, and return the exit code."""
    code = 0
    try:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        if words[0] == "-m":
            sys.path[:] = [str(Path.cwd()), *_path]
            sys.argv = list(words[:1] + words[2:])
            runpy._run_module_as_main(words[1])
        else:
            sys.path[:] = [str(Path(words[0]).resolve().parent), *_path]
            sys.argv = list(words)
            main.__file__ = str(Path(words[0]).absolute())
            with io.open_code(main.__file__) as script:
                program = compile(script.read(), main.__file__, "exec")
            exec(program, vars(main))
    except SystemExit as leaving:
        if isinstance(leaving.code, int):
            code = leaving.code & 0xFF
        elif leaving.code is not None:
            print(leaving.code, file=sys.stderr)
            code = 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
