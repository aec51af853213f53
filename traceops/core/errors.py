"""Errors a user can act on: each names the file or setting at fault and the next thing to do."""

from __future__ import annotations

import re
import signal


class TraceopsError(Exception):
    """Ends a command with `exit_code` and its message, without a Python traceback."""

    exit_code = 3


class UsageError(TraceopsError):
    """The options cannot work together, or ask for what this machine or backend cannot do."""

    exit_code = 2


class InputError(TraceopsError):
    """Input that cannot be read: missing, damaged, or not what it should be."""

    exit_code = 3


class FileError(InputError):
    """A file that cannot be used. problem: what is wrong with it, which the message says after its path."""

    def __init__(self, path: object, problem: str, separator: str = " ") -> None:
        super().__init__(f"{path}{separator}{problem}")
        self.problem = problem


# What an odd value can make of code that did not expect it. Caught where files and runs are taken one by one, so that
# it costs no more than its own file.
ODD_VALUE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def odd_value_text(error: Exception) -> str:
    """What to say of such a file."""
    return f"it could not be analysed ({type(error).__name__}: {str(error)[:200]}); please report this"


def problem_of(error: InputError) -> str:
    """What is wrong, without the path where the file is named beside it."""
    return error.problem if isinstance(error, FileError) else str(error)


# Exit codes of ranks: in torchrun's report, in a shell, and in words.

_REPORT = re.compile(
    r"^\s*rank\s*: (\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*: (-?\d+)(?: \(pid: (\d+)\))?", re.MULTILINE
)
# How the launcher's words on a rank begin that a signal ended.
KILLED_BY, ENDED_BY = "killed by ", "ended by "
# What torchrun says when a rank does not end within 30 s of its SIGTERM.
_LOST_PATIENCE = re.compile(r"Unable to shutdown process (\d+) via")


def reported_codes(torchrun_log: str) -> dict[int, int]:
    """Rank to return code (-n for signal n) from torchrun's report; root cause last, as it prints it. A rank that
    torchrun killed because it did not end counts as ended by SIGTERM, like the others."""
    impatient = set(_LOST_PATIENCE.findall(torchrun_log))
    return {
        int(rank): -signal.SIGTERM if pid in impatient else int(code)
        for rank, code, pid in _REPORT.findall(torchrun_log)
    }


def shell_code(code: int) -> int:
    """A return code as a shell has it: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def signal_name(number: int) -> str:
    """SIGKILL for 9, with what it usually means."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (often the kernel's out-of-memory killer)" if name == "SIGKILL" else name
