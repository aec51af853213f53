"""A verdict on traces does not depend on what does not matter, and says no more where something is missing."""

import json
from pathlib import Path

import pytest

from benchmarks.metamorphic.change import copied
from benchmarks.metamorphic.changes import CHANGES
from benchmarks.metamorphic.score import tried, verdict_on
from benchmarks.metamorphic.traces import read_traces

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
