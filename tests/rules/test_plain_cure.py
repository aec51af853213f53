"""What the cure of a late host saves without the profiler, held to runs of two H200s whose cured program was timed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from changed import replace

from traceops.across.run_steps import Share
from traceops.across.undisturbed import LightRank, Undisturbed
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.rules.named_lines import in_each_step, in_plain_steps
from traceops.rules.registry import BY_ID


def late(saved_ms, waits_ms, severity="error"):
    evidence = [Evidence(Fact.WAITING_FOR_IT, waits_ms, "ms/step and rank", rank=1)]
    return BY_ID["TO-S001"].finding(severity, "high", "Late.", evidence, ranks=[1], impact_ms=saved_ms, cause="host")


def inputs(recorded_ms, step_ms, waits_ms):
    ranks = [
        LightRank(rank, step_ms, 28.0, 2.0, waits, 0.0, 0.4, step_ms - 30.4 - waits, waits)
        for rank, waits in ((0, waits_ms), (1, 0.0))
    ]
    light = Undisturbed(step_ms, step_ms, "cupti", 6, tuple(ranks))
    return SimpleNamespace(undisturbed=light, run=SimpleNamespace(step_ms=recorded_ms))


@pytest.mark.parametrize(
    ("recorded", "saved", "waited", "step", "waits", "seen", "then"),
    [
        (125.2, 34.0, 68.2, 83.7, 48.6, 40.8, 42.9),  # a line of 40 ms: 42.4 to 45.4 without it
        (83.6, 10.9, 45.7, 78.6, 41.4, 39.4, 39.2),  # the same beside evaluations: as recorded 72.7, hardly stretched
        (170.6, 103.6, 124.4, 99.6, 64.0, 0.0, 46.3),  # cores hogged, no line
    ],
)
def test_the_step_that_is_left_is_that_of_the_cured_program(recorded, saved, waited, step, waits, seen, then):
    told = in_plain_steps(late(saved, waited), inputs(recorded, step, waits), seen)
    assert step - told.impact_ms == pytest.approx(then, abs=0.1) and told.severity == "error"
    assert (
        f"Without the profiler the other ranks' pace would leave {then:.1f} of a step's {step:.1f} ms" in told.message
    )


def test_a_rank_whose_cure_is_worth_little_without_the_profiler_is_a_remark():
    """Rank 0 saved a checkpoint each 20th step, and was a warning for 6 % of the others."""
    told = in_plain_steps(late(7.5, 16.2, "warning"), inputs(54.9, 38.3, 5.2), 0.0)
    assert told.severity == "info" and told.impact_ms == pytest.approx(2.4, abs=0.05)


def test_nobody_is_charged_with_more_than_the_others_wait():
    assert in_plain_steps(late(34.0, 68.2), inputs(125.2, 83.7, 20.0), 60.0).impact_ms == 20.0


def test_what_holds_without_the_profiler_already_stays_as_it_is():
    found = late(34.0, 68.2)
    assert in_plain_steps(found, inputs(86.0, 83.7, 48.6), 10.0) is found
    assert in_plain_steps(replace(found, severity="info"), inputs(125.2, 83.7, 48.6), 40.8).impact_ms == 34.0
    nothing = SimpleNamespace(undisturbed=None, run=SimpleNamespace(step_ms=125.2))
    assert in_plain_steps(found, nothing, 40.8) is found


def test_what_a_rank_does_beside_its_program_in_most_steps():
    run = SimpleNamespace(
        timed=SimpleNamespace(sum=lambda: 144), start=(), typical_ms=234.0, garbage={0: Share(0, 0), 1: Share(4, 4)},
        compiled={0: Share(0.5, 1), 1: Share(78.0, 143)},
    )  # fmt: skip
    own = in_each_step(run, [1])
    assert own is not None and (own.cause, own.doing) == ("recompilation", "torch.compile compiles again")
    assert own.ms == pytest.approx(181.4, abs=0.1) and own.sentence.startswith("Rank 1 spends 181 ms a step compiling")
    assert in_each_step(run, [0]) is None
