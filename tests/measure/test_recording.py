"""The most that recording takes of a step: by the gaps between a thread's boundaries, each counted once."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from events_builder import BACKWARD, build, call, kernel, note, step

from traceops.measure.activity import find_activity
from traceops.measure.recording import recording_at_most
from traceops.measure.steps import find_steps
from traceops.traces.kineto import load_trace
from traceops.traces.model import TraceMeta

PLAIN = Path(__file__).parents[1] / "data" / "plain_profiler"
US = 1_000


def most(rows, meta=TraceMeta()):  # noqa: B008 (frozen)
    events = build(rows)
    activity = find_activity(events)
    return recording_at_most(activity.host, find_steps(events, activity), meta)


def op(ts, dur, tid=1):
    return note("aten::mul", ts, dur, tid, cat="cpu_op")


def work(end):
    """A kernel that makes the step end there."""
    return kernel(end - 10, 10, launched=None, correlation=1)


def test_operators_are_recorded_around_themselves():
    """Five operators in a row: what lies within 2 µs of each other, and nothing of their own time."""
    ops = [op(10 * US + i * 12 * US, 10 * US) for i in range(5)]
    launch = call("cudaLaunchKernel", 100 * US, 4 * US, correlation=1)
    taken = most([step(1, 0, 200 * US), *ops, launch, *work(190 * US)])
    # From step to operator 10, four times 2, from operator to launch 20 of 32, the launch 4, then 20 of 96.
    assert taken == ((10 + 4 * 2 + 20 + 4 + 20) * US,)


def test_from_a_call_to_the_next_nothing_is_recorded():
    """Device only: the host's own work lies between its calls, and CUPTI records within them."""
    launches = [call("cudaLaunchKernel", 10 * US + i * 50 * US, 6 * US, correlation=1) for i in range(20)]
    events = [step(1, 0, 1_100 * US), *launches, *work(1_050 * US)]
    assert most(events) == ((20 * 6 + 20) * US,)  # and from the last to the step's end


def test_a_long_gap_counts_as_much_as_others_of_its_kind():
    """The host sleeps for a millisecond between two operators: recording one takes 2 µs elsewhere."""
    ops = [op(10 * US + i * 12 * US, 10 * US) for i in range(9)]
    rows = [*ops, op(ops[-1]["ts"] + 10 * US + 1_000 * US, 10 * US)]
    end = rows[-1]["ts"] + 10 * US
    launch = call("cudaLaunchKernel", end, 1 * US, correlation=1)
    taken = most([step(1, 0, end + 1 * US), *rows, launch, *work(end + 5 * US)])
    assert taken == ((10 + 9 * 2 + 1) * US,)


def test_of_allocations_that_are_recorded_too_operators_are_not_free():
    ops = [op(10 * US + i * 12 * US, 10 * US) for i in range(5)]
    rows = [step(1, 0, 70 * US), *ops, call("cudaLaunchKernel", 69 * US, 1 * US, correlation=1), *work(80 * US)]
    assert most(rows, TraceMeta(profile_memory=True))[0] == most(rows)[0] + 5 * 10 * US


def test_a_second_observer_runs_behind_the_begins_of_operators():
    """ExecutionTraceObserver took 8 µs before an operator in another, 12 in one that does nothing else."""

    def taken(us):
        outer = [op(at * US, 4 * us * US) for at in range(10, 6_010, 60)]
        inner = [op(one["ts"] + us * US, us * US) for one in outer]
        launch = call("cudaLaunchKernel", 6_050 * US, 1 * US, correlation=1)
        return most([step(1, 0, 6_100 * US), *outer, *inner, launch, *work(6_090 * US)])[0]

    # From begin to begin, inside, from end to end (of 24 µs 20 count), from end to begin
    assert taken(12) == pytest.approx(100 * (12 + 12 + 20 + 12) * US, rel=0.02)
    assert taken(6) == pytest.approx(100 * (6 + 0 + 12 + 20) * US, rel=0.02)


def test_each_thread_has_its_own_gaps():
    """The backward thread's operators lie in one long gap of the main thread's."""
    main = [op(0, 10 * US), op(500 * US, 10 * US)]
    behind = [op(20 * US + i * 11 * US, 10 * US, BACKWARD) for i in range(9)]
    launch = call("cudaLaunchKernel", 520 * US, 1 * US, correlation=1)
    both = most([step(1, 0, 600 * US), *main, *behind, launch, *work(590 * US)])[0]
    alone = most([step(1, 0, 600 * US), *main, launch, *work(590 * US)])[0]
    assert both <= alone  # eight gaps of 1 µs make the long one count as 1


