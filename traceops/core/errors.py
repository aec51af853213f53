"""Errors a user can act on: each names the file or setting at fault and the next thing to do."""

from __future__ import annotations


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


def problem_of(error: InputError) -> str:
    """What is wrong, without the path where the file is named beside it."""
    return error.problem if isinstance(error, FileError) else str(error)
