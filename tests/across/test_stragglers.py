"""On generated runs the ranks that cost time are found, with their cause and what they cost, and no others."""

import json
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from changed import replace
from drawn import examples
from generated_run import (
    Collective,
    Join,
    LateWindow,
    ShortWindow,
    Size,
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    TraceStyle,
    ddp,
    fsdp2,
    hsdp,
    simulate,
    step_time,
    summaries,
    tp_dp,
    write_traces,
)
from hypothesis import Phase, given
from hypothesis import strategies as st
from measured_runs import BUILDERS, CAUSES, GPU_BOUND, HOST_BOUND, across, findings, hosts_of, program, true_step

from traceops.across.cross_rank import measure_across
from traceops.across.host_difference import Longer
from traceops.across.lateness import critical_path
from traceops.across.replay.what_if import rank_change
from traceops.across.stragglers import chance
from traceops.across.undisturbed import LightLook, LightRank, Undisturbed
from traceops.core.claims import claim_of
from traceops.core.errors import FileError
from traceops.measure.host_places import CodePlace
from traceops.measure.hta_tables import HtaTables
from traceops.measure.summary import summarize
from traceops.rules.bandwidth import judge_low, judge_siblings
from traceops.rules.inputs import Inputs
from traceops.rules.named_lines import late_all_the_time, with_lines
from traceops.rules.overlap import judge_late_start, judge_small
from traceops.rules.registry import BY_ID
from traceops.rules.steps import judge as judge_unlike
from traceops.rules.stragglers import judge_stragglers
from traceops.rules.stragglers_claims import ComesLast, Late
from traceops.rules.validity_time import judge_clocks
from traceops.traces.discover import discover

FEW = examples(60, phases=[Phase.explicit, Phase.generate])


def of_step(made, ranks, share):
    """µs that are this share of the healthy step."""
    return share * true_step(simulate(made, ranks)) / 1e3


def said(measured, slowdown=1.0):
    return [(f.rule, f.severity, f.ranks, f.cause) for f in findings(measured, slowdown)]


def test_what_hosts_keep_back_of_a_fix_is_in_its_range():
    """Hosts take nearly as long as the step: with the slow GPU fixed they take over, but a profiler slows them."""
    made = replace(program(steps=6, layers=6), launch_us=20.0)
    hosts, slow = [SlowHost(0, 6000), SlowHost(1, 6000)], SlowCompute(0, factor=1.6)
    step, device, healthy = (true_step(simulate(made, 2, some)) / 1e6 for some in ([slow, *hosts], [slow], []))
    measured = across(simulate(made, 2, [slow, *hosts]))
    least, most = measured.replay.what_if.range_ns(rank_change([0]), (0,))
    assert (least / 1e6, most / 1e6) == pytest.approx((healthy, step), rel=0.01)
    [found] = findings(measured)
    said = claim_of(found, ComesLast)
    assert said.rank == 0 and said.at_best == pytest.approx(device - healthy, rel=0.02)


@pytest.mark.parametrize("kind", [SlowCompute, SlowCopy])
@pytest.mark.parametrize("builder", BUILDERS)
def test_the_slow_rank_is_found_with_its_cause_and_cost(builder, kind):
    check_found(builder, kind)


@pytest.mark.parametrize("kind", [SlowHost, SlowInput])
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_late_host_is_found_with_its_cause_and_cost(builder, kind):
    check_found(builder, kind)


def check_found(builder, kind):
    for ranks, rank in ((4, 3), (8, 5), (16, 10)):
        made = program(builder, steps=5, sync=CAUSES[kind] in ("host", "input"))
        run = simulate(made, ranks, [kind(rank, extra_us=of_step(made, ranks, 0.8))])
        measured = across(run)
        assert said(measured) == [("TO-S001", "error", (rank,), CAUSES[kind])]
        [found] = findings(measured)
        saved = (step_time(run) - step_time(simulate(made, ranks))) / 1e6
        assert found.impact_ms == pytest.approx(saved, rel=0.1)
        assert found.steps == measured.replay.lateness.steps


