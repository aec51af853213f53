"""Steps: found where a trace marks none, as pandas finds them, and which of them are typical."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from drawn import examples
from events_builder import build, call, kernel, note, step
from hypothesis import given
from hypothesis import strategies as st

from traceops.measure.activity import find_activity
from traceops.measure.host import measure_host
from traceops.measure.ledger import find_lane
from traceops.measure.steps import NO_STEP, find_steps, typical_steps
from traceops.pipeline.analyze import analyze
from traceops.report.model import Report
from traceops.traces.model import TraceMeta

US = 1_000
OPTIMIZER = "Optimizer.step#AdamW.step"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
LAYERS = ("norm", "gemm", "rope", "attention", "gemm", "norm", "gemm", "gelu", "gemm")


def pass_of(layers=6, first="embedding", last="cross_entropy"):
    """Kernels of one iteration, by name."""
    return (first, *LAYERS * layers, last)


def launched(names, at, every=10 * US, behind=3 * US):
    """These kernels one after the other, launched from the moment `at`, and when the last launch was over."""
    rows = []
    for i, name in enumerate(names):
        start = at + i * every
        rows += kernel(start + behind, every - US, launched=start, name=name)
    return rows, at + len(names) * every


def iterations(count, names=None, marks=lambda i, start, end: [], gap=20 * US):
    """So many iterations; `marks` gives the rows beside the kernels of one, from when it begins and ends."""
    rows, at = [], 1_000_000
    for i in range(count):
        own, end = launched(names(i) if callable(names) else names or pass_of(), at)
        rows += own + marks(i, at, end)
        at = end + gap
    return rows


def found(rows):
    events = build(rows)
    return find_steps(events, find_activity(events))


def optimizer(i, start, end, name=OPTIMIZER):
    return [note(name, end - 5 * US, 4 * US)]


def device_only(rows):
    return [{**row, "correlation": -1} for row in rows if row["cat"] == "kernel"]


def test_each_optimizer_step_ends_one():
    steps = found(iterations(6, marks=optimizer))
    assert (steps.by, steps.mark, len(steps)) == ("optimizer", "Optimizer.step", 5)
    assert np.diff(steps.edges).tolist() == [580 * US] * 5  # 56 kernels of 10 µs and 20 µs between iterations


def test_several_optimizers_make_one_step():
    def both(i, start, end):
        return [*optimizer(i, start, end), note("Optimizer.step#Muon.step", end - 12 * US, 4 * US)]

    assert len(found(iterations(6, marks=both))) == 5


def test_micro_batches_are_no_steps():
    """Four backward passes and four batches from the loader for each optimizer step."""

    def of_four(i, start, end):
        rows = [note(LOADER, start - 9 * US, 5 * US)]
        rows += [note(BACKWARD, end - 100 * US, 90 * US, cat="cpu_op"), note("aten::mm", start, US, cat="cpu_op")]
        return rows + (optimizer(i, start, end) if i % 4 == 3 else [])

    steps = found(iterations(24, marks=of_four))
    assert (steps.by, len(steps)) == ("optimizer", 5)
    cut = iterations(7, marks=of_four)  # one optimizer step: nothing repeats
    assert found(cut).by == "window"


def test_a_scaler_that_skips_an_optimizer_step_merges_no_iterations():
    def skipping(i, start, end):
        return [note("Optimizer.zero_grad#AdamW.zero_grad", start - 9 * US, 4 * US)] + (
            optimizer(i, start, end) if i % 3 else []
        )

    steps = found(iterations(9, marks=skipping))
    assert (steps.by, len(steps)) == ("zero_grad", 8)


@pytest.mark.parametrize(
    "name, numbers",
    [
        ("iteration {}", [12, 13, 14, 15, 16]),
        ("step_{}", [12, 13, 14, 15, 16]),
        ("request {}", [12, 13, 14, 15, 16]),  # 71 "steps" of six requests were its layers
        ("execute_model[DECODE {}]", [12, 13, 14, 15, 16]),
        ("execute_context_0(0)_generation_8(8)", [0, 1, 2, 3, 4]),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785)", [0, 1, 2, 3, 4]),
        ("step[DECODE bs=32]", [0, 1, 2, 3, 4]),
        ("trainStep", [0, 1, 2, 3, 4]),
    ],
)
def test_annotations_that_are_called_steps_are(name, numbers):
    steps = found(iterations(5, marks=lambda i, start, end: [note(name.format(i + 12), start - US, end - start)]))
    assert (steps.by, steps.number.tolist()) == ("annotation", numbers)


@pytest.mark.parametrize("name", ["layer_{}", "micro_batch {}", "optimizer_step", "validation_step {}", "stage_{}"])
def test_parts_of_a_step_are_no_steps(name):
    def marks(i, start, end):
        return [note(name.format(i), start - US, end - start)]

    def drawn(i):
        return random.Random(i).choices(LAYERS, k=40)

    assert found(iterations(5, names=drawn, marks=marks)).by == "window"


def test_the_loader_and_the_backward_passes_mark_iterations_where_no_optimizer_does():
    steps = found(iterations(6, marks=lambda i, start, end: [note(LOADER, start - 9 * US, 5 * US)]))
    assert (steps.by, len(steps)) == ("loader", 5)

    def forward_and_backward(i, start, end):
        rows = [note("aten::mm", start + n * US, US, cat="cpu_op") for n in range(3)]
        return rows + [note(BACKWARD, end - n * 20 * US, 9 * US, cat="cpu_op") for n in range(1, 6)]

    steps = found(iterations(6, marks=forward_and_backward))
    assert (steps.by, len(steps)) == ("backward", 5)

    def other_kernels(i):
        return random.Random(i).choices(LAYERS, k=40)

    few = (found(iterations(count, other_kernels, forward_and_backward)) for count in (3, 4))
    assert [steps.by for steps in few] == ["window", "backward"]  # two may be calls in a test of a layer


def test_kernels_that_repeat_are_steps_with_and_without_launches():
    rows = iterations(6)
    for own in (rows, device_only(rows)):
        steps = found(own)
        assert (steps.by, len(steps)) == ("repetition", 5)
        assert np.diff(steps.edges).tolist() == [580 * US] * 5


def test_a_wait_between_two_steps_found_counts_once_in_each():
    """It begins behind the last launch of a step, where the host's part of the last one is over."""
    events = build(iterations(6, marks=lambda i, _, end: [call("cudaDeviceSynchronize", end, 15 * US)], gap=100 * US))
    activity = find_activity(events)
    steps = find_steps(events, activity)
    host = measure_host(activity, steps, TraceMeta(), find_lane(events, activity, steps))
    assert steps.by == "repetition" and {count for one in host.blocking for count in one.calls} == {1}


