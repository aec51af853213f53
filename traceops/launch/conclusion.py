"""What a run that failed died of, said where it ended: the cause, its line of code, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

from traceops.core.errors import TraceopsError
from traceops.launch.display import Screen


def tell_cause(out: Path, screen: Screen) -> bool:
    """Say what the run in folder `out` died of, on stderr; returns whether anything tells.

    Reads the ranks' logs. One that nothing tells of is no failure: the launcher has named the rank already.
    """
    from traceops.hangs.diagnose import diagnose  # few runs fail
    from traceops.render.hang.terminal import print_cause

    try:
        found = diagnose(out, jobs=1)
    except TraceopsError:
        return False
    if not found.roots:
        return False
    with screen.paused():
        print_cause(found, sys.stderr)
    return True
