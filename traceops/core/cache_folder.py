"""The cache folder, which the user can move, empty or turn off."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "TRACEOPS_CACHE"
OFF = "off"


def cache_folder(kind: str) -> Path | None:
    """The folder for one kind of things, None for nowhere; it need not exist, and may not be writable.

    $TRACEOPS_CACHE ('off' for nowhere), else $XDG_CACHE_HOME/traceops, else ~/.cache/traceops.
    """
    chosen = os.environ.get(FOLDER)
    if chosen == OFF:
        return None
    if chosen:
        return Path(chosen).absolute() / kind
    above = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        above = above.expanduser()
    except RuntimeError:  # nobody knows where home is
        return None
    return above / "traceops" / kind if above.is_absolute() else None
