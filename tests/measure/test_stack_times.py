"""Where a host spends its time: by frames, by names of functions, by nested operators."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from events_builder import BACKWARD, MAIN, build, call, kernel, note, step
from hypothesis import given
from hypothesis import strategies as st

from traceops.measure import activity, host_rows
from traceops.measure.activity import find_activity
from traceops.measure.host_places import IDLE, stack_purposes, stack_times
from traceops.measure.host_rows import find_nesting, named
from traceops.measure.ledger import find_lane
from traceops.measure.steps import find_steps
from traceops.measure.summary import summarize
from traceops.traces.discover import discover
from traceops.traces.model import Frames

DATA = Path(__file__).parents[1] / "data"
MS = 1_000_000


def frames_of(*rows):
    """Frames of (name, begin and end in ms), with a thread where it is not the main one."""
    names = tuple(dict.fromkeys(row[0] for row in rows))
    start, end = (np.array([row[at] * MS for row in rows], dtype=np.int64) for at in (1, 2))
    tid = np.array([row[3] if len(row) > 3 else MAIN for row in rows], dtype=np.int64)
    return Frames(np.array([names.index(row[0]) for row in rows], np.int32), start, end - start, tid, names)


def times(*rows, events=()):
    """By function: what is measured of a step from 10 to 110 ms whose device works from 60 to 100 and from 109 on."""
    kernels = [*kernel(60 * MS, 40 * MS, 60 * MS - 10), *kernel(109 * MS, 1 * MS, 109 * MS - 10)]
    built = build([step(3, 10 * MS, 100 * MS), *kernels, *events])
    activity = find_activity(built)
    steps = find_steps(built, activity, (3,))
    lane = find_lane(built, activity, steps)
    found = stack_times(frames_of(*rows), activity.host, activity.host.held_up(50_000), lane, steps)
    return {(one.said, one.waits): one for one in found}


def ms(one):
    return one.host_ns.sum() / MS, one.idle_ns.sum() / MS


LOOP = ("train.py(40): main", 0, 200)


def test_time_counts_for_the_innermost_function_of_the_program():
    found = times(
        LOOP,
        ("train.py(12): augment", 20, 50),
        ("numpy/core.py(7): sort", 25, 45),
        ("<built-in function sorted>", 26, 44),
        ("train.py(5): key", 30, 40),
    )
    assert ms(found["augment (train.py:12)", False]) == (20, 20)
    assert ms(found["key (train.py:5)", False]) == (10, 10)
    # What ran before the step has no line, and the rest of the step.
    assert ms(found["main (train.py)", False]) == (70, pytest.approx(29, abs=0.1))


def test_a_call_under_way_as_the_steps_begin_is_of_the_same_function_as_later_ones():
    """It was dropped from the function's time, while its step still counted."""
    found = times(LOOP, ("train.py(12): decode", 5, 30), ("train.py(12): decode", 40, 55))
    assert ms(found["decode (train.py:12)", False]) == (35, 35)


def test_paths_of_windows_are_told_apart_too():
    found = times(
        LOOP,
        (r"C:\my work\train.py(12): augment", 20, 50),
        (r"C:\py\Lib\site-packages\torch\functional.py(7): einsum", 25, 45),
        (r"torch\nn\modules\module.py(3): _call_impl", 26, 30),
    )
    assert ms(found["augment (train.py:12)", False]) == (30, 30)
    assert {said for said, _ in found} == {"augment (train.py:12)", "main (train.py)"}


def test_idle_time_of_the_device_is_told_apart_from_work():
    found = times(LOOP, ("train.py(12): save", 50, 70))
    assert found["save (train.py:12)", False].idle_ns[IDLE.index("idle_host")].tolist() == [10 * MS]
    assert ms(found["save (train.py:12)", False]) == (20, 10)


