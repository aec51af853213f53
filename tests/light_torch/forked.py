"""Processes that are forked from one that has loaded torch, where each would load it again.

`install` has `subprocess` fork where it would execute the same Python with variables that make the same of it. What
`execve` and the start of Python do to a process is done here: descriptors, signals, variables, arguments, folder, path,
standard streams and ``__main__``. A supervisor of `traceops run` is forked too, and what it executes.
tests/test_suite.py holds the two ways together.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
import types
import weakref
from dataclasses import dataclass
from importlib import _bootstrap
from pathlib import Path

# What Python, torch and their libraries read while they are loaded, but for what torch.distributed.run sets for ranks.
_READ_WHEN_LOADED = ("PYTHON", "OMP_", "KMP_", "MKL_", "GOMP_", "LD_", "LC_", "LANG", "KINETO_", "TORCH_")
_READ_LATER = ("TORCH_NCCL_", "TORCH_FR_")  # where a process group of NCCL is made
_SUPERVISOR = ["-I", "-S"], "supervise.py"
_AS_MODULE = "/traceops/core/as_module.py"
_UNSET = (None, -1, True)

_at_start = dict(os.environb)
_path = list(sys.path)


@dataclass(frozen=True)
class Asked:
    """What `subprocess` was asked to execute.

    words: the command. env: NAME=VALUE, or None for our own. standard: three descriptors, -1 for ours. new_session:
    whether it leads one. folder: where it starts, None for here. keep: descriptors that it has too.
    """

    words: list[str]
    env: list[bytes] | None
    standard: tuple[int, int, int] = (-1, -1, -1)
    new_session: bool = False
    folder: str | None = None
    keep: tuple[int, ...] = ()


def install(*ways):
    """Have `subprocess` try these before it executes a program. Returns what undoes it.

    A way gets an `Asked`, and returns the pid, or None where the program has to be executed.
    """
    holder, name = subprocess, "_fork_exec"
    if not hasattr(holder, name):  # Python 3.10
        holder, name = subprocess._posixsubprocess, "fork_exec"
    execute = getattr(holder, name)

    def fork_or_execute(args, programs, close_fds, keep, folder, env, *others):
        descriptors, (_, new_session, *rest) = others[:8], others[8:]
        there = folder is None or Path(os.fsdecode(folder)).is_dir()
        if close_fds and there and all(one in _UNSET for one in rest):
            asked = Asked(
                list(map(os.fsdecode, args)), env, (descriptors[0], descriptors[3], descriptors[5]), bool(new_session),
                None if folder is None else os.fsdecode(folder), tuple(fd for fd in keep if fd != descriptors[7]),
            )  # fmt: skip
            for way in ways:
                if pid := way(asked):
                    return pid
        return execute(args, programs, close_fds, keep, folder, env, *others)

    setattr(holder, name, fork_or_execute)
    return lambda: setattr(holder, name, execute)


def itself(asked):
    """Forks this process, if it has loaded torch, and if its other threads hold nothing that the new one needs."""
    if not (_trains(asked) or "torch" in sys.modules) or not _same_python(asked.words, asked.env):
        return None
    agent = sys.argv[0].endswith("torch/distributed/run.py")
    if not (agent or supervises(asked.words) or threading.active_count() == 1) or _someone_imports():
        return None
    pid = os.fork()
    if not pid:
        become(asked)
    return pid


def _trains(asked):
    """Whether a supervisor starts torch.distributed.run, for which torch is loaded here: once for a series of them."""
    if not supervises(asked.words) or "torch.distributed.run" not in asked.words or asked.env is None:
        return False
    if read_when_loaded(variables(asked.env)) != read_when_loaded(_at_start):
        return False
    try:
        importlib.import_module("torch.distributed.run")
    except Exception:  # the training tells why
        return False
    return True


def _someone_imports():
    """Whether a thread holds the lock of a module, which would stay locked in what is forked now."""
    locks = (reference() for reference in list(_bootstrap._module_locks.values()))
    return any(lock is not None and lock.owner is not None for lock in locks)


def _same_python(words, env):
    """Whether this process can become what these words and variables (NAME=VALUE) would start."""
    if supervises(words):
        return True
    words = [word for number, word in enumerate(words) if (number, word) != (1, "-u")]
    if words[0] != sys.executable or len(words) < 2 or words[1:3] == ["-m", "traceops"]:  # whose start loads no torch
        return False
    if words[1] != "-m" and not Path(words[1]).is_file():
        return False
    return env is None or read_when_loaded(variables(env)) == read_when_loaded(_at_start)


def supervises(words):
    """Whether this is the supervisor of a run, which imports the standard library only."""
    options, name = _SUPERVISOR
    return words[0] == sys.executable and words[1:3] == options and words[3].endswith(f"/{name}")


def variables(env):
    return dict(one.split(b"=", 1) for one in env)


def read_when_loaded(variables):
    names = tuple(map(os.fsencode, _READ_WHEN_LOADED))
    later = tuple(map(os.fsencode, _READ_LATER))
    found = {name: value for name, value in variables.items() if name.startswith(names) and not name.startswith(later)}
    folders = dict.fromkeys(found.get(b"PYTHONPATH", b"").split(os.fsencode(os.pathsep)))  # as sys.path, each once
    return {**found, b"PYTHONPATH": tuple(folders)}


def become(asked):
    """In the child, which ends here."""
    code = 70
    try:
        gc.freeze()  # what was there before stays where it is
        if asked.new_session:
            os.setsid()
        if asked.folder is not None:
            os.chdir(asked.folder)
        _take_descriptors(*asked.standard, keep=asked.keep)
        if asked.env is not None:
            os.environb.clear()
            os.environb.update(variables(asked.env))
            _show(_ENVIRONMENT, asked.env)
        code = _start(asked.words)
    finally:
        os._exit(code)


def _execute_instead(program, words):
    """What os.execvp does, for the process that a supervisor makes of itself."""
    os.execvp = _execvp
    if words[0] != program or not _same_python(words, [b"%b=%b" % one for one in os.environb.items()]):
        os.execvp(program, words)
    code = 70
    try:
        for fd in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
            with contextlib.suppress(OSError):  # that of the list itself
                if fd > 2 and not os.get_inheritable(fd):
                    os.close(fd)
        code = _start(words)
    finally:
        os._exit(code)


_execvp = os.execvp


def _start(words):
    """What Python does when it starts, and the program itself."""
    _reset_signals()
    for callback in list(weakref.finalize._registry):
        callback.detach()  # of the launcher's temporary folders
    sys.orig_argv = list(words)
    _show(_ARGUMENTS, list(map(os.fsencode, words)))
    unbuffered = words[1] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    _open_streams(unbuffered)
    if supervises(words):
        os.execvp = _execute_instead
        return _run(words[3:], isolated=True)
    return _run(words[2:] if words[1] == "-u" else words[1:])


_ARGUMENTS, _ENVIRONMENT = (45, 47), (47, 49)  # where /proc/self/stat says where they are, behind the name


def _show(where, words):
    """In /proc/self/cmdline or environ, which are pieces of this process's memory, where they have room there."""
    try:
        numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = map(int, numbers[slice(*where)])
    except (OSError, ValueError):
        return
    text = b"".join(word + b"\0" for word in words)
    if len(text) <= end - begin:
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _take_descriptors(*wanted, keep=()):
    """`wanted` as 0, 1 and 2, where they are not -1; all others are closed but those to `keep`."""
    safe = [fd if fd < 0 else os.dup(fd) for fd in wanted]  # none of them is below 3, or already in its place
    for number, fd in enumerate(safe):
        if fd >= 0:
            os.dup2(fd, number)
    begin = 3
    for fd in sorted(keep):
        os.closerange(begin, fd)
        os.set_inheritable(fd, True)
        begin = fd + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))


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


def _run(words, isolated=False):
    """Run ``-m MODULE``, ``-c CODE`` or a script as Python itself would, and return the exit code."""
    code = 0
    try:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        if words[0] == "-c":
            sys.path[:] = ["", *_path]
            sys.argv = [words[0], *words[2:]]
            exec(compile(words[1], "<string>", "exec"), vars(main))
        elif words[0] == "-m":
            sys.path[:] = [str(Path.cwd()), *_path]
            sys.argv = list(words[:1] + words[2:])
            sys.modules.pop(words[1], None)  # it is run anew, whoever has imported it
            runpy._run_module_as_main(words[1])
        else:
            if words[0].endswith(_AS_MODULE):
                sys.modules.pop(words[1], None)
            sys.path[:] = [*([] if isolated else [str(Path(words[0]).resolve().parent)]), *_path]
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