@pytest.mark.parametrize(("share", "severity"), [(0.055, None), (0.15, "warning"), (0.50, "error")])
@pytest.mark.parametrize("builder", [fsdp2, hsdp])
def test_severity_goes_by_what_the_step_would_gain(builder, share, severity):
    made = program(builder, steps=5)
    run = simulate(made, 8, [SlowCompute(5, extra_us=of_step(made, 8, share))])
    wanted = [("TO-S001", severity, (5,), "gpu_compute")] if severity else []
    assert [found for found in said(across(run)) if found[1] != "info"] == wanted


@pytest.mark.parametrize(("builder", "share"), [(tp_dp, 0.30), (ddp, 0.14)])
def test_a_rank_that_delays_hidden_communication_is_found(builder, share):
    made = program(builder, steps=6)
    run = simulate(made, 8, [SlowCompute(5, extra_us=of_step(made, 8, share))])
    assert true_step(run) > 1.1 * true_step(simulate(made, 8))
    assert [found[2:] for found in said(across(run)) if found[1] != "info"] == [((5,), "gpu_compute")]


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_host_that_is_a_little_late_is_not_called_slow_to_load(builder):
    made = replace(builder(layers=3, steps=6, size=HOST_BOUND))
    run = simulate(made, 8, [SlowHost(5, of_step(made, 8, 0.14))], seed=3)
    causes = [cause for _, severity, _, cause in said(across(run)) if severity != "info"]
    assert causes == ["host"]


@pytest.mark.slow
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_rank_late_in_one_step_is_s002_and_the_step_is_named(builder):
    made = program(builder, steps=6, sync=True)
    for kind, cause in CAUSES.items():
        for step in (3, 6, 8):
            [found] = findings(across(simulate(made, 8, [kind(5, extra_us=2500, steps=(step,))])))
            assert (found.rule, found.ranks, found.cause, found.steps) == ("TO-S002", (5,), cause, (step,))
            assert found.severity in ("warning", "error")
            assert f"step {step}" in found.message


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_rank_late_in_a_few_steps_of_many(builder):
    run = simulate(program(builder, steps=10), 4, [SlowCompute(2, extra_us=3000, steps=(5, 9))])
    [found] = findings(across(run))
    assert (found.rule, found.ranks, found.steps) == ("TO-S002", (2,), (5, 9))


def test_a_rank_that_is_late_in_every_step_is_so_however_late_it_is_in_one():
    made = ddp(steps=5, device="cpu")
    late = [SlowCompute(2, 3.0), *(SlowCompute(2, extra_us=20 * of_step(made, 4, 1.0), steps=(6,)),)]
    measured = across(simulate(made, 4, late))
    assert [found[:4] for found in said(measured)] == [("TO-S001", "error", (2,), "host")]
    [late] = findings(measured)
    waits = claim_of(late, Late).waiting
    like = measured.replay.stragglers.step_ns.min() / 1e6
    assert 0.5 * late.impact_ms < waits < like, "of a typical step, as what is saved"
    [[odd]] = [verdict.findings for verdict in judge_unlike(Inputs(SimpleNamespace(manifest={}), measured))]
    assert (odd.steps, odd.cause) == ((6,), "host") and "the host takes longer on rank 2" in odd.message


SEVERAL = (
    (SlowCompute(1, extra_us=2000), SlowCompute(6, extra_us=2000)),
    (SlowHost(1, 2000), SlowCompute(6, extra_us=2000)),
    (SlowInput(1, 2000), SlowCopy(6, 2000)),
    (SlowInput(1, 2000), SlowInput(6, 1200)),
    (SlowInput(1, 2000), SlowCompute(6, extra_us=1200)),
    (SlowInput(1, 2000), SlowCompute(6, extra_us=2000), SlowHost(4, 2000)),
)


