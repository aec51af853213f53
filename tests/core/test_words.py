"""Words cover what is measured, neither more nor less."""

from __future__ import annotations

import pytest

from traceops.across.lateness import CAUSES
from traceops.core import cause_words
from traceops.core.words import STEP, WINDOW, StepWords, step_words
from traceops.measure.ledger import BUCKETS
from traceops.render.report.terms import TERMS


def test_every_cause_of_lateness_has_words() -> None:
    assert tuple(cause_words.CAUSES) == CAUSES


def test_every_bucket_of_the_ledger_has_words_and_a_colour_in_its_order() -> None:
    assert tuple(cause_words.BUCKETS) == tuple(TERMS) == BUCKETS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (STEP, "26.41 ms of each 69.2 ms step; a step would take 42.8 ms"),
        (WINDOW, "26.41 ms of the window of 69.2 ms; the window would take 42.8 ms"),
    ],
)
def test_a_sentence_is_made_with_the_words_for_what_its_times_are_of(words: StepWords, said: str) -> None:
    assert f"26.41 ms of {words.each_of('69.2 ms')}; {words.a} would take 42.8 ms" == said


def test_units_of_a_window_are_those_of_its_sums() -> None:
    assert (STEP.unit("ms"), WINDOW.unit("ms"), WINDOW.unit("calls")) == ("ms/step", "ms", "calls")
    assert (step_words("step"), step_words("window"), step_words("none")) == (STEP, WINDOW, STEP)
