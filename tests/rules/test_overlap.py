"""TO-O001 to TO-O003: transfer that nothing hides, in simulated and real runs."""

from pathlib import Path

import numpy as np
import pytest
from changed import replace
from generated_run import (
    Collective,
    HostWork,
    Join,
    Size,
    SlowCompute,
    SlowHost,
    SlowInput,
    ddp,
    fsdp2,
    simulate,
    tp_dp,
)
from measured_runs import BUILDERS, across, program, true_step

from traceops.across.communication import call_times
from traceops.across.replay.what_if import NO_COMMUNICATION
from traceops.across.roles import of_gradients
from traceops.across.undisturbed import LightRank, Undisturbed
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.measure.exchanges import BACKWARD, FORWARD
from traceops.measure.phases import AFTER
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.rules.overlap import judge_exposed, judge_late_start, judge_small
from traceops.rules.overlap_gain import Exposed, ManyCalls, ManySmall, StartsLate, gain_of
from traceops.traces.discover import discover

TINY = Size(kernels=1, kernel_us=5.0, elements=1 << 12, launch_us=2.0, latency_us=40.0)  # 16 kB a layer


def many_small(layers=24, size=TINY, **rest):
    return program(ddp, size, layers=layers, buckets=layers, **rest)


def after_backward(made):
    """The program with its gradients' transfer launched once backward is over."""
    return replace(
        made,
        steps=tuple(
            (*(o for o in step[:at] if not is_gradient(o)), *(o for o in step if is_gradient(o)), *step[at:])
            for step in made.steps
            for at in [next(i for i, o in enumerate(step) if type(o).__name__ == "Join" and "bucket" in o.label)]
        ),
    )


def is_gradient(op):
    return isinstance(op, Collective) and op.label.startswith("bucket")


def test_many_small_collectives_are_o002():
    run = simulate(many_small(), 4)
    [found] = judge_small(across(run)).findings
    assert found.rule == "TO-O002"
    assert found.severity in ("warning", "error")
    assert found.ranks == (0, 1, 2, 3)
    claim = claim_of(found, ManySmall)
    assert (claim.count, claim.median) == (24, pytest.approx(16384))
    exposed = [
        evidence.value
        for evidence in found.evidence
        if evidence.fact in (Fact.TRANSFER_OF_THEM, Fact.SMALL_COLLECTIVES)
    ]
    transfer = sum(c.transfer_ns for c in run.collectives if c.step >= 3) / 4e6
    assert exposed == pytest.approx([24, transfer], rel=0.15)
    assert found.impact_ms <= transfer * 1.15


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_few_or_large_collectives_are_not(builder):
    for size in (Size(), replace(TINY, kernel_us=50.0)):
        verdict = judge_small(across(simulate(program(builder, size), 4)))
        assert verdict.findings == ()
        assert verdict.clear


def test_fewer_than_twenty_a_step_are_not():
    verdict = judge_small(across(simulate(many_small(layers=19), 4)))
    assert verdict.findings == ()
    assert "19 small collectives per step" in verdict.clear


def test_those_of_an_evaluation_are_not_told_of_each_step():
    """Of a run with 3 a step, "25 collectives a step" were told: those of the one step that evaluated."""
    run = across(simulate(many_small(layers=100), 4))
    unlike = np.arange(len(run.ranks[0].duration)) == 1
    kept = [
        c
        for c in run.matching.collectives
        if run.ranks[0].summary.comm.step[c.members[0][1]] == 1 or c.members[0][1] % 100 < 10
    ]
    matching = replace(run.matching, collectives=tuple(kept))
    ranks = tuple(replace(times, typical=~unlike) for times in run.ranks)
    assert judge_small(replace(run, matching=matching)).findings, "as if all steps were alike"
    assert judge_small(replace(run, matching=matching, ranks=ranks)).findings == ()


def test_small_ones_that_compute_hides_cost_nothing():
    hidden = replace(TINY, kernel_us=4000.0)
    verdict = judge_small(across(simulate(many_small(size=hidden), 4)))
    assert all(found.severity == "info" for found in verdict.findings)


def test_without_sizes_or_matches_small_ones_are_not_judged():
    measured = across(simulate(program(ddp), 4))
    none = replace(measured, matching=replace(measured.matching, collectives=()))
    assert "no collective could be matched" in judge_small(none).not_evaluated
    unsized = tuple(replace(c, elements=None) for c in measured.matching.collectives)
    nothing = replace(measured, matching=replace(measured.matching, collectives=unsized))
    assert "do not say how large" in judge_small(nothing).not_evaluated


