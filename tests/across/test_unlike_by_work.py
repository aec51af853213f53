"""Steps in which more runs are told apart where they are too many for the spread of all steps to show."""

from pathlib import Path

import numpy as np

from traceops.across.unlike import _with_more_work
from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.rules.steps import LongSteps

PLAIN = Path(__file__).parents[1] / "data" / "plain_profiler"


def test_an_evaluation_in_every_third_step_is_no_part_of_the_typical_one():
    """3 of 7 steps evaluate and save: their mean was called a step, and its cause late launches."""
    report = analyze(PLAIN / "evaluations" / "trace.json.gz")
    assert report.summary.step_time_ms.unlike == (2, 5, 8)
    unlike = next(found for found in report.findings if found.rule == "TO-T001")
    assert unlike.severity == "error"
    assert claim_of(unlike, LongSteps).does == "other_work"
    assert report.summary.step_time_ms.typical < 45


def test_the_longer_half_is_as_typical_as_the_shorter_one():
    took, kernels = np.array([30.0, 90, 30, 90, 30, 90]), np.array([200.0, 600, 200, 600, 200, 600])
    assert not _with_more_work(took, kernels).any()
    assert _with_more_work(np.append(took, 30.0), np.append(kernels, 200.0)).tolist() == [False, True] * 3 + [False]


def test_more_kernels_in_the_same_time_are_nothing():
    took, kernels = np.array([30.0, 30, 31, 32, 33]), np.array([200.0, 600, 200, 600, 200])
    assert not _with_more_work(took, kernels).any()


def test_a_first_step_that_sets_up_libraries_is_late_not_other_work():
    """A few kernels more were 'other work' of a step in which the host loads libraries for 0.6 s."""
    report = analyze(PLAIN / "cold_start" / "trace.json.gz")
    unlike = next(found for found in report.findings if found.rule == "TO-T001")
    assert unlike.cause == "host"
    claim = claim_of(unlike, LongSteps)
    assert (claim.does, claim.ranks) == ("host", (0,))
