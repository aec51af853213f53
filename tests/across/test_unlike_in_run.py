"""What most steps of a run take tells which of a few recorded ones are unlike them."""

from types import SimpleNamespace

import numpy as np
import pytest
from generated_run import Size, SlowHost, ddp, simulate, write_traces

from traceops.across.agreed_steps import _rare_in_run, unlike_steps
from traceops.across.cross_rank import measure_across
from traceops.measure.summary import summarize
from traceops.traces.discover import discover

MS = 1_000_000


def _rank(rank, took_ms, waits_ms, meets=None):
    ledger = SimpleNamespace(duration=np.array(took_ms) * MS)
    inventory = SimpleNamespace(step_kernels=np.zeros(len(took_ms)))
    waits, numbers = np.array(waits_ms) * MS, np.arange(1, len(took_ms) + 1)
    comm = SimpleNamespace(step=np.arange(len(took_ms)) if meets is None else np.array(meets))
    return SimpleNamespace(rank=rank, ledger=ledger, inventory=inventory, step_numbers=numbers, waits=waits, comm=comm)


def rare(took_ms, usual_ms):
    return _rare_in_run(np.array(took_ms) * MS, usual_ms).tolist()


def test_two_saves_in_four_recorded_steps_are_not_in_the_typical_one(tmp_path):
    """Half of them odd, and the spread of all hides it: the save counted as a part of each step."""
    program = ddp(steps=4, size=Size(kernel_us=60.0))
    odd = tuple(program.numbers[1:][i] for i in (0, 2))
    write_traces(simulate(program, 2, [SlowHost(0, 100_000.0, "", steps=odd)], seed=1), tmp_path / "run")
    ranks = [summarize(file) for file in discover(str(tmp_path / "run")).windows[0].files]
    shortest = min(float(own.ledger.duration.min()) / 1e6 for own in ranks)
    assert not measure_across(ranks, 2).unlike
    assert measure_across(ranks, 2, usual_ms=[shortest] * 8).unlike == odd


def test_no_step_is_an_echo_of_one_that_only_waits():
    """The first recorded step waits for what a rank did before it; the next one is as ever, and was left out too."""
    ranks = [_rank(0, [1043, 261, 246, 182], [800, 5, 6, 7]), _rank(1, [1020, 330, 240, 175], [800, 100, 15, 5])]
    waits = {own.rank: own.waits for own in ranks}
    assert unlike_steps(ranks, waits, [180.0, 200, 220, 330]) == (1,)


def test_a_step_in_which_ranks_meet_once_in_a_round_is_no_odd_one():
    """Post-local SGD with a late rank: 'step 3 takes 377 ms, the typical step takes 10 ms', 89 % of the run."""
    took = ([4, 10, 377, 7], [5, 20, 367, 7], [84, 88, 142, 92])
    ranks = [_rank(n, own, [0, 0, own[2] - 75 if n < 2 else 0, 0], [2, 2]) for n, own in enumerate(took)]
    waits = {own.rank: own.waits for own in ranks}
    transfers = {own.rank: np.array([0, 0, 60, 0]) * MS for own in ranks}
    assert unlike_steps(ranks, waits, (), transfers) == ()
    each = [_rank(n, own, [0, 0, 0, 0]) for n, own in enumerate(took)]
    assert unlike_steps(each, waits, (), transfers) == (3,), "where they communicate in each, it is one"


def test_what_a_rank_does_besides_is_odd_between_meetings_too():
    took = ([4, 10, 377, 7], [5, 20, 367, 7], [84, 188, 142, 92])
    ranks = [_rank(n, own, [0, 0, own[2] - 75 if n < 2 else 0, 0], [2]) for n, own in enumerate(took)]
    waits = {own.rank: own.waits for own in ranks}
    transfers = {own.rank: np.array([0, 0, 60, 0]) * MS for own in ranks}
    assert unlike_steps(ranks, waits, (), transfers) == (2,)


def test_a_step_that_is_like_a_long_one_of_the_run_stays():
    """Input that comes late every few steps is a part of the training; a save once in twelve is none."""
    usual = [45.0, 50, 52, 55] * 3 + [130, 220, 228]
    assert rare([53.0, 205, 392, 54], usual) == [False, False, True, False]


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_recording_that_makes_all_steps_longer_leaves_out_none(slower):
    assert not any(rare([slower * ms for ms in (50.0, 51, 70, 52)], [50.0] * 20))


def test_never_more_than_half_are_left_out_and_nothing_without_the_run():
    assert not any(rare([300.0, 310, 290, 50], [50.0] * 20))
    assert not any(rare([50.0, 300, 50, 300], []))