def test_gradients_that_start_after_backward_are_o003():
    made = program(ddp, buckets=1)
    run = simulate(after_backward(made), 4)
    measured = across(run)
    [found] = judge_late_start(measured).findings
    assert found.rule == "TO-O003"
    claim = claim_of(found, StartsLate)  # one_bucket: 5.8 ms were said, and its cure saves 2.6
    assert claim.saved == pytest.approx(found.impact_ms, abs=1e-5) and claim.saved_in_time is None
    assert found.severity in ("warning", "error")
    transfer = sum(c.transfer_ns for c in run.collectives if c.step >= 3) / 4e6
    assert found.impact_ms == pytest.approx(transfer, rel=0.05)
    assert claim.collectives == 1


def test_what_late_gradients_cost_is_one_number():
    """'at most 6.18 ms' stood beside a cost of 2.38: no more can be hidden than there is compute."""
    made = program(ddp, Size(latency_us=4000.0, kernel_us=100.0), layers=2, buckets=1)
    measured = across(simulate(after_backward(made), 4))
    [found] = judge_late_start(measured).findings
    assert claim_of(found, StartsLate).saved == pytest.approx(found.impact_ms, abs=1e-5)


def test_losses_and_flags_are_no_gradients():
    """Numbers that every program reduces after backward: Join's flags took 160 of 200 ms of all-reduces in one."""
    made = program(ddp, Size(latency_us=400.0), layers=8, buckets=4)
    scalars = (*(Collective("allreduce", "world", 1, f"flag.{i}") for i in range(60)), Join("flag.59"))
    flagged = replace(made, steps=tuple((*step, *scalars) for step in made.steps))
    verdict = judge_late_start(across(simulate(flagged, 4)))
    assert verdict.findings == ()
    none = replace(made, steps=tuple((*(o for o in s if not _of_buckets(o)), *scalars) for s in made.steps))
    verdict = judge_late_start(across(simulate(none, 4)))
    assert "no step holds both a backward pass and matched gradient" in verdict.not_evaluated


def test_what_is_said_of_gradients_is_the_gradients_own():
    """A finding of '0.61 ms of each step (0 %)', as other transfer took 6 % of the step."""
    made = program(ddp, Size(elements=1 << 10, latency_us=5.0), layers=2, buckets=1)
    gathers = tuple(Collective("_allgather_base", "world", 1 << 26, f"gather.{i}") for i in range(2))
    late = after_backward(made)
    mixed = replace(late, steps=tuple((*step, *gathers, Join("gather.1")) for step in late.steps))
    assert judge_late_start(across(simulate(mixed, 4))).findings == ()


def test_activations_of_tensor_parallel_do_not_hide_late_gradients():
    """'34 % of the gradients' transfer comes after backward', where two thirds were the layers' activations."""
    made = program(tp_dp, Size(latency_us=100.0), layers=6)
    steps = []
    for step in made.steps:
        end = 1 + max(i for i, op in enumerate(step) if getattr(op, "label", "").startswith("backward"))
        late = [op for op in step[:end] if getattr(op, "label", "").startswith("grad")]
        steps.append((*(op for op in step[:end] if op not in late), *late, *step[end:]))
    [found] = judge_late_start(across(simulate(replace(made, steps=tuple(steps)), 8))).findings
    assert claim_of(found, StartsLate).late_pct > 99


def test_parameters_that_are_averaged_behind_the_optimizer_are_no_gradients():
    """Local SGD: '100 % of the gradients' transfer comes after backward: smaller buckets', where there are none."""
    made = program(ddp, Size(latency_us=400.0), layers=8, buckets=4)
    alone = [tuple(op for op in step if not _of_buckets(op)) for step in made.steps]
    mean = (Collective("allreduce", "world", 1 << 26, "mean"), Join("mean"))
    verdict = judge_late_start(across(simulate(replace(made, steps=tuple((*s, *mean) for s in alone)), 4)))
    assert "no step holds both a backward pass and matched gradient" in verdict.not_evaluated
    update = HostWork("Optimizer.step#AdamW.step", 30.0)
    two = tuple((*step, *mean, update) for step in alone)
    [found] = judge_late_start(across(simulate(replace(made, steps=two), 4))).findings
    assert claim_of(found, StartsLate).late_pct > 99, "a second optimizer steps behind it"


