"""A cured rank runs as its peers usually do: without one peer's luck, and with what all ranks have in common."""

from __future__ import annotations

import numpy as np
import pytest
from generated_run import SlowCompute, simulate
from measured_runs import across, predicted, program, true_step

from traceops.across.replay.simulate import simulate as replay
from traceops.across.replay.what_if import Replays, rank_change, shared_work

SLOW = SlowCompute(0, factor=2.0)


@pytest.mark.parametrize(
    "others",
    [
        (SlowCompute(1, factor=0.5, steps=(5,)),),  # lucky in one step: the other rank is not
        (SlowCompute(1, factor=3.0, steps=(5,)),),  # a mishap: the other rank has none
        (SlowCompute(0, factor=1.5, steps=(4, 6)), SlowCompute(1, factor=1.5, steps=(4, 6))),  # longer for all
    ],
)
def test_the_cure_of_one_of_two_ranks_leaves_what_chance_does_to_the_other(others):
    late = across(simulate(program(steps=5), 2, (SLOW, *others)))
    healthy = true_step(simulate(program(steps=5), 2, others))
    assert predicted(late, rank_change((0,)), (0,)) == pytest.approx(healthy, rel=0.02)


def test_hosts_that_are_quicker_than_the_cured_steps_are_not_late_in_the_first_one():
    """Their lead was taken off, as if they had got it by waiting only: the first step took as long as before."""
    late = across(simulate(program(steps=4, sync=True), 4, (SLOW,)))
    steps = replay(late.graph, shared_work(late.graph, [0], np.ones(4, dtype=bool))).step_ns()
    assert steps[0] == pytest.approx(steps[1:].mean(), rel=0.05)
    assert steps.mean() < 0.7 * true_step(simulate(program(steps=4, sync=True), 4, (SLOW,)))


def test_shared_work_is_what_a_rank_has_beyond_its_peers_usual_and_not_beyond_their_luck():
    """Where the peer is lucky the late rank got as little work as it, and a step took less than with even work."""
    late = across(simulate(program(steps=5), 2, (SLOW, SlowCompute(1, factor=0.5, steps=(5,)))))
    steps = replay(late.graph, shared_work(late.graph, [0], np.ones(5, dtype=bool))).step_ns()
    assert steps[2] == pytest.approx(np.delete(steps, 2).mean(), rel=0.05)


def test_ranks_that_are_late_by_chance_tell_of_the_usual_pace_where_they_are_the_most():
    """Three ranks, each late in another step, were cured to the fourth's pace, which is lucky in most."""
    luck = [SlowCompute(3, factor, steps=(step,)) for step, factor in enumerate((0.94, 0.95, 1.1, 0.93, 1.12), 3)]
    mishaps = [SlowCompute(rank, factor=1.4, steps=(3 + rank,)) for rank in range(3)]
    late = across(simulate(program(steps=5), 4, (*luck, *mishaps)))
    truth = true_step(simulate(program(steps=5), 4, luck))
    assert predicted_cured(late, (0, 1, 2)) == pytest.approx(truth, rel=0.012)


def test_a_rank_that_is_always_slow_tells_nothing_of_the_usual_pace():
    slow = [SlowCompute(rank, factor=1.3) for rank in range(3)]
    late = across(simulate(program(steps=5), 4, slow))
    assert predicted_cured(late, (0, 1, 2)) == pytest.approx(true_step(simulate(program(steps=5), 4)), rel=0.02)


def predicted_cured(measured, ranks):
    return float(Replays(measured.graph).cured(ranks).step_ns().mean())
