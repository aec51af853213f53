"""Every collective is matched with its own members and no other, and so is who waits for whom."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import examples
from generated_run import (
    ClockShift,
    Collective,
    Compute,
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
from hypothesis import given
from hypothesis import strategies as st

from traceops.across.match import BEFORE_WINDOW, match_collectives
from traceops.across.send_receive import pair

BUILDERS = (ddp, fsdp2, hsdp, tp_dp)
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
def runs(draw, builders=BUILDERS):
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


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_run_of_32_ranks(builder):
    run = simulate(builder(size=HOST_BOUND), 32, [LateWindow(rank, 3 * rank) for rank in range(32)])
    found, _ = match(run, TraceStyle(shuffle_names=5))
    assert found == truth(run, TraceStyle())


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_window_that_is_cut_in_its_last_step_is_not_paired_one_off(builder):
    """No sequence numbers, and nobody says that the last step of rank 1 is not whole: it has its annotation."""
    program = builder()
    of_a_step = sum(isinstance(op, Collective | Compute | Memcpy) for op in program.steps[0])
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