def test_calls_that_wait_for_the_device_do_not_count():
    found = times(LOOP, ("train.py(12): log", 61, 101), events=[call("cudaStreamSynchronize", 62 * MS, 38 * MS)])
    assert ms(found["log (train.py:12)", False]) == (2, 1)


def test_a_wait_for_autograd_is_no_work_of_the_function():
    found = times(
        LOOP,
        ("train.py(9): step", 20, 90),
        ("torch/autograd/graph.py(860): _engine_run_backward", 30, 80),
        ("<built-in method run_backward of torch._C._EngineBase object at 0x7f>", 31, 80),
    )
    assert ms(found["step (train.py:9)", True])[0] == 50
    assert ms(found["step (train.py:9)", False])[0] == 20


def test_what_a_loader_calls_is_input():
    found = times(
        LOOP,
        ("torch/utils/data/dataloader.py(736): __next__", 11, 50),
        ("data.py(48): collate", 12, 50),
        ("data.py(50): <listcomp>", 13, 50),
    )
    one = found["collate (data.py:48)", False]
    assert (one.in_loader, one.does, ms(one)[0]) == (True, "input", 38)


def test_other_threads_and_libraries_alone_tell_nothing():
    assert not times(("threading.py(982): run", 0, 200), ("torch/nn/modules/module.py(1): f", 1, 200))
    assert not times(("train.py(12): feed", 0, 200, BACKWARD))
    assert not times()


def test_an_installed_package_by_its_whole_path_is_none_of_the_program():
    found = times(("/env/lib/python3.11/site-packages/mine/run.py(4): fit", 0, 200), ("/home/me/a.py(3): f", 20, 40))
    assert list(found) == [("f (a.py:3)", False)]


def test_a_frame_that_touches_the_one_before_is_not_inside_it():
    found = times(LOOP, ("a.py(1): f", 20, 40), ("a.py(2): g", 39.9995, 60))
    assert ms(found["f (a.py:1)", False])[0] == pytest.approx(20, abs=0.001)
    assert ms(found["g (a.py:2)", False])[0] == pytest.approx(20, abs=0.001)


def test_a_real_rank_that_is_late():
    """FSDP2 on two ranks, whose rank 1 runs `busy` for 60 ms before each step."""
    late, other = (summarize(file).stacks for file in discover(str(DATA / "stacks_late2")).latest.files[::-1])
    one = next(one for one in late if one.place.function == "busy")
    assert one.said == "busy (ranks_ddp.py:32)"
    assert one.host_ns / MS == pytest.approx([60.0, 60.0, 60.0], abs=0.1)
    assert one.idle_ns.sum(axis=0) / MS == pytest.approx([0.1, 17.5, 24.8], abs=0.1)
    assert all(one.place.function != "busy" for one in other)


# What the name of a function says that the host is about.


TRAINER = "/site-packages/transformers/trainer.py"


@pytest.mark.parametrize(
    "functions, says",
    [
        (["Trainer.train", "Trainer._maybe_log_save_evaluate", "Trainer.log"], None),  # was an evaluation
        (["Trainer._maybe_log_save_evaluate", "Trainer._save_checkpoint"], "checkpoint"),
        (["train", "evaluate_and_save", "save_checkpoint"], "checkpoint"),  # was an evaluation
        (["train", "evaluate_and_save", "evaluate"], "evaluation"),
        (["train", "eval_and_log"], None),
        (["Trainer._maybe_log_save_evaluate", "Trainer._evaluate", "Trainer.evaluate"], "evaluation"),
        (["train_and_evaluate", "step"], None),
        (["train_and_evaluate", "validate"], "evaluation"),
        (["train_one_epoch.<locals>.evaluate"], "evaluation"),
        (["run_eval"], "evaluation"),
        (["_EvaluationLoop.run", "do_validation"], "evaluation"),
        (["my_val_loop"], "evaluation"),
        (["evaluate_model"], "evaluation"),
        (["log_eval_loss"], None),
        (["retrieval", "Interval.evaluated"], None),
        (["_FitLoop.run", "_EvaluationLoop.run", "_DataFetcher.__next__"], "evaluation"),  # was data that comes late
        (["_FitLoop.run", "_TrainingEpochLoop.run"], None),
        (["main", "test"], "evaluation"),  # was nothing
        (["Trainer.train", "Trainer._test"], "evaluation"),
        (["run_val_epoch"], "evaluation"),
        (["test_training", "unit_test", "val_loader", "latest"], None),
    ],
)
def test_a_function_that_also_trains_logs_or_saves_is_no_evaluation(functions, says):
    frames = [SimpleNamespace(function=name, file=TRAINER, no_grad=False) for name in functions]
    observed = SimpleNamespace(frames=frames, stacks=[tuple(range(len(frames)))])
    assert stack_purposes(observed)[0].what == says


