"""Threads that a script starts work on fake tensors too: torch's modes are those of one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def followed_threads(
    modes: Callable[[], AbstractContextManager[Any]], failed: Callable[[BaseException], None]
) -> Iterator[None]:
    """While it is open, each thread that is started runs in `modes`; failed: told what ended one."""
    inside: Callable[[threading.Thread], None] = vars(threading.Thread)["_bootstrap_inner"]
    usual = threading.excepthook

    def followed(thread: threading.Thread) -> None:
        with modes():
            inside(thread)

    def hook(said: threading.ExceptHookArgs) -> None:
        if said.exc_value is not None:
            failed(said.exc_value)
        usual(said)

    with patch.object(threading.Thread, "_bootstrap_inner", followed), patch.object(threading, "excepthook", hook):
        yield
