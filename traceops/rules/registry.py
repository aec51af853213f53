"""All rules, family by family, and who judges them. The order is that of docs/rules.md and of a report's checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from traceops.core.rule import Rule, Verdict
from traceops.rules import (
    bandwidth,
    fabric,
    hangs,
    idle,
    memory,
    overlap,
    regression,
    stragglers,
    validity,
)
from traceops.rules.inputs import Inputs


@dataclass(frozen=True)
class Family:
    """Rules about one thing. judge: gives a verdict for each of them on a run; None where no run alone is judged."""

    prefix: str
    rules: tuple[Rule, ...]
    judge: Callable[[Inputs], list[Verdict]] | None = None


FAMILIES: tuple[Family, ...] = (
    Family("TO-V", validity.RULES, validity.judge),
    Family("TO-S", stragglers.RULES, stragglers.judge),
    Family("TO-O", overlap.RULES, overlap.judge),
    Family("TO-I", idle.RULES, idle.judge),
    Family("TO-C", bandwidth.RULES, bandwidth.judge),
    Family("TO-P", fabric.RULES, fabric.judge),
    Family("TO-H", hangs.RULES, hangs.judge),
    Family("TO-M", memory.RULES),
    Family("TO-R", regression.RULES),
)
RULES: tuple[Rule, ...] = tuple(rule for family in FAMILIES for rule in family.rules)
BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}


def judge(inputs: Inputs) -> list[Verdict]:
    """The verdicts of all families on one run, family by family."""
    verdicts: list[Verdict] = []
    for family in FAMILIES:
        if family.judge is not None:
            verdicts += family.judge(replace(inputs, earlier=tuple(verdicts)))
    return verdicts
