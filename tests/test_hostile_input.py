"""Folders that a hostile or broken world leaves: none crashes, hangs, or hides the good files."""

import gzip
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from traceops.cli import main
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping import ranks

DATA = Path(__file__).parent / "data"
BASE = 1_000_000


def kernel(name, start, dur, correlation, **args):
    args = {"stream": 7, "correlation": correlation, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": dur, "args": args}


def launch(start, correlation):
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": start, "dur": 1,
        "args": {"correlation": correlation},
    }  # fmt: skip


def all_reduce(start, dur, correlation, seq=None, ranks="[0, 1]", op="allreduce"):
    args = {"Collective name": op, "In msg nelems": 8, "dtype": "Float", "Process Group Ranks": ranks}
    return kernel("ncclDevKernel_X", start, dur, correlation, **args, **({"Seq": seq} if seq is not None else {}))


def write_rank(folder, rank, steps, durations, world=2, **options):
    """One collective a step, `durations` µs long, steps 1000 µs apart."""
    events = []
    for i, (step, dur) in enumerate(zip(steps, durations, strict=True)):
        at = BASE + 1000 * i
        marks = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        events += [{**marks, "ts": at, "dur": 999}, launch(at + 10, i + 1), kernel("gemm", at + 20, 100, i + 1)]
        collective = all_reduce(at + 200, dur, 100 + i, **{**options, "seq": step if options.get("seq") else None})
        events += [launch(at + 30, 100 + i), collective]
    meta = {"distributedInfo": {"rank": rank, "world_size": world}, "traceEvents": events}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank_{rank}.json").write_text(json.dumps(meta))


def waits(report):
    return {(row.rank, row.step): round(row.comm_wait * 1000, 3) for row in report.steps}


@pytest.mark.parametrize("seq", [True, False], ids=["sequence", "no-sequence"])
def test_a_rank_that_ends_early_is_not_paired_with_other_steps(tmp_path, seq):
    write_rank(tmp_path, 0, [3, 4, 5], [50, 400, 50], seq=seq)
    write_rank(tmp_path, 1, [3, 4], [400, 50], seq=seq)
    report = analyze(tmp_path)
    assert waits(report) == {(0, 3): 0, (0, 4): 350, (0, 5): 0, (1, 3): 350, (1, 4): 0}


def test_the_order_of_ranks_in_a_group_does_not_matter(tmp_path):
    write_rank(tmp_path, 0, [1, 2], [50, 80], ranks="[0, 1]")
    write_rank(tmp_path, 1, [1, 2], [90, 40], ranks="[1, 0, 0]")
    assert analyze(tmp_path).summary.matching.matched_pct == 100


def test_a_broadcast_charges_nobody(tmp_path):
    write_rank(tmp_path, 0, [1, 2], [10, 10], op="broadcast")
    write_rank(tmp_path, 1, [1, 2], [400, 400], op="broadcast")
    assert [row.late_share for row in analyze(tmp_path).ranks] == [None, None]


def test_nothing_is_claimed_of_transfer_where_most_was_not_matched(tmp_path):
    write_rank(tmp_path, 0, [1, 2, 3, 4], [300, 300, 300, 300])
    write_rank(tmp_path, 1, [4], [300])
    check = next(check for check in analyze(tmp_path).checks if check.rule == "TO-O001")
    assert check.status == "not_evaluated"
    assert "could not be matched" in check.reason


def test_a_cut_trace_is_not_blamed_for_what_it_lost(tmp_path):
    folder = Path(shutil.copytree(DATA / "ddp4", tmp_path / "ddp4"))
    path = folder / "rank_0.pt.trace.json.gz"
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[: int(len(text) * 0.8)]))
    for finding in analyze(folder).findings:
        assert finding.rule in ("TO-V002", "TO-V003") or 0 not in finding.ranks or len(finding.ranks) == 4


@pytest.mark.parametrize("world", [10**9, 10**30, -1, "4", 2.5])
def test_absurd_world_size_is_not_believed(tmp_path, world):
    write_rank(tmp_path, 0, [1, 2], [50, 50], world=world)
    assert analyze(tmp_path).run.world_size == 1


@pytest.mark.parametrize("name", ["rank_123456789.json", "rank_99999999999999999999999.json"])
def test_absurd_rank_in_a_name_is_not_believed(tmp_path, name):
    write_rank(tmp_path, 0, [1, 2], [50, 50])
    (tmp_path / "rank_0.json").rename(tmp_path / name)
    assert analyze(tmp_path).run.ranks_present == (0,)


def test_absurd_step_number_is_no_step(tmp_path):
    write_rank(tmp_path, 0, [1, 2], [50, 50])
    write_rank(tmp_path, 1, [1, 10**23], [50, 50])
    assert analyze(tmp_path).run.ranks_present == (0, 1)


