"""The few ranks and steps that show one finding: who it names, who suffers, and where it is plainest."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from traceops.across.cross_rank import CrossRank
from traceops.core.errors import UsageError
from traceops.core.findings import Finding

_NAME = re.compile(r"(?P<rule>TO-[A-Z]\d{3})(?:[.#](?P<place>[1-9]\d{0,3}))?", re.I)
_MOST_NAMED = 4


@dataclass(frozen=True)
class Around:
    """Which ranks and steps to show; steps is None where the ranks mark none in common."""

    finding: Finding
    ranks: tuple[int, ...]
    steps: tuple[int, ...] | None


def around_finding(name: str, findings: Sequence[Finding], run: CrossRank, present: Collection[int]) -> Around:
    """The ranks and the step for a finding called as `TO-S001`, or `TO-S001.2` for the second of a rule.

    Ranks: the first few that the finding names, the one that waits longest for them, and the one that waits
    least, of those `present`. Step: the longest of those it names, else of all.
    Raises UsageError where there is no such finding.
    """
    finding = find_named(name, findings)
    times = {own.summary.rank: own for own in run.ranks}
    lengths: dict[int, int] = defaultdict(int)
    for own in run.ranks:
        for number, ns in zip(own.summary.step_numbers.tolist(), own.duration.tolist(), strict=True):
            if number >= 0:
                lengths[number] = max(lengths[number], int(ns))
    named_steps = [step for step in finding.steps if step in lengths]
    step = max(named_steps or lengths, key=lambda number: lengths[number], default=None)
    named = [rank for rank in finding.ranks if rank in times and rank in present][:_MOST_NAMED]
    waits = {rank: _wait(run, rank, step) for rank in times if rank in present}
    others = [rank for rank in sorted(waits, key=lambda rank: (-waits[rank], rank)) if rank not in named]
    shown = {*named, *others[:1], *others[-1:]} if named else {*others[:2], *others[-2:]}
    return Around(finding, tuple(sorted(shown)), None if step is None else (step,))


def finding_name(name: str) -> str:
    """A finding's name in one spelling: 'TO-S001', 'TO-S001.2'. Raises UsageError where it is none."""
    if (match := _NAME.fullmatch(name.strip())) is None:
        raise UsageError(f"{name!r} is no finding; take one such as TO-S001")
    return match["rule"].upper() + (f".{match['place']}" if match["place"] not in (None, "1") else "")


def find_named(name: str, findings: Sequence[Finding]) -> Finding:
    """The finding of that name; raises UsageError where there is none."""
    match = _NAME.fullmatch(name.strip())
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    if match is None:
        raise UsageError(f"{name!r} is no finding; take one such as {rules[0] if rules else 'TO-S001'}")
    own = [finding for finding in findings if finding.rule == match["rule"].upper()]
    place = int(match["place"] or 1)
    if place > len(own):
        raise UsageError(
            f"this run has no finding {name.strip()}; it has {', '.join(rules) if rules else 'none at all'}"
        )
    return own[place - 1]


def _wait(run: CrossRank, rank: int, step: int | None) -> int:
    """How long a rank waited in collectives of a step, of all steps if None; ns."""
    summary = next(own.summary for own in run.ranks if own.summary.rank == rank)
    total = 0
    for collective in run.matching.collectives:
        for (member, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if member == rank and (step is None or summary.step_number(position) == step):
                total += wait
    return total
