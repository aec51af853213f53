"""Steps without exposed copies, as generated runs without them take: of all ranks, of one, and of a part of them."""

import numpy as np
import pytest
from changed import replace
from generated_run import SlowCopy, simulate
from measured_runs import across, program, true_step

from traceops.across.copies import CHANGES, exposed_copies
from traceops.across.replay.simulate import Scenario
from traceops.across.replay.simulate import simulate as replay
from traceops.measure.copies import BY_STEP

EXTRA_US = 900.0


@pytest.fixture(scope="module")
def healthy():
    return true_step(simulate(program(steps=5), 2))


@pytest.mark.parametrize("ranks", [(0, 1), (0,)])
def test_copies_beside_kernels_leave_the_step_without_them(healthy, ranks):
    run = simulate(program(steps=5), 2, tuple(SlowCopy(rank, EXTRA_US) for rank in ranks))
    measured = across(run)
    saved = measured.what_if.saved_ns(CHANGES["input"])
    before, after = true_step(run), true_step(run) - saved
    assert before - healthy > 0.5 * EXTRA_US * 1e3
    assert after == pytest.approx(healthy, rel=0.03)
    exposed = {one.rank: one.exposed_ms for one in measured.copies if one.purpose == "input"}
    assert all(exposed[rank] > 0.8 * EXTRA_US / 1e3 for rank in ranks)


def test_without_copies_nothing_is_predicted_of_them():
    measured = across(simulate(program(steps=4), 2))
    assert not [one for one in measured.what_if.predictions if one.change in CHANGES.values()]


def test_half_of_a_bucket_saves_half_of_what_all_of_it_saves():
    run = simulate(program(steps=5), 2, (SlowCopy(0, EXTRA_US), SlowCopy(1, EXTRA_US)))
    graph = across(run).graph
    base = replay(graph).step_ns()
    whole, half, none = (
        base - replay(graph, Scenario(without=("memory",), part={0: part, 1: part})).step_ns()
        for part in (1.0, 0.5, 0.0)
    )
    np.testing.assert_allclose(half, whole / 2, rtol=0.05)
    np.testing.assert_array_equal(none, 0)


def test_a_checkpoints_copies_are_no_part_of_the_typical_steps():
    """'3.33 copies of 100 MB a step, the link carries no more': of one step in three, that a typical one is not."""
    (times, *_) = across(simulate(program(steps=5), 2, (SlowCopy(0, EXTRA_US),))).ranks
    summary, typical = times.summary, np.array([True, True, False, True, True])
    one = next(kind for kind in summary.copies.kinds if kind.purpose == "input")
    only = {name: np.where(typical, 0, 100 * getattr(one, name).max()) for name in BY_STEP}
    saved = replace(one, region="save_checkpoint", **only)
    more = {name: np.where(typical, getattr(one, name), 100 * getattr(one, name)) for name in BY_STEP}
    kinds = tuple(replace(kind, **more) if kind is one else kind for kind in summary.copies.kinds)
    with_both = replace(summary, copies=replace(summary.copies, kinds=(saved, *kinds)))
    plain, found = (exposed_copies([own], {own.rank: typical}, "NVIDIA H200", None) for own in (summary, with_both))
    assert plain[0].exposed_ms > 0
    for one, other in zip(plain, found, strict=True):
        assert replace(one, kinds=()) == replace(other, kinds=())
        assert [kind.region for kind in one.kinds] == [kind.region for kind in other.kinds]
        assert [kind.count.sum() for kind in one.kinds] == [kind.count.sum() for kind in other.kinds]
