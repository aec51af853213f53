"""What a rank waits for cores: that it waited for none is told apart from that nothing tells."""

from types import SimpleNamespace

import numpy as np
import pytest
from observed_run import usual, write_rank

from traceops.across.machine_use import beyond_peers, core_waits, unfair_waits
from traceops.traces.observed import read_observed


@pytest.mark.parametrize("told", [True, False])
def test_a_rank_that_waits_for_no_core_tells_so(tmp_path, told):
    """24 ranks on 32 cores: half of them were 151 of 169 ms late, and it was a remark: they might lack cores."""
    steps = [usual(100.0, recorded=n in (3, 4)) for n in range(6)]
    write_rank(tmp_path, 0, steps, core_waits=told)
    one, problem = read_observed(str(tmp_path), 0)
    assert problem is None
    assert core_waits([one]).of_rank == ({0: {3: 0, 4: 0}} if told else {})


def test_an_earlier_log_tells_waits_alone(tmp_path):
    steps = [usual(100.0, recorded=n in (3, 4), core_wait_ms=2.0 * (n == 4)) for n in range(6)]
    write_rank(tmp_path, 0, steps)
    one, _ = read_observed(str(tmp_path), 0)
    assert core_waits([one]).of_rank == {0: {4: 2_000_000}}


def _use(rank, waited_pct, crowded_pct):
    return SimpleNamespace(rank=rank, waited_pct=waited_pct, crowded_pct=crowded_pct)


@pytest.mark.parametrize(
    ("computes", "own_ms"),
    [(13.0, 82.0), (60.0, 0.0)],  # percent of the time; what of 87 ms is none of its doing
)
def test_a_rank_that_has_no_core_is_late_only_as_far_as_it_computes_more(tmp_path, computes, own_ms):
    """Two ranks with as much work: 'rank 1's host takes longer' by 97 ms, of which 87 were waits for cores."""
    observed = []
    for rank, waited in ((0, 12.0), (1, 99.0)):
        write_rank(tmp_path, rank, [usual(141.0, recorded=n > 2, core_wait_ms=waited) for n in range(7)])
        observed.append(read_observed(str(tmp_path), rank)[0])
    crowded = 100 * 69.3 / (69.3 + computes)
    waits = unfair_waits(observed, [_use(0, 24.8, 69.3), _use(1, 69.3, crowded)])
    more = beyond_peers(waits, 1, [0], (3, 4, 5)) / 1e6
    assert more == pytest.approx(np.full(3, own_ms), abs=2)
