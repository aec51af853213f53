"""The `traceops` command: one module a subcommand, imported only as far as its options need."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TextIO

from traceops.cli.declared import Command
from traceops.cli.parser import Parser, asked_parser, instead, outlive_the_reader
from traceops.core.errors import InputError, TraceopsError, UsageError
from traceops.core.text import broken_at_words, show_our_signs, width_of
from traceops.version import __version__

# Each is declared in a table that costs --help nothing, and has a module here, imported only to run it, with
# main(args) -> exit code.
COMMANDS = (
    "run", "capture", "live", "top", "sweep", "scale", "analyze", "compare", "baseline", "diagnose", "doctor", "view",
    "open", "query", "show", "explain", "demo", "mcp", "memory", "completion",
)  # fmt: skip
# In training_options, all others in reading_options.
_TRAINING = ("run", "capture", "live", "top", "sweep", "scale", "memory")
_EXAMPLES = """  traceops run -- train.py                     record a training, on one GPU or many
  traceops analyze profile/train               where its time goes, and what to change
  traceops compare profile/main profile/pr     did it get slower, and why
  traceops diagnose job.log                    why it hangs or crashed
  traceops demo                                a finished example, without a GPU

"""


# Options that name files and folders, and what is wrong with a name itself or with the disk behind it.
_PATHS = ("path", "paths", "base", "head", "saved", "evidence", "settings", "store", "config")
_OF_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ESTALE, errno.ENXIO)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)

_ABOUT = "Find out why a distributed PyTorch run is slow or stuck, with proof."


def build_parser(commands: Sequence[str] = COMMANDS) -> Parser:
    parser = Parser(prog="traceops", description=_ABOUT)
    parser.add_argument("--version", action="version", version=f"traceops {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in commands:
        table = import_module(f"traceops.cli.{'training' if name in _TRAINING else 'reading'}_options")
        command: Command = table.COMMANDS[name]
        sub = subparsers.add_parser(name, help=command.about, description=command.about)
        command.add_to(sub)
        sub.shorten(command)
        sub.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (see docs/formats.md)."""
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    outlive_the_reader()
    for stream in (sys.stdout, sys.stderr):
        show_our_signs(stream)
    words = _obvious(list(sys.argv[1:] if argv is None else argv))
    if not words or list(words) == ["run"]:
        parser = build_parser()
        print(_EXAMPLES + parser.format_help() if not words else asked_parser(parser, words).format_help(), end="")
        return 2
    try:
        with _quiet_interrupts():
            parser = build_parser(words[:1] if words[0] in COMMANDS else COMMANDS)
            args = parser.parse_args(words)
    except SystemExit:  # behind --help, for one
        _forget_output()
        raise
    if args.color != "auto":
        os.environ.pop("NO_COLOR", None)
        os.environ["NO_COLOR" if args.color == "never" else "FORCE_COLOR"] = "1"
    if args.command not in ("run", "sweep", "scale"):  # which hands its environment to the training
        # Nothing here multiplies matrices, and OpenBLAS' threads take a third of the time to import numpy.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        gc.set_threshold(100_000)  # looking for cycles, of which we make few, takes a tenth of the imports
        atexit.register(gc.freeze)  # or Python goes through all objects several times as it ends: 70 ms of CPU
    try:
        _check_paths(args)
        _take_folders(args)
        with _quiet_interrupts():
            command = import_module(f"traceops.cli.{args.command}")
        code: int = command.main(args)
        sys.stdout.flush()
    except TraceopsError as error:
        advice = instead(asked_parser(parser, words), str(error)) if isinstance(error, UsageError) else ""
        _say_error(f"traceops {args.command}: {error}{advice}")
        return error.exit_code
    except KeyboardInterrupt:
        print(f"traceops {args.command}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # Python's own exit code for it would be 1, which means findings or a regression
        return _code_of(error, args.command)
    if argv is None:
        _leave(args, code)
    return code


def _leave(args: argparse.Namespace, code: int) -> None:
    """Exit at once after `analyze`: freeing what a report was made of takes a fiftieth of the command's time."""
    if args.command != "analyze" or args.executor:  # an executor, as MPI's, has an end of its own
        return
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _obvious(words: list[str]) -> list[str]:
    """The words as they were meant: `help COMMAND`, `version`, `-v COMMAND`, and `show QUESTION RUN`."""
    if len(words) > 1 and words[0] in ("-v", "--verbose", "-q", "--quiet") and words[1] in COMMANDS:
        words = [words[1], words[0], *words[2:]]
    if words[:1] == ["help"]:
        return [*words[1:2], "--help"]
    if words == ["version"]:
        return ["--version"]
    if words[:1] == ["show"] and len(words) > 2 and not os.path.exists(words[1]) and os.path.exists(words[2]):  # noqa: PTH110 pathlib costs --help 5 ms
        return ["show", words[2], words[1], *words[3:]]
    return words


def _code_of(error: Exception, command: str) -> int:
    """The exit code for an error that no command expects, which is reported: of the disk, of a path, or ours."""
    from traceops.words.catalogue import texts

    texts_of = texts("cli", "errors")
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        what = texts_of["no_room" if error.filename else "no_room_for_output"]
        print(what.format(command=command, file=error.filename, why=error.strerror), file=sys.stderr)
        _forget_output()
        return 3
    if isinstance(error, OSError) and error.errno in _OF_PATH and error.filename:
        _say_error(f"traceops {command}: {error.filename}: {error.strerror}")
        return 3
    traceback.print_exc()
    print(texts_of["mistake"].format(command=command), file=sys.stderr)
    return 70


@contextlib.contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Inside the block Ctrl-C ends the process at once, without a word: an import that it broke off would say more."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_paths(args: argparse.Namespace) -> None:
    """Raises UsageError for a path that is empty: it would be taken for the folder that one is in."""
    for name in _PATHS:
        given = getattr(args, name, None)
        paths = [given] if isinstance(given, str) else given or ()
        if any(not path.strip() for path in paths):
            raise UsageError("an empty path was given; is the variable set that should hold it?")
        if bad := next((path for path in paths if "\0" in path), None):
            raise UsageError(f"{bad!r} is no path: it holds a NUL character")


def _take_folders(args: argparse.Namespace) -> None:
    """The run or report folder in place of a file of it that traceops wrote: run.json, summary.html."""
    from traceops.cli.arguments import folder_of  # --help needs none of it

    reads = ("analyze", "compare", "show", "view", "query")
    if args.command in (*reads, "open", "diagnose", "capture", "live", "top"):
        for name in ("path", "paths", "base", "head"):
            given = getattr(args, name, None) or ()
            paths = [given] if isinstance(given, str) else given
            log = next((one for one in paths if one.endswith((".log", ".txt", ".out")) and os.path.isfile(one)), None)  # noqa: PTH113
            if args.command in reads and log is not None:
                raise InputError(f"{log} is no trace; to read it as a log: traceops diagnose {log}")
            if given:
                setattr(args, name, folder_of(given) if isinstance(given, str) else [folder_of(one) for one in given])


def _forget_output() -> None:
    """What is still to be written to a standard output that takes no more goes nowhere: Python ends with a flush."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def _say_error(text: str) -> None:
    """A message as a terminal and a log of CI may hold it: without control characters and secrets. A terminal gets
    lines broken at words; elsewhere a message is one line, which grep finds."""
    from traceops.core.redaction import redact_text
    from traceops.core.text import printable

    width = width_of(sys.stderr) if sys.stderr.isatty() else None
    for line in printable(redact_text(text)).split("\n"):
        print("\n".join(broken_at_words(line, width, 2)), file=sys.stderr)


def _nowhere() -> TextIO:
    """In place of a stream that was closed before Python began."""
    from pathlib import Path

    return Path(os.devnull).open("w", encoding="utf-8")
