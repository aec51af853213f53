"""Steps unlike the others: left out of the typical step, and told apart with what they do more."""

import json
import shutil
from pathlib import Path

import pytest
from observed_run import Step, usual, write_rank

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.measure.ledger import BUCKETS
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.rules.steps import LongSteps

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def recompiling():
    return analyze(DATA / "recompile2")


def one(report, rule):
    return next((f for f in report.findings if f.rule == rule), None)


def with_unprofiled(tmp_path, series):
    """The run with other steps timed without the profiler, ms on both ranks."""
    run = tmp_path / "run"
    shutil.copytree(DATA / "recompile2", run)
    manifest = json.loads((run / "run.json").read_text())
    for rank in manifest["ranks"]:
        rank["unprofiled_step_ms"] = series
    (run / "run.json").write_text(json.dumps(manifest))
    return analyze(run)


def test_a_recompilation_is_named_and_weighs_nothing_in_the_typical_step(recompiling):
    step = recompiling.summary.step_time_ms
    assert step.unlike == (10,)
    assert step.typical == pytest.approx(132.6, abs=0.1)
    found = one(recompiling, "TO-T001")
    assert (found.severity, found.cause, found.steps) == ("info", "recompilation", (10,))
    assert "TORCH_LOGS=recompiles" in found.advice
    claim = claim_of(found, LongSteps)
    assert (claim.unlike, claim.share, claim.once) == (1, None, False)
    assert found.impact_ms is None


def test_what_all_ranks_do_is_told_of_all(recompiling):
    """An evaluation on both ranks was other work on rank 1."""
    claim = claim_of(one(recompiling, "TO-T001"), LongSteps)
    assert claim.does == "recompilation" and claim.all_ranks


def test_the_ledger_is_of_the_typical_step(recompiling):
    ledger = recompiling.summary.ledger_ms
    own = [row for row in recompiling.steps if row.step != 10]
    for bucket in BUCKETS:
        by_rank = [sum(getattr(row, bucket) for row in own if row.rank == rank) / 3 for rank in (0, 1)]
        assert ledger.of(bucket) == pytest.approx(sum(by_rank) / 2, abs=1e-5)


def test_a_healthy_run_with_one_recompilation_is_not_said_to_starve(recompiling):
    """97 % busy between recompilations, measured without the profiler: 120 ms a step."""
    assert one(recompiling, "TO-I001") is None
    card = card_of(recompiling)
    assert card.level in ("info", "clear") and card.now_ms == pytest.approx(recompiling.summary.step_time_ms.typical)
    assert card.now_ms < 1000 and one(recompiling, "TO-T001").steps == (10,)


def test_what_recurs_is_weighed_by_the_steps_timed_without_the_profiler(tmp_path):
    report = with_unprofiled(tmp_path, [120.0] * 8 + [1900.0] + [120.0] * 8)
    found = one(report, "TO-T001")
    assert found.severity == "error"
    claim = claim_of(found, LongSteps)
    assert (claim.timed, claim.unlike) == (21, 2) and claim.share > 30
    assert found.impact_ms > 0


def test_a_rare_long_step_is_a_remark(tmp_path):
    report = with_unprofiled(tmp_path, [120.0] * 400)
    found = one(report, "TO-T001")
    assert found.severity == "info"
    assert next(e.value for e in found.evidence if e.fact is Fact.BEYOND_TYPICAL_STEPS) < 5


def test_an_observed_run_weighs_all_its_steps(tmp_path):
    """A slow start of the run was 2 of 10 timed steps, and an error, though 54 were timed."""
    with_unprofiled(tmp_path, [120.0] * 5 + [600.0])
    for rank in (0, 1):
        write_rank(tmp_path / "run", rank, [usual(600.0 if at == 5 else 120.0) for at in range(400)])
    found = one(analyze(tmp_path / "run"), "TO-T001")
    timed = next(e for e in found.evidence if e.fact is Fact.SUCH_STEPS)
    assert (timed.value, found.severity) == (2, "info")
    assert int(timed.unit.split()[1]) > 390
    claim = claim_of(found, LongSteps)
    assert claim.unlike == 2 and claim.share == pytest.approx(5, abs=0.5)


def test_steps_that_are_long_for_another_reason_are_none_of_these(tmp_path):
    """A recompilation in a recorded step was an error, for evaluations that took 68 % of the run."""
    with_unprofiled(tmp_path, [120.0] * 6)
    for rank in (0, 1):
        steps = [usual(120.0) for _ in range(200)]
        for at in range(20, 200, 20):
            steps[at] = Step(4000.0, stacks={"forward": 80, "backward": 40, "evaluate": 3880})
        write_rank(tmp_path / "run", rank, steps)
    report = analyze(tmp_path / "run")
    assert "Evaluation takes" in one(report, "TO-W001").message
    found = one(report, "TO-T001")
    assert (found.severity, found.cause) == ("info", "recompilation")
    assert claim_of(found, LongSteps).share is None


def test_even_steps_are_clear():
    check = next(c for c in analyze(DATA / "ddp4").checks if c.rule == "TO-T001")
    assert check.status == "clear"


def test_two_steps_cannot_tell_which_is_typical():
    check = next(c for c in analyze(DATA / "hta/amd").checks if c.rule == "TO-T001")
    assert check.status == "not_evaluated"


def test_a_late_rank_explains_the_step_it_makes_long():
    """Rank 0 does extra products in one step; autograd's own `evaluate_function` is no evaluation."""
    report = analyze(DATA / "late_step4")
    [late] = [f for f in report.findings if f.rule == "TO-S002"]
    assert (late.ranks, late.severity) == ((0,), "warning")  # seen once
    found = one(report, "TO-T001")
    assert (found.severity, found.cause) == ("info", "gpu_compute")
    assert report.summary.step_time_ms.unlike == (4, 5)  # the others feel it in the step behind
    assert found.message.endswith("TO-S002 (rank 0) explains it.")
    card = card_of(report)
    assert (card.rule, card.now_ms) == ("TO-S002", pytest.approx(107, abs=0.5)) and card.fixed_ms < 100


def test_steps_that_are_long_for_another_reason_too_are_such(tmp_path):
    """torch.compile compiled in each evaluation: 'the only one that takes so long' was said of nine of them."""
    with_unprofiled(tmp_path, [120.0] * 6)
    for rank in (0, 1):
        steps = [usual(120.0) for _ in range(200)]
        for at in range(20, 200, 20):
            stacks = {"forward": 80, "backward": 40, "evaluate": 1900}
            steps[at] = Step(4000.0, compile_ms=1980.0, stacks=stacks)
        write_rank(tmp_path / "run", rank, steps)
    found = one(analyze(tmp_path / "run"), "TO-T001")
    claim = claim_of(found, LongSteps)
    assert (found.cause, claim.unlike) == ("recompilation", 10)
    assert claim.share == pytest.approx(60, abs=0.5)
