"""All rules, family by family, and who judges them. The order is that of docs/rules.md and of a report's checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from traceops.core.rule import Rule, Verdict
from traceops.rules import (
    bandwidth,
    crashes,
    fabric,
    hangs,
    idle,
    machine,
    memory,
    overlap,
    pipeline,
    regression,
    steps,
    stragglers,
    validity,
)
from traceops.rules.inputs import Inputs


@dataclass(frozen=True)
class Family:
    """Rules about one thing, whose ids begin with `prefix`. about: names it in a sentence.

    judge: gives a verdict for each of them on a run; None where no run alone is judged.
    """

    prefix: str
    about: str
    rules: tuple[Rule, ...]
    judge: Callable[[Inputs], list[Verdict]] | None = None


FAMILIES: tuple[Family, ...] = (
    Family("TO-V", "validity of the capture", validity.RULES, validity.judge),
    Family("TO-S", "stragglers", stragglers.RULES, stragglers.judge),
    Family("TO-B", "pipelines", pipeline.RULES, pipeline.judge),
    Family("TO-T", "steps unlike the others", steps.RULES, steps.judge),
    Family("TO-O", "overlap", overlap.RULES, overlap.judge),
    Family("TO-I", "idle GPUs", idle.RULES, idle.judge),
    Family("TO-C", "bandwidth", bandwidth.RULES, bandwidth.judge),
    Family("TO-P", "topology", fabric.RULES, fabric.judge),
    Family("TO-H", "hangs", hangs.RULES, hangs.judge),
    Family("TO-E", "crashes", crashes.RULES, crashes.judge),
    Family("TO-D", "the machine", machine.RULES),
    Family("TO-M", "memory", memory.RULES),
    Family("TO-R", "regressions", regression.RULES),
)
RULES: tuple[Rule, ...] = tuple(rule for family in FAMILIES for rule in family.rules)
BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}


def family_of(rule: str) -> Family | None:
    """The family that a rule's id belongs to; None for an id of another version."""
    return next((family for family in FAMILIES if rule.startswith(family.prefix)), None)


def judge(inputs: Inputs) -> list[Verdict]:
    """The verdicts of all families on one run, family by family."""
    verdicts: list[Verdict] = []
    for family in FAMILIES:
        if family.judge is not None:
            verdicts += family.judge(replace(inputs, earlier=tuple(verdicts)))
    return verdicts
