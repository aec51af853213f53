"""What docs/rules.md and findings say of each rule is short and plain."""

from __future__ import annotations

import pytest

from tests.plain_words import tics_in
from traceops.core.rule import Rule
from traceops.rules.registry import RULES

LONGEST = 60  # words that say when a rule fires


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_described_in_short_plain_words(rule: Rule) -> None:
    assert len(rule.fires.split()) <= LONGEST
    if not rule.id.startswith(("TO-E", "TO-H")):  # their words are still in rules/crashes.py and hangs.py
        assert tics_in([rule.title, rule.fires, rule.advice, *(advice for _, advice in rule.by_cause)]) == []
