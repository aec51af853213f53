"""The card and the finding give one range for the step after a fix of kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of

DATA = Path(__file__).parents[1] / "data" / "compute"


@pytest.mark.parametrize("path", sorted(DATA.iterdir()), ids=lambda path: path.name)
def test_the_card_holds_the_range_of_the_loss(path: Path) -> None:
    report = analyze(str(path))
    card = card_of(report)
    assert card.rule is not None and card.rule.startswith("TO-K") and report.compute
    lead = next(one for one in report.findings if one.rule == card.rule)
    loss = next(one for one in report.compute.losses if one.cause == lead.cause)
    assert card.now_ms is not None
    least, most = (min(ms, card.now_ms) for ms in loss.step_after_ms)
    assert (card.fixed_least_ms, card.fixed_ms) == pytest.approx((least, most), rel=0.01)