def test_a_graph_may_be_recorded_all_the_time_that_its_launch_takes():
    """CUPTI records each of its kernels in there; another call counts as most of its kind do."""
    graph = call("cudaGraphLaunch", 100 * US, 900 * US, correlation=1)
    assert most([step(1, 0, 1_100 * US), graph, *work(1_050 * US)])[0] >= 900 * US


def test_the_host_records_nothing_while_it_waits():
    """Recording takes no more than a step less the time in which its host waits for the device."""
    wait = call("cudaDeviceSynchronize", 20 * US, 900 * US)
    launch = call("cudaLaunchKernel", 10 * US, 4 * US, correlation=1)
    taken = most([step(1, 0, 1_000 * US), launch, wait, *work(900 * US)])
    assert 0 < taken[0] <= 100 * US


@pytest.mark.parametrize("tick", [1, 250, 1_000])
def test_a_coarse_clock_changes_little(tick):
    """Stamps of whole microseconds: three quarters of the gaps are 0 then, and recording takes time nevertheless."""
    gaps = [400, 700, 300, 600, 900, 500, 200, 800, 350, 550] * 20
    begins = np.cumsum([gap + 2_000 for gap in gaps])
    rows = [op(int(ts) // tick * tick, int(ts + 2_000) // tick * tick - int(ts) // tick * tick) for ts in begins]
    end = rows[-1]["ts"] + rows[-1]["dur"]
    launch = call("cudaLaunchKernel", end + 10, 10, correlation=1)
    taken = most([step(1, 0, end + 100), *rows, launch, *work(end + 90)])[0]
    assert sum(gaps) * 0.7 < taken < sum(gaps) * 1.1 + 5 * US


def test_without_the_host_s_events_nothing_is_told():
    assert most([*kernel(0, 10, correlation=3), *kernel(20, 10, correlation=4)]) == ()


def test_stamps_that_run_backwards_are_borne():
    """A damaged trace: an operator that ends before it begins."""
    rows = [step(1, 0, 100 * US), op(10 * US, -5 * US), op(20 * US, 5 * US)]
    taken = most([*rows, call("cudaLaunchKernel", 30 * US, 10, correlation=1), *work(90 * US)])
    assert 0 <= taken[0] <= 100 * US


@pytest.mark.parametrize("name", ["one_iteration", "graph", "cold_start"])
def test_as_plain_loops_count_it(name):
    """Real traces of plain torch.profiler; threads, boundaries and quantiles by loops and sorted lists."""
    trace = load_trace(str(PLAIN / name / "trace.json.gz"))
    events, activity = trace.events, find_activity(trace.events)
    steps = find_steps(events, activity)
    taken = recording_at_most(activity.host, steps, trace.meta)

    threads = defaultdict(list)
    for row in range(len(events)):
        cat, what = events.cats[events.cat[row]].lower(), events.names[events.name[row]]
        kind = {"cpu_op": "o", "user_annotation": "o", "cuda_runtime": "c", "cuda_driver": "c"}.get(cat)
        ts, end = int(events.ts[row]), int(events.end[row])
        spans = zip(steps.host_start.tolist(), steps.host_end.tolist(), strict=True)
        if kind is None or not any(begin <= ts < over for begin, over in spans):
            continue
        kind = "g" if "GraphLaunch" in what and kind == "c" else kind
        threads[int(events.tid[row])] += [(ts, 3 + "ocg".index(kind), f"{kind}("), (end, "ocg".index(kind), f"{kind})")]
    gaps = defaultdict(list)
    for found in threads.values():
        found.sort()
        for (ts, _, left), (later, _, right) in pairwise(found):
            gaps[left + right].append((later - ts, ts))
    tick = min(gap for own in gaps.values() for gap, _ in own if gap > 0)
    expected = [0] * len(steps)
    for kind, own in gaps.items():
        in_order = sorted(gap for gap, _ in own)
        longest = max(min(in_order[int(0.85 * (len(own) - 1))], 20_000), tick)
        for gap, ts in own:
            number = max(sum(begin <= ts for begin in steps.host_start.tolist()) - 1, 0)
            if kind[0] == "g":
                expected[number] += gap
            elif kind not in ("o(c(", "o(g(", "c)c(", "c)g(", "o(o)"):
                expected[number] += min(gap, longest)
    waits = activity.host.waiting
    assert all(events.dur[waits] < min(np.diff(steps.edges)))
    assert not (trace.meta.with_stack or trace.meta.profile_memory)
    assert list(taken) == expected
    assert all(ns < duration for ns, duration in zip(taken, np.diff(steps.edges).tolist(), strict=True))
