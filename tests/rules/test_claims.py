"""The registry and its claims: every kind has its words, every rule a judge, and findings explain each other."""

from __future__ import annotations

import ast
import csv
import io
import re
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec
import numpy as np
import pytest
from changed import replace
from generated_run import SlowInput, ddp, simulate, write_traces
from measured_runs import program
from msgspec import UNSET
from plain_words import TICS

import traceops
from benchmarks import ROOT
from traceops.core.claims import Claim, filled, reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.rule import JudgedBy, Rule
from traceops.pipeline.analyze import analyze
from traceops.render.finding_blocks import evidence_lines
from traceops.render.report.card import card_of
from traceops.render.report.html import describe
from traceops.render.writers.csv import findings_csv
from traceops.render.writers.html import write_html
from traceops.rules import registry
from traceops.rules.explained import EXPLAINS, checks, judged_checks, merge_overlapping, most_important_first
from traceops.rules.registry import BY_ID, FAMILIES, RULES
from traceops.words.catalogue import sections

LONGEST = 90
NO_CLAIMS = {"", "words", "reasons", "bounds"}


def kinds(of: type[Claim] = Claim) -> Iterator[type[Claim]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("traceops.rules.") and hasattr(kind, "kind"):
            yield kind
        yield from kinds(kind)


KINDS = sorted(kinds(), key=lambda kind: kind.kind)
WORDED = sorted({kind.family for kind in KINDS})


def sample(kind: type[Any], choices: dict[str, str]) -> Any:
    """One with every fact known. choices: of the facts that choose a text."""
    hints = typing.get_type_hints(kind)
    return kind(
        **{field.name: _value(field.name, hints[field.name], choices) for field in msgspec.structs.fields(kind)}
    )


def _value(name: str, hint: Any, choices: dict[str, str]) -> Any:
    if name in choices:
        return choices[name]
    if typing.get_origin(hint) is Mapping:
        return {"data": 128.4}
    options = [one for one in typing.get_args(hint) if one is not type(None)]
    hint = options[0] if typing.get_origin(hint) is not tuple and options else hint
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return sample(hint, {key.partition(".")[2]: value for key, value in choices.items() if key.startswith(name)})
    if typing.get_origin(hint) is tuple:
        return (3, 7)
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)[0]
    return {int: 12, float: 128.4, bool: True, str: "x"}[hint]


def forms(kind: type[Claim], part: str) -> Iterator[tuple[str, Claim]]:
    """Each sentence of a part with each of the texts that it may choose."""
    own, shared = sections(kind.family)[kind.kind], sections(kind.family).get("words", {})
    for line in filter(None, own.get(part, "").split("\n")):
        chosen = [(name, spec[1:]) for _, name, spec, _ in Formatter().parse(line) if spec and spec[0] in "=^"]
        if not chosen:
            yield line, sample(kind, {})
        for name, text in chosen:
            keys = [key for key in (*own, *shared) if key.startswith(f"{text}.")]
            assert keys, f"{kind.kind}: no text {text}.*"
            for key in keys:
                yield (
                    line,
                    sample(
                        kind, {other: _first(own, shared, how) for other, how in chosen} | {name: key.partition(".")[2]}
                    ),
                )


def _first(own: Any, shared: Any, text: str) -> str:
    return next(key for key in (*own, *shared) if key.startswith(f"{text}.")).partition(".")[2]