@pytest.mark.parametrize("builder", BUILDERS)
def test_several_stragglers_are_found_each_with_its_cause_hidden_ones_too(builder):
    """Where two are equally late, the cure of one alone saves nothing."""
    for faults in SEVERAL:
        made = program(builder, steps=5, sync=True)
        measured = across(simulate(made, 8, faults))
        assert {found[2:] for found in said(measured) if found[1] == "error"} == {
            ((fault.rank,), CAUSES[type(fault)]) for fault in faults
        }
        together = tuple(sorted(fault.rank for fault in faults))
        [steps] = [p.step_ns for p in measured.replay.what_if.predictions if p.ranks == together]
        assert steps.mean() == pytest.approx(true_step(simulate(made, 8)), rel=0.1)


def test_two_equal_stragglers_hidden_behind_a_third_are_found():
    made = program(ddp, steps=5)
    run = simulate(made, 8, [SlowCompute(1, extra_us=3000), *(SlowCompute(r, extra_us=2000) for r in (4, 6))])
    assert {found[2] for found in said(across(run))} == {(1,), (4,), (6,)}


LATE_ELSEWHERE = (
    (SlowInput(0, 3000), SlowCompute(1, extra_us=2000, at="backward")),
    (SlowCompute(0, extra_us=2000, at="forward"), SlowCompute(1, extra_us=2000, at="backward")),
)


@pytest.mark.parametrize("faults", LATE_ELSEWHERE)
@pytest.mark.parametrize("builder", [fsdp2, tp_dp])
def test_two_ranks_that_are_late_in_places_of_their_own_are_both_found(builder, faults):
    """Nobody was left to show a pace: of two that were late alike none was named, of others the later one alone."""
    made = program(builder, steps=5, sync=True)
    measured = across(simulate(made, 2, faults))
    assert {found[2:] for found in said(measured) if found[1] == "error"} == {
        ((fault.rank,), CAUSES[type(fault)]) for fault in faults
    }
    [steps] = [p.step_ns for p in measured.replay.what_if.predictions if p.ranks == (0, 1)]
    assert steps.mean() == pytest.approx(true_step(simulate(made, 2)), rel=0.1)


def test_two_ranks_that_meet_only_at_the_end_hide_each_other():
    """Of two that are late between the same two collectives only the later one costs time."""
    faults = [SlowInput(0, 3000), SlowCompute(1, extra_us=2000, at="backward")]
    assert {found[2] for found in said(across(simulate(program(ddp, steps=5, sync=True), 2, faults)))} == {(0,)}


def test_without_a_gpu_no_gpu_is_to_blame_even_of_a_hidden_straggler():
    faults = [SlowCompute(1, extra_us=3000), *(SlowCompute(r, extra_us=2000) for r in (4, 6))]
    run = simulate(program(ddp, steps=5, device="cpu"), 8, faults)
    assert {found[2:] for found in said(across(run))} == {((1,), "host"), ((4,), "host"), ((6,), "host")}


def test_ranks_that_take_turns_are_late_in_their_steps():
    faults = [SlowCompute(1, extra_us=2500, steps=(3, 5, 7)), SlowCompute(6, extra_us=2500, steps=(4, 6, 8))]
    found = findings(across(simulate(program(fsdp2, steps=6), 8, faults)))
    assert {(f.rule, f.ranks, f.steps) for f in found} == {("TO-S002", (1,), (3, 5, 7)), ("TO-S002", (6,), (4, 6, 8))}