@pytest.mark.parametrize(
    "folder, says",
    [("/opt/torch/.venv/lib/python3.12", "evaluation"), ("/site-packages/torch", None), ("/usr/lib/torch", None)],
)
def test_a_virtual_environment_may_be_called_torch(folder, says):
    """Evaluations of the HF Trainer in /opt/torch/.venv had no cause."""
    inside = folder + ("/site-packages/transformers/trainer.py" if says else "/inference.py")
    frames = [SimpleNamespace(function="Trainer.evaluate", file=inside, no_grad=False)]
    assert stack_purposes(SimpleNamespace(frames=frames, stacks=[(0,)]))[0].what == says


CONTEXT = ("context_decorator.<locals>.decorate_context", "/site-packages/torch/utils/_contextlib.py")
CALL = ("Module._call_impl", "/site-packages/torch/nn/modules/module.py")
ENGINE = ("_engine_run_backward", "/site-packages/torch/autograd/graph.py")
OWN = "/home/me/train.py"


def purposes(*stacks):
    """Of frames as (function, file), and a third where the line is in a block without gradients."""
    frames = [
        SimpleNamespace(function=name, file=file, no_grad=bool(block))
        for stack in stacks
        for name, file, *block in stack
    ]
    starts = [sum(map(len, stacks[:at])) for at in range(len(stacks))]
    numbers = [tuple(range(start, start + len(stack))) for start, stack in zip(starts, stacks, strict=True)]
    found = stack_purposes(SimpleNamespace(frames=frames, stacks=numbers))
    return [(one.what, None if one.frame is None else frames[one.frame].function) for one in found]


def test_a_model_that_is_called_in_a_function_decorated_with_no_grad():
    """nanoGPT's evaluation has a name that says nothing: nothing was told of it."""
    estimate = [("<module>", OWN), CONTEXT, ("estimate_loss", OWN), CALL, ("GPT.forward", OWN)]
    assert purposes(estimate) == [("inference", "estimate_loss")]
    assert purposes([("<module>", OWN), CONTEXT, ("update_average", OWN)]) == [(None, None)]  # calls no module
    named = [("<module>", OWN), CONTEXT, ("evaluate", OWN), CALL, ("GPT.forward", OWN)]
    assert purposes(named) == [("evaluation", "evaluate")]


def test_a_decorator_that_turns_gradients_on_or_an_optimizers_closure_is_training():
    closure = [("fit", OWN), CONTEXT, ("Closure.closure", "/lightning/closure.py"), CALL, ("Net.forward", OWN)]
    behind = [*closure[:3], ENGINE]
    assert purposes(closure, behind) == [(None, None), (None, None)]
    lbfgs = [("fit", OWN), CONTEXT, ("LBFGS.step", "/torch/optim/lbfgs.py"), ("closure", OWN), CALL]
    assert purposes(lbfgs) == [(None, None)]
    own = [("fit", OWN), CONTEXT, ("SAM.step", OWN), CONTEXT, ("closure", OWN), CALL]
    assert purposes(own) == [(None, None)]


