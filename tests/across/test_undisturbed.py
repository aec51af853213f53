"""The undisturbed step: by the light window of each rank, brought to what a step takes without recording."""

import gzip
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from light_run import BEGAN_NS, raw_light, write_light
from observed_run import Step, usual, write_rank

from traceops.across.plain_step import PlainStep, StepsBefore, plain_step, steps_before
from traceops.across.undisturbed import undisturbed
from traceops.across.whole_run import whole_run
from traceops.core.claims import reason
from traceops.core.rank_files import LIGHT_LOG_MAGIC, ROW
from traceops.measure.light import light_activity
from traceops.pipeline.assemble_tables import unprofiled_steps
from traceops.pipeline.run_info import of_own_window
from traceops.traces.light import parse_light, read_light
from traceops.traces.model import CommArgs
from traceops.traces.observed import read_observed


def of_even_steps(activities, summaries, step_ms, later=()):
    """Of steps that are alike before and behind the windows."""
    plain = None if step_ms is None else PlainStep.even(step_ms)
    return undisturbed(activities, summaries, plain, later=later)


DATA = Path(__file__).parents[1] / "data" / "light"
REDUCE = "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorage"


def comm(*events):
    """A summary's collectives: (step, stream, members) in order."""
    return SimpleNamespace(
        step=np.array([e[0] for e in events]), stream=np.array([e[1] for e in events]),
        name=tuple("ncclDevKernel_AllReduce" for _ in events),
        args=tuple(CommArgs(op="allreduce", group_ranks=e[2]) for e in events),
    )  # fmt: skip


def summary(rank, *events):
    return SimpleNamespace(rank=rank, comm=comm(*events), meta=SimpleNamespace(groups=()))


def lights(*raw):
    return [light_activity(parse_light(one)) for one in raw]


def late_host(step):
    """Rank 1's host comes 30 ms late to each all-reduce; 40 ms of work, 5 of transfer, step 100 ms."""
    return ([("gemm", 0, 40, 7), (REDUCE, 38, 75, 20), (None, 80, 82, 13)], [("gemm", 30, 70, 7), (REDUCE, 70, 75, 20)])


def two(step_ms=100.0, ran=late_host, **options):
    raw = [raw_light(rank, 6, step_ms, lambda step, rank=rank: ran(step)[rank], **options) for rank in (0, 1)]
    return lights(*raw), [summary(rank, (0, 20, (0, 1))) for rank in (0, 1)]


def parts(one):
    return tuple(
        round(ms, 1)
        for ms in (one.compute_ms, one.transfer_ms, one.wait_ms, one.unmatched_ms, one.memory_ms, one.idle_ms)
    )


def test_waiting_transfer_and_idle_time_of_each_rank():
    found, why = of_even_steps(*two(), 100.0)
    assert why is None and found.source == "cupti" and found.steps == 6
    assert parts(found.of(0)) == (40, 5, 30, 0, 2, 23)
    assert parts(found.of(1)) == (40, 5, 0, 0, 0, 55)
    assert found.of(7) is None


def other_host(step):
    """As `late_host`, and it is rank 0's."""
    return tuple(reversed(late_host(step)))


def test_several_light_windows_count_as_one_of_all_their_steps():
    later = two(ran=other_host, first=128)[0]
    found, why = of_even_steps(*two(), 100.0, [later])
    assert why is None and found.steps == 12
    assert parts(found.of(0)) == (40, 5, 15, 0, 1, 39) and parts(found.of(1)) == (40, 5, 15, 0, 1, 39)
    assert [look.steps for look in found.looks] == [(20, 25), (128, 133)]
    assert found.looks[1].wait_ms == pytest.approx({0: 0, 1: 30}, abs=0.01)
    turns = found.turns(5.0)
    assert (turns.rank, turns.steps, turns.other, turns.other_steps) == (1, (20, 25), 0, (128, 133))