@pytest.mark.slow
@FEW
@given(
    st.sampled_from(BUILDERS),
    st.sampled_from([GPU_BOUND, HOST_BOUND, Size(jitter=0.1), replace(HOST_BOUND, jitter=0.1)]),
    st.sampled_from([2, 4, 8, 16]),
    st.sampled_from([2, 3, 6]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_nobody_is_accused_in_a_healthy_run(builder, size, ranks, steps, sync, seed):
    measured = across(simulate(program(builder, size, steps, sync), ranks, seed=seed))
    for slowdown in (None, 1.0, 1.5):
        assert [found for found in said(measured, slowdown) if found[1] != "info"] == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [GPU_BOUND, HOST_BOUND], ids=["gpu_bound", "host_bound"])
def test_nobody_is_accused_in_a_healthy_run_of_64(size):
    assert [found for found in said(across(simulate(program(hsdp, size), 64))) if found[1] != "info"] == []


def undisturbed(waits, step_ms=10.0, light_ms=10.0):
    """An undisturbed step in which ranks wait so long, ms, or less by what the light window cost."""
    ranks = (
        LightRank(rank, light_ms, 5.0, 1.0, ms, 0.0, 0.0, 4.0 - ms, max(ms - (light_ms - step_ms), 0.0))
        for rank, ms in enumerate(waits)
    )
    return Undisturbed(step_ms, light_ms, "cupti", 6, tuple(ranks))


@pytest.mark.parametrize(
    ("waits", "severity", "confidence"),
    [((3, 3, 0, 3), "error", "medium"), ((1.5, 1.5, 0, 1.5), "warning", "medium"),
     ((0.5, 0.5, 0, 0.5), "info", "low"), ((2, 2, 3, 2), "info", "low")],
)  # fmt: skip
def test_a_light_window_tells_whether_a_host_is_late_without_the_profiler(waits, severity, confidence):
    measured = across(simulate(program(ddp, sync=True), 4, [SlowHost(2, 2000)]))
    [found] = findings(measured, 1.5, undisturbed(waits))
    assert (found.severity, found.confidence, found.cause) == (severity, confidence, "host")
    assert claim_of(found, Late).doubt.waiting == waits[0]


def looks(*idle, step=16):
    """Light windows, by how long each rank's device is idle in them, ms."""
    return tuple(
        LightLook((step * 8**at, step * 8**at + 5), dict.fromkeys(range(len(one)), 0.0), dict(enumerate(one)))
        for at, one in enumerate(idle)
    )


def test_one_window_in_which_a_peer_is_later_clears_no_host_that_is_seen_to_do_more_in_all_steps():
    """A line of 3 ms a step on rank 2, and rank 0 wrote a checkpoint in the background in the third window."""
    measured = across(simulate(program(ddp, sync=True), 4, [SlowHost(2, 2000)]))
    late, glitch = (0.5, 0.5, 3.5, 0.5), (5.0, 0.5, 3.5, 0.5)
    light = replace(undisturbed((2.3, 3, 0, 3)), looks=looks(late, late, glitch, late))
    [found] = findings(measured, 1.5, light)
    assert (found.severity, found.confidence) == ("info", "low")
    doubt = claim_of(found, Late).doubt
    assert (doubt.rank, doubt.steps, doubt.other, doubt.other_steps) == (2, (16, 21), 0, (1024, 1029))
    inputs = SimpleNamespace(undisturbed=light, whole=SimpleNamespace(), run=measured)
    place = CodePlace("write_metrics", "/home/me/train.py", 77, "json.dump(told, file)")
    line = Longer(2, place, 3.0, 0.0, 400, None)
    verdict = BY_ID["TO-S001"].verdict(found)
    with (
        patch("traceops.rules.whole_run_hosts.seen_longer", lambda *_: [line]),
        patch("traceops.rules.named_lines.in_each_step", lambda *_: None),
    ):
        [[named]] = [one.findings for one in with_lines([verdict], inputs)]
    assert named.severity == "error" and "Rank 2 spends 3.00 ms per step in write_metrics" in named.message
    [other] = findings(measured, 1.5, replace(undisturbed((0.5, 0.5, 0, 0.5)), looks=looks(late, late)))

    def seen(finding, ms, known=inputs):
        """What becomes of a finding where looks see its host spend so much longer, ms a step."""
        longer = Longer(2, place, ms, 0.0, 400, None)
        with patch("traceops.rules.whole_run_hosts.seen_longer", lambda *_: [longer]):
            return late_all_the_time(finding, known)

    long = seen(found, 3.0)
    assert (long.severity, long.confidence, long.message) == ("error", "medium", found.message)
    assert seen(found, 1.5).severity == "warning"
    assert seen(found, 0.0) is found, "nothing was seen: it may be by turns"
    assert seen(found, 3.0, SimpleNamespace(undisturbed=None)) is found
    assert seen(other, 3.0, SimpleNamespace(undisturbed=light)) is other, "a remark for another reason"


def test_waiting_that_may_come_of_the_light_window_itself_accuses_nobody():
    """As on two H200s (Lightning): a rank seen late in nearly all steps of both windows, and not in another run."""
    measured = across(simulate(program(ddp, sync=True), 4, [SlowHost(2, 2000)]))
    [found] = findings(measured, 1.5, undisturbed((1.5, 1.5, 0, 1.5), light_ms=12.0))
    assert (found.severity, found.confidence) == ("info", "low")
    assert claim_of(found, Late).doubt.cost == 2.0
    [found] = findings(measured, 1.5, undisturbed((3, 3, 0, 3), light_ms=11.0))
    assert (found.severity, found.confidence) == ("error", "medium"), "the light window cost less"


def test_a_slow_host_under_a_slow_profiler_is_a_remark():
    measured = across(simulate(program(ddp, sync=True), 4, [SlowHost(2, 2000)]))
    [found] = findings(measured, 1.5)
    assert (found.severity, found.confidence, found.cause) == ("info", "low", "host")
    assert claim_of(found, Late).doubt.slowdown == 1.5
    [found] = findings(measured, 1.0)
    assert (found.severity, found.confidence) == ("error", "high")
    [found] = findings(measured, None)
    assert found.confidence == "medium"
    assert measured.replay is not None
    [late] = measured.replay.stragglers.found
    stragglers = replace(measured.replay.stragglers, found=(replace(late, cause="unknown"),))
    unknown = replace(measured, replay=replace(measured.replay, stragglers=stragglers))
    [found] = findings(unknown, 2.4)
    assert (found.severity, found.confidence, found.cause) == ("info", "low", "unknown")
    [found] = findings(unknown, 1.0)
    assert (found.severity, found.confidence) == ("error", "medium")


def test_a_slow_gpu_under_a_slow_profiler_is_still_one():
    [found] = findings(across(simulate(program(ddp), 4, [SlowCompute(2, 2.0)])), 1.5)
    assert (found.severity, found.cause) == ("error", "gpu_compute")


def test_the_kernels_that_grew_are_named():
    run = simulate(program(ddp), 4, [SlowCompute(2, 3.0, at="gelu_kernel")])
    [found] = findings(across(run))
    grew = [evidence.metric for evidence in found.evidence if evidence.metric.startswith("grew")]
    assert grew[0] == "grew: gelu_kernel"
    assert len(grew) == 1 or all("gelu" not in name for name in grew[1:])


def test_with_two_ranks_the_slower_is_late():
    [found] = findings(across(simulate(program(ddp, steps=5), 2, [SlowCompute(1, 1.6)])))
    assert (found.rule, found.ranks, found.cause) == ("TO-S001", (1,), "gpu_compute")
    assert "the other rank waits" in found.headline


def test_chance_is_certain_of_one_among_equals_only_with_steps_enough():
    """Dealt at random, 2 late of 8 cells meet on one rank in 1 of 7 deals, 4 of 16 hardly ever."""
    late, usual = 200.0, 100.0
    assert chance(np.full(2, late), np.full((3, 2), usual)) == pytest.approx(1 / 7, abs=0.03)
    assert chance(np.full(4, late), np.full((3, 4), usual)) < 0.02
    assert chance(np.full(1, late), np.full((7, 1), usual)) == 1.0
    assert chance(np.full(6, usual), np.full((3, 6), usual)) == 1.0
    assert chance(np.zeros(4), np.full((3, 4), usual)) == 1.0
    assert chance(np.full(4, late), np.empty((0, 4))) == 1.0


def test_of_two_steps_no_one_is_persistently_late():
    """Two ranks, two steps: each is the slower one in both steps in a third of all deals."""
    measured = across(simulate(program(fsdp2, steps=2), 4, [SlowCompute(2, 2.0)]))
    assert [found for found in said(measured) if found[1] != "info"] == []
    verdict = judge_stragglers(measured, 1.0)[0]
    assert "rank 2 looks late" in verdict.not_evaluated + verdict.clear


@pytest.mark.parametrize(
    ("why", "measured"),
    [
        ("there is only one rank", lambda: across(simulate(program(ddp), 1))),
        ("there is only one rank", lambda: across(simulate(program(ddp), 2), TraceStyle(missing=(1,)))),
        ("no collective could be matched", lambda: across(without_collectives())),
        ("no step is common", lambda: no_common_step()),
    ],
    ids=["one", "one_of_two", "no_collectives", "no_common_step"],
)
def test_what_cannot_be_judged_is_not_and_says_why(why, measured):
    for verdict in judge_stragglers(measured(), 1.0):
        assert why in verdict.not_evaluated
        assert not verdict.findings


def without_collectives():
    made = program(ddp)
    steps = tuple(tuple(op for op in step if not isinstance(op, Collective | Join)) for step in made.steps)
    return simulate(replace(made, steps=steps), 4)


def no_common_step():
    run = simulate(program(ddp), 2)
    first, second = summaries(run, TraceStyle(seq=True))
    return measure_across([first, replace(second, step_numbers=second.step_numbers + 100)], 2, hosts_of(run))


# What real runs hold that a tidy one does not: nothing of it may raise.


def check_everything(ranks, world, hosts):
    measured = measure_across(ranks, world, hosts)
    for slowdown in (None, 1.0, 1.5):
        judge_stragglers(measured, slowdown)
    for judge in (judge_clocks, judge_low, judge_siblings, judge_small, judge_late_start):
        assert judge(measured).rule
    for step in range(len(measured.replay.graph.steps) if measured.replay else 0):
        critical_path(measured.replay.graph, step)
    if measured.replay is not None:
        assert all((p.step_ns >= 0).all() for p in measured.replay.what_if.predictions)
        assert sum(own.sum() for own in measured.replay.lateness.caused.values()) == pytest.approx(
            measured.replay.lateness.total_ns
        )
    return measured


@pytest.mark.slow
@FEW
@given(st.sampled_from(BUILDERS), st.sampled_from([2, 4, 6]), st.booleans(), st.data())
def test_windows_that_miss_parts_break_nothing(builder, ranks, named, data):
    """They begin and end anywhere, ranks are missing, steps have no collective or nothing at all."""
    made = program(builder, data.draw(st.sampled_from([GPU_BOUND, HOST_BOUND])), data.draw(st.integers(1, 3)))
    odd, kind = data.draw(st.integers(0, len(made.steps) - 1)), data.draw(st.integers(0, 3))
    step = made.steps[odd]
    changed = {0: step, 1: step[:-1], 2: tuple(op for op in step if not isinstance(op, Collective | Join))}
    changed[3] = tuple(op for op in step if isinstance(op, Collective))
    made = replace(made, steps=(*made.steps[:odd], changed[kind], *made.steps[odd + 1 :]))
    rank, launches = st.integers(0, ranks - 1), st.integers(1, len(step) + 5)
    faults = data.draw(st.lists(st.builds(LateWindow, rank, launches), max_size=3))
    faults += data.draw(st.lists(st.builds(ShortWindow, rank, st.integers(1, len(step) // 2)), max_size=2))
    missing = tuple(data.draw(st.sets(rank, max_size=ranks - 1)))
    style = TraceStyle(seq=data.draw(st.booleans()), missing=missing)
    try:
        run = simulate(made, ranks, faults)
        measured = summaries(run, style)
    except (IndexError, FileError):  # the generator has no window that holds no step; a file of nothing is refused
        return
    check_everything(measured, ranks, hosts_of(run) if named else None)


@pytest.mark.parametrize("builder", [ddp, fsdp2])
def test_a_run_without_a_gpu(builder):
    run = simulate(builder(layers=3, steps=5, device="cpu"), 4, [SlowCompute(2, 2.0)])
    measured = check_everything(summaries(run), 4, hosts_of(run))
    assert [found[:3] for found in said(measured)] == [("TO-S001", "error", (2,))]
    assert judge_low(measured).not_evaluated


def test_without_a_gpu_a_rank_late_for_no_single_cause_beside_another_is_not_named():
    made = ddp(layers=3, steps=5, device="cpu")
    measured = across(simulate(made, 4, [SlowCompute(2, extra_us=4000), SlowCompute(1, extra_us=2500)]))
    assert {f.ranks for f in findings(measured)} == {(1,), (2,)}
    found = tuple(replace(s, cause="unknown") if s.rank == 1 else s for s in measured.replay.stragglers.found)
    unsure = replace(
        measured, replay=replace(measured.replay, stragglers=replace(measured.replay.stragglers, found=found))
    )
    assert {f.ranks for f in findings(unsure)} == {(2,)}
    [named] = findings(unsure)  # nothing of the other rank can be cured
    alone = next(float(s.alone.mean()) for s in found if s.rank == 2) / 1e6
    with_both = next(float(s.saved.mean()) for s in found if s.rank == 2) / 1e6
    assert alone < 0.8 * with_both
    assert named.impact_ms == pytest.approx(alone, rel=0.01)
    assert claim_of(named, Late).beside == ()


def test_a_single_step_is_not_enough_for_s001_and_breaks_nothing():
    run = simulate(program(fsdp2, steps=1), 4, [SlowCompute(2, 2.0)])
    measured = check_everything(summaries(run), 4, hosts_of(run))
    assert [found for found in said(measured) if found[0] == "TO-S001" and found[1] != "info"] == []


def test_steps_of_no_length():
    """An empty step ends when the one before it does."""
    made = program(fsdp2, steps=4)
    run = simulate(replace(made, steps=(*made.steps[:2], (), *made.steps[3:])), 4)
    ranks = summaries(run)
    measured = check_everything(ranks, 4, hosts_of(run))
    assert measured.replay is not None


def test_ranks_that_number_their_steps_differently():
    run = simulate(program(fsdp2), 4)
    ranks = summaries(run)
    ranks[1] = replace(ranks[1], step_numbers=ranks[1].step_numbers + 2)
    measured = check_everything(ranks, 4, hosts_of(run))
    assert measured.replay is None or measured.replay.graph.steps == (5, 6)


def test_a_collective_that_one_rank_lacks():
    run = simulate(program(fsdp2), 4)
    ranks = summaries(run, TraceStyle(seq=True))
    comm = ranks[2].comm
    args = list(comm.args)
    args[len(args) // 2] = None
    ranks[2] = replace(ranks[2], comm=replace(comm, args=tuple(args)))
    check_everything(ranks, 4, hosts_of(run))


def test_a_rank_that_did_nothing(tmp_path):
    """Its trace holds its steps and nothing else; other groups go on without it."""
    run = simulate(program(hsdp), 8)
    for rank, path in enumerate(write_traces(run, tmp_path)):
        trace = json.loads(path.read_text())
        if rank == 5:
            rows = trace["traceEvents"]
            trace["traceEvents"] = [e for e in rows if e["ph"] != "X" or e["name"].startswith("ProfilerStep")]
            path.write_text(json.dumps(trace))
    [window] = discover(str(tmp_path)).windows
    with patch("traceops.measure.summary.hta_tables", return_value=HtaTables()):
        ranks = [summarize(file) for file in window.files]
    check_everything(ranks, 8, hosts_of(run))


def test_collectives_of_no_length():
    run = simulate(program(hsdp), 8)
    ranks = summaries(run)
    comm = ranks[5].comm
    ranks[5] = replace(ranks[5], comm=replace(comm, end=comm.start))
    check_everything(ranks, 8, hosts_of(run))


def test_rooted_collectives():
    made = program(ddp)
    steps = tuple(
        tuple(replace(op, op="broadcast") if isinstance(op, Collective) else op for op in step) for step in made.steps
    )
    run = simulate(replace(made, steps=steps), 4, [SlowCompute(2, 2.0)])
    measured = check_everything(summaries(run), 4, hosts_of(run))
    assert [found for found in said(measured) if found[1] != "info"] == [("TO-S001", "error", (2,), "gpu_compute")]


@pytest.mark.slow
def test_256_ranks():
    run = simulate(program(ddp, layers=2, steps=3), 256, [SlowCompute(200, extra_us=2500)])
    measured = across(run)
    assert measured.replay.what_if.error_pct < 2
    assert [found for found in said(measured) if found[1] != "info"] == [("TO-S001", "error", (200,), "gpu_compute")]
