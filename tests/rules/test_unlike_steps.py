"""TO-T001: steps that take far longer than the others, and steps of two kinds."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from changed import replace
from events_builder import BACKWARD, MAIN, build, kernel, note
from generated_run import Size, SlowHost, SlowInput, ddp, simulate, write_traces
from observed_run import Step, usual, write_rank

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.measure.activity import find_activity
from traceops.measure.host import measure_host
from traceops.measure.ledger import BUCKETS, find_lane
from traceops.measure.steps import find_steps
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.html import describe
from traceops.render.report.terminal import print_report
from traceops.rules.idle_findings import optimizer_time
from traceops.rules.steps import LongSteps
from traceops.traces.model import TraceMeta
from traceops.traces.run_manifest import StepKinds, step_kinds

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
    longer = [e.value for e in found.evidence if e.fact is Fact.HOST_LONGER_IN]
    assert longer and min(longer) > 100, "'host longer in c10d::_allgather_base_ 3.0 ms' of 2017"


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


@pytest.mark.parametrize(("first", "severity"), [(0, "info"), (10, "error")])
def test_the_programs_first_steps_are_no_second_time(tmp_path, first, severity):
    """Two cold steps and a slow one on a laptop were an error: 64 % of the total."""
    rows, at = [], 0.0
    for number, ms in enumerate((9.2, 4.7, 1.0, 1.0, 1.0, 5.1, 1.0, 1.0, 1.0), first):
        mark = {"name": f"ProfilerStep#{number}", "cat": "user_annotation", "ts": at, "dur": 1000 * ms}
        rows += [mark, {"name": "aten::mm", "cat": "cpu_op", "ts": at + 9, "dur": 1000 * ms - 50}]
        at += 1000 * ms
    rows = [{"ph": "X", "pid": 1, "tid": 1, **row} for row in rows]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    found = one(analyze(tmp_path / "trace.json"), "TO-T001")
    assert (found.severity, found.steps) == (severity, (first, first + 1, first + 5))


@pytest.mark.parametrize(("usual_us", "cause"), [(4000, "host"), (0, "evaluation")])
def test_a_region_of_every_step_is_no_cause_of_a_long_one(tmp_path, usual_us, cause):
    """A loop of 'evaluate' had a slow step: 'an evaluation runs', and the advice to evaluate less often."""
    rows = []
    for number in range(9):
        ms, at = 50 if number == 5 else 5, 5e3 * number + 45e3 * (number > 5)
        rows += [{"name": f"ProfilerStep#{number}", "cat": "user_annotation", "ts": at, "dur": 1000 * ms}]
        if took := 49_000 if number == 5 else usual_us:
            rows += [{"name": "evaluate", "cat": "user_annotation", "ts": at + 9, "dur": took}]
        rows += [{"name": "aten::mm", "cat": "cpu_op", "ts": at + 20, "dur": 900 * ms}]
    rows = [{"ph": "X", "pid": 1, "tid": 1, **row} for row in rows]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    assert one(analyze(tmp_path / "trace.json"), "TO-T001").cause == cause


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
    assert "no fault" in one.advice
    assert "A round of the training is 3 steps: a typical step is of the kind" in text_of(report)
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


STEP_MS = 40.0
START_MS = 272.0  # of NCCL, in the first gather() of an accelerate program on an H200
GATHERS = 9  # the recorded step in which it gathers first; 6 is another one


def event(name, cat, ms, dur_ms, correlation=None, **more):
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "name": name, "cat": cat, "ts": 1e3 * ms, "dur": 1e3 * dur_ms, "pid": 1, "tid": 1,
            "args": args, **more}  # fmt: skip


def work(at, dur, correlation):
    """An operator that launches a kernel, and the kernel."""
    return [
        event("aten::mm", "cpu_op", at, 0.1),
        event("cudaLaunchKernel", "cuda_runtime", at + 0.02, 0.02, correlation),
        event("gemm", "kernel", at + 0.06, dur, correlation, pid=0, tid=7)
        | {"args": {"correlation": correlation, "stream": 7, "device": 0}},
    ]


def gather(at, calls):
    """A collective whose host sets NCCL up, and waits for it by and by."""
    rows = [event("c10d::_allgather_base_", "cpu_op", at, START_MS)]
    for n, name in enumerate(calls):
        rows.append(event(name, "cuda_runtime", at + 1 + 4 * n, 3.8, 900 + n))
    return rows + [event("cudaStreamSynchronize", "cuda_runtime", at + 265 + n / 10, 0.05) for n in range(60)]


def program(folder, calls, longer=()):
    """A run of one rank: steps 6 to 10 are recorded. longer: steps that take 100 ms more, by their kernels."""
    rows, at = [], 0.0
    for number in range(6, 11):
        begin = at
        if number == GATHERS:
            rows += gather(at + 0.2, calls)
            at += START_MS
        rows += work(at + 1, 37.0 + 100.0 * (number in longer), number)
        at += STEP_MS - 2 + 100.0 * (number in longer)
        rows.append(event("cudaStreamSynchronize", "cuda_runtime", at - 36, 36.1))
        at += 2
        rows.append(event(f"ProfilerStep#{number}", "user_annotation", begin, at - begin))
    (folder / "rank_0").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"name": "made", "world_size": 1, "ranks": [{"rank": 0}]}))
    (folder / "rank_0" / "rank_0.pt.trace.json").write_text(
        json.dumps({"deviceProperties": [{"id": 0, "name": "H200"}], "traceEvents": rows,
                    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}})
    )  # fmt: skip
    return folder


def long_steps(report):
    return next(one for one in report.findings if one.rule == "TO-T001")


STARTS = ["cudaFuncGetAttributes"] * 60
WORKS = ["cudaMemcpyAsync"] * 60


def test_a_communicator_that_starts_is_named_and_comes_once(tmp_path):
    found = long_steps(analyze(program(tmp_path, STARTS)))
    assert (found.cause, found.severity, found.impact_ms, found.steps) == ("first_use", "info", None, (9,))
    claim = claim_of(found, LongSteps)
    assert (claim.does, claim.ranks, claim.place, claim.once) == ("first_use", (0,), "c10d::_allgather_base_", True)
    assert claim.longer == pytest.approx(272, abs=0.5)
    assert "init_process_group gets device_id" in found.advice
    other = long_steps(analyze(program(tmp_path / "other", WORKS)))
    assert other.cause != "first_use" and claim_of(other, LongSteps).share is None


def test_a_step_that_takes_most_of_the_time_is_more_than_a_remark(tmp_path):
    """Two of nine passes took 83 % of the time, and the typical one got a clean bill."""
    found = long_steps(analyze(program(tmp_path, WORKS)))
    assert (found.severity, found.steps) == ("warning", (9,)) and found.impact_ms is None
    longest = next(e.value for e in found.evidence if e.fact is Fact.LONGEST_STEP)
    assert max(e.value for e in found.evidence if e.fact is Fact.HOST_LONGER_IN) > longest / 2


def test_a_start_is_no_second_time_of_another_slow_step(tmp_path):
    """An fp16 program: its fifth step and NCCL's start were one trouble, 12 % of the time, and a warning."""
    program(tmp_path, STARTS)
    write_rank(tmp_path, 0, [usual(110.0 if at == 5 else STEP_MS, recorded=6 <= at < 11) for at in range(60)])
    found = long_steps(analyze(tmp_path))
    assert (found.cause, found.severity) == ("first_use", "info")
    program(tmp_path / "other", WORKS)
    write_rank(tmp_path / "other", 0, [usual(110.0 if at == 5 else STEP_MS, recorded=6 <= at < 11) for at in range(60)])
    claim = claim_of(long_steps(analyze(tmp_path / "other")), LongSteps)
    assert claim.unlike == 2 and claim.share > 0


