"""Made traces: one trouble or two, changes that must not matter, and copies that analyse like their sources."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from changed import replace

from benchmarks.metamorphic.change import copied
from benchmarks.metamorphic.changes import CHANGES
from benchmarks.metamorphic.score import tried, verdict_on
from benchmarks.metamorphic.traces import read_traces
from benchmarks.simulated.cures import Truths
from benchmarks.simulated.draw import draw
from benchmarks.simulated.score import score_run
from benchmarks.simulated.spec import Kernel, Spec, Trouble
from benchmarks.simulated.written import write_run
from benchmarks.speed.make_traces import make_long, make_ranks
from traceops.measure.activity import find_activity
from traceops.measure.steps import find_steps
from traceops.pipeline.analyze import analyze
from traceops.traces.discover import discover
from traceops.traces.kineto import load_trace

KERNELS = (
    Kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", 200.0, "aten::addmm", "AddmmBackward0", 132, True),
    Kernel("void at::native::vectorized_elementwise_kernel<8, gelu>", 60.0, "aten::gelu", "GeluBackward0", 2400),
    Kernel("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", 150.0, "aten::mm", "MmBackward0", 132, True),
    Kernel("void at::native::vectorized_layer_norm_kernel<float>", 30.0, "aten::native_layer_norm",
           "NativeLayerNormBackward0", 1200),
)  # fmt: skip
PLAIN = Spec(
    seed=0, kind="ddp", world=4, per_host=4, layers=4, kernels=KERNELS, steps=6, elements=1 << 24, launch_us=8.0,
    input_us=100.0, input_bytes=1 << 18, bandwidth_gbs=330.0, far_gbs=40.0, latency_us=15.0, jitter=0.01, sync=False,
    buckets=2, degree=1, micro_batches=4, hosts=(1.0,) * 8, devices=(1.0,) * 8, clocks=((0.0, 0.0),) * 8, hiccups=0.0,
    uneven=0.0, net=(1.0,) * 9, accumulate=1, metric=False,
    loader="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", marked=True, seq=True, stacks=False,
    noted=False,
)  # fmt: skip


def told(tmp_path, spec):
    truths = Truths(spec)
    write_run(truths.run, spec, tmp_path)
    return truths, analyze(tmp_path, jobs=1, cache=False)


def found(report, rule):
    return [one for one in report.findings if one.rule == rule]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tp", "ep", "pp"])
def test_a_healthy_run_is_clean(tmp_path, kind):
    spec = replace(PLAIN, kind=kind, degree=2 if kind in ("tp", "pp") else 1, clocks=((0, 0), (900, 8)) * 2)
    truths, report = told(tmp_path, spec)
    assert not [one for one in report.findings if one.severity != "info" and one.rule[:4] in ("TO-S", "TO-B1")]
    assert report.summary.step_time_ms.median == pytest.approx(truths.step, rel=0.01)


def test_the_same_seed_gives_the_same_run():
    assert draw(7) == draw(7) != draw(8)
    assert Truths(draw(7)).step == Truths(draw(7)).step


@pytest.mark.parametrize("other", [Trouble("late_host", 4.0, rank=2), Trouble("slow_gpu", 1.4, rank=2)])
def test_work_shared_evenly_is_no_cure_of_another_rank(tmp_path, other):
    """Sharing an evaluation of rank 0 was to save what rank 2's late loader, or its slow GPU, costs as well."""
    evaluation = Trouble("evaluation", 20.0, rank=0, steps=(3,))
    truths, report = told(tmp_path, replace(PLAIN, kind="ep", loader="", sync=True, troubles=(evaluation, other)))
    [late] = found(report, "TO-S002")
    assert (late.ranks, late.computes_longer) == ((0,), "more_work")
    assert late.impact_ms <= 1.05 * truths.gain(evaluation)


