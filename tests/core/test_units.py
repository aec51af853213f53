"""Numbers, steps and causes in words."""

from __future__ import annotations

import pytest

from traceops.across.lateness import CAUSES
from traceops.core import words
from traceops.core.findings import MOST_STEPS
from traceops.core.rank_text import first_steps_text
from traceops.core.units import (
    clock_text,
    count_text,
    fixed_text,
    mean_count_text,
    memory_text,
    message_text,
    minute_text,
    ms_change_text,
    ms_text,
    number_text,
    percent_changes,
    percent_text,
    rate_text,
    size_text,
)
from traceops.core.words import STEP, WINDOW, StepWords, step_words
from traceops.measure.ledger import BUCKETS
from traceops.render.report.terms import TERMS


@pytest.mark.parametrize(
    ("nbytes", "decimals", "text"),
    [
        (0, None, "0 B"),
        (512, None, "512 B"),
        (33_603_584, None, "33.6 MB"),
        (-4000, None, "-4.0 kB"),
        (2e15, None, "2000 TB"),
        (123_456_789, 1, "123.5 MB"),
        (999, 1, "999 B"),
    ],
)
def test_sizes_count_by_1000(nbytes: float, decimals: int | None, text: str) -> None:
    assert size_text(nbytes, decimals) == text


def test_memory_counts_by_1024_as_systems_give_it() -> None:
    assert [memory_text(n) for n in (64 << 20, 3 << 39, 100)] == ["64 MB", "1.5 TB", "100 B"]
    assert [message_text(n) for n in (256 << 20, 1 << 10, 1000)] == ["256 MiB", "1 KiB", "1.0 kB"]


def test_numbers_keep_about_three_digits_and_never_round_to_nothing() -> None:
    assert [number_text(v) for v in (0.0, 0.0001, -0.0001, 12345, 1.234)] == [
        "0", "<0.001", ">-0.001", "12\u202f345", "1.23",
    ]  # fmt: skip
    assert number_text(0.004, 2) == "<0.01"
    assert fixed_text(None, 2) == "–" and fixed_text(1.005, 1) == "1.0"
    assert [count_text(v) for v in (1020.04, 1.5)] == ["1,020", "1.5"]
    assert [mean_count_text(v) for v in (None, 0.001, 3.0, 1.23456)] == ["0", "<0.01", "3", "1.23"]


def test_times_rates_and_percents() -> None:
    assert [ms_text(v) for v in (0.0421, 1.254, 29.34, 156.7)] == ["0.042", "1.25", "29.3", "157"]
    assert [ms_change_text(v) for v in (4.12, -0.004, 123.4)] == ["+4.12 ms", "-0.00 ms", "+123 ms"]
    assert [clock_text(v) for v in (7, 7500)] == ["0:07", "2:05:00"]
    assert minute_text(1_763_640_300_000_000_000) == "2025-11-20 12:05"
    assert [rate_text(v) for v in (381.2, 18.44, 0.816)] == ["381", "18.4", "0.82"]
    assert [percent_text(v) for v in (12.4, 0.274, 0.001, 0.0)] == ["12 %", "0.27 %", "0.01 %", "0 %"]
    assert percent_changes([-0.001]) == ["0.00"] and percent_changes([5.2, -3.94]) == ["+5.2", "-3.9"]


# Steps of a finding in words.


def test_steps_are_not_counted_where_there_may_be_more_of_them():
    """'in steps 24, 36, 48 … (64 in all)' stood beside an evaluation that came 97 times."""
    assert first_steps_text(range(0, 200, 12), 3) == "0, 12, 24 … (17 in all)"
    assert first_steps_text(range(0, 12 * MOST_STEPS, 12), 3) == "0, 12, 24 …"


# Words cover what is measured, neither more nor less.


def test_every_cause_of_lateness_has_words() -> None:
    assert tuple(words.CAUSES) == CAUSES


def test_every_bucket_of_the_ledger_has_words_and_a_colour_in_its_order() -> None:
    assert tuple(words.BUCKETS) == tuple(TERMS) == BUCKETS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (STEP, "26.41 ms per step; a step would take 42.8 ms"),
        (WINDOW, "26.41 ms in the window; the window would take 42.8 ms"),
    ],
)
def test_a_sentence_is_made_with_the_words_for_what_its_times_are_of(words: StepWords, said: str) -> None:
    assert f"26.41 ms {words.per}; {words.a} would take 42.8 ms" == said


def test_units_of_a_window_are_those_of_its_sums() -> None:
    assert (STEP.unit("ms"), WINDOW.unit("ms"), WINDOW.unit("calls")) == ("ms/step", "ms", "calls")
    assert (step_words("step"), step_words("window"), step_words("none")) == (STEP, WINDOW, STEP)