def test_long_steps_beside_a_start_are_told_by_themselves(tmp_path):
    found = long_steps(analyze(program(tmp_path, STARTS, longer=(7,))))
    assert found.steps == (7,) and claim_of(found, LongSteps).took == pytest.approx(140)
    assert next(e for e in found.evidence if e.fact is Fact.SUCH_STEPS).unit == "of 4 timed steps"


def test_calls_that_block_are_counted_in_typical_steps(tmp_path):
    """16.2 calls a step of NCCL's start were evidence of blocking in each step."""
    report = analyze(program(tmp_path, STARTS))
    blocked = next(one for one in report.findings if one.rule == "TO-I003")
    calls = {one.metric: one.value for one in blocked.evidence if one.unit.startswith("calls")}
    assert calls == {"cudaStreamSynchronize": pytest.approx(1.0)}


MS = 1_000_000
STEP = "Optimizer.step#LBFGS.step"
BACK = "autograd::engine::evaluate_function: MmBackward0"


def optimized(backward_at):
    """Three steps of 10 ms, of which the optimizer's takes 8; a backward pass somewhere in each."""
    rows = []
    for number in range(3):
        begin = (1 + 10 * number) * MS
        rows += [note(f"ProfilerStep#{number}", begin, 10 * MS), note(STEP, begin + MS, 8 * MS)]
        rows += [note(BACK, begin + backward_at, MS // 10, tid=BACKWARD, cat="cpu_op")]
        rows += kernel(begin + 5 * MS, MS, launched=begin + 4 * MS, tid=MAIN)
    events = build(rows)
    activity = find_activity(events)
    steps = find_steps(events, activity)
    host = measure_host(activity, steps, TraceMeta(), find_lane(events, activity, steps))
    times = SimpleNamespace(mean=lambda by_step: sum(by_step) / 3, summary=SimpleNamespace(host=host))
    return optimizer_time(times, 5.0)


def test_its_time_is_not_the_optimizers_own():
    """109.8 of 125 ms were said to be "the optimizer alone", with advice to fuse LBFGS."""
    assert optimized(backward_at=3 * MS) is None


def test_one_without_a_closure_has_its_time():
    name, took = optimized(backward_at=MS // 2)
    assert name == STEP and took == pytest.approx(6.0, abs=0.01), "the GPU idles before the launch, and behind it"
