"""Words cover what is measured, neither more nor less."""

from __future__ import annotations

import pytest

from traceops.across.lateness import CAUSES
from traceops.core import words
from traceops.core.window_words import of_window
from traceops.measure.ledger import BUCKETS
from traceops.render.report.terms import TERMS


def test_every_cause_of_lateness_has_words() -> None:
    assert tuple(words.CAUSES) == CAUSES


def test_every_bucket_of_the_ledger_has_words_and_a_colour_in_its_order() -> None:
    assert tuple(words.BUCKETS) == tuple(TERMS) == BUCKETS


@pytest.mark.parametrize(
    ("of_steps", "said"),
    [
        (
            "Device time of one step: the mean over the rank's typical steps, which its ledger adds up to.",
            "Device time of the window, which its ledger adds up to.",
        ),
        ("the table below has the means and the worst step", "the table below has the numbers"),
        ("Steps take 1.42 times as long as they would", "The window takes 1.42 times as long as it would"),
        ("26.41 ms of each 69.2 ms step", "26.41 ms of the window of 69.2 ms"),
    ],
)
def test_a_window_has_no_mean_and_no_worst_step(of_steps: str, said: str) -> None:
    assert of_window(of_steps) == said
