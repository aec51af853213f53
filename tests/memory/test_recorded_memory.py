"""What the recorded steps held, from torch's memory events in traces of H200 and in small made ones."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from traceops.cli import main
from traceops.measure.step_memory import KINDS, measure_step_memory
from traceops.pipeline.analyze import analyze
from traceops.render.report.html import describe
from traceops.report.memory import MemoryRecorded, MemoryRows
from traceops.traces import memory_events
from traceops.traces.kineto import load_trace
from traceops.traces.memory_events import read_memory_events

DATA = Path(__file__).resolve().parents[1] / "data" / "memory"
RUN, ACCUMULATION = DATA / "recorded_run.trace.gz", DATA / "recorded_accumulation.trace.gz"
MIB = 1 << 20


def measured(path, recorded=None):
    return measure_step_memory(read_memory_events(str(path)), load_trace(str(path)).events, recorded)


def raw(path):
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


@pytest.mark.parametrize("path", [RUN, ACCUMULATION])
def test_the_kinds_add_up_to_the_traces_own_total_at_each_event(path):
    own = [one for one in raw(path) if one["name"] == "[memory]" and one["args"]["Device Type"] == 1]
    totals = [one["args"]["Total Allocated"] for one in sorted(own, key=lambda one: one["ts"])]
    found = measured(path)
    assert found.held.sum(axis=1).tolist() == totals and (found.held >= 0).all()
    for step in found.steps:
        assert sum(step.held) == max(totals[max(step.first - 1, 0) : step.stop])


def test_what_a_training_held_at_its_peak():
    first, second = measured(RUN).steps
    assert (first.step, second.step) == (4, 5)
    held = {kind: round(size / MIB) for kind, size in zip(KINDS, first.held, strict=True) if size}
    assert held == {
        "before": 865, "for_backward": 1920, "past_backward": 32, "backward_kept": 20, "backward_temporary": 224
    }  # fmt: skip
    most = [(one.operator, KINDS[one.kind], one.bytes // MIB, one.blocks) for one in first.makers]
    assert most[:2] == [("aten::addmm", "for_backward", 768, 6), ("aten::gelu", "for_backward", 768, 6)]
    assert most[4] == ("aten::mm", "backward_temporary", 160, 2)


def test_each_backward_of_a_step_is_one_of_its_own():
    """Gradients stay over two further passes; the last pass's activations are gone when the optimizer runs."""
    for step in measured(ACCUMULATION).steps:
        held = dict(zip(KINDS, step.held, strict=True))
        assert held["optimizer_temporary"] == held["backward_kept"] == 6_324_736
        assert held["for_backward"] == held["backward_temporary"] == 0


def test_steps_that_were_not_recorded_whole_are_left_out():
    assert [step.step for step in measured(RUN, (5,)).steps] == [5]
    assert measured(RUN, (9,)) is None


# A step of 100 µs: backward at 30 to 40 and 42 to 50 with nothing between them, the optimizer's step at 60 to 70, and
# backward again at 80 to 90. Each block: kind, when it is made and freed.
BLOCKS = [
    ("before", None, 20), ("before", None, 45), ("forward_temporary", 5, 10), ("for_backward", 6, 41),
    ("past_backward", 7, 55), ("past_backward", 8, None), ("backward_temporary", 31, 44), ("backward_kept", 32, 65),
    ("backward_kept", 33, None), ("forward_temporary", 52, 61), ("optimizer_temporary", 62, 64),
    ("optimizer_kept", 63, None), ("forward_temporary", 71, 79), ("for_backward", 72, 85),
    ("forward_temporary", 91, 93), ("unknown", 92, None), ("backward_temporary", 81, 89),
]  # fmt: skip


def made_trace(tmp_path, change=None, head=None):
    def span(name, cat, start, end, tid=1):
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start}

    function = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        span("ProfilerStep#7", "user_annotation", 0, 100),
        *(span(function, "cpu_op", *when, tid=2) for when in ((30, 40), (42, 50), (80, 90))),
        *(span("aten::mm", "cpu_op", *when) for when in ((1, 29), (71, 78))),
        *(span("aten::empty", "cpu_op", *when) for when in ((2, 28), (72.5, 73))),
        span("Optimizer.step#SGD.step", "user_annotation", 60, 70),
    ]
    held = sum(1 << number for number, (kind, *_) in enumerate(BLOCKS) if kind == "before")
    moments = [
        (when, number, sign)
        for number, (_, *both) in enumerate(BLOCKS)
        for when, sign in zip(both, (1, -1), strict=True)
        if when is not None
    ]
    changes = []
    for when, number, sign in sorted(moments):
        held += sign << number
        args = {
            "Total Reserved": 1 << 30, "Total Allocated": held, "Bytes": sign << number, "Device Id": 0,
            "Device Type": 1, "Addr": 4096 * number,
        }  # fmt: skip
        changes.append({"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": when, "args": args})
    if change is not None:
        change(changes)
    path = tmp_path / "rank_0.pt.trace.json"
    path.write_text(json.dumps({**(head or {"profile_memory": 1}), "traceEvents": events + changes[::-1]}))
    return path