def test_a_model_that_is_called_in_a_block_without_gradients():
    """An evaluation at module level has no function, and no name: 61 % of a run were nothing that shows why."""
    module = ("<module>", OWN, "block")
    assert purposes([module, CALL, ("GPT.forward", OWN)]) == [("inference", "<module>")]
    assert purposes([module, ("update_average", OWN)]) == [(None, None)]
    trains = [("<module>", OWN), ENGINE]
    assert purposes([module, CALL], trains) == [("inference", "<module>"), (None, None)]
    assert purposes([("SAM.step", OWN, "block"), CALL]) == [(None, None)]
    assert purposes([("<module>", OWN), ("evaluate", OWN, "block"), CALL]) == [("evaluation", "evaluate")]


# Words to look for before a pattern are in every name that the pattern finds.


ASCII = st.characters(max_codepoint=127)
PATTERNS = {"input": (host_rows._INPUT, host_rows._INPUT_WORDS), "queues": (host_rows._QUEUES, host_rows._QUEUES_WORDS)}


@pytest.mark.parametrize("which", PATTERNS)
@given(st.data())
def test_no_name_is_lost_to_the_words(which, data):
    pattern, words = PATTERNS[which]
    name = data.draw(st.from_regex(pattern, alphabet=ASCII))
    assert named(build([note(name, 0, 1)]), pattern, words).tolist() == [True]


@given(st.from_regex(activity._LIBRARY, alphabet=ASCII))
def test_no_kernel_of_a_library_is_lost_to_the_words(name):
    assert activity.communicates(name)


@given(st.from_regex(activity._VERB, alphabet=ASCII))
def test_no_collective_is_lost_to_the_words(name):
    other = activity._NONE.search(name) is not None and activity._LIBRARY.search(name) is None
    assert activity.communicates(name) is not other


def test_words_alone_do_not_make_a_name_fit():
    names = ["Memory", "relaunch", "cudaMemcpyAsync", "cudaLaunchKernel"]
    events = build([note(name, 0, 1) for name in names])
    found = named(events, host_rows._QUEUES, host_rows._QUEUES_WORDS).tolist()
    assert found == [False, False, True, True]


# Parents and own time of nested operators, against a slow and obvious way to find them.


YEARS = 1 << 61  # ns; two threads this wide fit no axis that counts ns


@st.composite
def trees(draw):
    """Nested intervals on two threads, inside each other or beside each other, and calls on three."""
    rows = []

    def grow(tid, start, end, depth):
        rows.append(note(f"op{len(rows)}", start, end - start, tid, "cpu_op"))
        at = start + draw(st.integers(0, 2))
        while depth and at + 1 < end and draw(st.booleans()):
            stop = draw(st.integers(at, end))
            grow(tid, at, stop, depth - 1)
            at = stop + draw(st.integers(0, 3))

    for tid in (1, 2):
        begin = draw(st.integers(0, 5))
        for _ in range(draw(st.integers(0, 3))):
            length = draw(st.integers(0, 60))
            grow(tid, begin, begin + length, 4)
            begin += length + draw(st.integers(0, 4))
    for tid, ts in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 90)), max_size=20)):
        rows.append(note("launch", ts, 1, tid, "cuda_runtime"))
    return build(draw(st.permutations(rows)))


def split(events):
    """Rows of the operators and of the calls."""
    operators = events.in_cats("cpu_op")
    return np.flatnonzero(operators), np.flatnonzero(~operators)


def around(events, ops, row):
    """All operators that hold this moment of this thread, innermost first; of equal ones the later in the file.

    One of no length lies in those that begin as it does if one of them stands before it in the file.
    """
    own = row in ops
    alike = [
        op for op in ops if (events.tid[op], events.ts[op]) == (events.tid[row], events.ts[row]) and events.dur[op]
    ]
    before = own and not events.dur[row] and min(alike, default=row) >= row
    holding = [
        op for op in ops
        if op != row and events.tid[op] == events.tid[row] and events.ts[op] <= events.ts[row] < events.end[op]
        and (not own or (events.dur[op], -op) > (events.dur[row], -row))
        and not (before and op in alike)
    ]  # fmt: skip
    return sorted(holding, key=lambda op: (events.dur[op], -op))


