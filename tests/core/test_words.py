"""Words cover what is measured, neither more nor less."""

from __future__ import annotations

from traceops.across.lateness import CAUSES
from traceops.core import words
from traceops.measure.ledger import BUCKETS
from traceops.render.report.terms import TERMS


def test_every_cause_of_lateness_has_words() -> None:
    assert tuple(words.CAUSES) == CAUSES


def test_every_bucket_of_the_ledger_has_words_and_a_colour_in_its_order() -> None:
    assert tuple(words.BUCKETS) == tuple(TERMS) == BUCKETS
