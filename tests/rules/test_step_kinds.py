"""Steps of two kinds: three of a WGAN's critic to one of its generator."""

import io
import json
from pathlib import Path

import pytest
from changed import replace
from generated_run import Size, SlowHost, SlowInput, ddp, simulate, write_traces

from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.render.report.html import describe
from traceops.render.report.terminal import print_report
from traceops.rules.steps import LongSteps
from traceops.traces.run_manifest import StepKinds, step_kinds

WGAN = StepKinds(("Adam.step",), "Adam.step", 40, 120)


def report_of(tmp_path, longer, within, *faults, device="cuda"):
    """Twelve steps on two ranks, of which these do the work of three. They have the numbers 2 to 13."""
    made = ddp(steps=12, size=Size(kernel_us=200.0), device=device)
    work = [step * 3 if number in longer else step for number, step in enumerate(made.steps)]
    write_traces(simulate(replace(made, steps=tuple(work)), 2, faults=faults), tmp_path)
    ranks = [{"rank": rank, "step_ends": {"Adam.step": 120}, "steps_within": within} for rank in range(2)]
    (tmp_path / "run.json").write_text(json.dumps({"world_size": 2, "ranks": ranks}))
    return analyze(tmp_path)


def found(report):
    [one] = [finding for finding in report.findings if finding.rule == "TO-T001"]
    return one


def text_of(report):
    file = io.StringIO()
    print_report(report, file, Path("reports/x"), verbose=True)
    return " ".join(file.getvalue().split())


def test_a_generators_step_is_no_fault_of_the_training(tmp_path):
    """'Of 9 timed steps 3 are such: 42 % of the time (TO-T001, error): make them rarer or cheaper.'"""
    report = report_of(tmp_path, (2, 5, 8, 11), {"Adam.step": 40})
    one = found(report)
    assert (one.severity, one.cause, one.impact_ms) == ("info", "other_optimizer", None)
    claim = claim_of(one, LongSteps)
    assert (claim.another, claim.another_in, claim.another_of, claim.left_pct) == ("Adam.step", 40, 120, None)
    assert "No fault" in one.advice
    assert "A round of the training is 3 steps: a typical step tells of the kind" in text_of(report)
    assert any("Steps are of two kinds" in str(block) for block in describe(report).intro)


@pytest.mark.parametrize(
    ("longer", "within"), [((2, 5, 8, 11), {}), ((2, 5, 8, 11), {"Adam.step": 120}), ((2, 6, 7), {"Adam.step": 40})]
)
def test_steps_that_do_not_come_as_the_other_optimizer_does_are_told_as_ever(tmp_path, longer, within):
    one = found(report_of(tmp_path, longer, within))
    assert one.severity != "info" and one.cause == "other_work"


GENERATOR = {"steps": (4, 7, 10, 13)}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "faults",
    [
        (SlowInput(1, 20_000.0, **GENERATOR),),
        (SlowInput(0, 20_000.0, **GENERATOR), SlowInput(1, 20_000.0, **GENERATOR)),
        (SlowHost(1, 60_000.0, **GENERATOR),),
    ],
)
def test_what_waiting_makes_long_is_not_the_other_optimizers(tmp_path, faults, device):
    """A rank that was late in the generator's steps only: 'no fault where the training is meant so'."""
    one = found(report_of(tmp_path, (2, 5, 8, 11), {"Adam.step": 40}, *faults, device=device))
    assert one.cause == "other_work" and one.impact_ms > 0 and "No fault" not in one.advice
    claim = claim_of(one, LongSteps)
    assert claim.another == "Adam.step" and claim.left_pct > 50
    assert one.severity != "info" or "TO-S002 (rank 1) explains it" in one.message


@pytest.mark.parametrize("steps", [117, 118, 119, 121, 122])
def test_a_run_that_ends_within_a_round_has_its_rhythm(steps):
    """'5 of 8 recorded steps' was the other optimizer's, whichever they were, if the run ended within a round."""
    kinds = StepKinds(("Adam.step",), "Adam.step", 40, steps)
    assert kinds.may_be((4, 7, 13), 12) and not kinds.may_be((4, 8, 13), 12)
    assert kinds.every == 3, "a round was '3.08 steps'"


def test_an_optimizer_that_comes_in_no_rhythm_may_come_anywhere():
    kinds = StepKinds(("Adam.step",), "Adam.step", 48, 120)
    assert kinds.may_be((4, 6, 9), 12) and kinds.every == 2.5


@pytest.mark.parametrize(
    ("within", "kinds"),
    [
        ({"Adam.step": 40}, WGAN),
        ({"Adam.step": 120}, None),  # a GAN whose two optimizers step once each
        ({"Adam.step": 1}, None),  # until the capture had learned which of two ends a step
        ({}, None),
        ({"Adam.step": "40"}, None),
    ],
)
def test_what_run_json_tells(within, kinds):
    entry = {"rank": 0, "step_ends": {"Adam.step": 120}, "steps_within": within}
    assert step_kinds({"ranks": [{"rank": 1}, entry]}) == kinds
    assert step_kinds({}) is None
