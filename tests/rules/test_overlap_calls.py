"""Gradients in calls of some MB: whether calls or bytes set their time, by the run's own calls."""

import pytest
from changed import replace
from generated_run import Collective, Size, ddp, simulate
from measured_runs import across, program, true_step

from traceops.across.communication import call_times
from traceops.core.claims import claim_of
from traceops.measure.exchanges import BACKWARD, FORWARD
from traceops.rules.overlap import judge_exposed, judge_small
from traceops.rules.overlap_claims import Exposed, ManyCalls
from traceops.rules.overlap_gain import gain_of

SOCKETS = Size(elements=1 << 18, latency_us=4400.0, bandwidth_gbs=20.0, kernel_us=200.0)  # 1 MB a layer


def sized(made, sizes):
    """The program whose buckets have so many layers' elements, in turn."""

    def as_large(op):
        if not isinstance(op, Collective) or not op.label.startswith("bucket"):
            return op
        return replace(op, elements=(1 << 18) * sizes[int(op.label.removeprefix("bucket."))])

    return replace(made, steps=tuple(tuple(map(as_large, step)) for step in made.steps))


def buckets(sizes, size=SOCKETS):
    return sized(program(ddp, size, layers=15, buckets=len(sizes)), sizes)


MIXED = [1] * 13 + [8] * 2


def test_calls_that_take_as_long_whatever_their_size_are_told_with_what_fewer_would_take():
    """On an H200 over sockets 13 calls of 1 MB and two of 8.4 took 4.4 ms each: 13 were too few to be 'many small'."""
    run = simulate(buckets(MIXED), 2)
    [found] = judge_small(across(run)).findings
    assert found.severity in ("warning", "error")
    claim = claim_of(found, ManyCalls)
    assert (claim.op, claim.calls, claim.size) == ("allreduce", 15, pytest.approx(30.4e6, rel=0.01))
    assert (claim.fewest, claim.largest, claim.larger) == (4, 8 << 20, "ddp")
    assert claim.fixed == pytest.approx(4.4, rel=0.1)
    gained = (true_step(run) - true_step(simulate(buckets([8, 8, 8, 5]), 2))) / 1e6
    assert found.impact_ms <= 1.02 * gained
    assert found.impact_ms >= 0.6 * gained


def test_where_bytes_set_the_time_no_number_of_calls_is_blamed():
    slow = replace(SOCKETS, latency_us=20.0, bandwidth_gbs=0.5)
    measured = across(simulate(buckets(MIXED, slow), 2))
    assert judge_small(measured).findings == ()
    times = call_times(measured)
    assert times.fixed_share < 0.1
    assert times.ms_per_byte * 1e6 == pytest.approx(2.0, rel=0.1)  # 1 MB at 0.5 GB/s
    [exposed] = judge_exposed(measured).findings
    assert claim_of(exposed, Exposed).one_size is None


def test_calls_of_one_size_tell_neither():
    measured = across(simulate(buckets([1] * 15), 2))
    assert judge_small(measured).findings == ()
    assert call_times(measured).fixed_ms is None
    [exposed] = judge_exposed(measured).findings
    alike = claim_of(exposed, Exposed).one_size
    assert (alike.calls, alike.size, alike.larger) == (15, 1 << 20, "ddp")


def test_a_few_large_calls_behind_a_small_one_are_no_trouble():
    """DDP's first bucket is of 1 MB, the others of 25: nothing to merge."""
    measured = across(simulate(buckets([1, 8, 8, 8, 8]), 2))
    assert judge_small(measured).findings == ()


def test_calls_of_layers_are_not_called_gradients():
    """DTensor on an H200: 18 all-reduces of activations a step, in both passes, were told as gradients."""
    measured = across(simulate(buckets([1] * 15), 2))
    for times in measured.ranks:
        times.summary.comm.phase[:] = [(FORWARD, BACKWARD)[at % 3 > 0] for at in range(len(times.summary.comm.phase))]
    assert call_times(measured) is None
    [exposed] = judge_exposed(measured).findings
    assert claim_of(exposed, Exposed).one_size is None


def test_a_host_that_keeps_up_with_a_step_is_not_known_to_keep_up_with_a_shorter_one():
    """Tensor parallel over sockets: 79 of 83 ms are transfer, and "without that a step would be 79.0 ms shorter" was
    said. Its host needs 60 ms for a step, and runs ahead while the device transfers."""
    slow = replace(SOCKETS, launch_us=300.0)
    measured = across(simulate(buckets([1] * 15, slow), 2))
    exposed = sum(times.mean_ms("comm_transfer") for times in measured.ranks) / 2
    free = gain_of(measured, exposed, in_time=True)
    bound = gain_of(measured, exposed, in_time=True, left_ms=free.ms / 2)
    assert free.best_ms is None and free.replayed
    least = gain_of(measured, exposed).ms
    assert bound.ms == pytest.approx(max(least, free.ms / 2))
    assert bound.best_ms == pytest.approx(free.ms) or bound.ms == pytest.approx(free.ms, rel=0.05)
    assert gain_of(measured, exposed, in_time=True, left_ms=2 * free.ms) == free
