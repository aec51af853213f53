"""The device's time of each step, from events round some of them; and rounds, stages and phases of a loop."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from traceops.across.phases import find_rounds, period_of, stages_of
from traceops.across.run_steps import device_ms, is_known, only_queued, tells_pace, took_ms
from traceops.across.whole_run import whole_run
from traceops.capture.observing import step_clock
from traceops.capture.short_way.ways import LongWay
from traceops.core.rank_files import EVENT, FIELDS, RECORDED, SPAN
from traceops.traces.observed import Observed, SampledFrame

COST_MS = 0.03  # of an event


class Machine:
    """A host that launches, and a device that does it in order. All ms."""

    def __init__(self):
        self.now = self.free = 1000.0

    def launch(self, ms):
        self.free = max(self.free, self.now) + ms


@pytest.fixture
def run(monkeypatch):
    """A function that trains steps of (host ms, device ms, whether the host waits at its end); the step log of it."""
    machine = Machine()

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            machine.now += COST_MS
            machine.launch(0.0)
            self.at = machine.free

        def query(self):
            return self.at <= machine.now

        def elapsed_time(self, end):
            return end.at - self.at

    cuda = SimpleNamespace(is_current_stream_capturing=lambda: False, Event=Event)
    monkeypatch.setitem(step_clock.sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(step_clock, "uses_gpu", lambda: True)
    now = SimpleNamespace(perf_counter_ns=lambda: round(machine.now * 1e6))
    monkeypatch.setattr(step_clock, "time", now)

    def trained(steps, recorded=()):
        way = LongWay()
        clock = step_clock.StepClock(way)
        for number, (host, device, waits) in enumerate(steps):
            machine.launch(device)
            machine.now += host
            if waits:
                machine.now = max(machine.now, machine.free)
            clock.ended(0, 0, 0, RECORDED * (number in recorded))
            clock.resumed()
        machine.now = machine.free + 1000
        clock.finish()
        return np.frombuffer(way.take(), np.dtype(list(FIELDS)))

    return trained


def test_a_host_that_runs_ahead_does_not_make_steps_shorter(run):
    """Ten steps of 2 ms of launches, then a loss that is printed: each takes the device 10 ms."""
    log = run([(2.0, 10.0, step % 10 == 9) for step in range(600)])
    took = device_ms(log)
    assert np.median(log["host_us"]) == pytest.approx(2000, abs=100)
    known = took[~np.isnan(took)]
    assert len(known) > 580 and known == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize("cost_ms", [0.03, 0.12, 0.2])
@pytest.mark.parametrize("count", [40, 100, 200, 400])
def test_short_steps_of_short_runs_with_costly_events(run, monkeypatch, cost_ms, count):
    """Steps of 3 ms, and a loss that is printed: behind the last event the host's clock told one of them for ten.

    They were 3 to 4 % too long in the mean, and where events are so dear that few are recorded the typical one had 1.5.
    """
    monkeypatch.setattr(sys.modules[__name__], "COST_MS", cost_ms)
    log = run([(1.5, 3.0, step % 10 == 9) for step in range(count)])
    device = device_ms(log)
    assert is_known(log, device)
    took = took_ms(log, device)[1:]
    assert took.mean() == pytest.approx(3.0, rel=0.01) and np.median(took) == pytest.approx(3.0, rel=0.01)
    assert took.max() < 4.0


def test_a_few_events_that_do_not_fit_the_whole_time_tell_nothing(run, monkeypatch):
    """The first steps load kernels: by their length the run would take longer than it did."""
    monkeypatch.setattr(sys.modules[__name__], "COST_MS", 0.2)
    log = run([(1.5, 6.0 if step < 8 else 3.0, step % 10 == 9) for step in range(100)])
    assert not is_known(log, device_ms(log))


def test_an_evaluation_behind_the_last_event_stands_out(run):
    log = run([(300.0 if step == 97 else 1.5, 3.0, step % 10 == 9) for step in range(100)])
    took = took_ms(log, device_ms(log))
    assert np.flatnonzero(took > 5).tolist() == [97] and took[97] == pytest.approx(290, abs=10)


@pytest.mark.parametrize("every", [7, 10, 40])
def test_steps_in_which_the_host_does_more_stand_out_alone(run, every):
    """An evaluation of 30 ms beside steps of 4 ms that the host bounds."""
    log = run([(34.0 if step % every == 3 else 4.0, 3.0, False) for step in range(800)])
    took = device_ms(log)
    long = np.flatnonzero(took > 6.0)
    expected = [step for step in range(800) if step % every == 3 and not np.isnan(took[step])]
    assert long.tolist() == expected and len(expected) > 700 / every
    assert took[expected] == pytest.approx(34.0, rel=0.1)
    others = np.delete(took, expected)
    assert np.nanmedian(others) == pytest.approx(4.0, rel=0.03)


def test_what_the_device_hides_makes_no_step_long(run):
    """A collection of 20 ms while the device has 100 ms of work before it."""
    log = run([(25.0 if step == 55 else 2.0, 10.0, step % 10 == 9) for step in range(300)])
    took = device_ms(log)
    assert np.nanmax(took) < 11


def test_what_holds_the_device_up_is_told_from_a_wait_for_the_work_of_many(run):
    """Compiling again for 300 ms, in a span with losses that are printed: those steps were told as long ones too."""
    log = run([(300.0 if step % 100 == 55 else 2.0, 10.0, step % 10 == 9) for step in range(400)])
    took = device_ms(log)
    assert np.flatnonzero(took > 11).tolist() == [55, 155, 255, 355]
    assert took[[55, 155, 255, 355]] == pytest.approx(260, abs=10)  # five steps of 8 ms were queued


def test_steps_under_a_profiler_are_no_part_of_a_span(run):
    log = run([(8.0 if 100 <= step < 104 else 4.0, 1.0, False) for step in range(300)], range(100, 104))
    took = device_ms(log)
    free = np.delete(took, range(100, 104))
    assert np.nanmax(free) < 4.5


def spans_of_ten(*sums_ms):
    """A log whose device times are known of ten steps together each."""
    log = np.zeros(10 * len(sums_ms) + 1, np.dtype(list(FIELDS)))
    log["flags"][0] = EVENT
    log["flags"][10::10], log["device_us"][10::10] = EVENT | SPAN, [1e3 * ms for ms in sums_ms]
    return log


@pytest.mark.parametrize("waits_at", [24, 28])
def test_a_rank_that_waits_for_a_peer_is_held_up_when_the_peer_is(waits_at):
    """Rank 1 saves for 100 ms in step 24. Rank 0 is told by its host only when its queue is full, or not at all."""
    log = spans_of_ten(30, 30, 130, 30)
    hosts = np.full((2, 41), 3.0)
    hosts[1, 24] = 103.0
    hosts[0, waits_at] = 103.0 if waits_at > 24 else 3.0
    log["host_us"] = 1e3 * hosts[0]
    took = device_ms(log, hosts)
    assert took[24] == pytest.approx(103.0) and np.delete(took, [0, 24]) == pytest.approx(3.0)


def test_ranks_that_do_not_wait_for_each_other_have_their_own_long_steps():
    log = spans_of_ten(30, 30, 130, 30)
    hosts = np.full((2, 41), 3.0)
    hosts[0, 23], hosts[1, 27] = 103.0, 403.0
    log["host_us"] = 1e3 * hosts[0]
    took = device_ms(log, hosts)
    assert took[23] == pytest.approx(103.0) and np.delete(took, [0, 23]) == pytest.approx(3.0)


def test_spans_of_which_most_hold_an_odd_step_tell_the_usual_one():
    """By their median the usual step had a part of the odd ones."""
    log = spans_of_ten(30, *[130] * 6, 30, 30)
    log["host_us"] = 3000
    odd = list(range(15, 75, 10))
    log["host_us"][odd] = 103_000
    took = device_ms(log)
    assert took[odd] == pytest.approx(103.0) and np.delete(took, [0, *odd]) == pytest.approx(3.0)


def test_older_logs_have_the_devices_time_of_each_step_alone():
    log = np.zeros(4, np.dtype(list(FIELDS)))
    log["device_us"] = 0, 10_000, 11_000, 0
    assert device_ms(log).tolist()[1:3] == [10.0, 11.0] and np.isnan(device_ms(log)[[0, 3]]).all()


def test_a_span_whose_begin_is_lost_tells_nothing():
    log = np.zeros(4, np.dtype(list(FIELDS)))
    log["device_us"], log["flags"] = (0, 0, 30_000, 10_000), (0, 0, EVENT | SPAN, EVENT)
    assert np.isnan(device_ms(log)[:3]).all() and device_ms(log)[3] == 10.0


def steps_of(hosts_ms, devices_ms):
    steps = np.zeros(len(hosts_ms), dtype=list(FIELDS))
    steps["host_us"], steps["device_us"] = np.multiply(hosts_ms, 1e3), np.multiply(devices_ms, 1e3)
    steps["flags"] = np.where(steps["device_us"] > 0, EVENT, 0)
    return steps


def test_a_host_that_is_even_and_runs_ahead_does_not_set_the_pace():
    """FSDP2, 48 steps: two devices by turns (36 and 41 ms), and a host of 24 ms until its queue is full. Its steps were
    told as 32.8 ms."""
    host = [24.7, 25.2, 24.6, 25.5, 24.3, 25.3, 23.5, 23.1, 23.4, 26.4, 23.8, *[38.2, 38.6] * 8]
    device = [36.1, 40.7] * 13 + [36.1]
    assert tells_pace(np.array([device]), np.array([host]))
    late = [36.1, 40.7] * 13 + [38.0]
    assert not tells_pace(np.array([device]), np.array([[38.2, 38.4] * 13 + [38.3]])), "as long in all"
    assert tells_pace(np.array([device]), np.array([late])), "as uneven as the device"


def test_steps_that_were_only_queued_have_no_length():
    """Experts, 48 steps: the first five were timed by the device too. 'Just before a step took 4.77 ms, later 36.1.'"""
    hosts = [6376.0, 5.7, 4.8, 4.3, 4.7, 4.9, 4.3, 4.6, 4.3, 9.1, 31.4, 36.4, 36.9]
    devices = [0.0, 55.9, 49.8, 54.3, 49.5, 49.3, *[0.0] * 7]
    queued = only_queued(steps_of(hosts, devices))
    assert [at for at, one in enumerate(queued) if one and not devices[at]] == [6, 7, 8, 9]
    assert not only_queued(steps_of([10.0 * one for one in hosts], devices)).any(), "the host sets the pace"
    assert not only_queued(steps_of(hosts, [0.0] * 13)).any(), "nothing tells of the device"


def test_a_step_that_waits_for_what_was_queued_has_no_length_either():
    """Products of large matrices: each 40th step read the loss. 'Unlike it: 98 % of the run, and nothing shows why.'"""
    hosts = [9388.0, 3.0, 1.8, 1.6, 1.4, 1.2, *[1.0] * 20, 1250.0, *[64.5] * 10, 900.0]
    devices = [0.0, 61.8, 64.0, 63.9, 64.0, 63.9, *[0.0] * 32]
    queued = only_queued(steps_of(hosts, devices))
    assert queued[6:27].all() and not queued[27:37].any()
    assert not queued[37], "nothing was queued before it: it takes that long"
    run = whole_run([Observed(0, 0, 0, steps_of(hosts, devices))])
    assert run is not None and run.typical_ms == pytest.approx(64.3, rel=0.01)
    assert [int(at) for at in np.flatnonzero(run.timed & ~run.like)] == [37]


def test_steps_that_only_fill_the_queue_have_no_length():
    """Large products, 25 launches a step: 'just before them a step took 0.582 ms, later ones take 40.1'."""
    hosts = [6972.0, 1.2, 0.8, 0.7, 0.6, 0.6, *[0.5] * 34, *[38.0, 38.5] * 40]
    devices = [0.0, 35.7, 36.5, 38.6, 38.5, 38.6, *[0.0] * 34, *[38.1, 38.4] * 40]
    queued = only_queued(steps_of(hosts, devices))
    assert queued[6:40].all() and not queued[42:].any()


def test_a_stall_does_not_make_few_slow_steps_fit():
    """CUDA graphs compiled anew for seconds: steps of 2.8 ms were told as 5.3, as a stall takes up any queue."""
    hosts = [26652.7, 55.0, 6.2, 3.6, 3.2, 2.8, *[2.8] * 32, 9574.8, 23.0, 40.0, *[2.8] * 66]
    devices = [0.0, 54.9, 6.5, 4.2, 3.1, 3.1, *[0.0] * 33, 23.0, *[0.0] * 67]
    log = steps_of(hosts, devices)
    assert not is_known(log, device_ms(log))
    run = whole_run([Observed(0, 0, 0, log)])
    assert run is not None and run.typical_ms == pytest.approx(2.8, rel=0.01)


def test_a_short_run_is_as_long_as_its_known_steps():
    """The whole of it: the typical step was 22.9 ms, of 36 to 50."""
    hosts = [6376.0, 5.7, 4.8, 4.3, 4.7, 4.9, 4.3, 4.6, 4.3, 9.1, *[36.4, 36.9] * 8]
    devices = [0.0, 55.9, 49.8, 54.3, 49.5, 49.3, *[0.0] * 20]
    run = whole_run([Observed(0, 0, 0, steps_of(hosts, devices))])
    assert run is not None and not run.on_device
    assert 36 < run.typical_ms < 42 and run.typical_steps >= 16
    assert run.timed[6:10].sum() == 0


RNG = np.random.default_rng(7)
EVERY = np.ones(120, dtype=bool)


@pytest.mark.parametrize("period", [2, 4, 13])
def test_a_round_is_found_in_noise(period: int) -> None:
    took = 20 + 3 * RNG.random(120)
    took[::period] += 60
    found = period_of(took, EVERY)
    assert found is not None and len(found) == period
    assert found[0] == pytest.approx(81.5, rel=0.05) and found[1] == pytest.approx(21.5, rel=0.05)


def test_no_round_in_noise_nor_in_a_small_beat() -> None:
    took = 20 + 10 * RNG.random(120)
    assert period_of(took, EVERY) is None
    beat = np.full(120, 20.0)
    beat[::4] += 1
    assert period_of(beat, EVERY) is None, "5 % of one step in four is nothing to report"


def test_recorded_steps_do_not_shift_the_rounds() -> None:
    took = 20 + RNG.random(120)
    took[::4] += 60
    timed = EVERY.copy()
    timed[9:15] = False
    took[9:15] = np.nan
    found = period_of(took, timed)
    assert found is not None and len(found) == 4 and int(found.argmax()) == 0


def test_stages_and_none() -> None:
    took = np.concatenate([np.full(40, 20.0), np.full(40, 45.0), np.full(40, 90.0)]) * (0.95 + 0.1 * RNG.random(120))
    found = stages_of(took, np.arange(1, 121), EVERY)
    assert [stage.first for stage in found] == [1, 41, 81]
    assert [stage.pct for stage in found] == pytest.approx([13, 29, 58], abs=1)
    assert stages_of(20 + 10 * RNG.random(120), np.arange(120), EVERY) == ()


FRAMES = (
    SampledFrame("main", "/me/rl.py", 30, 31, "main()"),
    SampledFrame("main", "/me/rl.py", 10, 14, "batch = rollout(env, policy)"),
    SampledFrame("rollout", "/me/rl.py", 1, 4, "state = env.step(action)"),
    SampledFrame("main", "/me/rl.py", 10, 17, "loss = model(batch)"),
    SampledFrame("Module._call_impl", "/lib/site-packages/torch/nn/modules/module.py", 1, 2, None),
    SampledFrame("main", "/me/rl.py", 10, 19, "loss.backward()"),
    SampledFrame("_engine_run_backward", "/lib/site-packages/torch/autograd/graph.py", 1, 2, None),
    SampledFrame("Env.step", "/me/env.py", 5, 9, "self.simulate()"),
)
ROLLOUT, FORWARD, BACKWARD = 0, 1, 2
STACKS = ((0, 1, 2, 7), (0, 3, 4), (0, 5, 6))


def observed(period: int) -> Observed:
    """120 steps of 20 ms, a rollout of 60 ms before the first one of each round."""
    steps = np.zeros(120, dtype=list(FIELDS))
    steps["host_us"] = 20_000 + RNG.integers(0, 800, 120)
    steps["host_us"][::period] += 60_000
    samples = []
    for step in range(1, 120):
        samples += [(step, ROLLOUT, 20_000)] * (3 * (step % period == 0))
        samples += [(step, FORWARD, 8_000), (step, BACKWARD, 12_000)]
    return Observed(0, 0, 0, steps, FRAMES, STACKS, np.array(samples, dtype=np.int64))


def test_phases_are_named_by_their_lines() -> None:
    one = observed(4)
    run = whole_run([one])
    assert run is not None
    rounds = find_rounds(run, [one])
    assert rounds is not None and rounds.steps == 4 and rounds.ms == pytest.approx(141.6, rel=0.02)
    update, rollout = rounds.phases
    assert update.trains and update.place.line == 19 and update.pct == pytest.approx(57, abs=2)
    assert not rollout.trains and (rollout.place.function, rollout.place.line) == ("rollout", 4)
    assert rollout.most is not None and rollout.most.said == "Env.step (env.py:9)"
    assert rollout.pct == pytest.approx(43, abs=2)
    assert rounds.is_long(8) and not rounds.is_long(9)
    assert max(phase.off_pct for phase in rounds.phases) < 1  # each step of a place is as the others


def test_shares_of_few_sampled_steps_that_differ_may_be_far_off() -> None:
    one = observed(1)
    looks = np.array([(4 * i + 1, FORWARD if i % 2 else ROLLOUT, 20_000) for i in range(28)] + [(2, BACKWARD, 9)] * 20)
    few = Observed(0, 0, 0, one.steps, FRAMES, STACKS, looks)
    run = whole_run([one])
    assert run is not None
    rounds = find_rounds(run, [few])
    assert rounds is not None and rounds.phases[0].pct == pytest.approx(50, abs=3)
    assert rounds.phases[0].off_pct == pytest.approx(200 * 0.5 / 28**0.5, rel=0.1)


def test_shares_do_not_depend_on_when_a_step_is_sampled() -> None:
    """A step of 80 ms, a rollout for its first 60, that is sampled more often from 26 ms on, as long steps are."""
    one = observed(1)
    at = np.concatenate([np.linspace(1, 26, 20), np.linspace(27, 79, 200)]) * 1_000
    stacks = np.where(at < 60_000, ROLLOUT, np.where(at < 68_000, FORWARD, BACKWARD))
    looks = np.stack([np.arange(220) % 110 + 5, stacks, np.full(220, 1_000)], axis=1)
    one.steps["host_us"] = 80_000
    late = replace(one, samples=looks, since_begin=at.astype(np.int64))
    run = whole_run([one])
    assert run is not None
    for sampled, expected, within in ((late, 75, 1), (replace(late, since_begin=looks[:0, 0]), 67, 3)):
        rounds = find_rounds(run, [sampled])
        assert rounds is not None and rounds.phases[0].place.line == 4
        assert rounds.phases[0].pct == pytest.approx(expected, abs=within)


def test_a_loop_that_trains_nothing_has_no_phases() -> None:
    one = observed(4)
    only = one.samples[one.samples[:, 1] != BACKWARD]
    alone = Observed(0, 0, 0, one.steps, FRAMES, STACKS, only)
    run = whole_run([alone])
    assert run is not None
    rounds = find_rounds(run, [alone])
    assert rounds is not None and rounds.steps == 4 and rounds.phases == ()
