"""Every product's folder holds the whole old report or the whole new one, whichever operation fails on the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traceops.core.errors import InputError
from traceops.render.files import write_files

OWN = {"page.html", "report.json", "rows.csv", "more.csv"}
FIRST = {"page.html": "old page", "report.json": "{}", "rows.csv": "old"}
SECOND: dict[str, str | bytes] = {"page.html": b"new page", "report.json": "{1}", "more.csv": "new"}
_CALLS = ("open", "replace", "rename", "link", "mkdir", "write")


def failing(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Has the call number `at` of all that change files fail as on a full disk; the calls so far, by name."""
    calls: list[str] = []

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **options)

        return call

    for name in _CALLS:
        patch.setattr(os, name, wrapped(name, getattr(os, name)))
    return calls


def test_whichever_call_fails_the_report_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    old = {name: str(text) for name, text in FIRST.items()}
    new = {name: text.decode() if isinstance(text, bytes) else text for name, text in SECOND.items()}
    failures = 0
    for at in range(1, 200):
        folder = tmp_path / str(at)
        write_files(FIRST, OWN, folder)
        with pytest.MonkeyPatch.context() as patch:
            calls = failing(patch, at)
            try:
                write_files(SECOND, OWN, folder)
                expected = new
            except InputError as error:
                expected, failures = old, failures + 1
                assert str(folder) in str(error) and "No space left on device" in str(error)
        assert {path.name: path.read_text() for path in folder.iterdir()} == expected
        if len(calls) < at:
            break
    assert failures >= 2 * len(SECOND)