def test_where_the_first_window_is_far_from_other_steps_a_later_one_tells():
    found, why = of_even_steps(*two(160.0), 100.0, [two(ran=other_host, first=128)[0]])
    assert why is None and [look.steps for look in found.looks] == [(128, 133)]
    assert parts(found.of(1)) == (40, 5, 30, 0, 2, 23)


def test_the_same_late_host_in_all_windows_is_no_turn():
    found, _ = of_even_steps(*two(), 100.0, [two(first=128)[0], two(first=1024)[0]])
    assert len(found.looks) == 3 and found.turns(5.0) is None
    assert parts(found.of(0)) == (40, 5, 30, 0, 2, 23)


@pytest.mark.parametrize(
    "later",
    [
        two(160.0, ran=other_host, first=128)[0],  # it is of longer steps, as where the program evaluates
        two(ran=other_host, first=128)[0][:1],  # a rank has none
        [*two(ran=other_host, first=128)[0][:1], *two(ran=other_host, first=129)[0][1:]],
        two(ran=other_host, first=128, source="torch")[0],
        [],
    ],
)
def test_a_later_window_that_does_not_fit_the_first_one_does_not_count(later):
    found, _ = of_even_steps(*two(), 100.0, [later])
    assert [look.steps for look in found.looks] == [(20, 25)] and found.steps == 6


def test_what_the_light_window_costs_was_idle_time_and_waiting_alike():
    """Its cost slows all hosts by the same factor, and so also that by which one is later than the others."""
    found, _ = of_even_steps(*two(), 90.0)
    assert found.light_ms == pytest.approx(100) and found.step_ms == 90
    assert parts(found.of(0)) == (40, 5, 24.3, 0, 2, 18.7) and parts(found.of(1)) == (40, 5, 0, 0, 0, 45)
    assert sum(parts(found.of(0))) == pytest.approx(90)
    busy = [[("gemm", 0, 60, 7), (REDUCE, 60, 95, 20)], [("gemm", 0, 90, 7), (REDUCE, 90, 95, 20)]]
    found, _ = of_even_steps(*two(ran=lambda step: busy), 92.0)
    assert parts(found.of(0)) == (60, 5, 23.1, 0, 0, 3.9) and parts(found.of(1)) == (90, 5, 0, 0, 0, 0)


def test_copies_that_took_longer_in_the_light_window_are_its_cost():
    """Of a UNet whose answers go to pageable memory 21.5 of 151 ms were told as copies: 2.8 by itself."""
    activities, summaries = two()

    def rank_0(step_ms, copies_ms):
        found, _ = undisturbed(activities, summaries, PlainStep.even(step_ms), {0: copies_ms})
        return parts(found.of(0))

    assert rank_0(99.0, 0.5) == (40, 5, 30, 0, 1, 23)
    assert rank_0(98.0, 0.5) == (40, 5, 29.7, 0, 0.5, 22.8)
    assert rank_0(99.0, 2.0) == rank_0(99.0, 9.0) == (40, 5, 29.4, 0, 2, 22.6)


def test_where_the_two_steps_have_nothing_to_do_with_each_other_nothing_is_said():
    assert of_even_steps(*two(), 70.0)[0] is None and "no measure" in of_even_steps(*two(), 70.0)[1]
    assert of_even_steps(*two(), 140.0)[0] is None
    found = of_even_steps(*two(), 110.0)[0]
    assert found.step_ms == 110.0, "steps differ, and the run's own are timed"
    assert sum(parts(found.of(0))) == sum(parts(found.of(1))) == 100, "idle time is never made up"
    assert found.of(0).unseen_ms == pytest.approx(10)
    stayed = PlainStep(ms=104.0, whole_ms=110.0, near_ms=114.0, behind_ms=114.0, before=StepsBefore(6, 100, 108))
    assert undisturbed(*two(), stayed)[0].step_ms == 100.0, "the profiler may be in the longer ones"
    assert of_even_steps(*two(), None) == (None, "no step was timed without recording")
    assert of_even_steps([], [], 100.0) == (None, None)


