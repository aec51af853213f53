"""The step replayed: who limits it, what a fix saves, and what the pace of the host makes of that."""

import numpy as np
import pytest
from recorded_step import launched_of, op, tensor, write

from traceops.compute.measure import PACES, at_pace, measure_compute, replayed_ns
from traceops.compute.model import RankCompute, judged_rank
from traceops.compute.uses import Schedule


def schedule(host, device, waits=()):
    """Launches of which each takes the host and the device so long; the host waits behind those of `waits`."""
    waited = np.zeros(len(device), dtype=bool)
    waited[list(waits)] = True
    host = np.array([*host, 0], dtype=np.int64)
    return Schedule(np.arange(len(device)), host, np.ones(len(host), np.int64), np.array(device), waited)


def step_of(one):
    return float(replayed_ns(one, one.host_ns[np.newaxis].astype(float), one.device_ns[np.newaxis].astype(float))[0])


def test_the_slower_of_host_and_device_makes_the_step():
    assert step_of(schedule([10] * 8, [30] * 8)) == 240
    assert step_of(schedule([30] * 8, [10] * 8)) == 240
    # What the host falls behind in the first half it makes up for in the second one: only the sums count.
    assert step_of(schedule([30] * 4 + [10] * 4, [10] * 4 + [30] * 4)) == 160


def test_behind_a_wait_host_and_device_take_turns():
    assert step_of(schedule([10] * 8, [30] * 8, waits=[7])) == 10 + 8 * 30
    assert step_of(schedule([10] * 8, [30] * 8, waits=range(8))) == 8 * 40


def measured(tmp_path, calls, **rest):
    launched, device = launched_of(write(tmp_path / "trace.json", calls, **rest))
    return measure_compute(launched, device)


def odd(us):
    return op("aten::mm", tensor((4096, 4095)), tensor((4095, 4096)), us=us, kernel="nvjet_h")


def test_the_replay_at_the_recorded_pace_is_the_recorded_step(tmp_path):
    for us, host_us, step_us in ((2000, 100, 4 * 2000), (200, 1000, 4 * 1000)):
        compute = measured(tmp_path, [odd(us)] * 4, host_us=host_us, steps=3)
        assert compute.paced_ns[len(PACES) - 1] == pytest.approx(1e3 * step_us, rel=0.02)


def test_a_fix_of_kernels_promises_no_shorter_step_where_the_host_is_the_limit(tmp_path):
    compute = measured(tmp_path, [odd(2000)] * 4, host_us=5000, steps=3)
    fixed = at_pace(compute, [15e6])  # 0.75 of the recorded pace: the host has 15 ms to do
    [loss] = fixed.losses
    assert loss.device_ns > 2e6 and loss.step_after_ns == pytest.approx((15e6, 15e6), rel=0.01)
    assert at_pace(compute, [8.1e6]).losses[0].step_after_ns[0] < 7.9e6  # here the device is the limit


def test_an_optimizer_loop_saves_the_host_s_time_and_never_makes_the_step_longer(tmp_path):
    loop = [op("aten::addcdiv_", *[tensor((64, 64))] * 3, us=3, inside=("Optimizer.step#AdamW.step",))] * 60
    calls = [op("aten::mm", tensor((512, 512)), tensor((512, 512)), us=20, kernel="nvjet_h")] * 40
    path = write(tmp_path / "trace.json", [*calls, *loop], host_us=100, steps=3)
    text = path.read_text().replace('"cpu_op", "name": "Optimizer', '"user_annotation", "name": "Optimizer')
    path.write_text(text)
    launched, device = launched_of(path)
    compute = at_pace(measure_compute(launched, device), [6e6])
    loss = next(one for one in compute.losses if one.cause == "optimizer_loop")
    least, most = loss.step_after_ns
    assert 0.35 * 6e6 < least <= most < 0.55 * 6e6  # 40 of 100 launches are left


def test_causes_of_the_host_go_where_the_unprofiled_step_is_the_device_s(tmp_path):
    small = [op("aten::add", tensor((64, 64)), tensor((64, 64)), us=5)] * 200
    compute = measured(tmp_path, small, host_us=20, steps=3)
    assert compute.bound == "host" and compute.losses[0].cause in ("many_small_kernels", "too_small_batch")
    paced = at_pace(compute, [1.01e6])
    assert paced.bound == "device"
    assert not [one for one in paced.losses if one.cause in ("many_small_kernels", "too_small_batch")]


def rank(busy, device):
    return RankCompute(busy, busy, busy, device, 1.0, 1.0, "device", "measured")


def test_of_ranks_with_as_much_work_the_one_that_waits_least_stands_for_all():
    assert judged_rank({0: rank(100.0, 190.0), 1: rank(98.0, 110.0), 2: rank(20.0, 20.0)}) == 1
