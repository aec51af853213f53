"""Whether one run is slower than another, by how much, how sure that is, and why."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from traceops.compare.capture import ComparedCapture, read_capture
from traceops.compare.config import CompareConfig, load_config
from traceops.compare.model import Comparison
from traceops.compare.run import compare

__all__ = ["CompareConfig", "ComparedCapture", "compare", "load_config", "read_capture"]


class _CallableModule(ModuleType):
    # Importing this package binds it to the name `traceops.compare`, which is a function for users.
    def __call__(self, base: str | os.PathLike[str], head: str | os.PathLike[str]) -> Comparison:
        """`head` against `base`: run folders, folders of traces, or reports. Raises UsageError and InputError."""
        return compare([read_capture(os.fspath(base))], [read_capture(os.fspath(head))], load_config())


sys.modules[__name__].__class__ = _CallableModule