def test_a_step_unlike_the_others_is_left_out():
    activities, summaries = two()
    for one in activities:
        one.step_ms[2] = 400.0
    found, _ = of_even_steps(activities, summaries, 100.0)
    assert found.steps == 5 and parts(found.of(1)) == (40, 5, 0, 0, 0, 55)


def test_without_marks_it_is_the_window_as_a_whole():
    found, _ = of_even_steps(*two(marks=False), 100.0)
    assert found.of(1).compute_ms == pytest.approx(40 * 700 / 645, abs=0.5)  # from the first kernel to the last
    assert found.of(1).light_ms == 100


def test_collectives_that_ranks_did_not_run_alike_are_not_told_apart():
    raw = [
        raw_light(0, 6, 100.0, lambda step: late_host(step)[0]),
        raw_light(1, 6, 100.0, lambda step: [("gemm", 0, 9, 7)]),
    ]
    found, _ = of_even_steps(lights(*raw), [summary(rank, (0, 20, (0, 1))) for rank in (0, 1)], 100.0)
    assert parts(found.of(0)) == (40, 0, 0, 35, 2, 23)


def mesh(step):
    """Four ranks: a tensor group on stream 20, a data group on 21; rank 3 is 10 ms late to the tensor group's."""
    return [
        [("gemm", 0, 10, 7), (REDUCE, 10, 12, 20), (REDUCE, 30, 32, 21)],
        [("gemm", 0, 10, 7), (REDUCE, 10, 12, 20), (REDUCE, 30, 42, 21)],
        [("gemm", 0, 10, 7), (REDUCE, 10, 22, 20), (REDUCE, 30, 32, 21)],
        [("gemm", 0, 20, 7), (REDUCE, 20, 22, 20), (REDUCE, 40, 42, 21)],
    ]


@pytest.mark.parametrize("streams", [(20, 21), (20, 20)])
def test_groups_are_told_by_their_streams_or_their_place_in_the_step(streams):
    tensor, data = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}, {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}

    def ran(step, rank):
        return [(n, b, e, dict(zip((20, 21), streams, strict=True)).get(s, s)) for n, b, e, s in mesh(step)[rank]]

    activities = lights(*(raw_light(r, 6, 50.0, lambda step, r=r: ran(step, r)) for r in range(4)))
    summaries = [summary(r, *((k, streams[0], tensor[r]) if i == 0 else (k, streams[1], data[r])
                              for k in range(3) for i in range(2))) for r in range(4)]  # fmt: skip
    found, _ = of_even_steps(activities, summaries, 50.0)
    assert [parts(found.of(rank))[:4] for rank in range(4)] == [
        (10, 4, 0, 0), (10, 4, 10, 0), (10, 4, 10, 0), (20, 4, 0, 0),
    ]  # fmt: skip


def test_sends_and_receives_are_not_told_apart():
    activities, _ = two()
    messages = [
        SimpleNamespace(rank=rank, comm=comm((0, 20, (0, 1))), meta=SimpleNamespace(groups=())) for rank in (0, 1)
    ]
    for one in messages:
        one.comm.args = (CommArgs(op="send", group_ranks=(0, 1)),)
    found, _ = of_even_steps(activities, messages, 100.0)
    assert parts(found.of(0)) == (40, 0, 0, 35, 2, 23)


def test_times_of_the_processors_counter_are_brought_to_unix_time():
    def counter(ns):
        return 7_000_000_000 + round((ns - BEGAN_NS) * 2.1)

    began, ended = ([ns, ns - BEGAN_NS + 10**9, counter(ns), 0] for ns in (BEGAN_NS - 10**6, BEGAN_NS + 710 * 10**6))
    log = parse_light(raw_light(0, 6, 100.0, lambda step: late_host(step)[0], clocks=[began, ended], to_clock=counter))
    assert log.rows["start"][0] == pytest.approx(BEGAN_NS, abs=1000)
    assert light_activity(log).edges[-1] == pytest.approx(BEGAN_NS + 700 * 10**6, abs=1000)
    with pytest.raises(ValueError, match="none of the clocks"):
        parse_light(raw_light(0, 6, 100.0, lambda step: late_host(step)[0], clocks=[[1, 1, 1, 1], [2, 2, 2, 2]]))


