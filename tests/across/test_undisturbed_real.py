"""The undisturbed step of two real runs on two H200s whose hosts were slower behind the profiler's window."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from traceops.across.plain_step import plain_step
from traceops.across.undisturbed import undisturbed
from traceops.across.whole_run import whole_run
from traceops.measure.light import light_activity
from traceops.traces.light import read_light
from traceops.traces.model import CommArgs
from traceops.traces.observed import read_observed

DATA = Path(__file__).parents[1] / "data" / "light"


def plain_of(name):
    return plain_step(whole_run([read_observed(str(DATA / name), rank)[0] for rank in (0, 1)]), {}, on_gpu=True)


def undisturbed_of(name):
    lights = [light_activity(read_light(str(DATA / name), rank)[0]) for rank in (0, 1)]
    summaries = [
        SimpleNamespace(
            rank=light.rank,
            meta=SimpleNamespace(groups=()),
            comm=SimpleNamespace(
                step=np.array([0]),
                stream=light.stream[:1],
                name=("ncclDevKernel_AllReduce",),
                args=(CommArgs(op="allreduce", group_ranks=(0, 1)),),
            ),
        )
        for light in lights
    ]
    found, why = undisturbed(lights, summaries, plain_of(name))
    assert why is None
    return found


def test_the_step_is_that_of_steps_before_the_window_however_much_longer_those_behind_are():
    """ResNet-50: 36 to 45 ms before anything was recorded, 54 behind the light window; 34 in a run without us."""
    plain = plain_of("resnet2")
    assert plain.ms == pytest.approx(39.4, abs=0.1) and plain.behind_ms == pytest.approx(53.7, abs=0.1)
    assert plain.before.count == 6 and not plain.far_apart
    assert (plain.before.least_ms, plain.before.most_ms) == pytest.approx((35.6, 45.4), abs=0.1)


def test_a_late_host_waits_less_for_its_peers_where_no_profiler_slows_them():
    """Tensor parallel. By itself the devices worked for 31.8 and 32.7 ms of 111.3, and 59 % of the rest was idle."""
    found = undisturbed_of("tensor2")
    assert found.before.count == 7 and found.behind_ms == pytest.approx(127.7, abs=0.1)
    assert found.step_ms == pytest.approx(111.3, rel=0.01)
    for one, truth in zip(found.ranks, (31.8, 32.7), strict=True):
        assert one.compute_ms + one.memory_ms == pytest.approx(truth, abs=0.02 * 111.3)
        assert one.busy_ms + one.wait_ms + one.idle_ms == pytest.approx(found.step_ms, abs=0.1)
    idle = sum(one.idle_ms for one in found.ranks)
    waits = sum(one.wait_ms for one in found.ranks)
    assert idle / (idle + waits) == pytest.approx(0.59, abs=0.02), "taken off idle time alone it was 0.50"
