"""TO-T001 where a rank gets no core in a long step: nothing was said of why."""

from types import SimpleNamespace

import numpy as np
import pytest
from observed_run import Step, write_rank

from traceops.rules.steps import held_up
from traceops.traces.observed import read_observed

STEPS = np.arange(10, 14)


@pytest.mark.parametrize(
    "waits_ms, rank",
    [
        ({13: 28.0}, 1),
        ({13: 9.0}, None),  # less than half of the 10 ms that it takes longer, beyond the usual 6
        ({10: 28.0, 11: 28.0, 12: 28.0, 13: 28.0}, None),  # in all steps alike
    ],
)
def test_the_rank_that_waits_for_a_core_in_the_long_step(tmp_path, waits_ms, rank):
    for one in range(2):
        own = dict.fromkeys(STEPS.tolist(), 6.0) | waits_ms if one else {}
        steps = [Step(33 if n == 13 else 11, recorded=n in STEPS, core_wait_ms=own.get(n, 0.0)) for n in range(20)]
        write_rank(tmp_path, one, steps)
    ranks = [
        SimpleNamespace(summary=SimpleNamespace(rank=one, step_numbers=STEPS), typical=STEPS != 13) for one in range(2)
    ]
    observed = tuple(read_observed(str(tmp_path), one)[0] for one in range(2))
    inputs = SimpleNamespace(run=SimpleNamespace(ranks=ranks, unlike=(13,)), observed=observed)
    found = held_up(inputs, longer_ms=10.0)
    assert found == (None if rank is None else (rank, pytest.approx(22.0)))
