"""What is said of a log in which nothing failed."""

from __future__ import annotations

from traceops.hangs.model import Diagnosis
from traceops.report.hang_text import hang_level, hang_sentence, what_would_decide

_BEGINS = ("No failure found", "Interrupted by Ctrl-C", "The server was asked to stop")


def is_quiet(diagnosis: Diagnosis) -> bool:
    """Whether no failure, no wait and nothing to bring is told."""
    quiet = not diagnosis.roots and hang_level(diagnosis) == "info" and not what_would_decide(diagnosis)
    return quiet and hang_sentence(diagnosis).startswith(_BEGINS)