@pytest.mark.parametrize(
    "manifest",
    [
        {"ranks": [{"rank": 0, "windows": 5}]},
        {"ranks": [{"rank": 0, "windows": [{"trace": "rank_0.json", "complete": False, "steps": 7}]}]},
        {"ranks": [{"rank": 0, "windows": [{"trace": "rank_0.json", "complete": False, "steps": [[1], [2, 3]]}]}]},
        {"ranks": [5]},
        {"world_size": 10**12},
        {"profiled_step_ms": True, "unprofiled_step_ms": -5},
    ],
)
def test_hostile_manifest(tmp_path, manifest):
    write_rank(tmp_path, 0, [1, 2], [50, 50])
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    report = analyze(tmp_path)
    assert not [finding for finding in report.findings if finding.rule == "TO-V005"]


def test_infinite_step_time_and_deep_nesting_in_the_manifest(tmp_path):
    write_rank(tmp_path, 0, [1, 2], [50, 50])
    for text in ('{"profiled_step_ms": Infinity, "unprofiled_step_ms": 1}', "[" * 100_000):
        (tmp_path / "run.json").write_text(text)
        assert [f.rule for f in analyze(tmp_path).findings if "run.json" in f.message] == ["TO-V002"]


def test_links_and_loops_and_pipes(tmp_path):
    real, run = tmp_path / "real", tmp_path / "run"
    write_rank(real, 0, [1, 2], [50, 50])
    write_rank(real, 1, [1, 2], [50, 50])
    run.mkdir()
    for rank in (0, 1):
        write_rank(run / "kept", rank, [1, 2], [50, 50])
        (run / f"rank_{rank}.json").symlink_to(run / "kept" / f"rank_{rank}.json")
    (run / "rank_4.json").symlink_to("../real/rank_1.json")
    (run / "loop").symlink_to(run)
    (run / "rank_2.json").symlink_to(run / "gone.json")
    os.mkfifo(run / "rank_3.trace.json")
    report = analyze(run)
    assert report.run.ranks_present == (0, 1)
    assert {Path(f.message.split(":")[0]).name for f in report.findings if f.rule == "TO-V002"} == {
        "rank_2.json",
        "rank_3.trace.json",
        "rank_4.json",
    }


def test_a_folder_is_entered_by_a_link_from_within_and_not_from_outside(tmp_path):
    """`ln -s / more` had the traces of others read."""
    write_rank(tmp_path / "run" / "kept", 0, [1, 2], [50, 50])
    write_rank(tmp_path / "others", 1, [1, 2], [50, 50])
    (tmp_path / "run" / "latest").symlink_to("kept")
    (tmp_path / "run" / "more").symlink_to(tmp_path / "others")
    report = analyze(tmp_path / "run")
    assert report.run.ranks_present == (0,)
    told = [finding.message for finding in report.findings if finding.rule == "TO-V002"]
    assert any("run/more: it is a link out of this folder" in message for message in told), told


def test_a_killed_worker_costs_its_rank_only(tmp_path, monkeypatch):
    for rank in range(4):
        write_rank(tmp_path, rank, [1, 2], [50, 50], world=4, ranks="[0, 1, 2, 3]")
    summarize = ranks.summarize

    def die_on_rank_2(file, *options):
        if file.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return summarize(file, *options)

    monkeypatch.setattr(ranks, "_POOL_WORTH_BYTES", 0)
    monkeypatch.setattr(ranks, "summarize", die_on_rank_2)
    report = analyze(tmp_path, jobs=2)
    assert report.run.ranks_present == (0, 1, 3)
    [finding] = [finding for finding in report.findings if finding.rule == "TO-V002"]
    assert "rank_2.json" in finding.message
    assert "killed" in finding.message


def test_folder_names_are_no_markup(tmp_path, capsys):
    folder = tmp_path / "br[/bold] [x]"
    write_rank(folder, 0, [1, 2], [50, 50])
    (folder / "run.json").write_text(json.dumps({"name": "x\x1b]0;stolen\x07"}))
    out = tmp_path / "out[red]"
    assert main(["analyze", str(folder), "-o", str(out), "--format", "json"]) == 0
    printed = capsys.readouterr().out
    assert f"Report: {out}" in printed.replace("\n", "")
    assert "\x1b" not in printed


def test_output_that_cannot_be_written_is_said(tmp_path, capsys):
    write_rank(tmp_path / "run", 0, [1, 2], [50, 50])
    (tmp_path / "out" / "report.json").mkdir(parents=True)
    assert main(["analyze", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--format", "json"]) == 3
    assert "cannot be written" in capsys.readouterr().err


def test_a_window_without_a_usable_trace_hides_no_other(tmp_path, capsys):
    write_rank(tmp_path / "run", 0, [1, 2], [50, 50])
    (tmp_path / "run" / "rank_0.json").rename(tmp_path / "run" / "rank_0.window_0.json")
    header = '{"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": [{"ph": "X", "ca'
    (tmp_path / "run" / "rank_0.window_1.json").write_text(header)
    for select in ("latest", "all"):
        out = tmp_path / select
        command = ["analyze", str(tmp_path / "run"), "-o", str(out), "--format", "json", "--select", select]
        assert main(command) == 0
        assert "window 1 is left out" in capsys.readouterr().err
        assert list(out.rglob("report.json"))
