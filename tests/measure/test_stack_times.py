"""Where a host spends its time, from the frames of a trace with stacks."""

from pathlib import Path

import numpy as np
import pytest
from events_builder import BACKWARD, MAIN, build, call, kernel, step

from traceops.measure.activity import find_activity
from traceops.measure.ledger import find_lane
from traceops.measure.stack_times import IDLE, stack_times
from traceops.measure.steps import find_steps
from traceops.measure.summary import summarize
from traceops.traces.discover import discover
from traceops.traces.frames import Frames

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
