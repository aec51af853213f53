"""Runs a script or a module in this process as Python would: as ``__main__``, with its own arguments and folder."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def run_as_main(words: Sequence[str]) -> None:
    """Run ``SCRIPT [ARGS…]`` or ``-m MODULE [ARGS…]``. Raises what the program raises, SystemExit among it.

    The script's folder takes the first place of ``sys.path``, unless Python keeps it safe (``-P``, PYTHONSAFEPATH).
    """
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(words)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")
