"""Merges findings that explain each other, so that one cause is one thing to fix; and the verdicts on a hang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Check, Finding, Unjudged
from traceops.core.rule import JudgedBy, Rule, Verdict
from traceops.fabric.fabric import Circumstances
from traceops.rules import stragglers
from traceops.rules.bandwidth import LOW_BANDWIDTH, SLOWER_THAN_SIBLINGS, THROUGH_HOST
from traceops.rules.fabric import judge as fabric
from traceops.rules.fabric.judge import OF_A_LINK, judge_fabric
from traceops.rules.fabric.paths import ACROSS_NUMA_NODES
from traceops.rules.failures import judge_crash, judge_hang
from traceops.rules.idle import BLOCKED_ON_DEVICE, HOST_BOUND, INPUT_BOUND
from traceops.rules.idle_copies import EXPOSED_COPIES
from traceops.rules.overlap import EXPOSED, LATE_START, SMALL_COLLECTIVES
from traceops.rules.registry import rules_with
from traceops.rules.steps import CAUSE as SHARED_CORES
from traceops.rules.steps import FIRST_USE, UNLIKE_STEPS
from traceops.rules.stragglers import PERSISTENTLY_LATE, SLOW_GROUP, SOMETIMES_LATE
from traceops.rules.whole_run import UNLIKE_OVER_RUN
from traceops.rules.whole_run_hosts import HOST_LONGER
from traceops.rules.whole_run_machine import MACHINE

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis


class Explains(Struct, frozen=True):
    """A finding of `rule` (with `cause`, where one is given) is why one of `explained` fired. `same_ranks`: only where
    the explained finding names no other ranks. `own_causes`: those of the explained finding that this rule explains
    only if it fired for the same. `of_cause`: the only one that is explained."""

    rule: Rule
    cause: str | None
    explained: tuple[Rule, ...]
    same_ranks: bool
    own_causes: tuple[str, ...] = ()
    of_cause: str | None = None


EXPLAINS: tuple[Explains, ...] = (
    Explains(PERSISTENTLY_LATE, "input", (HOST_BOUND, INPUT_BOUND), True),
    Explains(PERSISTENTLY_LATE, "host", (HOST_BOUND, BLOCKED_ON_DEVICE), True),
    Explains(PERSISTENTLY_LATE, "input", (HOST_LONGER,), True),
    Explains(PERSISTENTLY_LATE, "host", (HOST_LONGER,), True),
    Explains(PERSISTENTLY_LATE, "unknown", (HOST_LONGER,), True),
    Explains(PERSISTENTLY_LATE, "copy", (EXPOSED_COPIES,), True),
    Explains(PERSISTENTLY_LATE, "gpu_compute", (MACHINE,), True),
    Explains(SLOW_GROUP, "input", (HOST_BOUND, INPUT_BOUND, HOST_LONGER), True),
    Explains(SLOW_GROUP, "host", (HOST_BOUND, BLOCKED_ON_DEVICE, HOST_LONGER), True),
    Explains(SLOW_GROUP, "copy", (EXPOSED_COPIES,), True),
    Explains(EXPOSED_COPIES, None, (BLOCKED_ON_DEVICE,), True, of_cause="copies"),
    Explains(HOST_LONGER, "input", (INPUT_BOUND,), True),
    Explains(HOST_LONGER, "host", (HOST_BOUND,), True),
    Explains(
        UNLIKE_OVER_RUN, None, (UNLIKE_STEPS,), False, (SHARED_CORES, FIRST_USE, "recompilation", "garbage_collection")
    ),
    Explains(SOMETIMES_LATE, "input", (HOST_BOUND, INPUT_BOUND), True),
    Explains(SOMETIMES_LATE, "host", (HOST_BOUND, BLOCKED_ON_DEVICE), True),
    Explains(SOMETIMES_LATE, None, (UNLIKE_STEPS,), False),
    Explains(SLOWER_THAN_SIBLINGS, None, (LOW_BANDWIDTH, EXPOSED), False),
    Explains(LOW_BANDWIDTH, None, (EXPOSED, LATE_START), False),
    Explains(THROUGH_HOST, None, (EXPOSED, LATE_START), False),
    Explains(LATE_START, None, (EXPOSED,), False),
    Explains(SMALL_COLLECTIVES, None, (EXPOSED,), False),
)
_LATE = {rule.id for rule in stragglers.RULES}
_MOST_OF = 0.5  # of what long steps take, over the whole run
_SAME_STEPS = 0.7  # of what long steps take beyond the typical ones, over the whole run


def merge_overlapping(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those that another one explains turned into remarks (severity info) that say which."""
    merged = []
    for found in findings:
        known = [other for other in findings if other is not found and explains(other, found)]
        # Whether it tells of the same over the whole run, of which a rank late in recorded steps is only one case.
        by = max(known, key=lambda other: other.rule == UNLIKE_OVER_RUN.id and other.cause == found.cause, default=None)
        if by is not None:
            who = f" (rank {by.ranks[0]})" if by.rule in _LATE and len(by.ranks) == 1 else ""
            found = replace(found, severity="info", message=f"{found.message} {by.rule}{who} explains it.")
        merged.append(found)
    return merged


