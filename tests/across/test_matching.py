"""Collectives are matched with their own members, and clocks of different hosts brought together by them."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace
from drawn import examples
from generated_run import (
    ClockShift,
    Compute,
    Groups,
    Join,
    LateWindow,
    Memcpy,
    ShortWindow,
    Size,
    SlowCompute,
    SlowHost,
    TraceStyle,
    ddp,
    fsdp2,
    hsdp,
    simulate,
    summaries,
    tp_dp,
)
from generated_run import Collective as Planned
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import BUILDERS, across, findings, hosts_of, program

from traceops.across.clocks import ClockFit, align_clocks, theil_sen, with_roots
from traceops.across.cross_rank import measure_across
from traceops.across.match import BEFORE_WINDOW, Collective, MatchedCollectives, match_collectives
from traceops.across.send_receive import _MOST_SHIFT, _shift, pair
from traceops.core.claims import claim_of
from traceops.rules.validity_claims import EndsApart
from traceops.rules.validity_time import judge_clocks

PROGRAMS = (ddp, fsdp2, hsdp, tp_dp)
HOST_BOUND = Size(kernel_us=3.0, launch_us=10.0, elements=1 << 16)
FEW = examples(25)


def match(run, style):
    """Each matched collective as what its members say of it: rank, start and end on the rank's own clock (ns)."""
    ranks = summaries(run, style)
    comm = {summary.rank: summary.comm for summary in ranks}
    matching = match_collectives(ranks, tuple(range(run.world)))
    found = Counter(
        frozenset((rank, int(comm[rank].start[at]), int(comm[rank].end[at])) for rank, at in collective.members)
        for collective in matching.collectives
    )
    return found, matching


def truth(run, style):
    """The same of every collective that all its members' traces hold."""
    expected = Counter()
    for position, collective in enumerate(run.collectives):
        members = [run.ranks[rank] for rank in collective.members if rank not in style.missing]
        own = {r.rank: next(a for a in r.activities if a.collective == position) for r in members}
        known = all(
            own[r.rank] in r.recorded and (own[r.rank].launch >= r.window_start or not style.metadata) for r in members
        )
        if known and len(members) == len(collective.members):
            expected[
                frozenset((r.rank, r.on_clock(own[r.rank].start), r.on_clock(own[r.rank].end)) for r in members)
            ] += 1
    return expected