def test_each_kind(tmp_path):
    found = measured(made_trace(tmp_path))
    for number, (kind, made, freed) in enumerate(BLOCKS):
        there = [
            row[KINDS.index(kind)] >> number & 1
            for when, row in zip(found.ts, found.held.tolist(), strict=True)
            if (made is None or when >= made * 1000) and (freed is None or when < freed * 1000)
        ]
        assert all(there) and there, (number, kind)
    held = np.array([sum(1 << number for number, (kind, *_) in enumerate(BLOCKS) if kind == one) for one in KINDS])
    assert (np.bitwise_or.reduce(found.held, axis=0) == held).all()


def spoilt_total(changes):
    changes[5]["args"]["Total Allocated"] += 512


def spoilt_size(changes):
    changes[5]["args"]["Bytes"] += 512


def lost(changes):
    del changes[4]


def too_large(changes):
    changes[3]["args"]["Addr"] = 1 << 63


def without_address(changes):
    del changes[3]["args"]["Addr"]


@pytest.mark.parametrize("change", [spoilt_total, spoilt_size, lost, too_large, without_address, list.clear])
def test_events_that_do_not_add_up_tell_nothing(tmp_path, change):
    assert read_memory_events(str(made_trace(tmp_path, change))) is None


def test_an_address_that_is_handed_out_twice_tells_nothing(tmp_path):
    def twice(changes):
        changes[1]["args"]["Addr"] = changes[0]["args"]["Addr"]

    path = made_trace(tmp_path, twice)
    assert read_memory_events(str(path)) is not None and measured(path) is None


def test_frees_of_more_than_was_there_tell_nothing(tmp_path):
    def unknown(changes):
        del changes[1:]
        changes[0]["args"] |= {"Bytes": -8, "Total Allocated": -4}

    path = made_trace(tmp_path, unknown)
    assert read_memory_events(str(path)) is not None and measured(path) is None


def test_a_cut_file_tells_nothing(tmp_path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(RUN.read_bytes()[:30_000])
    assert read_memory_events(str(path)) is None


def test_of_a_trace_without_such_events_only_the_beginning_is_read(tmp_path, monkeypatch):
    path = made_trace(tmp_path, head={"filler": "x" * (1 << 20)})
    pieces = []

    def counted(file):
        for piece in real(file):
            pieces.append(len(piece))
            yield piece

    real = memory_events.chunks
    monkeypatch.setattr(memory_events, "chunks", counted)
    assert read_memory_events(str(path)) is None and len(pieces) == 1


def test_events_that_lie_across_chunks(tmp_path, monkeypatch):
    text = gzip.decompress(RUN.read_bytes())
    monkeypatch.setattr(memory_events, "chunks", lambda _: (text[at : at + 999] for at in range(0, len(text), 999)))
    found = read_memory_events(str(RUN))
    monkeypatch.undo()
    whole = read_memory_events(str(RUN))
    assert all((getattr(found, name) == getattr(whole, name)).all() for name in ("ts", "tid", "address", "held"))


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "rank_0").mkdir(parents=True)
    shutil.copyfile(RUN, folder / "rank_0" / "host_1.window_0.2.pt.trace.json.gz")
    (folder / "run.json").write_text(json.dumps({"options": {"profile_memory": True}}))
    return folder


def test_the_command_shows_it_and_writes_it(run, tmp_path, capsys):
    out = tmp_path / "memory.json"
    assert main(["memory", str(run), "--json", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Rank 0, GPU 0: tensors held 2.99 GiB at the peak of its recorded steps in step 4." in said
    assert "1,920.4 made before backward, freed while it ran" in said and "768.0 6 aten::gelu" in said
    recorded = json.loads(out.read_text())["recorded"]
    assert recorded["steps"][0]["peak_bytes"] == sum(recorded["steps"][0]["held"].values())
    assert main(["memory", str(run), "--json", str(tmp_path / "no" / "memory.json")]) == 2


def test_the_report_and_its_page(run):
    report = analyze(run)
    recorded = report.memory.recorded
    assert isinstance(recorded, MemoryRecorded) and [step.step for step in recorded.steps] == [4, 5]
    assert len(recorded.in_step.at_ms) == len(recorded.in_step.held) <= 201
    section = next(one for one in describe(report).sections if one.id == "memory")
    assert any(getattr(block, "id", "") == "memory-in-step" for block in section.blocks)


def test_nothing_is_read_where_the_manifest_says_that_there_are_none(run, monkeypatch):
    (run / "run.json").write_text(json.dumps({"options": {"profile_memory": False}}))
    monkeypatch.setattr("traceops.pipeline.observed_run.read_memory_events", None)
    assert not isinstance(analyze(run).memory, MemoryRows)