def explains(other: Finding, found: Finding) -> bool:
    """Whether one finding is why the other fired."""
    if other.severity == "info":
        return False
    # Where long steps take far more of the run than what is said to be done in them, most is for another reason.
    most = (other.impact_ms or 0.0) >= _MOST_OF * (found.impact_ms or 0.0)
    return any(
        known.rule.id == other.rule
        and known.cause in (None, other.cause)
        and found.rule in {rule.id for rule in known.explained}
        and (found.cause not in known.own_causes or found.cause == other.cause or _held_up_in(found, other))
        and (known.rule is not UNLIKE_OVER_RUN or found.cause == other.cause or most)
        and known.of_cause in (None, found.cause)
        and (not known.same_ranks or set(found.ranks) <= set(other.ranks))
        for known in EXPLAINS
    )


def _held_up_in(found: Finding, other: Finding) -> bool:
    """Whether the steps in which a rank waits for a core are those in which it has so much to do."""
    waiting = {one.rank for one in found.evidence if one.fact is Fact.WAITS_FOR_CORE_BEYOND_TYPICAL}
    if found.cause != SHARED_CORES or other.rule != UNLIKE_OVER_RUN.id or not waiting & set(other.ranks):
        return False
    return (other.impact_ms or 0.0) >= _SAME_STEPS * (found.impact_ms or 0.0) > 0


FABRIC_RULES = frozenset(rule.id for rule in fabric.RULES)
_UNJUDGED: dict[Unjudged, str] = {
    "planned": "not judged by this version of traceops",
    "elsewhere": "not judged of one run alone; traceops compare judges it",
}


def most_important_first(findings: Sequence[Finding]) -> list[Finding]:
    """By severity, then by what a step loses, so that the first is the one to fix first. What is wrong with the fabric
    comes before the low bandwidth that it causes."""
    return sorted(
        findings,
        key=lambda f: (
            -SEVERITIES.index(f.severity), -(f.impact_ms or 0.0), f.rule not in FABRIC_RULES, f.rule,
        ),
    )  # fmt: skip


def checks(verdicts: Sequence[Verdict]) -> list[Check]:
    """One line for each rule that a report could tell of, also for those that nobody judged."""
    by_rule, found = {verdict.rule: verdict for verdict in verdicts}, []
    for rule in rules_with(by_rule):
        if (verdict := by_rule.get(rule.id)) is not None and verdict.findings:
            found.append(Check(rule.id, "fired", verdict.findings[0].message))
        elif verdict is not None and verdict.not_evaluated:
            found.append(Check(rule.id, "not_evaluated", verdict.not_evaluated, lacking=verdict.lacking))
        elif verdict is not None:
            found.append(Check(rule.id, "clear", verdict.clear))
        elif rule.judged_by is not JudgedBy.DOCTOR:
            why: Unjudged = "elsewhere" if rule.judged_by is JudgedBy.COMPARE else "planned"
            found.append(Check(rule.id, "not_evaluated", _UNJUDGED[why], why))
    return found


def judged_checks(verdicts: Sequence[Verdict]) -> list[Check]:
    """One line for each rule that has a verdict."""
    judged = {verdict.rule for verdict in verdicts}
    return [check for check in checks(verdicts) if check.rule in judged]


def judge_diagnosis(diagnosis: Diagnosis) -> list[Verdict]:
    """Those of hangs and crashes, and where the evidence tells of the fabric its rules, weighed by the hang."""
    verdicts = [*judge_hang(diagnosis), *judge_crash(diagnosis)]
    if (fabric := diagnosis.evidence.fabric) is not None:
        hung = any(root.rule in OF_A_LINK for root in diagnosis.roots)
        verdicts += judge_fabric(fabric, Circumstances(hung=hung))
    return verdicts


def fabric_findings(verdicts: Sequence[Verdict]) -> list[Finding]:
    """What these verdicts say of the fabric, the most important first."""
    return most_important_first(
        [finding for verdict in verdicts if verdict.rule in FABRIC_RULES for finding in verdict.findings]
    )


def beside_the_roots(diagnosis: Diagnosis, verdicts: Sequence[Verdict]) -> list[Finding]:
    """What a reader in a hurry needs of the fabric: all of it without a root, else what is more than information. A
    root that names the path between GPUs has said already that it is far."""
    found = fabric_findings(verdicts)
    if not diagnosis.roots:
        return found
    said = any(root.cause == "p2p" for root in diagnosis.roots)
    return [
        finding
        for finding in found
        if finding.severity != "info" and not (said and finding.rule == ACROSS_NUMA_NODES.id)
    ]
