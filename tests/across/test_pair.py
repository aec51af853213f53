"""Events of one group whose numbers nobody recorded, as gloo's."""

from types import SimpleNamespace

import numpy as np

from traceops.across.pair import pair

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
