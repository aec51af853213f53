"""What recorded steps and whole runs held of their GPUs' memory, on H200s and in small made traces."""

import gzip
import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace

import traceops
from traceops.across.run_use import growth
from traceops.cli import main
from traceops.core.errors import InputError
from traceops.core.words import KINDS_OF_MEMORY as KINDS
from traceops.core.words import STEP
from traceops.measure.step_memory import measure_step_memory
from traceops.memory.run_memory import read_run
from traceops.pipeline.analyze import analyze
from traceops.pipeline.observed_run import snapshots_of, with_lines
from traceops.render.memory import describe_ran_out
from traceops.render.report.html import describe
from traceops.render.report.memory import memory
from traceops.report.model import Report
from traceops.report.rows import MemoryOverTime, MemoryRecorded, MemoryRows, Run
from traceops.rules.inputs import Inputs
from traceops.rules.memory import judge
from traceops.traces import memory_events
from traceops.traces.kineto import load_trace
from traceops.traces.memory_events import read_memory_events
from traceops.traces.memory_snapshot import DeviceSnapshot, read_snapshot
from traceops.traces.ran_out import RanOut, read_ran_out
from traceops.traces.snapshot_rows import NO_STACK

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
    monkeypatch.setattr("traceops.traces.memory_events.read_memory_events", None)
    assert not isinstance(analyze(run).memory, MemoryRows)


RUNS = Path(__file__).resolve().parents[1] / "data" / "memory" / "runs"
PIECES = DeviceSnapshot(0, 0, 0, 0, 0, 0, 0, 0, (), None, None)


def said(name):
    """(rule, severity, cause, ranks) of each finding on the run's memory, and all they say."""
    folder = RUNS / name
    on_gpu = SimpleNamespace(summary=SimpleNamespace(on_gpu=True))
    run = SimpleNamespace(bubbles=(), experts=(), step_ms=100.0, ranks=[on_gpu], step_words=STEP)
    found = SimpleNamespace(manifest=json.loads((folder / "run.json").read_text()), root=str(folder))
    uses = read_run(folder).uses
    uses = with_lines(uses, snapshots_of(str(folder), uses))
    findings = [one for verdict in judge(Inputs(found, run, memory=uses)) for one in verdict.findings]
    return {(one.rule, one.severity, one.cause, one.ranks) for one in findings}, " ".join(
        one.message for one in findings
    )


def test_nothing_is_said_of_a_healthy_run():
    assert said("clean") == (set(), "")


def test_a_leak_and_the_line_that_makes_what_stays():
    found, text = said("leak")
    assert found == {("TO-M003", "warning", "line", (0, 1))}
    assert "31.90 MiB more after each step" in text and "made in plant_memory.py:31 forward" in text


def test_a_rank_with_three_times_the_activations():
    found, text = said("imbalance")
    assert found == {("TO-M002", "info", "activations", (1,))}
    assert "Rank 1 holds 7.18 GiB at its peak, the other rank 2.99 GiB" in text


def test_sizes_that_grow_from_step_to_step():
    found, text = said("fragmentation")
    assert ("TO-M004", "info", None, (0,)) in found and "Torch reserved 31.63 GiB" in text
    assert {one[0] for one in found} == {"TO-M004", "TO-M005"}


def test_memory_that_runs_out_again_and_again():
    found, text = said("retries")
    assert ("TO-M005", "warning", "retries", (0,)) in found and "13 times in the later part of the run" in text


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        ("oom_forward", 1, ["asked for 5.00 GiB", "too large: 2.38 GiB more", "plant_memory.py:28 forward"]),
        ("oom_optimizer", 0, ["step 0", "2.00 GiB gradients, 2.00 GiB optimizer state", "too large"]),
        ("oom_fragmented", 0, ["fragmented: 4.58 GiB lay free", "at most 31.00 MiB", "plant_memory.py:54"]),
        ("oom_others", 0, ["134.55 GiB of the device were held by neither", "4.45 GiB of 139.80 GiB were free"]),
    ],
)
def test_where_memory_ran_out(name, rank, words, capsys):
    assert read_ran_out(RUNS / name, rank).rank == rank
    assert main(["memory", str(RUNS / name)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Rank {rank} ran out of memory" in text
    for word in words:
        assert word in text


GIB = 1 << 30


def ran_out(free, reserved, allocated, snapshot=None):
    return RanOut(0, 3, 0, 4 * GIB, 80 * GIB, free, allocated, reserved, 1, {}, snapshot)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (ran_out(5 * GIB, 74 * GIB, 74 * GIB), "As much was free when this was written"),
        (ran_out(3 * GIB, 76 * GIB, 74 * GIB), "2.00 GiB reserved and unused and 3.00 GiB not reserved"),
        (ran_out(0, 79 * GIB, 74 * GIB), "enough was reserved and unused, in pieces that were too small"),
        (ran_out(0, 79 * GIB, 74 * GIB, replace(PIECES, free_between=5 * GIB, largest_free=GIB)), "at most 1.00 GiB"),
        (ran_out(0, 79 * GIB, 74 * GIB, replace(PIECES, free_between=5 * GIB, largest_free=5 * GIB)), "another stream"),
    ],
)  # fmt: skip
def test_why_it_did_not_suffice(found, why):
    said = describe_ran_out(found)
    assert why in " ".join(str(block) for block in said)