def _of_buckets(op):
    return "bucket" in getattr(op, "label", "")


def test_transfer_that_little_compute_could_hide_is_a_remark():
    made = program(ddp, Size(kernels=1, kernel_us=2.0, launch_us=1.0, latency_us=20_000.0), layers=4, buckets=1)
    [found] = judge_late_start(across(simulate(after_backward(made), 4))).findings
    assert found.severity == "info"
    assert found.impact_ms < 1


def test_late_gradients_are_graded_by_what_the_step_would_save():
    """Most of a step is transfer behind backward, an error; what can hide it would save 15 %, a warning."""
    size = Size(kernels=4, kernel_us=70.0, launch_us=1.0, latency_us=20_000.0)
    [found] = judge_late_start(across(simulate(after_backward(program(ddp, size, layers=4, buckets=1)), 4))).findings
    shares = {proof.metric: proof.value for proof in found.evidence}
    assert shares["of it gradients"] > 25, "an error by what it takes"
    assert found.severity == "warning"


def test_a_late_rank_does_not_make_its_waiting_peers_late_starters():
    """They transfer after their own backward because they waited; the late rank's own overlaps."""
    made = program(ddp, layers=6, buckets=6)
    measured = across(simulate(made, 4, [SlowCompute(2, 4.0, at="backward")]))
    assert judge_late_start(measured).findings == ()


@pytest.mark.parametrize("builder", [ddp, fsdp2])
def test_gradients_behind_backward_are_not(builder):
    verdict = judge_late_start(across(simulate(program(builder, layers=8), 4)))
    assert verdict.findings == ()
    assert "% of the gradients' transfer comes after backward" in verdict.clear


def test_a_step_without_backward_or_matches_is_not_judged():
    made = program(ddp)
    forward = tuple(
        tuple(o for o in step if not str(getattr(o, "op", "")).startswith("autograd")) for step in made.steps
    )
    measured = across(simulate(replace(made, steps=forward), 4))
    assert "no step holds both a backward pass" in judge_late_start(measured).not_evaluated
    assert judge_late_start(across(simulate(made, 1))).not_evaluated


@pytest.mark.parametrize(
    "judged, made, kind", [(judge_exposed, program(ddp, layers=6), Exposed), (judge_small, many_small(), ManySmall)]
)
def test_what_transfer_costs_is_what_the_replay_saves_without_it(judged, made, kind):
    """'13.28 ms of each step is transfer' stood beside a cost of 5.89, and nothing said what that was."""
    for faults in ([], [SlowInput(rank, 6000) for rank in range(4)]):
        measured = across(simulate(made, 4, faults))
        [found] = judged(measured).findings
        [saved] = [e.value for e in found.evidence if e.fact is Fact.SAVED_WITHOUT_IT]
        assert saved == found.impact_ms <= measured.replay.what_if.saved_ns(NO_COMMUNICATION) / 1e6 + 1e-6
        free = claim_of(found, kind).free
        assert free.saved == pytest.approx(saved, abs=1e-5)
        assert (free.shorter != "as_much") == bool(faults) == (found.impact_ms < 0.2 * exposed_ms(measured))


def test_what_transfer_costs_beside_late_hosts_is_told_with_and_without_them():
    """'only 4.72 ms shorter' of four GPUs without NVLink: their step was 16 ms longer for it, unrecorded."""
    busy = [SlowHost(rank, 6000) for rank in range(4)]
    measured = across(simulate(program(ddp, layers=6), 4, busy))
    [found] = judge_exposed(measured).findings
    shown = {e.fact: e.value for e in found.evidence}
    least, _ = measured.replay.what_if.range_ns(NO_COMMUNICATION)
    best = (measured.replay.what_if.mean_ns(measured.replay.what_if.replayed_ns) - least) / 1e6
    assert (
        shown[Fact.SAVED_WITHOUT_IT]
        < shown[Fact.SAVED_WITHOUT_IT_AND_NO_HOST_LATE]
        == pytest.approx(min(best, exposed_ms(measured)), rel=1e-3)
    )
    free = claim_of(found, Exposed).free
    assert free.shorter.endswith("by_hosts")
    assert free.best == pytest.approx(shown[Fact.SAVED_WITHOUT_IT_AND_NO_HOST_LATE], abs=1e-5)