def test_a_kind_has_one_section_and_one_struct() -> None:
    assert registry.RULES
    assert len({kind.kind for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert sections(kind.family)[kind.kind]["headline"], kind
    claimed = {(kind.family, kind.kind) for kind in KINDS}
    for family in WORDED:
        own = {(family, name) for name in sections(family) if not name.startswith("TO-") and name not in NO_CLAIMS}
        assert own <= claimed, "a section that no claim has"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_sentence_can_be_filled_and_reads_plainly(kind: type[Claim]) -> None:
    for part in sections(kind.family)[kind.kind]:
        for line, claim in forms(kind, part):
            said = filled(line.replace(":unless}", ":if}"), claim)
            assert said and "{" not in said and "  " not in said, line
            assert not TICS.search(said), (said, TICS.search(said))
            if part == "headline":
                assert len(said) <= LONGEST and not said.endswith(".") and "(" not in said and "TO-" not in said, said
            if part == "why":
                assert said.endswith("."), said


WORDS = Path(traceops.__file__).parent / "words"


@pytest.mark.parametrize("rule", registry.RULES, ids=lambda rule: rule.id)
def test_what_a_rule_says_of_itself_is_short_and_plain(rule: Rule) -> None:
    assert len(rule.fires.split()) <= 60
    by_cause = () if rule.id.startswith("TO-E") else rule.by_cause  # those lie in hangs/crashes.json
    for said in (rule.title, rule.fires, rule.advice, *(advice for _, advice in by_cause)):
        assert not TICS.search(said), TICS.search(said)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_numbers_of_numpy_are_facts_like_others(kind: type[Claim]) -> None:
    plain = sample(kind, {})
    numbers = {name: np.float64(value) for name, value in msgspec.structs.asdict(plain).items() if type(value) is float}
    assert msgspec.structs.replace(plain, **numbers).facts() == plain.facts()


def reasons_used() -> set[tuple[str, str]]:
    """The family and the key of each reason that the code gives; where a key is one of two, both."""
    found = set()
    for path in (ROOT / "traceops").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "import" not in text or "reason" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == "reason"
                and len(call.args) == 2
            ):
                family = call.args[0].value if isinstance(call.args[0], ast.Constant) else ""
                keys = [one.value for one in ast.walk(call.args[1]) if isinstance(one, ast.Constant) and one.value]
                found |= {(family, key) for key in keys if isinstance(key, str)}
    return found


def test_each_reason_that_the_code_gives_is_in_the_catalogue() -> None:
    used = reasons_used()
    assert len(used) > 20
    shared = sections("reasons")["reasons"]
    for family, key in used:
        assert key in sections(family).get("reasons", {}) or key in shared, (family, key)


_LISTS = ("ranks", "Ranks", "steps", "list", "and", "semicolons")
REASONS = [
    (family, key)
    for family in sorted({"reasons", *(family for family, _ in reasons_used())})
    for key in sections(family).get("reasons", {})
]


@pytest.mark.parametrize(("family", "key"), REASONS, ids=lambda one: one)
def test_a_reason_is_filled_with_its_facts(family: str, key: str) -> None:
    """With every fact a number: none is left in braces."""
    text = sections(family)["reasons"][key]
    parsed = [(name.partition(".")[0], spec or "") for _, name, spec, _ in Formatter().parse(text) if name]
    names = dict(sorted(parsed, key=lambda one: one[1] in _LISTS))
    words = sections(family).get("words", {})
    facts: dict[str, Any] = {
        name: (3, 7) if spec in _LISTS else _first({}, words, spec[1:]) if spec.startswith("=") else 12
        for name, spec in names.items()
    }
    facts["link"] = 12  # of the text that {source} chooses
    said = reason(family, key, **facts)
    assert said and "{" not in said and "  " not in said and not said.endswith("."), said


def test_every_bound_is_described() -> None:
    for family in registry.FAMILIES:
        for bounds in family.bounds:
            assert set(sections(bounds.words)["bounds"]) == set(bounds.__struct_fields__)


@pytest.mark.parametrize("path", sorted(WORDS.glob("*.ini")), ids=lambda path: path.stem)
def test_every_text_of_the_catalogue_reads_plainly(path: Path) -> None:
    """facts.ini is left out: reports of earlier versions are read by these labels."""
    for name, texts in sections(path.stem).items() if path.stem != "facts" else ():
        for key, text in texts.items():
            said = re.sub(r"\{[^}]*\}", "x", text if isinstance(text, str) else " ".join(text))
            assert not TICS.search(said), (name, key, TICS.search(said))


def found(rule, severity="warning", ranks=(), cause=None):
    return BY_ID[rule].finding(
        severity, "high", f"{rule}.", [Evidence(Fact.OTHER, 1, subject="x")], ranks=ranks, cause=cause
    )


def severities(findings):
    return {f.rule: f.severity for f in merge_overlapping(findings)}


def test_a_straggler_explains_its_own_idle_time():
    late = found("TO-S001", "error", (3,), "input")
    idle = found("TO-I001", "warning", (3,))
    merged = {f.rule: f for f in merge_overlapping([idle, late])}
    assert merged["TO-S001"] == late
    assert merged["TO-I001"].severity == "info"
    assert merged["TO-I001"].message == "TO-I001. TO-S001 (rank 3) explains it."
    assert merged["TO-I001"].evidence == idle.evidence


@pytest.mark.parametrize(
    "late",
    [
        found("TO-S001", "error", (3,), "gpu_compute"),  # another cause
        found("TO-S001", "info", (3,), "input"),  # a remark explains nothing
        found("TO-S001", "error", (2,), "input"),  # another rank
        found("TO-S001", "error", (3,), None),
    ],
)
def test_what_does_not_explain_leaves_alone(late):
    assert severities([late, found("TO-I001", "error", (3,))])["TO-I001"] == "error"


def test_idle_time_of_more_ranks_than_the_straggler_stays():
    late = found("TO-S001", "error", (3,), "host")
    assert severities([late, found("TO-I001", "warning", (2, 3))])["TO-I001"] == "warning"
    assert severities([late, found("TO-I003", "warning", (3,))])["TO-I003"] == "info"
    assert severities([late, found("TO-I002", "warning", (3,))])["TO-I002"] == "warning"


def test_a_slow_link_explains_exposed_communication_of_anybody():
    for rule in ("TO-C001", "TO-C002", "TO-O002", "TO-O003"):
        merged = severities([found(rule, "warning", (0, 1)), found("TO-O001", "error", (0, 1, 2, 3))])
        assert merged == {rule: "warning", "TO-O001": "info"}


@pytest.mark.parametrize(
    ("own", "severity"), [("shared_cores", "warning"), ("recompilation", "warning"), ("host", "info")]
)
def test_an_evaluation_of_the_run_explains_no_step_that_is_long_for_a_known_other_reason(own, severity):
    run, step = found("TO-W001", cause="evaluation"), found("TO-T001", cause=own)
    assert severities([run, step])["TO-T001"] == severity


def test_what_the_run_recompiles_explains_a_recorded_step_that_does():
    run, step = found("TO-W001", cause="recompilation"), found("TO-T001", cause="recompilation")
    assert severities([run, step])["TO-T001"] == "info"


@pytest.mark.parametrize(
    ("run_ms", "waits", "severity"), [(600.0, 1, "info"), (600.0, 0, "error"), (300.0, 1, "error")]
)
def test_steps_that_a_rank_fills_with_work_are_not_long_for_want_of_a_core(run_ms, waits, severity):
    """A collector took 86 % of a run, and "meanwhile rank 1 waits for a core" led the report."""
    run = replace(found("TO-W001", "error", (1,), "garbage_collection"), impact_ms=run_ms)
    step = replace(
        found("TO-T001", "error", (0, 1), "shared_cores"),
        impact_ms=770.0,
        evidence=(Evidence(Fact.WAITS_FOR_CORE_BEYOND_TYPICAL, 970.0, "ms", rank=waits),),
    )
    assert severities([run, step])["TO-T001"] == severity


@pytest.mark.parametrize(("run_ms", "severity"), [(24.0, "error"), (60.0, "info")])
def test_late_input_of_most_of_a_run_is_not_explained_by_what_takes_less(run_ms, severity):
    """Late batches took 57 % of a run; an evaluation of 22 % led it, and was said to explain them."""
    run = replace(found("TO-W001", "warning", (0, 1), "evaluation"), impact_ms=run_ms)
    step = replace(found("TO-T001", "error", (0, 1), "input"), impact_ms=72.0)
    assert severities([run, step])["TO-T001"] == severity


def test_late_input_of_the_whole_run_explains_such_steps_before_the_rank_that_had_it_in_the_recorded_ones():
    """16 of 53 steps waited for either rank's batch; that rank 1 was late in two of them "explained" them all."""
    late, run = found("TO-S002", "warning", (1,), "input"), found("TO-W001", "error", (0, 1), "input")
    step = found("TO-T001", "error", (0, 1), "input")
    for order in permutations((late, run, step)):
        told = next(one for one in merge_overlapping(order) if one.rule == "TO-T001")
        assert told.message == "TO-T001. TO-W001 explains it."
    assert "TO-S002 (rank 1) explains it." in merge_overlapping([late, step])[1].message


def test_the_order_of_findings_does_not_matter():
    some = [
        found("TO-C002", "warning", (0, 1)),
        found("TO-C001", "error", (0, 1)),
        found("TO-O001", "error"),
        found("TO-O003", "warning"),
    ]
    results = [severities(order) for order in permutations(some)]
    assert all(result == results[0] for result in results)
    assert results[0]["TO-C002"] == "warning"
    assert results[0]["TO-C001"] == results[0]["TO-O001"] == "info"


def test_the_root_of_a_chain_is_never_turned_into_a_remark():
    """Whatever fires together, something stays that is to be fixed."""
    rules = sorted(r.id for r in {e.rule for e in EXPLAINS} | {r for e in EXPLAINS for r in e.explained})
    for one in rules:
        for other in rules:
            if one != other:
                merged = severities([found(one, "error", (1,), "host"), found(other, "error", (1,), "host")])
                assert "error" in merged.values()


def test_alone_and_none():
    assert merge_overlapping([]) == []
    one = found("TO-O001", "error")
    assert merge_overlapping([one]) == [one]
    assert merge_overlapping([one, one]) == [one, one]


def test_only_rules_that_exist_are_named():
    assert {e.rule for e in EXPLAINS} | {r for e in EXPLAINS for r in e.explained} <= set(RULES)


LOADS_US = 5914.9  # 5.91 ms; rounded to the µs first it is 5.915, and then 5.92


def waiting(tmp_path):
    made = program(ddp, device="cpu", layers=2, steps=3).without_jitter()
    faults = [SlowInput(rank, LOADS_US - 100) for rank in range(2)]
    write_traces(simulate(made, 2, faults), tmp_path)
    report = analyze(tmp_path)
    return report, next(one for one in report.findings if one.rule == "TO-I002")


def test_a_time_is_rounded_once(tmp_path):
    report, found = waiting(tmp_path)
    shown = {
        "message": re.search(r"up to ([\d.]+) ms", found.message),
        "headline": re.search(r"([\d.]+) ms", card_of(report).headline),
    }
    assert {where: told[1] for where, told in shown.items()} == {"message": "5.91", "headline": "5.91"}
    assert f"{found.evidence[0].value:.2f}" == "5.91" and f"{report.ranks[0].idle_input_ms:.2f}" == "5.91"


def test_evidence_is_shown_to_the_microsecond(tmp_path):
    report, found = waiting(tmp_path)
    assert "idle_input 5.915 ms/step" in evidence_lines(found)[0]
    [row] = [row for row in csv.DictReader(io.StringIO(findings_csv(report.findings))) if row["rule"] == "TO-I002"]
    assert "idle_input=5.915 ms/step" in row["evidence"]
    assert b"5.915 ms/step" in write_html(describe(report))


def test_a_share_is_rounded_once(tmp_path):
    report, _ = waiting(tmp_path)
    summary = report.summary
    step = sum(row.typical_step_ms for row in report.ranks) / len(report.ranks)
    for bucket in ("compute", "idle_input"):
        exact = 100 * getattr(summary.ledger_ms, bucket) / step
        assert abs(getattr(summary.ledger_pct, bucket) - exact) < 1e-3


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
