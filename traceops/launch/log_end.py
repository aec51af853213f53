"""The end of what a rank wrote that was not shown while it ran."""

from __future__ import annotations

import os
from pathlib import Path

from traceops.launch.display import LineSource, Screen, without_chatter

_LINES = 20
_BYTES = 1 << 16


def show_end(screen: Screen, log: Path, source: LineSource) -> None:
    """Show the last lines of `log`."""
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _BYTES, 0))
        lines = without_chatter(file.read()).splitlines(keepends=True)
    screen.output(b"".join(lines[-_LINES:]).rstrip(b"\n") + b"\n", source)