def rows_at(nesting, positions):
    return [int(nesting.rows[at]) if at >= 0 else -1 for at in positions]


@given(trees())
def test_parents_are_the_innermost_around(events):
    ops, _ = split(events)
    nesting = find_nesting(events, ops)
    assert sorted(nesting.rows) == ops.tolist()
    expected = [next(iter(around(events, ops, row)), -1) for row in nesting.rows]
    assert rows_at(nesting, nesting.parent) == expected
    assert nesting.outermost.tolist() == np.flatnonzero(np.array(expected) == -1).tolist()


@given(trees())
def test_a_call_is_inside_the_innermost_and_the_outermost_operator_on_its_thread(events):
    ops, calls = split(events)
    nesting = find_nesting(events, ops)
    inside = [around(events, ops, row) or [-1] for row in calls]
    assert rows_at(nesting, nesting.innermost_around(calls)) == [holding[0] for holding in inside]
    assert rows_at(nesting, nesting.outermost_around(calls)) == [holding[-1] for holding in inside]


@given(trees())
def test_own_times_add_up_to_the_time_of_the_outermost(events):
    ops, _ = split(events)
    nesting = find_nesting(events, ops)
    assert nesting.own_time.sum() == events.dur[nesting.rows[nesting.outermost]].sum()


@given(trees())
def test_times_years_apart_nest_as_well(events):
    ops, calls = split(events)
    calls = calls[np.isin(events.tid[calls], events.tid[ops])]

    def found():
        nesting = find_nesting(events, ops)
        return [
            rows_at(nesting, positions)
            for positions in (
                nesting.parent, nesting.innermost_around(calls), nesting.outermost_around(calls)
            )
        ]  # fmt: skip

    near = found()
    events.ts[events.tid == 2] += YEARS
    events.ts[events.tid == 1] -= YEARS - 1
    assert found() == near


def test_calls_after_what_was_deep_inside_and_beside_the_operators():
    rows = [
        note("outer", 0, 100, cat="cpu_op"), note("inner", 10, 20, cat="cpu_op"), note("inmost", 15, 10, cat="cpu_op"),
        note("last", 20, 5, cat="cpu_op"), note("other", 50, 10, 2, "cpu_op"),
        note("launch", 22, 2, cat="cuda_runtime"), note("launch", 25, 2, cat="cuda_runtime"),
        note("launch", 30, 2, cat="cuda_runtime"), note("launch", 100, 2, cat="cuda_runtime"),
        note("launch", -5, 2, 2, "cuda_runtime"), note("launch", 55, 2, 2, "cuda_runtime"),
        note("launch", 55, 2, 3, "cuda_runtime"),
    ]  # fmt: skip
    nesting, calls = find_nesting(build(rows), np.arange(5)), np.arange(5, 12)
    assert nesting.innermost_around(calls).tolist() == [3, 1, 0, -1, -1, 4, -1]
    assert nesting.outermost_around(calls).tolist() == [0, 0, 0, -1, -1, 4, -1]


def test_operators_that_only_overlap_are_one_stretch_of_the_first():
    rows = [
        note("first", 0, 10, cat="cpu_op"), note("second", 5, 15, cat="cpu_op"), note("third", 20, 5, cat="cpu_op"),
        note("wait", 15, 1, cat="cuda_runtime"), note("wait", 20, 1, cat="cuda_runtime"),
        note("wait", 25, 1, cat="cuda_runtime"),
    ]  # fmt: skip
    nesting = find_nesting(build(rows), np.arange(3))
    assert nesting.outermost.tolist() == [0, 2]
    assert nesting.outermost_around(np.arange(3, 6)).tolist() == [0, 2, -1]