@pytest.mark.parametrize("device", [True, False], ids=["kernels", "operators"])
def test_a_few_kernels_in_a_loop_are_no_steps(device):
    """Ten rounds of four: three of them together would be long enough for an iteration, and are none."""
    names = ("aten::rand", "aten::square", "aten::to", "aten::copy_") * 10
    rows = launched(names, 1_000_000)[0]
    if not device:
        rows = [note(name, 1_000_000 + i * 10 * US, 9 * US, cat="cpu_op") for i, name in enumerate(names)]
    assert found(rows).by == "window"


def test_a_trace_of_passes_alone_has_those_behind_the_cold_first_one():
    rows, at = [], 1_000_000
    for number in range(6):
        for i, name in enumerate(pass_of()):
            took = (90 if number == 0 and i > 20 else 9) * US
            rows.append(note(name, at, took, cat="cpu_op"))
            at += took + US
    steps = found(rows)
    assert (steps.by, len(steps)) == ("repetition", 5)
    assert all(abs(took - len(pass_of()) * 10 * US) <= US for took in np.diff(steps.edges).tolist())
    assert steps.edges[-1] == at - US + 1


@pytest.mark.parametrize(("first_kernel_ends", "catches_up"), [(200, 100), (100, 0)])
def test_the_first_step_holds_the_time_until_the_device_catches_up(first_kernel_ends, catches_up):
    rows = [step(1, 0, 100 * US), step(2, 100 * US, 100 * US)]
    rows += kernel(50 * US, (first_kernel_ends - 50) * US, launched=10 * US)
    rows += kernel(250 * US, 50 * US, launched=150 * US)
    assert found(rows).catches_up_ns == catches_up * US