def test_growth_is_told_with_the_steps_it_was_seen_at():
    """1 MiB a step from step 0 on: the numbers of bytes and of steps are of the same moments."""
    looks = np.zeros((80, 6), np.int64)
    looks[:, 0] = np.arange(80)
    looks[:, 1] = np.arange(80) * MIB
    found = growth(looks)
    assert found.last - found.first == (found.last_step - found.first_step) * found.per_step
    assert found.last == found.last_step * MIB


def test_the_page_names_no_line_where_none_is_known():
    held = MemoryOverTime(rank=1, lines=(NO_STACK, "others"), moments=(0,), held_bytes=((GIB, 0),), peak=0)
    rows = MemoryRows(ranks=(), over_time=held)
    report = Report(run=Run(name="one"), ranks=(), steps=(), collectives=(), findings=(), memory=rows)
    sentences = [getattr(block, "plain", "") for block in memory(report, ()).blocks]
    assert "The peak of rank 1 in its snapshot: 1.00 GiB." in sentences


def test_a_folder_that_tells_nothing(tmp_path):
    with pytest.raises(InputError, match="has nothing about GPU memory"):
        read_run(tmp_path)
    assert main(["memory", str(tmp_path)]) == 3


def test_what_cannot_be_read_is_named(tmp_path, capsys):
    """Memory ran out here, and the folder was said to tell nothing of it."""
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_²").mkdir()
    for name in ("rank_0", "rank_²"):
        (tmp_path / name / "out_of_memory.json").write_text("{")
    with pytest.raises(InputError, match=r"rank_0/out_of_memory\.json cannot be read"):
        read_run(tmp_path)
    shutil.copytree(RUNS / "oom_forward/rank_1", tmp_path / "rank_1")
    assert main(["memory", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "Rank 1 ran out of memory" in text and "rank_0/out_of_memory.json" in text


def test_a_snapshot_that_cannot_be_read_is_named(tmp_path):
    uses, notes = read_run(RUNS / "leak").uses, []
    (tmp_path / "rank_1").mkdir()
    (tmp_path / "rank_1" / "memory.pickle").write_bytes(b"cut off")
    assert snapshots_of(str(tmp_path), uses, notes) == {}
    assert len(notes) == 1 and "rank_1/memory.pickle is not a memory snapshot" in notes[0]


def test_what_cannot_be_believed_is_left_out(tmp_path):
    (tmp_path / "rank_0").mkdir()
    for content in ("[]", "{}", '{"step": -1}', "{", '{"step": true}'):
        (tmp_path / "rank_0" / "out_of_memory.json").write_text(content)
        assert read_ran_out(tmp_path, 0) is None
    whole = json.loads((RUNS / "oom_forward/rank_1/out_of_memory.json").read_text())
    (tmp_path / "rank_0" / "out_of_memory.json").write_text(json.dumps(dict(whole, held=None)))
    (tmp_path / "rank_0" / "out_of_memory.pickle").write_bytes(b"cos\nsystem\n.")
    found = read_ran_out(tmp_path, 0)
    assert found.snapshot is None and found.held == {} and found.asked == whole["asked_bytes"]


def test_memory_over_time_comes_to_what_is_held():
    [device] = read_snapshot(RUNS / "leak/rank_1/memory.pickle")
    over = device.over_time
    assert sum(over.held[-1]) == device.allocated, "after the last event"
    assert sum(over.held[over.moments.index(over.peak)]) == device.peak
    at_peak = {own.place: own.bytes for own in device.at_peak}
    row = dict(zip(over.places, over.held[over.moments.index(over.peak)], strict=True))
    assert all(row[place] == at_peak[place] for place in over.places if place != "others")
    leak = device.stays[0]
    assert (leak.place, leak.blocks) == ("plant_memory.py:31 forward", 6) and leak.bytes > 150 * MIB
    assert replace(device, stays=()).held == device.held


def test_memory_over_time_at_the_terminal(capsys):
    assert main(["memory", str(RUNS / "leak")]) == 0
    lines = capsys.readouterr().out.splitlines()
    [peak] = [line for line in lines if "# peak" in line]
    assert peak.split()[:2] == ["2251", "3,222"] and peak.count("#") == 16
    assert "plant_memory.py:19" in peak and all(line.count("#") <= 16 for line in lines)


def test_the_page_shows_who_held_what(tmp_path):
    """A run whose steps were observed, with the snapshot of one rank."""
    run = tmp_path / "run"
    shutil.copytree(RUNS.parents[1] / "straggler_gloo2", run)
    manifest = json.loads((RUNS / "leak/run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest))
    for rank in (0, 1):
        shutil.copytree(RUNS / f"leak/rank_{rank}", run / f"rank_{rank}", dirs_exist_ok=True)
    report = analyze(run, jobs=1)
    rows = report.memory
    assert [(row.rank, row.peak_bytes) for row in rows.ranks] == [(0, 5854344192), (1, 5854344192)]
    assert rows.ranks[1].lines[0].line == "plant_memory.py:19 forward" and rows.ranks[1].grows_bytes > 30 * MIB
    assert rows.over_time.rank == 1 and len(rows.over_time.held_bytes) == len(rows.over_time.moments)
    page = describe(report)
    top = page.charts["memory-over-time"]["data"][-2]["y"]
    mark = page.charts["memory-over-time"]["data"][-1]["y"][0]
    assert mark == max(top), "the mark is on the uppermost line, where it is highest"
    assert len(page.charts["memory-steps"]["data"]) == 4
    assert [one.rule for one in report.findings if one.rule.startswith("TO-M")] == ["TO-M003"]


def test_the_package_is_a_function_for_users(tmp_path: Path) -> None:
    runs = Path(__file__).parents[1] / "data" / "memory" / "runs"
    read = traceops.memory(runs / "clean")
    assert [use.rank for use in read.uses] == [use.rank for use in read_run(runs / "clean").uses] != []
    with pytest.raises(InputError, match=r"nothing\.pickle"):
        traceops.memory(tmp_path / "nothing.pickle")


STRAY = "For a job that ended with exit code 124, collect its logs.\n"


def test_a_snapshot_of_any_name_is_read_beside_a_stray_file(tmp_path, capsys):
    shutil.copy(RUNS / "leak/rank_1/memory.pickle", tmp_path / "before.pickle")
    (tmp_path / "notes.md").write_text(STRAY)
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"of": "something else"}))
    assert main(["memory", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("before.pickle, GPU 1: tensors hold 3.15 GiB at the peak of its recorded events.")
    assert "exit code" not in shown.out + shown.err and "weights.pkl" not in shown.out


def test_of_a_mixed_folder_the_log_that_ran_out_leads_and_each_kind_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mixed"
    shutil.copytree(RUNS / "leak", folder / "a/leak")
    shutil.copy(RUNS / "leak/rank_1/memory.pickle", folder / "dump.pkl")
    shutil.copy(RUNS.parent.parent / "crash_logs/oom_unused_half.txt", folder / "train.log")
    shutil.copy(RUNS.parent.parent / "crash_logs/nccl_no_route.txt", folder / "nccl.txt")
    (folder / "notes.md").write_text(STRAY)
    assert main(["memory", "mixed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = [
        next(number for number, line in enumerate(lines) if line.startswith(begins))
        for begins in ("✖ The program ran out of GPU memory", "mixed:", "dump.pkl, GPU 1", "mixed/a/leak:")
    ]
    assert at == sorted(at) and at[0] == 0
    assert "Tensors held 5.45 GiB of 139.80 GiB at the most, on rank 0." in lines[at[-1] + 1]
    assert main(["memory", "mixed", "--json", "memory.json"]) == 2


def test_a_run_that_kept_its_own_record_is_not_asked_of_its_logs(monkeypatch, capsys):
    monkeypatch.setattr("traceops.cli.diagnose.diagnose", None)
    assert main(["memory", str(RUNS / "oom_forward")]) == 0
    assert "ran out of memory" in capsys.readouterr().out
