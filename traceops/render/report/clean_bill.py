"""The verdict on a run in which nothing serious was found: what it is like, and what nobody judged."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from msgspec import UNSET

from traceops.core.findings import Check
from traceops.core.rank_text import ranks_text
from traceops.core.units import ms_text
from traceops.render.document import Headline
from traceops.render.report.coverage import unjudged_sentence
from traceops.render.report.stragglers import mean_of_ranks
from traceops.render.report.undisturbed import share_pct, undisturbed_of
from traceops.render.report.waiting import WAIT_WARNING_PCT
from traceops.render.report.whole_run import unlike_run
from traceops.report.model import Report
from traceops.rules.activity import NO_COMMUNICATION_SEEN
from traceops.rules.registry import Family, family_of

_MOST_IDS = 2  # of a family's rules that a sentence names
_MOST_UNJUDGED = 7  # families or rules that a sentence names


def clean_bill(report: Report) -> Headline:
    """What a step is like, and what could not be judged: without that it is clear, else a remark."""
    step, compute = mean_of_ranks(report), report.summary.ledger_pct.compute
    waiting, recorded = report.summary.ledger_pct.comm_wait or 0.0, ""
    undisturbed = undisturbed_of(report)
    if undisturbed is not None:
        step, recorded = undisturbed.step_ms, " without recording"
        compute, waiting = (share_pct(undisturbed, part) for part in ("compute_ms", "comm_wait_ms"))
    parts = [] if step is None else [f"{report.summary.step_words.a} takes {ms_text(step)} ms{recorded}"]
    if compute is not None:
        parts.append(f"{compute:.0f} % of it compute")
    if waiting >= WAIT_WARNING_PCT:
        parts.append(f"{waiting:.0f} % waiting for each other")
    about = f": {', '.join(parts)}" if parts else ""
    notes = len(report.findings)
    seen = f" {notes} finding{'s' if notes > 1 else ''} of severity info below." if notes else ""
    unlike = unlike_run(report)
    seen = _unlike_text(report) + unlike + _nothing_recognised(report) + seen
    unjudged = unjudged_sentence(report)
    found = "Nothing serious found in what could be judged" if unjudged else "Nothing serious found"
    if report.summary.first_steps:
        found += f" {'of' if unjudged else 'in'} the program's first steps"
    judged = f" {unjudged}" if unjudged else ""
    return Headline(
        "info" if report.summary.first_steps or notes or unjudged or unlike or waiting >= WAIT_WARNING_PCT else "clear",
        f"{found}{about}.{judged}{seen}{_unjudged_text(report)}",
    )


def _nothing_recognised(report: Report) -> str:
    """That what is called compute may be communication."""
    found = next((f for f in report.findings if f.rule == NO_COMMUNICATION_SEEN.id), None)
    return "" if found is None else f" {found.message.partition('. ')[0]}."


def _unlike_text(report: Report) -> str:
    """That some steps are not what the sentence before speaks of."""
    unlike = report.summary.step_time_ms.unlike
    if not unlike:
        return ""
    took = [  # as TO-T001 has it
        statistics.median(row.duration_ms for row in report.steps if row.step == step) for step in unlike
    ]
    one = len(unlike) == 1
    which = f"step{'' if one else 's'} {ranks_text(unlike, 4)}"
    return f" That is the typical step: {which} {'takes' if one else 'take up to'} {ms_text(max(took))} ms."


def nothing_else(report: Report) -> str:
    return f"No rule fired above info.{_unjudged_text(report)}"


def _unjudged_text(report: Report) -> str:
    named = not_evaluated(report.checks)
    left = len(named) - _MOST_UNJUDGED
    shown = named if left <= 1 else [*named[:_MOST_UNJUDGED], f"{left} more below"]
    return f" Not evaluated: {', '.join(shown)}." if named else ""


def not_evaluated(checks: Sequence[Check]) -> list[str]:
    """What could not be judged: a family of rules by its name if none of it was judged, else the ids, or how many.

    Rules that no data of the run could decide are left out, as `count_checks` leaves them out.
    """
    families: dict[Family | None, list[Check]] = defaultdict(list)
    for check in checks:
        if check.unjudged is not UNSET:
            continue
        families[family_of(check.rule)].append(check)
    named: list[str] = []
    for family, members in families.items():
        skipped = [check.rule for check in members if check.status == "not_evaluated"]
        if len(skipped) == len(members) and family is not None:
            named.append(family.about)
        elif len(skipped) > _MOST_IDS and family is not None:
            named.append(f"{len(skipped)} rules of {family.about}")
        else:
            named += skipped
    return named