@st.composite
def runs(draw, builders=PROGRAMS):
    """Runs with 2 to 16 ranks, slow ranks, clocks that differ, and windows that start anywhere in the first steps."""
    builder = draw(st.sampled_from(builders))
    ranks = draw(st.sampled_from([2, 4, 6, 8, 12, 16]))
    program = builder(layers=3, sync=draw(st.booleans()), size=draw(st.sampled_from([Size(), HOST_BOUND])))
    rank = st.integers(0, ranks - 1)
    late = draw(st.dictionaries(rank, st.integers(1, 3 * len(program.steps[0]) // 2), max_size=ranks))
    faults = [LateWindow(rank, launches) for rank, launches in late.items()]
    faults += [ClockShift(r, draw(st.floats(-1e6, 1e6)), draw(st.floats(-50, 50))) for r in range(0, ranks, 2)]
    faults += draw(st.lists(st.builds(SlowCompute, rank, st.floats(1, 4)), max_size=2))
    faults += draw(st.lists(st.builds(SlowHost, rank, st.floats(0, 5000)), max_size=2))
    return simulate(program, ranks, faults, draw(st.integers(0, 1000)))


@pytest.mark.slow
@FEW
@given(runs(), st.booleans(), st.none() | st.integers(0, 99))
def test_every_collective_is_matched_with_its_own_members(run, seq, names):
    style = TraceStyle(seq=seq, shuffle_names=names)
    found, matching = match(run, style)
    assert found == truth(run, style)
    assert found
    assert set(matching.unmatched) <= {BEFORE_WINDOW, "outside the window of other ranks"}
    if not any(isinstance(fault, LateWindow) for fault in run.faults):
        assert matching.matched_pct == 100


@pytest.mark.slow
@FEW
@given(runs(), st.booleans(), st.data())
def test_windows_that_end_at_different_moments(run, seq, data):
    """Whole steps earlier, or with sequence numbers in the middle of one."""
    a_step = sum(activity.step == 3 for activity in run.ranks[0].activities)
    lost = st.integers(1, 3 * a_step // 2) if seq else st.just(a_step)
    early = data.draw(st.dictionaries(st.integers(0, run.world - 1), lost, min_size=1))
    faults = [*run.faults, *(ShortWindow(rank, launches) for rank, launches in early.items())]
    run, style = simulate(run.program, run.world, faults, run.seed), TraceStyle(seq=seq)
    found, _ = match(run, style)
    assert found == truth(run, style)


@pytest.mark.slow
@FEW
@given(runs(), st.data())
def test_groups_without_a_missing_rank_are_matched(run, data):
    missing = data.draw(st.sets(st.integers(0, run.world - 1), min_size=1, max_size=run.world - 1))
    style = TraceStyle(missing=tuple(sorted(missing)))
    found, matching = match(run, style)
    assert found == truth(run, style)
    broken = any(missing & set(c.members) and not set(c.members) <= missing for c in run.collectives)
    assert ("ranks of its group have no trace" in matching.unmatched) == broken


@pytest.mark.slow
@FEW
@given(runs(builders=(ddp, fsdp2)))
def test_one_group_is_matched_without_metadata(run):
    style = TraceStyle(metadata=False)
    found, matching = match(run, style)
    assert found == truth(run, style)
    assert {collective.group for collective in matching.collectives} == {tuple(range(run.world))}


@pytest.mark.slow
@FEW
@given(st.sampled_from((ddp, fsdp2)), st.sampled_from([2, 4, 8]), st.integers(0, 99))
def test_one_group_is_matched_without_a_gpu(builder, ranks, seed):
    run = simulate(builder(device="cpu"), ranks, [SlowHost(1, 3000), ClockShift(1, 5e5)], seed)
    found, matching = match(run, TraceStyle())
    assert found == truth(run, TraceStyle())
    assert matching.matched_pct == 100


@pytest.mark.parametrize("builder", PROGRAMS)
def test_a_run_of_32_ranks(builder):
    run = simulate(builder(size=HOST_BOUND), 32, [LateWindow(rank, 3 * rank) for rank in range(32)])
    found, _ = match(run, TraceStyle(shuffle_names=5))
    assert found == truth(run, TraceStyle())


@pytest.mark.parametrize("builder", PROGRAMS)
def test_a_window_that_is_cut_in_its_last_step_is_not_paired_one_off(builder):
    """No sequence numbers, and nobody says that the last step of rank 1 is not whole: it has its annotation."""
    program = builder()
    of_a_step = sum(isinstance(op, Planned | Compute | Memcpy) for op in program.steps[0])
    run = simulate(program, 4, [ShortWindow(1, of_a_step // 3)])
    found, _ = match(run, TraceStyle())
    assert set(found) <= set(truth(run, TraceStyle()))


# Starts and durations (µs) of all_gather on two ranks of one host with more load than cores: accelerate's
# gather_for_metrics, four times, rank 1 late.
GATHERS = (
    ((63828730, 45050), (63877750, 470), (63879630, 2650), (63883200, 12650)),
    ((63871650, 4220), (63877940, 400), (63881910, 9610), (63895380, 4110)),
)


def summary(events, step=12):
    start = np.array([begin * 1000 for begin, _ in events], dtype=np.int64)
    end = start + np.array([took * 1000 for _, took in events], dtype=np.int64)
    comm = SimpleNamespace(start=start, end=end, args=[None] * len(events), step=np.zeros(len(events), int))
    return SimpleNamespace(
        comm=comm, step_numbers=[step], damage=None, incomplete=False, step_number=lambda position: step
    )


def test_events_that_run_at_the_same_time_are_not_moved_to_a_rhythm_that_fits_by_chance():
    ranks = {rank: summary(events) for rank, events in enumerate(GATHERS)}
    paired = pair((0, 1), {rank: [0, 1, 2, 3] for rank in ranks}, ranks)
    assert paired == [((0, i), (1, i)) for i in range(4)]


def test_a_window_that_was_cut_off_before_is_moved_all_the_same():
    begins = [0, 1000, 2100, 3300, 4600, 6000, 7500, 9100]  # µs, each longer apart than the one before
    whole = [(begin, 50) for begin in begins]
    ranks = {0: summary(whole), 1: summary(whole[:-1])}
    paired = pair((0, 1), {0: list(range(8)), 1: list(range(7))}, ranks)
    assert paired == [((0, i), (1, i)) for i in range(7)]


US = 1000
SENT = 50 * US  # a root hands its data over in this time, and a member that has it goes on


def run(op, operations, a_step=1):
    """Ranks and collectives of [(begin, end) of each member in µs] for each operation, so many in a step."""
    members = range(len(operations[0]))
    ranks = [
        SimpleNamespace(
            rank=rank,
            comm=SimpleNamespace(
                start=np.array([own[rank][0] for own in operations]) * US,
                end=np.array([own[rank][1] for own in operations]) * US,
                step=np.arange(len(operations)) // a_step,
            ),
        )
        for rank in members
    ]
    collectives = []
    for number, own in enumerate(operations):
        spent = [(end - begin) * US for begin, end in own]
        waits = tuple(one - min(spent) for one in spent)
        collectives.append(
            Collective(tuple(members), "", op, 4, "float", tuple((r, number) for r in members), min(spent), waits)
        )
    clocks = SimpleNamespace(fits={rank: ClockFit() for rank in members}, unaligned=())
    found = with_roots(MatchedCollectives(tuple(collectives), 0, {}), ranks, clocks).collectives
    return [(one.needs, tuple(ns // US for ns in one.wait_ns), one.last_rank) for one in found]


def test_receivers_wait_for_the_root_and_a_late_one_keeps_nobody():
    found = run("broadcast", [
        [(500, 550), (0, 560), (100, 570)],  # the root comes last
        [(1000, 1050), (1100, 1130), (3000, 3040)],  # rank 2 comes last: nobody waits
        [(5000, 5050), (4200, 5060), (4900, 5070)],
    ])  # fmt: skip
    assert [needs[1:] for needs, _, _ in found] == [((0, 1), (0, 2))] * 3
    assert [waits for _, waits, _ in found] == [(0, 500, 400), (0, 0, 0), (0, 800, 100)]
    assert {last for _, _, last in found} == {None}


def test_a_root_that_cannot_hand_over_waits_too():
    """Its data is larger than what fits on the way: it ends only after the receivers came."""
    (_, first), (needs, second) = [
        (needs, waits)
        for needs, waits, _ in run("broadcast", [[(9000, 9050), (0, 9060)], [(20_000, 21_400), (21_000, 21_500)]])
    ]
    assert first == (0, 9000) and second == (900, 0)
    assert needs == ((0, 1), (0, 1))


def test_the_root_of_a_reduce_waits_for_the_others():
    found = run("reduce", [
        [(0, 8), (10, 830), (800, 835)],
        [(2000, 2030), (2001, 2950), (2900, 2940)],
        [(4000, 4030), (4700, 4740), (4100, 4150)],  # the root comes last: the others had gone on
    ])  # fmt: skip
    assert {needs[1] for needs, _, _ in found} == {(0, 1, 2)}, "rank 1 is the root"
    assert [waits for _, waits, _ in found][:2] == [(0, 790, 0), (0, 899, 0)]


def test_where_all_wait_for_the_last_it_is_no_matter_who_is_the_root():
    found = run("broadcast", [
        [(0, 1050), (1000, 1060), (500, 1055)],
        [(2900, 3050), (2000, 3060), (3000, 3055)],
        [(5000, 5050), (4000, 5060), (4500, 5055)],
    ])  # fmt: skip
    assert [last for _, _, last in found] == [1, 2, 0]


def test_each_place_of_a_step_may_have_a_root_of_its_own():
    """ZeRO's optimizers send from rank after rank, and nobody was charged for what the others wait."""
    first = [(500, 550), (900, 950), (100, 570)]  # rank 2 waits for rank 0, and nobody for rank 1
    second = [(600, 1560), (650, 1570), (1500, 1550)]  # and here for rank 2
    steps = [[(b + 9000 * n, e + 9000 * n) for b, e in own] for n in range(4) for own in (first, second)]
    found = run("broadcast", steps, a_step=2)
    assert [needs for needs, _, _ in found[:2]] == [((0, 2), (0, 1), (0, 2)), ((0, 2), (1, 2), (0, 1, 2))]
    assert [waits for _, waits, _ in found[:2]] == [(0, 0, 400), (900, 850, 0)]


def test_who_ends_as_soon_as_another_has_come_waited_for_it():
    """Several broadcasts are in flight at once, handed on along a tree: it is another one each time."""
    found = run("broadcast", [
        [(0, 9010), (0, 900), (9000, 9020)],
        [(20_000, 20_050), (20_010, 29_030), (29_000, 29_040)],
        [(49_000, 49_030), (40_000, 49_020), (40_100, 40_200)],
    ])  # fmt: skip
    assert [waits for _, waits, _ in found] == [(9000, 0, 0), (10, 8990, 0), (0, 9000, 0)]
    assert found[0][0] == ((0, 1, 2), (0, 1), (0, 1, 2)), "rank 1 had ended before rank 2 came"


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    "operations",
    [
        [[(0, 50), (0, 50), (0, 50)]] * 3,  # nobody waits
        [
            [(0, 900), (300, 330), (800, 2500)],
            [(5000, 5010), (4000, 9000), (4100, 4150)],
        ],  # waiting for nobody's coming
    ],
)
def test_where_times_tell_nothing_nothing_is_said(op, operations):
    assert [(needs, last) for needs, _, last in run(op, operations)] == [((), None)] * len(operations)


LONG = Size(kernels=2, kernel_us=20_000, elements=1 << 24)  # steps of half a second, over which clocks drift
FEW_CLOCKS = examples(30)


def aligned(ranks, world, hosts=None):
    matching = match_collectives(ranks, tuple(range(world)))
    return matching, align_clocks(ranks, matching, hosts)


def apart(run, clocks):
    """For every end of a collective in the profiled steps: the common clock less the true time, ns, by rank."""
    off = {}
    for rank in run.ranks:
        ends = [a.end for a in rank.activities if a.kind == "comm" and a.step >= run.program.first_step]
        shown = np.array([rank.on_clock(end) for end in ends])
        off[rank.rank] = clocks.fits[rank.rank].correct(shown) - np.array(ends)
    return off


@pytest.mark.parametrize("named", [True, False], ids=["hosts_named", "hosts_not_named"])
@pytest.mark.parametrize("drift", [50.0, -50.0])
@pytest.mark.parametrize("builder", [ddp, hsdp, tp_dp])
def test_hosts_seconds_apart_that_drift_are_brought_together(builder, drift, named):
    shifts = [
        ClockShift(host=2, offset_us=2.5e6, drift_ppm=drift),
        ClockShift(host=3, offset_us=-1.5e6, drift_ppm=drift),
    ]
    run = simulate(program(builder, LONG, steps=8), 8, [SlowCompute(5, 1.3), *shifts], ranks_per_host=2)
    ranks = summaries(run)
    matching, clocks = aligned(ranks, 8, hosts_of(run) if named else None)
    assert clocks.unaligned == ()
    assert clocks.residual_p95_ns < 50_000
    off = apart(run, clocks)
    spread = np.ptp(np.stack([off[rank] for rank in range(8)]), axis=0)
    assert spread.max() < 50_000
    for collective in matching.collectives:
        ends = [int(clocks.fits[rank].correct(ranks[rank].comm.end[[at]])[0]) for rank, at in collective.members]
        assert max(ends) - min(ends) < 50_000


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    "fault", [pytest.param(SlowCompute(6, 2.5), id="gpu"), pytest.param(SlowHost(1, 1500), id="host")]
)
def test_findings_and_predictions_do_not_depend_on_clocks(builder, fault):
    made = program(builder, steps=6, sync=True)
    shift = ClockShift(host=1, offset_us=-7.3e6, drift_ppm=30)
    results = []
    for faults in ([fault], [fault, shift]):
        run = simulate(made, 8, faults, ranks_per_host=4)
        results.append(measure_across(summaries(run), 8, hosts_of(run)))
    said = [[(f.rule, f.ranks, f.cause, f.severity, f.steps) for f in findings(one)] for one in results]
    assert said[0] == said[1]
    assert said[0]
    costs = [[f.impact_ms for f in findings(one)] for one in results]
    assert costs[1] == pytest.approx(costs[0], rel=0.01)
    steps = [{(p.change, p.ranks): p.step_ns.mean() for p in one.replay.what_if.predictions} for one in results]
    assert steps[1] == pytest.approx(steps[0], rel=0.01)


@pytest.mark.parametrize("builder", BUILDERS)
def test_clocks_that_agree_are_left_together(builder):
    for seed in range(4):
        run = simulate(program(builder, LONG, steps=4), 4, seed=seed)
        _, clocks = aligned(summaries(run), 4)
        off = apart(run, clocks)
        assert max(int(np.abs(own - off[0]).max()) for own in off.values()) < 5_000


@pytest.mark.xfail(strict=True, reason="with a dozen anchors the noise of the ends is taken for a drift of 100 ppm")
def test_no_drift_is_seen_where_there_is_none():
    for builder in BUILDERS:
        for seed in range(8):
            _, clocks = aligned(summaries(simulate(program(builder), 8, seed=seed)), 8)
            assert [fit.drift for fit in clocks.fits.values() if fit.drift] == []


def test_a_few_collectives_tell_no_drift():
    run = simulate(program(ddp, LONG, steps=3), 2, [ClockShift(1, 1e6, 50.0)])
    _, clocks = aligned(summaries(run), 2)
    assert clocks.anchors == 6
    assert [fit.drift for fit in clocks.fits.values()] == [0.0, 0.0]


def test_ranks_of_one_host_share_a_clock():
    run = simulate(program(hsdp), 8, [ClockShift(host=1, offset_us=4e5)], ranks_per_host=4)
    _, clocks = aligned(summaries(run), 8, hosts_of(run))
    assert len({clocks.fits[rank] for rank in range(4)}) == 1
    assert len({clocks.fits[rank] for rank in range(4, 8)}) == 1
    assert clocks.fits[0].offset_ns - clocks.fits[4].offset_ns == pytest.approx(4e8, abs=5e3)


def test_a_rank_whose_ends_contradict_its_host_keeps_its_own_clock():
    run = simulate(program(ddp, steps=3), 4, [ClockShift(2, offset_us=5e3)])
    _, clocks = aligned(summaries(run), 4, hosts_of(run))
    assert clocks.fits[0].offset_ns - clocks.fits[2].offset_ns == pytest.approx(5e6, abs=1e4)
    assert clocks.residual_p95_ns < 10_000


def test_a_rank_without_a_shared_collective_is_not_aligned_and_said_so():
    run = simulate(program(hsdp), 8, [ClockShift(5, offset_us=1e6)])
    ranks = summaries(run)
    matching = match_collectives(ranks, tuple(range(8)))
    kept = tuple(c for c in matching.collectives if 5 not in c.group)
    clocks = align_clocks(ranks, replace(matching, collectives=kept))
    assert clocks.unaligned == (5,)
    assert clocks.fits[5] == ClockFit()
    measured = replace(across(simulate(program(hsdp), 8)), clocks=clocks)
    [found] = judge_clocks(measured).findings
    assert found.rule == "TO-V006"
    assert found.ranks == (5,)


def test_no_collective_no_clock():
    ranks = summaries(simulate(program(ddp), 4))
    matching = match_collectives(ranks, tuple(range(4)))
    clocks = align_clocks(ranks, replace(matching, collectives=()))
    assert clocks.residual_p95_ns is None
    assert clocks.anchors == 0
    assert align_clocks([], replace(matching, collectives=())).fits == {}
    measured = replace(across(simulate(program(ddp), 4)), clocks=clocks)
    assert judge_clocks(measured).not_evaluated


def test_a_broadcast_is_no_anchor():
    """Its root may leave long before the others."""
    ops = (Planned("broadcast", "world", 1 << 20, "b"), Join("b"))
    made = program(ddp)
    made = replace(made, steps=tuple((*ops, *step) for step in made.steps))
    only = replace(
        made, steps=tuple((*ops * 4, *(op for op in step if not isinstance(op, Planned | Join))) for step in made.steps)
    )
    assert across(simulate(made, 4)).clocks.anchors == 2 * 4
    without = across(simulate(only, 4))
    assert len(without.matching.collectives) == 4 * 4
    assert without.clocks.anchors == 0
    assert "no matched collective synchronises" in judge_clocks(without).not_evaluated


def test_ends_far_apart_after_alignment_are_a_warning():
    wide = replace(program(ddp, steps=6), end_jitter_us=800.0)
    [found] = judge_clocks(across(simulate(wide, 4))).findings
    assert (found.rule, found.severity) == ("TO-V006", "warning")
    verdict = judge_clocks(across(simulate(program(ddp, steps=6), 4)))
    assert not verdict.findings
    assert "12 collectives" in verdict.clear


def test_ranks_of_one_host_share_a_clock_and_are_not_told_to_keep_clocks_in_step():
    wide = across(simulate(replace(program(ddp, steps=6), end_jitter_us=800.0), 4))
    for hosts, at_fault in (("aaaa", False), ("aabb", True)):
        [found] = judge_clocks(replace(wide, hosts=dict(enumerate(hosts)))).findings
        assert claim_of(found, EndsApart).jumped is at_fault
        assert ("chrony" in found.advice) is at_fault
    [found] = judge_clocks(replace(wide, hosts=dict.fromkeys(range(4)))).findings  # not known: it may be a clock
    assert claim_of(found, EndsApart).jumped


def test_ranks_are_reached_through_groups_that_others_share():
    """No two of 0 and 3 are ever in one group: the way leads over 1 or 2."""
    groups = (Groups("a", "pairs", 2, 1), Groups("b", "far", 2, 2))
    ops = tuple(
        op
        for n in range(4)
        for g in ("a", "b")
        for op in (Planned("allreduce", g, 1 << 20, f"{g}{n}"), Join(f"{g}{n}"))
    )
    made = program(ddp)
    made = replace(made, groups=groups, steps=tuple((*step[:6], *ops) for step in made.steps))
    shifts = [ClockShift(rank, offset_us=rank * 1e6) for rank in range(4)]
    run = simulate(made, 4, shifts)
    _, clocks = aligned(summaries(run), 4)
    assert clocks.unaligned == ()
    off = apart(run, clocks)
    assert max(int(np.abs(own - off[0]).max()) for own in off.values()) < 20_000


@FEW_CLOCKS
@given(st.integers(20, 200), st.floats(-300, 300), st.integers(0, 2**32 - 1))
def test_a_third_of_garbage_does_not_move_the_line(count, ppm, seed):
    random = np.random.default_rng(seed)
    x = np.sort(random.integers(0, 10**10, count))
    y = 1_000_000 + x * ppm / 1e6 + random.normal(0, 1000, count)
    bad = random.choice(count, count * 3 // 10, replace=False)
    y[bad] += random.uniform(-1e9, 1e9, len(bad))
    slope, at_middle = theil_sen(x, y)
    truth = 1_000_000 + np.median(x) * ppm / 1e6
    assert slope * 1e6 == pytest.approx(ppm, abs=2)
    assert at_middle == pytest.approx(truth, abs=5_000)


def test_theil_sen_of_little():
    assert theil_sen(np.array([5]), np.array([7])) == (0.0, 7.0)
    assert theil_sen(np.array([5, 5]), np.array([7, 9])) == (0.0, 8.0)
    assert theil_sen(np.array([0, 10]), np.array([0, 5])) == (0.5, 2.5)


def test_garbage_ends_do_not_move_a_clock():
    run = simulate(program(ddp, LONG, steps=12), 2, [ClockShift(1, 3e6, 50.0)])
    ranks = summaries(run)
    random = np.random.default_rng(3)
    end = ranks[1].comm.end.copy()
    bad = random.choice(len(end), len(end) * 3 // 10, replace=False)
    end[bad] += random.integers(10**7, 10**9, len(bad))
    garbled = [ranks[0], replace(ranks[1], comm=replace(ranks[1].comm, end=end))]
    matching = match_collectives(ranks, (0, 1))
    clocks = align_clocks(garbled, matching)
    off = apart(run, clocks)
    assert np.abs(off[1] - off[0]).max() < 50_000


@pytest.mark.parametrize("shift", [-70, -3, 0, 2, 41])
@pytest.mark.parametrize("same_end", [False, True])
def test_the_shift_is_the_one_whose_ends_are_most_alike_of_all(shift, same_end):
    """Only those that can be the best are tried; here all are, the plain way."""
    random = np.random.default_rng(abs(shift))
    every = np.cumsum(random.integers(1_000_000, 9_000_000, 400))
    mine = every[: len(every) - shift] if shift >= 0 else every
    theirs = every if shift >= 0 else every[:shift]
    reference, own = theirs, mine + 7_000_000_000 + random.integers(-20_000, 20_000, len(mine))

    def unlike(moved):
        a = reference[: len(reference) - moved] if moved >= 0 else reference
        b = own if moved >= 0 else own[: len(own) + moved]
        count = min(len(a), len(b))
        apart = a[len(a) - count :] - b[len(b) - count :]
        return np.abs(apart - np.median(apart)).mean()

    best = min(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=lambda moved: (unlike(moved), abs(moved)))
    assert best == shift
    assert _shift(reference, own, same_end) == (best, pytest.approx(unlike(best)))
