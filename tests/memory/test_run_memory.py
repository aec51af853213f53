"""What runs on two H200 held: planted troubles of memory, named from the folders that they left."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace

from traceops.across.memory_use import growth
from traceops.cli import main
from traceops.core.errors import InputError
from traceops.core.step_words import STEP
from traceops.memory.run_memory import read_run
from traceops.pipeline.analyze import analyze
from traceops.pipeline.observed_run import snapshots_of, with_lines
from traceops.render.out_of_memory import describe_ran_out
from traceops.render.report.html import describe
from traceops.render.report.memory import _peak_text
from traceops.report.memory import MemoryOverTime
from traceops.rules.inputs import Inputs
from traceops.rules.memory import judge
from traceops.traces.memory_snapshot import DeviceSnapshot, read_snapshot
from traceops.traces.ran_out import RanOut, read_ran_out
from traceops.traces.snapshot_places import NO_STACK

RUNS = Path(__file__).resolve().parents[1] / "data" / "memory" / "runs"
MIB = 1 << 20
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
    rows = MemoryOverTime(rank=1, lines=(NO_STACK, "others"), moments=(0,), held_bytes=((GIB, 0),), peak=0)
    assert _peak_text(rows) == "The peak of rank 1 in its snapshot: 1.00 GiB."


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
