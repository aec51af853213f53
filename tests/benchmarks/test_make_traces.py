"""Made traces are their sources but for what has to differ, and analyse like them."""

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.make_traces import make_long, make_ranks
from traceops.measure.activity import find_activity
from traceops.measure.steps import find_steps
from traceops.pipeline.analyze import analyze
from traceops.traces.discover import discover
from traceops.traces.kineto import load_trace

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
