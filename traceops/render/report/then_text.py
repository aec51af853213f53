"""How long a step would take with a cause gone, in words that say where it is only the least."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.units import ms_text
from traceops.report.model import Report
from traceops.rules.clocks import UNALIGNED_CLOCKS

_LOADERS = "the pace of data loaders' workers is not known"
_HOSTS = "how fast hosts are without the profiler is not known"


def then_text(report: Report, then_ms: float, pct: float) -> str:
    """'21.9 ms (60 % less)'; 'or more' where data loaders or hosts may hold the step up that are hidden now."""
    if least_only(report):
        return f"{ms_text(then_ms)} ms or more (up to {pct:.0f} % less)"
    return f"{ms_text(then_ms)} ms ({pct:.0f} % less)"


def least_only(report: Report) -> bool:
    """Whether a step with a cause gone may take longer than is predicted."""
    return bool(least_note(report))


def least_note(report: Report) -> str:
    """What to say beside the replay's predictions then; '' where all is known."""
    replay = report.summary.replay
    return "" if replay is None else why_least(replay.loaders_unknown, replay.hosts_unknown)


def unfit_note(report: Report) -> str:
    """That the ranks' clocks do not fit together, beside what compares ranks; '' where they do."""
    unfit = any(found.rule == UNALIGNED_CLOCKS.id for found in report.findings)
    return (
        f"clocks of ranks do not fit ({UNALIGNED_CLOCKS.id}): do not trust what compares ranks"
        if unfit
        else ""
    )


def why_least(loaders: Sequence[int], hosts: Sequence[int]) -> str:
    """The same for these ranks whose loaders and hosts are not known."""
    why = [words for words, ranks in ((_LOADERS, loaders), (_HOSTS, hosts)) if ranks]
    return f"a step may take longer: {'; '.join(why)}" if why else ""
