"""What a run's manifest says of its ranks."""

import pytest

from traceops.traces.run_manifest import ended_cupti


@pytest.mark.parametrize(
    ("ranks", "ended"),
    [
        ([{"detached": {"done": True}}] * 2, True),
        ([{"detached": {"done": True}}], False),
        ([{"detached": {"done": True}}, {"detached": {"done": False}}], False),
        ([{"detached": {"done": True}}, {"detached": {"done": True}, "script_profiler": {"first": 3}}], False),
        ([{}, {}], False),
    ],
)
def test_cupti_was_ended_where_each_rank_of_the_world_says_so(ranks, ended):
    assert ended_cupti({"world_size": 2, "ranks": ranks}) is ended
