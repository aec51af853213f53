"""TO-O001 to TO-O003 where the ranks that do the transfer with their own cores wait for these."""

from types import SimpleNamespace

import pytest
from observed_run import usual, write_rank

from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.rules.overlap import EXPOSED
from traceops.rules.shared import waited_pct, without_waiting
from traceops.traces.observed import read_observed

BOUNDS = (10.0, 20.0, 40.0)


def exposed(share, severity):
    evidence = [
        Evidence(Fact.BUCKET, 5.0, "ms/step", subject="comm_transfer"),
        Evidence(Fact.BUCKET_PCT, share, "%", subject="comm_transfer"),
    ]
    return EXPOSED.verdict(EXPOSED.finding(severity, "high", "transfer.", evidence, ranks=[0, 1]))


@pytest.mark.parametrize(
    "share, severity, waited, left",
    [
        (41.0, "error", 0.0, "error"),
        (41.0, "error", 9.0, "error"),  # little waiting is in all runs
        (61.0, "error", 20.0, "error"),
        (52.0, "error", 30.0, "warning"),
        (41.0, "error", 60.0, "info"),
        (25.0, "info", 60.0, "info"),
    ],
)
def test_what_may_be_waiting_for_a_core_is_not_claimed(share, severity, waited, left):
    """Two ranks that waited 60 % of a step for a core were told of an error: 41 % of it is transfer."""
    [found] = without_waiting(exposed(share, severity), Fact.BUCKET_PCT, BOUNDS, waited).findings
    assert found.severity == left
    assert ("nothing tells how much of it is that" in found.message) == (left != severity)


@pytest.mark.parametrize("on_gpu, through_host, expected", [(False, False, 40.0), (True, True, 40.0), (True, False, 0)])
def test_the_median_rank_of_those_whose_cores_do_the_transfer(tmp_path, on_gpu, through_host, expected):
    for rank, waits_ms in enumerate((20.0, 20.0, 0.0)):
        recorded = range(8, 14)
        write_rank(
            tmp_path, rank, [usual(recorded=n in recorded, core_wait_ms=waits_ms * (n in recorded)) for n in range(20)]
        )
    run = SimpleNamespace(
        ranks=[SimpleNamespace(summary=SimpleNamespace(rank=rank, on_gpu=on_gpu)) for rank in range(3)],
        through_host=through_host,
    )
    observed = tuple(read_observed(str(tmp_path), rank)[0] for rank in range(3))
    assert waited_pct(SimpleNamespace(run=run, observed=observed)) == pytest.approx(expected, abs=0.5)
