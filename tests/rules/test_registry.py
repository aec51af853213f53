"""The registry knows every rule, and who judges it."""

from collections import Counter
from pathlib import Path

import pytest
from msgspec import UNSET

from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.rule import JudgedBy, Rule
from traceops.pipeline.analyze import analyze
from traceops.rules.explained import checks, judged_checks, most_important_first
from traceops.rules.registry import BY_ID, FAMILIES, RULES

DATA = Path(__file__).parents[1] / "data"
ONE = Evidence(Fact.OTHER, 1, subject="x")


def test_rules_carry_the_prefix_of_their_family_in_order():
    for family in FAMILIES:
        ids = [rule.id for rule in family.rules]
        assert all(one.startswith(family.prefix) for one in ids)
        assert ids == sorted(ids)
    assert max(Counter(rule.id for rule in RULES).values()) == 1
    assert len({family.prefix for family in FAMILIES}) == len(FAMILIES)


def test_families_that_judge_a_run_hold_no_rule_that_nobody_judges():
    for family in FAMILIES:
        by = {rule.judged_by for rule in family.rules}
        assert (by == {JudgedBy.ANALYZE}) == (family.judge is not None), family.prefix


def test_a_report_has_a_check_of_each_rule_and_judges_all_that_it_can():
    report = analyze(DATA / "ddp4", jobs=1)
    expected = [rule for rule in RULES if rule.judged_by is not JudgedBy.DOCTOR]
    assert [check.rule for check in report.checks] == [rule.id for rule in expected]
    unjudged = {check.rule: check.unjudged for check in report.checks if check.unjudged is not UNSET}
    assert unjudged == {"TO-R001": "elsewhere"}


def test_a_rule_makes_its_own_findings_and_verdicts():
    rule = Rule("TO-X001", "Wrong", "When it is wrong.", "Mend it.", by_cause=(("host", "Mend the host."),))
    found = rule.finding("warning", "high", "It is wrong.", [ONE], ranks=[2, 3], cause="host")
    assert (found.rule, found.title, found.advice) == ("TO-X001", "Wrong", "Mend the host.")
    assert rule.finding("info", "low", "It is.", [ONE]).advice == "Mend it."
    assert rule.verdict(found).findings == (found,)
    assert rule.clear("all well").clear == "all well"
    assert rule.not_evaluated("no data").not_evaluated == "no data"
    with pytest.raises(ValueError, match="TO-X001: a finding needs evidence"):
        rule.finding("info", "high", "It is.", [])


def test_a_check_says_how_its_rule_came_out():
    late, small, exposed = BY_ID["TO-S001"], BY_ID["TO-O002"], BY_ID["TO-O001"]
    found = late.finding("error", "high", "Rank 2 is late.", [ONE])
    verdicts = [late.verdict(found, clear="not used"), small.clear("few"), exposed.not_evaluated("none matched")]
    said = {check.rule: (check.status, check.reason) for check in judged_checks(verdicts)}
    assert said == {
        "TO-S001": ("fired", "Rank 2 is late."),
        "TO-O001": ("not_evaluated", "none matched"),
        "TO-O002": ("clear", "few"),
    }
    assert len(checks(verdicts)) > len(said)


def test_what_is_wrong_with_the_fabric_comes_before_the_low_bandwidth_it_causes():
    low, unused = (BY_ID[rule].finding("warning", "high", "m", [ONE]) for rule in ("TO-C001", "TO-P002"))
    assert most_important_first([low, unused]) == [unused, low]