def test_repetitions_begin_alike_on_all_ranks():
    """Where the rests lie differently, the same kernel begins a repetition."""
    one = found(device_only(iterations(6)))
    other = [dict(row) for row in device_only(iterations(6))]
    for row in other:
        if row["name"] == "attention":
            row["ts"], row["dur"] = row["ts"] + 5 * US, row["dur"] - 5 * US
    other = found(other)
    assert one.of_activity.tolist() == other.of_activity.tolist()


def test_the_layers_of_a_single_pass_are_no_steps():
    rows = iterations(1, names=pass_of(layers=40))
    assert found(rows).by == found(device_only(rows)).by == "window"


@pytest.mark.parametrize(("last", "by"), [(0, "repetition"), (1, "window")])
def test_layers_with_a_product_of_another_size_behind_them_are_no_steps(last, by):
    names = (*(f"aten::op{n}" for n in range(9)), "aten::addmm") * 7 + ("aten::op0",)
    rows = [note(name, 1_000_000 + i * 10 * US, 9 * US, cat="cpu_op") | {"shape": 0} for i, name in enumerate(names)]
    rows[-1]["shape"] = last
    assert found(rows).by == by


def test_two_iterations_are_too_few():
    assert found(iterations(2, marks=optimizer)).by == "window"


def test_iterations_that_hold_other_work_each_time_are_no_steps():
    drawn = random.Random(7)
    rows = iterations(8, names=lambda i: pass_of(layers=drawn.randint(1, 30)), marks=optimizer)
    steps = found(rows)
    assert (steps.by, steps.number.tolist()) == ("window", [NO_STEP])


def test_what_covers_a_part_of_the_window_only_is_no_step():
    rows, after = iterations(4, marks=optimizer), 100_000_000
    own, _ = launched([f"other_{n % 97}" for n in range(900)], after)
    assert found(rows + own).by == "window"


def test_the_step_in_which_ranks_first_meet_is_left_out():
    """What they wait there is how far apart they began to record."""

    def marks(i, start, end):
        return [
            *kernel(end - 8 * US, 5 * US, launched=end - 9 * US, name="ncclDevKernel_AllReduce_Sum_f32", stream=17),
            note(f"iteration {i}", start - US, end - start),
        ]

    assert found(iterations(6, marks=marks)).number.tolist() == [1, 2, 3, 4, 5]


def test_marks_of_the_profiler_come_first():
    def marks(i, start, end):
        return [*optimizer(i, start, end), note(f"ProfilerStep#{i + 3}", start - US, end - start + 9 * US)]

    steps = found(iterations(4, marks=marks))
    assert (steps.by, steps.number.tolist()) == ("profiler", [3, 4, 5, 6])


def test_micro_batches_without_an_optimizer_in_sight_make_steps_by_what_every_third_does_more():
    def names(i):
        return [*pass_of(), *["multi_tensor_apply"] * 3] if i % 3 == 2 else pass_of()

    def marks(i, start, end):
        return [note(LOADER, start - 9 * US, 5 * US)]

    assert len(found(iterations(18, names=names, marks=marks))) == 5
    copied = iterations(18, names=lambda i: [*pass_of(), "copy"] if i % 2 else pass_of(), marks=marks)
    assert len(found(copied)) == 17  # a copy now and then is none


# Our steps beside a few lines of pandas that know nothing of traceops, to the microsecond.


ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"

# Traces that others published.
RUNS = ["hta/pair", "hta/amd", "hta/ns"]


@pytest.fixture(scope="module")
def ledger():
    """Imported by the worker that needs pandas, and not by each that collects the tests."""
    from benchmarks.field import pandas_ledger

    return pandas_ledger


def traces_of(run: str) -> list[Path]:
    return sorted(path for path in (DATA / run).iterdir() if path.name.endswith(".json.gz"))


def document(report: Report) -> dict:
    rows = {"ranks": [{"rank": row.rank} for row in report.ranks]}
    return rows | {"steps": [msgspec.to_builtins(step) for step in report.steps]}


@pytest.mark.parametrize("run", RUNS)
def test_step_busy_exposed_and_idle_time_are_what_pandas_says(run: str, ledger):
    report = analyze(DATA / run, cache=False, jobs=1)
    compared, differing = ledger.differing_steps(document(report), traces_of(run))
    assert compared == len(report.steps) > 0 and differing == 0


