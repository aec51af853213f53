"""A file that could not be used, as our JSON documents list it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class FileProblem(msgspec.Struct, frozen=True):
    """A file that could not be used, or only in part, and why."""

    file: str
    problem: str


def file_problems(problems: Iterable[tuple[str, str]]) -> tuple[FileProblem, ...]:
    """(file, what is wrong with it) as a document lists them."""
    return tuple(FileProblem(file, problem) for file, problem in problems)
