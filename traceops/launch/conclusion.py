"""What a run that failed died of, said where it ended: the cause, its line of code, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

from traceops.core.errors import TraceopsError
from traceops.launch.display import Screen
from traceops.launch.plan import Plan


def tell_cause(plan: Plan, screen: Screen) -> bool:
    """Say what the run died of, on stderr; returns whether anything tells.

    Reads the ranks' logs. One that nothing tells of is no failure: the launcher has named the rank already.
    """
    from traceops.hangs.diagnose import diagnose  # few runs fail
    from traceops.render.hang.terminal import print_cause

    try:
        found = diagnose(Path(plan.out), jobs=1)
    except TraceopsError:
        return False
    if not found.roots:
        return False
    with screen.paused():
        print_cause(found, sys.stderr)
    crash = found.roots[0].crash
    if crash is not None and crash.kind == "gpu_memory":
        from traceops.launch.out_of_memory import tell_out_of_memory  # of few that fail

        tell_out_of_memory(plan, crash, screen)
    return True