def test_a_step_that_is_off_by_a_microsecond_is_seen(ledger):
    told = document(analyze(DATA / "hta/pair", cache=False, jobs=1))
    told["steps"][0]["compute"] += 0.001
    assert ledger.differing_steps(told, traces_of("hta/pair")) == (4, 1)


def test_the_parts_of_a_step_make_it_whole(ledger):
    (row,) = ledger.steps_of(traces_of("hta/amd")[0]).to_dict("records")
    assert row["busy_ms"] + row["idle_ms"] == pytest.approx(row["step_ms"], abs=1e-9)
    step = {"duration_ms": 9.0, "compute": 1.0, "memory": 0.5, "idle_host": 5.0, "idle_gap": 0.5}
    step |= {"comm_transfer": 1.0, "comm_wait": 0.75, "comm_unmatched": 0.25}
    assert ledger.of_traceops(step) == {
        "step_ms": 9.0, "busy_ms": 3.5, "exposed_ms": 2.0, "memory_ms": 0.5, "idle_ms": 5.5,
    }  # fmt: skip


def test_waiting_is_what_pandas_says_of_the_collectives_of_all_ranks(ledger):
    waiting_ms = [row.wait_ms for row in analyze(DATA / "ddp4", cache=False, jobs=1).ranks]
    assert waiting_ms == pytest.approx(ledger.waiting_of(traces_of("ddp4")), abs=0.001) and max(waiting_ms) > 1


# Which steps are typical.


@pytest.mark.parametrize(
    ("steps", "unlike"),
    [
        ([2149, 136, 129, 131], [0]),  # a recompilation in the first of four [tests/data/recompile2]
        ([100, 101, 99, 180, 100], [3]),
        ([100, 300, 100, 300], []),  # every other step is long: none is the usual one
        ([100, 1000], []),  # of two steps neither is the usual one
        ([100, 120, 80, 110, 90], []),
        ([100, 100, 100, 149], []),  # below one and a half times the median
        ([60, 100, 140, 100, 170], []),  # they spread that far anyway
        ([100, 100, 10], []),  # a short step costs nothing
        ([5], []),
        ([], []),
    ],
)
def test_far_longer_steps_are_unlike(steps, unlike):
    assert np.flatnonzero(~typical_steps(steps)).tolist() == unlike


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30), st.floats(0.01, 100))
@examples(60)
def test_fewer_than_half_are_left_out_whatever_the_unit(steps, unit):
    typical = typical_steps(steps)
    assert typical.sum() * 2 > len(steps)
    assert typical[int(np.argmin(steps))]
    ordered = np.sort(steps)
    assert (typical_steps(ordered)[:-1] >= typical_steps(ordered)[1:]).all()
    assert typical_steps(np.array(steps) * 2**3).tolist() == typical.tolist()


# Where steps begin and end, where the marks alone do not say it.


MS = 1_000_000


def test_a_mark_on_the_cpu_that_holds_no_operator_is_no_step():
    """A profiler's step() right after another: a program was said to spend 100 % of 14 µs outside torch."""
    work = [note("aten::mm", at * MS, MS, cat="cpu_op") for at in range(2, 12, 2)]
    events = build([step(1, 20 * MS, 14_000), *work])
    steps = find_steps(events, find_activity(events))
    assert (steps.number.tolist(), steps.empty) == ([NO_STEP], (1,))
    assert steps.edges.tolist() == [2 * MS, 11 * MS]


def test_a_last_mark_in_which_nothing_ran_ends_with_the_profiler():
    """The mean of a step of 10 ms and of a mark of 30 µs that the profiler's end had cut off was a step of 5 ms."""
    work = [note("aten::mm", at * MS, MS, cat="cpu_op") for at in (2, 12)]
    marks = [step(1, 0, 10 * MS), step(2, 10 * MS, 10 * MS), step(3, 20 * MS, 30_000)]
    events = build([*marks, *work])
    steps = find_steps(events, find_activity(events))
    assert steps.number.tolist() == [1, 2] and steps.edges.tolist() == [0, 10 * MS, 20 * MS]


def test_a_mark_with_one_operator_is_a_step():
    events = build([step(1, 0, 10 * MS), note("aten::mm", 2 * MS, MS, cat="cpu_op")])
    assert find_steps(events, find_activity(events)).number.tolist() == [1]
