"""On generated runs, whose truth is known, steps begin and end, and ranks wait, exactly as they did."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from changed import replace
from drawn import examples
from generated_run import (
    ClockShift,
    LateWindow,
    ShortWindow,
    Size,
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    TraceStyle,
    ddp,
    exposed_wait,
    fsdp2,
    hsdp,
    simulate,
    summaries,
    tp_dp,
    trace_edges,
    write_traces,
)
from hypothesis import given
from hypothesis import strategies as st
from slow_ledger import slow_ledger

from traceops.across.cross_rank import measure_across
from traceops.measure.activity import find_activity
from traceops.measure.ledger import find_lane, ledger_of
from traceops.measure.steps import find_steps
from traceops.traces.kineto import load_trace

HOST_BOUND = Size(kernel_us=3.0, launch_us=10.0, elements=1 << 16)
FEW = examples(25)


@st.composite
def faulty(draw, exact=False, device="cuda"):
    """A run of 2 to 8 ranks with faults of any kind; an exact one without what blurs moments."""
    builders = (ddp, fsdp2, hsdp, tp_dp) if device == "cuda" else (ddp, fsdp2)
    size = draw(st.sampled_from([Size(), HOST_BOUND]))
    program = draw(st.sampled_from(builders))(layers=3, size=size, sync=draw(st.booleans()), device=device)
    program = replace(program, end_jitter_us=0.0) if exact else program
    ranks = draw(st.sampled_from([2, 4, 8]))
    rank, steps = st.integers(0, ranks - 1), st.none() | st.sampled_from([(3,), (4, 5)])
    us = st.floats(0, 4000)
    some = st.one_of(
        st.builds(SlowCompute, rank, st.floats(1, 3), us, steps),
        *(st.builds(kind, rank, us, steps=steps) for kind in (SlowHost, SlowInput, SlowCopy)),
    )
    faults = draw(st.lists(some, max_size=3))
    if not exact:
        faults += draw(st.lists(st.builds(LateWindow, rank, st.integers(0, len(program.steps[0]))), max_size=3))
        faults += draw(st.lists(st.builds(ClockShift, rank, st.floats(-1e6, 1e6), st.floats(-50, 50)), max_size=3))
    return simulate(program, ranks, faults, draw(st.integers(0, 1000)))


def across(run, **style):
    return measure_across(summaries(run, TraceStyle(**style)), run.world)


def check_adds_up(rank):
    assert sum(rank.buckets.values()).tolist() == rank.duration.tolist()
    assert rank.duration.tolist() == np.diff(rank.summary.step_edges).tolist()
    assert all((ns >= 0).all() for ns in rank.buckets.values())


@pytest.mark.slow
@FEW
@given(faulty(), st.booleans(), st.booleans())
def test_steps_tile_and_buckets_add_up_exactly(run, metadata, seq):
    for rank in across(run, metadata=metadata, seq=seq, shuffle_names=1).ranks:
        check_adds_up(rank)
        truth = run.ranks[rank.summary.rank]
        assert rank.summary.step_numbers.tolist() == [number for number, _, _ in truth.marks]
        assert rank.summary.step_edges.tolist() == trace_edges(run, truth.rank).tolist()


@FEW
@given(faulty())
def test_each_rank_alone_equals_the_ledger_painted_nanosecond_by_nanosecond(run):
    alone = tuple(range(1, run.world))
    with tempfile.TemporaryDirectory() as folder:
        [path] = write_traces(run, Path(folder), TraceStyle(missing=alone))
        events = load_trace(str(path)).events
    activity = find_activity(events)
    steps = find_steps(events, activity)
    numbers, edges, buckets = slow_ledger(events)
    assert (steps.number.tolist(), steps.edges.tolist()) == (numbers, edges)
    ledger = ledger_of(find_lane(events, activity, steps), steps)
    assert {name: ns.tolist() for name, ns in ledger.buckets.items()} == buckets


@pytest.mark.slow
@FEW
@given(faulty(exact=True))
def test_steps_and_waiting_are_the_true_ones_to_the_ns(run):
    result = across(run)
    assert result.matching.matched_pct == 100
    for rank in result.ranks:
        assert rank.summary.step_edges.tolist() == run.ranks[rank.summary.rank].edges.tolist()
        assert rank.buckets["comm_wait"].tolist() == exposed_wait(run, rank.summary.rank).tolist()
        assert not rank.buckets["comm_unmatched"].any()


@pytest.mark.slow
@FEW
@given(faulty())
def test_waiting_is_the_true_one_within_the_spread_of_the_ends(run):
    faults = [fault for fault in run.faults if not isinstance(fault, LateWindow | ShortWindow)]
    run = simulate(run.program, run.world, faults, run.seed)
    of_a_step = len(run.collectives) / len(run.program.steps)
    spread = 2 * (of_a_step + 1) * run.program.end_jitter_us * 1000
    for rank in across(run).ranks:
        off = rank.buckets["comm_wait"] - exposed_wait(run, rank.summary.rank)
        assert abs(off).max() <= spread


@pytest.mark.slow
@FEW
@given(faulty(exact=True, device="cpu"))
def test_without_a_gpu_steps_and_waiting_are_the_true_ones(run):
    for rank in across(run).ranks:
        check_adds_up(rank)
        assert rank.summary.step_edges.tolist() == trace_edges(run, rank.summary.rank).tolist()
        assert rank.buckets["comm_wait"].tolist() == exposed_wait(run, rank.summary.rank).tolist()