def test_a_damaged_file_is_named_and_never_fatal(tmp_path):
    write_light(tmp_path, 0, 6, 100.0, lambda step: late_host(step)[0])
    path = tmp_path / "rank_0/light.bin.gz"
    whole = path.read_bytes()
    assert read_light(str(tmp_path), 0)[0].steps == tuple(range(20, 26))
    assert read_light(str(tmp_path), 1) == (None, None)
    raw = gzip.decompress(whole)
    for broken in (
        b"",
        whole[: len(whole) // 2],
        b"{}",
        gzip.compress(b"{}"),
        gzip.compress(raw.replace(b'"names"', b'"nam"', 1)),
        gzip.compress(raw.replace(b"[100.0, ", b"[-100.0, ", 1)),
        gzip.compress(raw.replace(b'"steps": [20', b'"steps": [true', 1)),
        gzip.compress(raw.replace(b'"names": ["gemm", ', b'"names": [', 1)),
        gzip.compress(LIGHT_LOG_MAGIC + b"[" * 100_000 + b"\n"),
    ):
        path.write_bytes(broken)
        log, problem = read_light(str(tmp_path), 0)
        assert log is None and "light.bin.gz" in problem


@pytest.mark.parametrize(
    "old, new, said",
    [
        (b"light 1", b"light 2", "another version of traceops"),
        (b'"rank": 0', b'"rank": 3', "it is of rank 3"),
        (b'"discarded": 0', b'"discarded": 9', "9 of 37 activities are missing"),
    ],
)
def test_a_window_that_is_not_this_ranks_whole_one_is_not_used(tmp_path, old, new, said):
    write_light(tmp_path, 0, 6, 100.0, lambda step: late_host(step)[0])
    path = tmp_path / "rank_0/light.bin.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(old, new, 1)))
    log, problem = read_light(str(tmp_path), 0)
    assert log is None and said in problem


def test_an_activity_that_ends_before_it_begins_is_no_time():
    raw = bytearray(raw_light(0, 6, 100.0, lambda step: late_host(step)[0]))
    begin, end = ROW.unpack(raw[-ROW.size :])[:2]
    raw[-ROW.size : 16 - ROW.size] = struct.pack("<QQ", end, begin)
    with pytest.raises(ValueError, match="times are none"):
        parse_light(bytes(raw))


def test_windows_of_two_sources_are_not_said_to_be_of_other_steps():
    raw = [
        raw_light(rank, 6, 100.0, lambda step, rank=rank: late_host(step)[rank], source=source)
        for rank, source in enumerate(("cupti", "torch"))
    ]
    found, why = of_even_steps(lights(*raw), two()[1], 100.0)
    assert found is None and why.endswith("torch's, which disturbs more, on rank 1")


def test_a_window_that_holds_one_moment_is_none(tmp_path):
    """The report ended in a division by zero."""
    write_light(tmp_path, 0, 6, 100.0, lambda step: [("gemm", 5 - 100 * step, 5 - 100 * step, 7)], marks=False)
    log, problem = read_light(str(tmp_path), 0)
    assert problem is None and log is not None and light_activity(log) is None


def test_cuptis_own_records_of_two_h200s():
    """Lightning, ViT-B/16 in DDP. Truth, measured apart: 40 of 52.5 ms computing and copying, on both ranks."""
    logs = [read_light(str(DATA / "lit2"), rank)[0] for rank in (0, 1)]
    assert [log.source for log in logs] == ["cupti"] * 2 and logs[0].steps == tuple(range(17, 23))
    activities = [light_activity(log) for log in logs]
    for log, own in zip(logs, activities, strict=True):
        assert own.by_step and np.diff(own.edges) / 1e6 == pytest.approx(log.step_ms, abs=0.2), "the counter's rate"
    summaries = [summary(rank, (0, int(activities[rank].stream[0]), (0, 1))) for rank in (0, 1)]
    found, why = of_even_steps(activities, summaries, 58.0)
    assert why is None and found.steps == 5 and found.light_ms == pytest.approx(55.5, abs=0.1)
    for one in found.ranks:
        assert one.compute_ms + one.memory_ms == pytest.approx(39.2, abs=0.7)
        assert one.busy_ms + one.wait_ms + one.idle_ms == pytest.approx(found.light_ms, abs=0.3)
        assert one.unmatched_ms == 0


def test_steps_that_no_profiler_has_touched_are_the_measure():
    """Behind the windows the host is slower: the light window is one of those steps, and no measure of the host."""
    found, _ = undisturbed(*two(), PlainStep(ms=75.0, whole_ms=92.0, near_ms=97.0, behind_ms=97.0))
    assert (found.step_ms, found.behind_ms) == (75.0, 97.0)
    assert parts(found.of(0)) == (40, 5, 15.8, 0, 2, 12.2) and parts(found.of(1)) == (40, 5, 0, 0, 0, 30)
    assert sum(parts(found.of(0))) == sum(parts(found.of(1))) == 75
    assert found.stretched == pytest.approx(100 / 75)


def test_steps_far_longer_behind_the_windows_may_be_the_trainings_own():
    """Neither the steps before nor a mean of both is then said to be the step without recording."""
    found, why = undisturbed(*two(), PlainStep(ms=60.0, whole_ms=85.0, near_ms=96.0, behind_ms=96.0))
    assert found is None and why == reason("validity", "longer_after", after=96.0, before=60.0)
    busy = [[("gemm", 0, 95, 7), (REDUCE, 95, 99, 20)], [("gemm", 0, 95, 7), (REDUCE, 95, 99, 20)]]
    found, why = undisturbed(
        *two(ran=lambda step: busy), PlainStep(ms=60.0, whole_ms=85.0, near_ms=98.0, behind_ms=98.0)
    )
    assert why is None and found.step_ms == 98.0, "the device itself works for longer: it is the training's own"


def test_a_busy_device_was_slower_itself():
    """Warm GPUs have lower clocks: a step without idle time is not shortened by what the host saves."""
    busy = [[("gemm", 0, 95, 7), (REDUCE, 95, 99, 20)], [("gemm", 0, 95, 7), (REDUCE, 95, 99, 20)]]
    found, _ = undisturbed(*two(ran=lambda step: busy), PlainStep(ms=94.0, whole_ms=98.0, near_ms=99.5, behind_ms=99.5))
    assert (found.step_ms, found.behind_ms) == (98.0, None)


FIRST, LATER = range(10, 14), range(60, 64)


def run_of(root, steps):
    write_rank(root, 0, steps)
    return whole_run([read_observed(str(root), 0)[0]])


@pytest.fixture
def run(tmp_path):
    """Steps of 50 ms, of 40 from step 40 on; both windows make them 1.2 times as long."""
    steps = [usual(50 if number < 40 else 40) for number in range(100)]
    for number in (*range(8, 15), *range(58, 65)):
        steps[number] = Step(1.2 * steps[number].ms, recorded=True)
    steps[56] = Step(400)  # an evaluation is no step to hold others to
    return run_of(tmp_path, steps)


def test_the_steps_right_before_a_window_are_its_own(run):
    assert steps_before(run, FIRST).tolist() == [2, 3, 4, 5, 6, 7]
    assert steps_before(run, LATER).tolist() == [51, 52, 53, 54, 55, 57]
    assert [len(steps_before(run, window)) for window in ([200], [], range(3, 6))] == [0, 0, 0], "too few"


def test_steps_before_an_earlier_window_are_not(tmp_path):
    steps = [Step(60, recorded=number in (*range(8, 14), *range(16, 30))) for number in range(60)]
    assert not len(steps_before(run_of(tmp_path, steps), range(18, 29))), "two lie between"


def manifest(**more):
    windows = [{"index": 0, "steps": list(FIRST)}, {"index": 1, "steps": list(LATER)}]
    rank = {
        "rank": 0, "windows": windows, "profiled_steps": [*FIRST, *LATER],
        "profiled_step_ms": [60.0] * 4 + [48.0] * 4, "unprofiled_step_ms": [50.0] * 6,
    }  # fmt: skip
    whole = {"profiled_steps": [*FIRST, *LATER], "profiled_step_ms": 54.0, "unprofiled_step_ms": 50.0}
    schedule = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}
    return {"ranks": [rank | more], "schedule": schedule, **whole}


