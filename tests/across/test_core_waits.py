"""What a rank waits for cores: that it waited for none is told apart from that nothing tells."""

import pytest
from observed_run import usual, write_rank

from traceops.across.core_waits import core_waits
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
