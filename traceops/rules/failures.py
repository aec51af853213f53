"""TO-H and TO-E, the verdicts on a run that hangs or crashes: a finding for each root of a diagnosis.

What to do about each kind of crash is in `hangs/crashes.json`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import ranks_text
from traceops.core.rule import Rule, Verdict, described
from traceops.hangs.crash_kinds import ADVICE, ADVICE_IN, MEMORY_CAUSES, RULE_OF
from traceops.words.catalogue import texts

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis, Root
    from traceops.rules.inputs import Inputs


def _crash(id: str) -> Rule:
    """A rule with the advice for each kind of crash that is a case of it."""
    kinds = MEMORY_CAUSES if id == "TO-E001" else [kind for kind, its in RULE_OF.items() if its == id]
    return replace(described("crashes", id), by_cause=tuple((kind, ADVICE[kind]) for kind in kinds if kind in ADVICE))


GPU_MEMORY, HOST_MEMORY, GPU_ERROR, NCCL_ERROR, SCRIPT_ERROR, MISUSE, REFUSED, ENDED = CRASH_RULES = tuple(
    _crash(f"TO-E00{number}") for number in range(1, 9)
)
_BY_SIGNAL = (
    ("native_crash", SCRIPT_ERROR),
    ("bus_error", SCRIPT_ERROR),
    ("terminated", ENDED),
    ("host_memory", HOST_MEMORY),
)
NEVER_CALLED, MISMATCH, GPU_STUCK, DIED, NO_START, NETWORK_STUCK = (
    described("hangs", f"TO-H00{number}") for number in range(1, 7)
)
DIED = replace(DIED, by_cause=(*DIED.by_cause, *((cause, rule.advice_for(cause)) for cause, rule in _BY_SIGNAL)))
HANG_RULES = (NEVER_CALLED, MISMATCH, GPU_STUCK, DIED, NO_START, NETWORK_STUCK)
BY_ID = {rule.id: rule for rule in (*HANG_RULES, *CRASH_RULES)}
_HANGS, _CRASHES = ({rule.id for rule in rules} for rules in (HANG_RULES, CRASH_RULES))


def advice_of(root: Root) -> str:
    """What to do about a cause. Of a rank that died of a known crash, about the crash, in the job's setting."""
    if root.crash is None:
        return BY_ID[root.rule].advice_for(root.cause) if root.rule in BY_ID else ""
    own = ADVICE_IN.get(root.crash.kind, {}).get(root.setting or "")
    if own is not None:
        return own
    rule = BY_ID.get(RULE_OF[root.crash.kind])
    return texts("crashes", "advice")["killed"] if rule is None else rule.advice_for(root.crash.cause)


def in_order_of_roots(diagnosis: Diagnosis | None, verdicts: Sequence[Verdict]) -> list[Finding]:
    """The findings of these rules, in the order of the diagnosis' roots: the most certain first."""
    found = [finding for verdict in verdicts if verdict.rule in BY_ID for finding in verdict.findings]
    order = {(root.rule, root.ranks): number for number, root in enumerate(diagnosis.roots if diagnosis else ())}
    return sorted(found, key=lambda finding: order.get((finding.rule, finding.ranks), len(order)))


def judge_hangs(inputs: Inputs) -> list[Verdict]:
    """The verdicts on the run's hang, or why there are none."""
    if inputs.hang is None:
        return [rule.not_evaluated(inputs.no_hang) for rule in HANG_RULES]
    return judge_hang(inputs.hang)


def judge_hang(diagnosis: Diagnosis) -> list[Verdict]:
    """One verdict for each of TO-H001 to TO-H006, in that order."""
    found = _by_rule(diagnosis)
    clear = "another_reason" if _HANGS & found.keys() else "crashed" if diagnosis.roots else "no_rank_waits"
    return [
        rule.verdict(*found[rule.id])
        if found[rule.id]
        else rule.not_evaluated(diagnosis.not_evaluated[rule.id])
        if rule.id in diagnosis.not_evaluated
        else rule.clear(reason("hangs", clear))
        for rule in HANG_RULES
    ]


def judge_crashes(inputs: Inputs) -> list[Verdict]:
    """The verdicts on crashes in the run's logs, or why there are none."""
    if inputs.hang is None:
        return [rule.not_evaluated(inputs.no_hang) for rule in CRASH_RULES]
    return judge_crash(inputs.hang)


def judge_crash(diagnosis: Diagnosis) -> list[Verdict]:
    """One verdict for each of TO-E001 to TO-E008, in that order."""
    found = _by_rule(diagnosis)
    if not diagnosis.evidence.log:
        return [rule.not_evaluated(reason("crashes", "no_error")) for rule in CRASH_RULES]
    return [rule.verdict(*found[rule.id], clear=reason("crashes", "not_the_cause")) for rule in CRASH_RULES]


def _by_rule(diagnosis: Diagnosis) -> dict[str, list[Finding]]:
    """The finding of each root, by rule."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for root in diagnosis.roots:
        if root.rule not in BY_ID:
            continue
        proof = [Evidence(Fact.CLUE, value, subject=metric) for metric, value in root.evidence]
        proof += _waiting(diagnosis, root) if root.rule in _HANGS else ()
        proof = proof or [Evidence(Fact.RANKS, ranks_text(root.ranks, 16))]
        own = BY_ID[root.rule].finding(
            "error", root.confidence, root.message, proof, ranks=root.ranks, cause=root.cause
        )
        own = replace(own, kind=root.kind.value, headline=root.headline, facts=msgspec.to_builtins(root.facts))
        crashed = root.crash is not None
        found[root.rule].append(replace(own, advice=advice_of(root)) if crashed else own)
    return found


def _waiting(diagnosis: Diagnosis, root: Root) -> list[Evidence]:
    """What a rank that the others wait for does instead, who waits, and for how long."""
    stall, proof = diagnosis.evidence.stall, []
    if root.doing is not None:
        proof.append(Evidence(Fact.DOING_INSTEAD, root.doing))
    if root.waiting:
        proof.append(Evidence(Fact.WAITING_RANKS, len(root.waiting), f"({ranks_text(root.waiting, 16)})"))
    if root.bytes is not None:
        proof.append(Evidence(Fact.MESSAGE, root.bytes, "bytes"))
    if stall is not None:
        proof.append(Evidence(Fact.NO_STEP_FINISHED_FOR, round(stall.stalled_s, 1), "s", stall.limit_s))
    return proof