def test_a_hot_expert_shared_is_promised_as_even_experts_take(tmp_path):
    hot = Trouble("hot_expert", 1.9, rank=1)
    truths, report = told(tmp_path, replace(PLAIN, kind="ep", sync=True, troubles=(hot,)))
    [late] = found(report, "TO-S001")
    assert (late.ranks, late.computes_longer) == ((1,), "more_work")
    assert late.impact_ms == pytest.approx(truths.gain(hot), rel=0.1)


def test_copies_that_cost_nothing_are_a_remark(tmp_path):
    """They were a warning before the late host that all wait for, with a cure that saves 0.00 ms."""
    slow, late = Trouble("slow_copy", 1.5, rank=3), Trouble("late_host", 5.0, rank=1)
    truths, report = told(tmp_path, replace(PLAIN, sync=True, troubles=(slow, late)))
    assert truths.gain(slow) < 0.01 * truths.step
    assert [one.severity for one in found(report, "TO-I004")] == ["info"]
    assert report.findings[0].ranks == (1,)


def test_a_peer_that_evaluates_in_one_step_does_not_clear_a_slow_gpu(tmp_path):
    """It was clear: 'not far beyond what its peers differ by', where its cure saves a third of a step."""
    troubles = (Trouble("evaluation", 30.0, rank=0, steps=(5,)), Trouble("slow_gpu", 1.6, rank=2))
    truths, report = told(tmp_path, replace(PLAIN, troubles=troubles))
    assert truths.gain(troubles[1]) > 0.3 * truths.step
    assert (2,) in [one.ranks for one in found(report, "TO-S001")]


def test_a_rank_that_may_only_be_the_slowest_is_not_clear_where_its_cure_would_save_much(tmp_path):
    troubles = (Trouble("extra_kernel", 1.0, rank=1), Trouble("slow_gpu", 1.25, rank=2))
    _, report = told(tmp_path, replace(PLAIN, steps=3, troubles=troubles))
    named = {rank for one in found(report, "TO-S001") for rank in one.ranks}
    [check] = [one for one in report.checks if one.rule == "TO-S001"]
    assert 2 in named or check.status == "not_evaluated"


def test_sharing_that_saves_little_is_a_remark(tmp_path):
    """It was a warning, and the sentence said '0 % less': another rank is as late."""
    troubles = (Trouble("uneven_batch", 1.4, rank=0), Trouble("slow_gpu", 1.4, rank=2))
    _, report = told(tmp_path, replace(PLAIN, troubles=troubles))
    for late in found(report, "TO-S001"):
        if late.computes_longer == "more_work" and late.impact_ms < 0.1 * report.summary.step_time_ms.median:
            assert late.severity == "info"


STAGES = replace(PLAIN, kind="pp", degree=2, layers=2, sync=True)


def test_a_rank_that_copies_longer_is_no_slow_stage(tmp_path):
    """Copies counted as computing: 'rank 0 computes 6.4 ms, the same stage of the other pipeline 4.8 ms'."""
    copies = Trouble("slow_copy", 4.0, rank=0)
    _, report = told(tmp_path, replace(STAGES, troubles=(copies, Trouble("late_host", 4.0, rank=0))))
    assert not found(report, "TO-B001")
    assert [one.ranks for one in found(report, "TO-S001")] == [(0,)]


def test_a_slow_gpu_of_a_stage_is_told_with_what_its_cure_saves(tmp_path):
    """Even stages were promised, which save half of that."""
    slow = Trouble("slow_gpu", 1.6, rank=1)
    truths, report = told(tmp_path, replace(STAGES, world=2, per_host=2, troubles=(slow,)))
    [stage] = found(report, "TO-B001")
    assert (stage.ranks, stage.cause) == ((1,), "gpu_compute")
    assert stage.impact_ms == pytest.approx(truths.gain(slow), rel=0.05)


def test_rows_have_the_fields_that_torch_writes(tmp_path):
    """Held against what torch 2.11 wrote on four H200s (DDP, record_shapes): arguments of each category."""
    write_run(Truths(PLAIN).run, PLAIN, tmp_path)
    made: dict[str, set[str]] = {}
    for row in json.loads((tmp_path / "rank_0.pt.trace.json").read_text())["traceEvents"]:
        if row["ph"] == "X":
            made.setdefault(row["cat"], set()).update(row["args"])
    assert {cat: keys - RECORDED[cat] - {"Seq"} for cat, keys in made.items()} == {cat: set() for cat in made}


