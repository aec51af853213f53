"""What the last lines of a run say of its steps."""

from types import SimpleNamespace

import pytest

from traceops.launch.telling import steps_told


def told(ends, within):
    return steps_told([SimpleNamespace(rank=0, step_ends=ends, steps_within=within, steps_beside={})])


@pytest.mark.parametrize(
    "within, said",
    [
        ({}, ""),
        ({"SGD.step": 120}, "; SGD.step are within one"),
        ({"Adam.step": 120}, ""),
        ({"SGD.step": 40}, "; SGD.step runs in 40 of 120, so steps are of two kinds"),
        ({"Adam.step": 40}, "; another optimizer's Adam.step runs in 40 of 120, so steps are of two kinds"),
    ],
)
def test_steps_of_two_kinds_are_told(within, said):
    """A WGAN with three critic steps a generator step: 120 steps were told, and none of its 40 rounds."""
    assert told({"Adam.step": 120}, within) == [f"a step ends where Adam.step returns{said}"]


@pytest.mark.parametrize(
    ("ends", "within", "said"),
    [
        (
            {"Adam.step": 1, "RMSprop.step": 299},
            {"RMSprop.step": 1, "Adam.step": 99},
            "RMSprop.step returns; Adam.step runs in 99 of 300, so steps are of two kinds",
        ),
        ({"SGD.step": 1, "Adam.step": 99}, {"SGD.step": 99}, "Adam.step returns; SGD.step are within one"),
        ({"Adam.step": 99, "GradScaler.update": 1}, {}, "Adam.step or GradScaler.update returns"),
        ({"Adam.step": 1}, {"Adam.step": 5}, "Adam.step returns"),
    ],
)
def test_what_stood_for_its_first_round_only_is_no_end_of_steps(ends, within, said):
    """Both optimizers of a WGAN were told to end steps, and the generator's to be another's."""
    assert told(ends, within) == [f"a step ends where {said}"]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ((0, 0), ""),
        ((1, 0), "; 1 step of an optimizer in another thread is not counted on rank 0"),
        ((0, 40), "; 40 steps of optimizers in other threads are not counted on rank 1"),
        ((40, 40), "; 40 steps of optimizers in other threads are not counted"),
        ((39, 40), "; up to 40 steps of optimizers in other threads are not counted"),
    ],
)
def test_steps_in_other_threads_are_told_whichever_rank_has_them(beside, said):
    """Only those of the first rank were."""
    ranks = [
        SimpleNamespace(rank=rank, step_ends={"Adam.step": 120}, steps_within={}, steps_beside={"SGD.step": number})
        for rank, number in enumerate(beside)
    ]
    assert steps_told(ranks) == [f"a step ends where Adam.step returns{said}"]
