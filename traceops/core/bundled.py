"""Finds the data that ships beside the code, from a checkout and from an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

from traceops.core.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]  # the folder of traceops itself


def bundled(*parts: str) -> Path:
    """Path of a bundled file such as ``bundled("runners", "train.py")``."""
    for root in (PACKAGE / "_bundled", PACKAGE.parent):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise InputError(f"{'/'.join(parts)} is missing from this traceops installation; reinstall it")