def without_profiler(measured, step_ms, idle_ms, unmatched_ms=0.0):
    """The undisturbed step of ranks that transfer for as long as in the recorded ones."""
    transfer = exposed_ms(measured)
    rest = step_ms - transfer - idle_ms - unmatched_ms
    ranks = [
        LightRank(t.summary.rank, step_ms, rest, transfer, 0.0, unmatched_ms, 0.0, idle_ms, 0.0) for t in measured.ranks
    ]
    return Undisturbed(step_ms, step_ms, "cupti", 6, tuple(ranks))


def test_transfer_is_graded_by_the_step_without_the_profiler():
    """The profiler made hosts late and steps long: 'below 10 % of the step', of a third of the real one."""
    busy = [SlowHost(rank, 12000) for rank in range(4)]
    measured = across(simulate(program(ddp, layers=6), 4, busy))
    transfer = exposed_ms(measured)
    assert judge_exposed(measured).clear
    [found] = judge_exposed(measured, without_profiler(measured, 3 * transfer, 0.0)).findings
    claim = claim_of(found, Exposed)
    assert found.severity == "warning" and claim.pct == pytest.approx(100 / 3)
    assert claim.recorded.step == pytest.approx(measured.step_ms)
    shown = {e.fact: e.value for e in found.evidence}
    assert shown[Fact.STEP] == pytest.approx(3 * transfer, rel=1e-3)
    assert 0.8 * transfer <= found.impact_ms <= transfer + 1e-3
    assert Fact.SAVED_WITHOUT_IT_AND_NO_HOST_LATE not in shown, "no host is late there"


def test_hosts_that_hold_up_the_step_without_the_profiler_too_leave_a_remark():
    busy = [SlowHost(rank, 12000) for rank in range(4)]
    measured = across(simulate(program(ddp, layers=6), 4, busy))
    step = without_profiler(measured, 4 * exposed_ms(measured), 2 * exposed_ms(measured))
    [found] = judge_exposed(measured, step).findings
    assert found.severity == "info"


def test_a_light_window_that_does_not_tell_transfer_from_waiting_grades_nothing():
    measured = across(simulate(program(ddp, layers=6), 4))
    transfer = exposed_ms(measured)
    step = without_profiler(measured, 4 * transfer, 0.0, unmatched_ms=transfer)
    assert judge_exposed(measured, step) == judge_exposed(measured)


def test_late_gradients_speak_of_one_step():
    """'6 ms at most, by 2 ms with hosts as recorded', beside a step as recorded and one without the profiler."""
    made = after_backward(program(ddp, buckets=1))
    measured = across(simulate(made, 4))
    step_ms = 0.8 * measured.step_ms
    [found] = judge_late_start(measured, without_profiler(measured, step_ms, 0.0)).findings
    claim = claim_of(found, StartsLate)
    assert claim.step == pytest.approx(step_ms)
    assert claim.saved == pytest.approx(found.impact_ms, abs=1e-5)


@pytest.mark.parametrize("judged", [judge_exposed, judge_small])
def test_without_a_replay_nothing_is_said_of_a_shorter_step(judged):
    """The median rank's transfer is no bound of what a pipeline's step gains: another rank's was 18 %, not 11."""
    measured = across(simulate(many_small(), 4))
    [found] = judged(replace(measured, replay=None)).findings
    assert "free" not in found.facts
    assert not {e.fact for e in found.evidence} & {Fact.SAVED_WITHOUT_IT, Fact.SAVED_WITHOUT_IT_AND_NO_HOST_LATE}


def exposed_ms(measured):
    return float(np.median([times.mean_ms("comm_transfer") for times in measured.ranks]))


SOCKETS = Size(elements=1 << 18, latency_us=4400.0, bandwidth_gbs=20.0, kernel_us=200.0)  # 1 MB a layer


def sized(made, sizes):
    """The program whose buckets have so many layers' elements, in turn."""

    def as_large(op):
        if not isinstance(op, Collective) or not op.label.startswith("bucket"):
            return op
        return replace(op, elements=(1 << 18) * sizes[int(op.label.removeprefix("bucket."))])

    return replace(made, steps=tuple(tuple(map(as_large, step)) for step in made.steps))


def buckets(sizes, size=SOCKETS):
    return sized(program(ddp, size, layers=15, buckets=len(sizes)), sizes)


MIXED = [1] * 13 + [8] * 2


