"""What a replay predicts where the workers of data loaders rest behind a late rank."""

from types import SimpleNamespace

import numpy as np
import pytest
from generated_run import SlowHost, SlowInput, simulate, summaries
from measured_runs import predicted, program, true_step

from traceops.across.cross_rank import measure_across
from traceops.across.loading import loader_paces
from traceops.across.replay.graph import paced
from traceops.across.replay.what_if import ALL_EQUAL, HOST_IN_TIME, NO_LOADING, rank_change
from traceops.measure.loader_work import LoaderWork


def measured(faults, loading_ms):
    run = simulate(program(sync=True), 4, faults)
    return measure_across(summaries(run, tables=False), 4, loading_ms=loading_ms), true_step(run) / 1e6


def test_short_steps_wait_until_the_mean_is_the_loaders():
    steps = np.array([10.0, 20.0, 10.0, 120.0, 900.0])
    typical = np.array([True, True, True, True, False])
    assert paced(steps, 40.0, typical).tolist() == [10, 20, 10, 120, 900], "a long step's batches serve the others"
    assert paced(steps, 50.0, typical).tolist() == pytest.approx([80 / 3, 80 / 3, 80 / 3, 120, 900])
    assert paced(steps, 150.0, typical).tolist() == [150, 150, 150, 150, 900]


def test_a_change_leaves_the_loaders_pace_but_for_that_of_input():
    healthy = measured([], {})[1]
    late, step = measured([SlowHost(1, 6000)], {0: healthy + 3})
    assert step > healthy + 5
    for change, ranks in ((rank_change([1]), (1,)), (ALL_EQUAL, ()), (HOST_IN_TIME, ())):
        assert predicted(late, change, ranks) / 1e6 == pytest.approx(healthy + 3, rel=0.03), change
    assert predicted(late, NO_LOADING) / 1e6 == pytest.approx(step, rel=0.03)
    [found] = late.stragglers.found
    assert found.saved.mean() / 1e6 == pytest.approx(step - healthy - 3, rel=0.1)
    assert late.stragglers.fed_ns.mean() / 1e6 == pytest.approx(healthy, rel=0.1), "input in time besides"


def test_a_loader_that_is_why_a_rank_is_late_goes_with_the_cure():
    healthy = measured([], {})[1]
    late, step = measured([SlowInput(1, 6000)], {0: 0.5, 1: 100.0})
    assert predicted(late, rank_change([1]), (1,)) / 1e6 == pytest.approx(healthy, rel=0.1)
    late, _ = measured([SlowHost(1, 6000)], {0: 0.5, 1: healthy + 3})
    assert predicted(late, rank_change([1]), (1,)) / 1e6 == pytest.approx(healthy + 3, rel=0.03), "its own, hidden"
    assert step > healthy + 5


def test_no_change_makes_a_step_longer():
    """Paces are measured beside other steps than those of the window: they may be said to be slower than it."""
    late, step = measured([SlowHost(1, 6000)], dict.fromkeys(range(4), 100.0))
    for one in late.what_if.predictions:
        assert late.what_if.mean_ns(one.step_ns) / 1e6 <= step * 1.01, one.change
    assert [one.rank for one in late.stragglers.found] == [1], "late all the same, though its cure alone saves nothing"


def rank_that_loads(name):
    return SimpleNamespace(rank=0, host=SimpleNamespace(input_names=(name,)))


def test_the_pace_is_what_the_workers_are_at_work_of_a_step():
    workers = rank_that_loads("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")

    def pace(rank, busy, busiest):
        work = LoaderWork(4, busy, busiest, None, 0.0)
        return loader_paces([rank], SimpleNamespace(loaders={0: work}, typical_ms=200.0))

    assert pace(workers, 50.0, 60.0) == {0: 100.0}, "one of them is busiest by chance"
    assert pace(workers, 40.0, 100.0) == {0: 200.0}, "batches come in order"
    assert pace(rank_that_loads("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), 50.0, 50.0) == {}
    assert loader_paces([workers], None) == {}
