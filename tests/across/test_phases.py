"""Rounds, stages and phases of a loop: `across/phases.py`."""

from __future__ import annotations

import numpy as np
import pytest

from traceops.across.phases import find_rounds, period_of, stages_of
from traceops.across.whole_run import whole_run
from traceops.core.rank_files import FIELDS
from traceops.traces.observed import Observed, SampledFrame

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


def test_a_loop_that_trains_nothing_has_no_phases() -> None:
    one = observed(4)
    only = one.samples[one.samples[:, 1] != BACKWARD]
    alone = Observed(0, 0, 0, one.steps, FRAMES, STACKS, only)
    run = whole_run([alone])
    assert run is not None
    rounds = find_rounds(run, [alone])
    assert rounds is not None and rounds.steps == 4 and rounds.phases == ()
