"""What a run that failed died of, said where it ended: the cause, its line of code, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from traceops.core.errors import TraceopsError
from traceops.launch.display import Screen
from traceops.launch.outcome import Failure
from traceops.launch.plan import Plan

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis


def find_cause(plan: Plan) -> Diagnosis | None:
    """What the run died of, by the ranks' logs; None where nothing tells: the launcher has named the rank already."""
    from traceops.hangs.diagnose import diagnose  # few runs fail

    try:
        found = diagnose(Path(plan.out), jobs=1)
    except TraceopsError:
        return None
    return found if found.roots else None


def says(found: Diagnosis | None, failure: Failure) -> bool:
    """Whether the first cause is about this rank and has its reason, which then need not be said twice."""
    from traceops.report.hang_text import root_sentence

    reason = failure.reason.partition(" (often ")[0]  # each has its own words of a likely killer
    return found is not None and failure.rank in found.roots[0].ranks and reason in root_sentence(found.roots[0])


def tell_cause(plan: Plan, screen: Screen, found: Diagnosis) -> None:
    """Say what the run died of, on stderr."""
    from traceops.render.hang.terminal import print_cause

    with screen.paused():
        print_cause(found, sys.stderr)
    crash = found.roots[0].crash
    if crash is not None and crash.kind == "gpu_memory":
        from traceops.launch.out_of_memory import tell_out_of_memory  # of few that fail

        tell_out_of_memory(plan, crash, screen)