def test_each_window_is_held_to_its_own_steps(run):
    """A later window's 48 ms were held to the 50 of the program's beginning: 'the profiler costs nothing'."""
    told = of_own_window(manifest(), set(LATER), run, on_gpu=True)
    assert told["profiled_step_ms"] / told["unprofiled_step_ms"] == pytest.approx(1.2)
    assert told["profiled_steps"] == list(LATER)
    assert told["ranks"][0]["unprofiled_step_ms"] == pytest.approx([40.0] * 6), "compare takes these"
    told = of_own_window(manifest(), set(FIRST), run, on_gpu=True)
    assert told["profiled_step_ms"] / told["unprofiled_step_ms"] == pytest.approx(1.2)
    assert told["ranks"] == manifest()["ranks"]
    told = of_own_window(manifest(), set(LATER), None, on_gpu=False)
    assert told["unprofiled_step_ms"] is None and told["ranks"][0]["unprofiled_step_ms"] == [], "nothing tells"


def test_the_schedules_windows_count_together():
    """With the steps that it times before each of them, where nothing else was observed too."""
    schedule = {"skip_first": 2, "unprofiled": 44, "warmup": 2, "active": 4, "repeat": 2}
    repeated = manifest() | {"schedule": schedule}
    assert of_own_window(repeated, set(LATER), None, on_gpu=False) == repeated


