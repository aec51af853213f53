"""What a finding saves is one number: in its evidence, its impact, its sentence and the two bars of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of, told_first
from traceops.render.report.lead import lead_finding
from traceops.report.model import Report
from traceops.rules.stragglers_claims import Late

DATA = Path(__file__).parents[1] / "data"
RUNS = sorted({path.parent for path in DATA.rglob("*trace.json*")} - {DATA / "hostile"})
SAVED = {
    Fact.SAVED_AT_PEERS_PACE, Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY, Fact.SAVED_AT_THEIR_PACE,
    Fact.SAVED_WITHOUT_IT, Fact.SAVED_BY_EVEN_STAGES, Fact.SAVED_AT_THE_OTHERS_PACE, Fact.SAVED_AT_REFERENCE,
    Fact.SAVED_WITH_NCCL, Fact.SAVED_FROM_PINNED,
}  # fmt: skip


@pytest.fixture(scope="module", params=RUNS, ids=lambda path: str(path.relative_to(DATA)))
def report(request: pytest.FixtureRequest) -> Report:
    return analyze(request.param)


def test_evidence_of_a_saving_is_the_impact(report: Report) -> None:
    for finding in report.findings:
        saved = [one.value for one in finding.evidence if one.fact in SAVED and finding.proof(Fact.PLAIN_SAVED) is None]
        assert all(value == pytest.approx(finding.impact_ms, abs=1e-3) for value in saved), finding
        assert len(saved) <= 1, finding


def test_the_claim_and_the_card_give_one_step(report: Report) -> None:
    lead, card = lead_finding(report), card_of(report)
    claim = None if lead is None else claim_of(lead, Late)
    if claim is None or claim.then is None or card.fixed_ms is None or claim.steps:
        return
    assert claim.then == pytest.approx(card.fixed_ms, abs=0.01) or len(told_first(report)) > 1


def test_the_claim_says_what_the_impact_is(report: Report) -> None:
    for finding in report.findings:
        if finding.kind == "late" and isinstance(finding.facts, dict) and finding.proof(Fact.PLAIN_SAVED) is None:
            assert finding.facts["saved"] == pytest.approx(finding.impact_ms, abs=1e-3)
            then = finding.facts.get("then", finding.facts.get("then_or_more"))
            if then is not None and "then_least" not in finding.facts:
                assert finding.facts["step"] - then == pytest.approx(finding.impact_ms, abs=1e-3)