def test_calls_that_take_as_long_whatever_their_size_are_told_with_what_fewer_would_take():
    """On an H200 over sockets 13 calls of 1 MB and two of 8.4 took 4.4 ms each: 13 were too few to be 'many small'."""
    run = simulate(buckets(MIXED), 2)
    [found] = judge_small(across(run)).findings
    assert found.severity in ("warning", "error")
    claim = claim_of(found, ManyCalls)
    assert (claim.op, claim.calls, claim.size) == ("allreduce", 15, pytest.approx(30.4e6, rel=0.01))
    assert (claim.fewest, claim.largest) == (4, 8 << 20)
    assert claim.fixed == pytest.approx(4.4, rel=0.1)
    gained = (true_step(run) - true_step(simulate(buckets([8, 8, 8, 5]), 2))) / 1e6
    assert found.impact_ms <= 1.02 * gained
    assert found.impact_ms >= 0.6 * gained


def test_where_bytes_set_the_time_no_number_of_calls_is_blamed():
    slow = replace(SOCKETS, latency_us=20.0, bandwidth_gbs=0.5)
    measured = across(simulate(buckets(MIXED, slow), 2))
    assert judge_small(measured).findings == ()
    times = call_times(measured)
    assert times.fixed_share < 0.1
    assert times.ms_per_byte * 1e6 == pytest.approx(2.0, rel=0.1)  # 1 MB at 0.5 GB/s


def test_a_few_large_calls_behind_a_small_one_are_no_trouble():
    """DDP's first bucket is of 1 MB, the others of 25: nothing to merge."""
    measured = across(simulate(buckets([1, 8, 8, 8, 8]), 2))
    assert judge_small(measured).findings == ()


def test_calls_of_layers_are_not_called_gradients():
    """DTensor on an H200: 18 all-reduces of activations a step, in both passes, were told as gradients."""
    measured = across(simulate(buckets([1] * 15), 2))
    for times in measured.ranks:
        times.summary.comm.phase[:] = [(FORWARD, BACKWARD)[at % 3 > 0] for at in range(len(times.summary.comm.phase))]
    assert call_times(measured) is None


def test_a_host_that_keeps_up_with_a_step_is_not_known_to_keep_up_with_a_shorter_one():
    """Tensor parallel over sockets: 79 of 83 ms are transfer, and "without that a step would be 79.0 ms shorter" was
    said. Its host needs 60 ms for a step, and runs ahead while the device transfers."""
    slow = replace(SOCKETS, launch_us=300.0)
    measured = across(simulate(buckets([1] * 15, slow), 2))
    exposed = sum(times.mean_ms("comm_transfer") for times in measured.ranks) / 2
    free = gain_of(measured, exposed, in_time=True)
    bound = gain_of(measured, exposed, in_time=True, left_ms=free.ms / 2)
    assert free.best_ms is None and free.replayed
    least = gain_of(measured, exposed).ms
    assert bound.ms == pytest.approx(max(least, free.ms / 2))
    assert bound.best_ms == pytest.approx(free.ms) or bound.ms == pytest.approx(free.ms, rel=0.05)
    assert gain_of(measured, exposed, in_time=True, left_ms=2 * free.ms) == free


DATA = Path(__file__).parents[1] / "data"


def ranks(name):
    [window] = discover(str(DATA / name)).windows
    return [summarize(file) for file in window.files]


def test_norms_that_are_reduced_behind_backward_are_no_gradients():
    """'97 % of the gradients' transfer (124 collectives a step) comes after backward', of 4 bytes each, beside DDP."""
    for summary in ranks("clip_norms_gloo2"):
        assert [int((summary.comm.phase == phase).sum()) for phase in (BACKWARD, AFTER)] == [4, 32]
        assert of_gradients(summary).sum() == 4
    report = analyze(DATA / "clip_norms_gloo2")
    assert not [found for found in report.findings if found.kind == StartsLate.kind]


@pytest.mark.parametrize("name, reduced", [("synced_passes_gloo2", 3), ("last_pass_gloo2", 1)])
def test_passes_that_reduce_gradients_are_counted(name, reduced):
    assert {(one.backward.passes, one.backward.reduced) for one in ranks(name)} == {(3, reduced)}


def test_gradients_that_each_backward_pass_reduces_are_told():
    def passes(name):
        claims = [claim_of(found, Exposed) for found in analyze(DATA / name).findings]
        return [claim.passes for claim in claims if claim is not None and claim.passes]

    assert passes("synced_passes_gloo2") == [3]
    assert passes("last_pass_gloo2") == []