def test_on_gpus_steps_between_the_schedules_windows_are_none_without_the_profiler():
    """It stays in the process there: the median of all said that it costs little."""
    schedule = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 6}
    repeated = manifest(unprofiled_step_ms=[50.0] * 6 + [57.0] * 30) | {"schedule": schedule}
    repeated["unprofiled_step_ms"] = 57.0
    assert of_own_window(repeated, set(LATER), None, on_gpu=True) == repeated | {"unprofiled_step_ms": 50.0}
    assert of_own_window(repeated, set(LATER), None, on_gpu=False) == repeated, "on a CPU nothing stays"


def test_a_run_with_one_window_is_as_run_json_says(run):
    only = manifest(windows=[{"index": 0, "steps": list(FIRST)}])
    assert of_own_window(only, set(FIRST), run, on_gpu=True) is only
    assert (
        of_own_window({}, set(FIRST), run, on_gpu=True) == {}
        and of_own_window(manifest(), set(), run, on_gpu=True) == manifest()
    )


@pytest.mark.parametrize(
    ("window", "on_gpu", "ended", "behind"),
    [
        (FIRST, True, False, [False] * 6 + [True] * 2),
        (FIRST, False, False, [False] * 8),
        (LATER, True, False, [True] * 8),
        (LATER, True, True, [False] * 8),
    ],
)
def test_steps_that_torchs_profiler_was_left_in_are_told(window, on_gpu, ended, behind):
    """`compare` leaves them out: where CUPTI was ended on one side only, that side was called faster."""
    told = manifest(unprofiled_step_ms=[50.0] * 8, detached={"done": ended})
    ranks = [SimpleNamespace(on_gpu=on_gpu, numbered_steps=set(window))]
    rows = unprofiled_steps(SimpleNamespace(manifest=told), ranks)
    assert [row.behind_window for row in rows] == behind


LIGHT = Path(__file__).parents[1] / "data" / "light"


def plain_of(name):
    return plain_step(whole_run([read_observed(str(LIGHT / name), rank)[0] for rank in (0, 1)]), {}, on_gpu=True)


def undisturbed_of(name):
    lights = [light_activity(read_light(str(LIGHT / name), rank)[0]) for rank in (0, 1)]
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