_COLLECTIVE = {
    "Collective name", "Group size", "In msg nelems", "In split size", "Out msg nelems", "Out split size",
    "Process Group Description", "Process Group Name", "Process Group Ranks", "dtype",
}  # fmt: skip
_COPY = {"External id", "bytes", "context", "correlation", "device", "memory bandwidth (GB/s)", "stream"}
RECORDED = {
    "cpu_op": {"External id", "Rank", *_COLLECTIVE},
    "user_annotation": {"External id"},
    "gpu_user_annotation": {"External id"},
    "cuda_runtime": {"External id", "cbid", "correlation"},
    "cuda_driver": {"External id", "cbid", "correlation"},
    "gpu_memcpy": _COPY,
    "kernel": {
        "External id", "block", "blocks per SM", "context", "correlation", "device", "est. achieved occupancy %",
        "grid", "queued", "registers per thread", "shared memory", "stream", "warps per SM", *_COLLECTIVE,
    },
    "Trace": {"Op count"},
}  # fmt: skip


@pytest.mark.slow
def test_of_drawn_runs_the_costliest_trouble_is_named_first_and_nobody_else(tmp_path):
    """benchmarks/planted/RESULTS.md has the table of a thousand."""
    runs = [score_run(seed, tmp_path / str(seed)) for seed in range(20, 60, 2)]
    assert {run.seed: [w for w in run.wrong if not w[0].startswith("promise")] for run in runs if run.wrong} == {
        run.seed: [] for run in runs if run.wrong
    }
    assert sum(run.judged["first"] for run in runs) >= 5


DATA = Path(__file__).parents[1] / "data"
LEAST = ("one rank alone, cut", "no External id", "no header")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copies/to_host", "tp_late_gloo2"])
def test_a_verdict_does_not_depend_on_what_does_not_matter(name):
    run = read_traces(DATA / name)
    before = verdict_on(run)
    assert any(not one.of_files for one in before.said)
    for change in CHANGES:
        if change.expected in ("same", "permuted") or change.name in LEAST:
            found = tried(run, before, change, name) or []
            assert not [one for one in found if one.kind not in ("less", "step")], change.name


def test_a_difference_is_found():
    run = read_traces(DATA / "copies" / "to_host")
    before = verdict_on(run)
    other = copied(run)
    for trace in other.traces:
        trace.events = [event for event in trace.events if event.get("cat") != "gpu_memcpy"]
    change = next(one for one in CHANGES if one.name == "as read")
    assert {one.kind for one in tried(other, before, change, "") or ()} >= {"gone"}


@pytest.mark.parametrize("style", ["plain", "compact", "indented", "reversed"])
def test_a_trace_is_written_with_all_digits(tmp_path, style):
    run = read_traces(DATA / "copies" / "to_host")
    run.traces[0].style = style
    run.write(tmp_path)
    assert read_traces(tmp_path).traces[0].events == run.traces[0].events
    assert json.loads((tmp_path / run.traces[0].file).read_text())["traceEvents"]


SOURCE = Path(__file__).parents[1] / "data/ddp4"
DIFFERS = re.compile(
    rb'("(?:ts|id|correlation|External id|Rank|Group size|baseTimeNanoseconds)": |ProfilerStep#)\d+'
    rb'|"Process Group Ranks": "[^"]*"|"distributedInfo": .*'
)


def text_of(path):
    with gzip.open(path) as file:
        return file.read()


