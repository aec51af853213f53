"""What runs in a step, counted on made events and on real traces."""

from pathlib import Path

import numpy as np
import pytest
from events_builder import build, call, kernel, note, step

from traceops.measure.activity import COMM, find_activity
from traceops.measure.inventory import measure_inventory
from traceops.measure.steps import find_steps
from traceops.pipeline.analyze import analyze
from traceops.traces.kineto import load_trace

DATA = Path(__file__).parents[1] / "data"


def measured(rows):
    events = build(rows)
    activity = find_activity(events)
    return measure_inventory(events, activity, find_steps(events, activity))


def two_steps():
    rows = []
    for number, begin in enumerate((0, 10_000)):
        rows += [
            step(number, begin, 9_000),
            note("aten::mm", begin + 100, 400, cat="cpu_op"),
            *kernel(begin + 300, 1000, begin + 200, "gemm"),
            *kernel(begin + 1300, 1000, begin + 300, "gemm"),
            note("aten::add", begin + 600, 100, cat="cpu_op"),
            *kernel(begin + 2400, 500, begin + 650, "add"),
            *kernel(begin + 3000, 100, begin + 800, "ncclDevKernel_AllReduce", correlation=begin + 9999),
            call("cudaStreamSynchronize", begin + 5000, 50),
        ]
    return rows


def test_kernels_belong_to_the_operator_that_launched_them():
    found = {use.name: use for use in measured(two_steps()).kernels}
    assert set(found) == {"gemm", "add"}  # communication is counted with the collectives
    assert (found["gemm"].operator, found["gemm"].count, found["gemm"].device_ns) == ("aten::mm", 4, 4000)
    assert (found["add"].operator, found["add"].count) == ("aten::add", 2)
    assert found["gemm"].place < found["add"].place == 1.0


def test_operators_have_own_host_time_and_the_device_time_of_their_kernels():
    found = {use.name: use for use in measured(two_steps()).operators}
    assert (found["aten::mm"].count, found["aten::mm"].host_ns, found["aten::mm"].device_ns) == (2, 800, 4000)


def test_counts_a_step():
    inventory = measured(two_steps())
    assert inventory.step_kernels.tolist() == [3, 3]
    assert inventory.step_collectives.tolist() == [1, 1]
    assert inventory.step_blocking.tolist() == [1, 1]
    assert inventory.step_bytes.tolist() == [-1, -1]  # nothing says how large it was


@pytest.mark.parametrize("run", ["ddp4", "fsdp2_4", "hta/cpu_only", "hta/amd"])
def test_nothing_is_lost_or_counted_twice_on_real_traces(run):
    for path in sorted((DATA / run).glob("*.json.gz")):
        events = load_trace(str(path)).events
        activity = find_activity(events)
        steps = find_steps(events, activity)
        inventory = measure_inventory(events, activity, steps)
        inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps))
        assert inventory.step_kernels.sum() == (inside & (activity.kind != COMM)).sum()
        assert inventory.step_collectives.sum() == (inside & (activity.kind == COMM)).sum()
        assert sum(use.count for use in inventory.kernels) == inventory.step_kernels.sum()
        assert sum(use.count for use in inventory.collectives) == inventory.step_collectives.sum()
        spent = events.dur[activity.row[inside & (activity.kind != COMM)]].sum()
        assert sum(use.device_ns for use in inventory.kernels) == spent


def test_bytes_and_collectives_of_a_real_run_are_those_that_were_matched():
    report = analyze(DATA / "ddp4")
    rows = report.inventory.collectives
    per_step = sum(row.count_per_step for row in rows)
    assert per_step == pytest.approx(np.mean([row.collectives for row in report.steps]))
    moved = sum(row.bytes * row.count_per_step for row in rows)
    assert moved == pytest.approx(np.mean([row.collective_bytes for row in report.steps]), rel=1e-3)
    assert all(0 <= row.place <= 1 for row in report.inventory.kernels)
    assert any(row.shapes.startswith("[[") for row in report.inventory.operators)
