"""Functions that a rank calls in each so many steps tell steps that are no longer than others by chance."""

import random

import numpy as np
import pytest
from observed_run import Step, usual, write_rank

from traceops.across.whole_run import in_rhythm, whole_run
from traceops.traces.observed import read_observed

TIMED = np.ones(80, dtype=bool)


def steps(more=0.0, each=4):
    draw = random.Random(5)
    return np.array([draw.uniform(80, 140) + (more if at % each == 0 else 0) for at in range(80)])


def test_a_short_save_each_fourth_step_is_found_by_its_rhythm():
    """60 ms beside steps of 80 to 140: not one of them was unlike the others, and the save was not told."""
    seen = dict.fromkeys(range(8, 80, 4), 58.0)
    del seen[20], seen[48]  # no look fell in it
    found = in_rhythm(steps(60), TIMED, [seen])
    assert np.flatnonzero(found).tolist() == list(range(0, 80, 4))


@pytest.mark.parametrize(
    "seen",
    [
        dict.fromkeys((8, 12, 16, 20), 58.0),  # too few
        dict.fromkeys(range(8, 80, 3), 58.0),  # a rhythm that chance makes too
        dict.fromkeys((8, 16, 32, 48, 64), 58.0),  # hardly half of the steps of its rhythm
        dict.fromkeys((*range(8, 80, 4), 21), 58.0),  # in between, too
        dict.fromkeys(range(8, 80, 4), 5.0),  # little
    ],
)
def test_what_is_no_rhythm_makes_no_step_unlike_the_others(seen):
    assert not in_rhythm(steps(60), TIMED, [seen]).any()


def test_a_function_whose_steps_are_no_longer_is_hidden_or_always_there():
    assert not in_rhythm(steps(0), TIMED, [dict.fromkeys(range(8, 80, 4), 58.0)]).any()


def test_a_run_tells_its_short_saves(tmp_path):
    draw = random.Random(3)

    def rank(saves):
        made = [usual(draw.uniform(80, 140)) for _ in range(121)]
        for at in range(4, 121, 4):
            ms = draw.uniform(80, 140)
            made[at] = Step(ms + 60, stacks={"forward": ms, "rare" if saves else "backward": 60})
        return made

    for number, saves in enumerate((True, False)):
        write_rank(tmp_path, number, rank(saves))
    run = whole_run([read_observed(str(tmp_path), number)[0] for number in range(2)])
    [found] = run.occasions
    assert (found.cause, found.times, found.ranks) == ("host", 30, (0,))
    assert found.more_ms / 30 == pytest.approx(60, rel=0.15)
    assert run.typical_ms == pytest.approx(110, rel=0.05)


@pytest.mark.filterwarnings("error")
def test_where_all_timed_steps_are_of_the_rhythm_nothing_is_unlike_them():
    """The median of no step made numpy warn on the terminal."""
    timed = np.zeros(len(TIMED), dtype=bool)
    timed[8::4] = True
    assert not in_rhythm(steps(60), timed, [dict.fromkeys(range(8, 80, 4), 58.0)]).any()