@pytest.mark.slow
def test_many_ranks_are_one_group_whose_collectives_all_match_and_find_what_the_source_finds(tmp_path):
    world = 33  # more than an event lists, and no multiple of the source's
    shutil.copytree(SOURCE, tmp_path / "few")
    make_ranks(SOURCE, tmp_path / "many", world)
    plain = analyze(SOURCE)
    assert not plain.findings  # recording may be all of the lateness in it
    step_ms = max(row.typical_step_ms for row in plain.ranks)
    for folder, ranks in (("few", 4), ("many", world)):
        measured = {"unprofiled_step_ms": step_ms, "profiled_step_ms": step_ms}  # recording costs nothing
        (tmp_path / folder / "run.json").write_text(json.dumps({"world_size": ranks} | measured))
    few, many = analyze(tmp_path / "few"), analyze(tmp_path / "many")
    assert list(many.run.ranks_present) == list(range(world)) and not many.run.ranks_missing
    assert many.summary.matching.matched_pct == few.summary.matching.matched_pct == 100.0
    assert [f.rule for f in many.findings] == [f.rule for f in few.findings] == ["TO-I001"]
    assert set(many.findings[0].ranks) == {r for r in range(world) if r % 4 in few.findings[0].ranks}


@pytest.mark.slow
def test_a_made_rank_is_its_source_but_for_rank_group_and_clock(tmp_path):
    make_ranks(SOURCE, tmp_path, 33)
    source, made = SOURCE / "rank_1.pt.trace.json.gz", tmp_path / "rank_29.pt.trace.json.gz"
    assert DIFFERS.sub(rb"\1", text_of(made)) == DIFFERS.sub(rb"\1", text_of(source))
    before, after = load_trace(str(source)), load_trace(str(made))
    assert (after.meta.rank, after.meta.world_size) == (29, 33)
    assert after.meta.groups[0].ranks == tuple(range(33))
    sizes = {(args.group_size, args.group_ranks) for args in after.events.comm.values() if args.group_size}
    assert sizes == {(33, tuple(range(33)))}  # torch lists 30 ranks and '...': the header has them all
    moved = np.unique(after.events.ts - before.events.ts)
    assert len(moved) == 1 and 0 < abs(moved[0]) <= 20_000_000
    clocks = {file.started_ns for file in discover(str(tmp_path)).windows[0].files if file.rank % 4 == 1}
    assert len(clocks) == 8


def test_a_long_trace_repeats_its_source_with_steps_and_launches_of_its_own(tmp_path):
    source, made = SOURCE / "rank_0.pt.trace.json.gz", tmp_path / "long.json.gz"
    text, times = text_of(source), 3
    assert make_long(source, made, times * len(text) / 1e6) == len(text_of(made))
    before, after = load_trace(str(source)).events, load_trace(str(made)).events
    assert len(after) == times * len(before)
    assert np.array_equal(after.dur, np.tile(before.dur, times))
    one, all_of_them = (find_activity(events) for events in (before, after))
    launched = all_of_them.launch >= 0
    assert launched.sum() == times * (one.launch >= 0).sum()
    repetition = all_of_them.row[launched] // len(before)
    assert np.array_equal(all_of_them.launch[launched] // len(before), repetition)
    steps = find_steps(after, all_of_them)
    first = find_steps(before, one).number
    assert steps.number.tolist() == list(range(first[0], first[0] + times * len(first)))
    assert np.all(np.diff(steps.edges) > 0)
    made_of = DIFFERS.sub(rb"\1", text_of(made))
    repeated = DIFFERS.sub(rb"\1", text[text.index(b"[\n  {\n") + 1 : text.index(b'\n  {\n    "name": "process_name"')])
    assert repeated and made_of.count(repeated) == times


def test_no_lane_of_a_long_trace_begins_again_before_it_ended(tmp_path):
    source, made = SOURCE / "rank_0.pt.trace.json.gz", tmp_path / "long.json.gz"
    make_long(source, made, 2 * len(text_of(source)) / 1e6)
    events = load_trace(str(made)).events
    half = len(events) // 2
    for pid, tid in set(zip(events.pid.tolist(), events.tid.tolist(), strict=True)):
        lane = (events.pid == pid) & (events.tid == tid)
        first, second = np.flatnonzero(lane[:half]), half + np.flatnonzero(lane[half:])
        assert events.end[first].max() <= events.ts[second].min()
