"""What a hostile or broken world leaves: nothing crashes, hangs, floods, hides the good files or reaches a terminal."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from drawn import examples
from hostile_variants import READERS, _small_trace, attempt, written
from hypothesis import given
from hypothesis import strategies as st

from traceops.capture.manifest import RankManifest
from traceops.cli import main
from traceops.core.errors import odd_value_text
from traceops.launch.conclusion import has_whole_steps
from traceops.pipeline import conclude as concluding
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping import ranks
from traceops.render.writers.csv import csv_text

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


# One odd value costs its own file at most: no traceback, and the files and runs beside it are read.


@pytest.fixture
def run(tmp_path):
    for rank in (0, 1):
        (tmp_path / "run" / f"rank_{rank}.json").parent.mkdir(exist_ok=True)
        (tmp_path / "run" / f"rank_{rank}.json").write_bytes(written(_small_trace(rank)))
    return tmp_path / "run"


def told(command, path, tmp_path, capsys):
    """The exit code, what was said, and the report where there is one."""
    out = str(tmp_path / ("out" if command == "analyze" else "timeline"))
    code = main([command, str(path), "-o", out, *(["--no-cache"] if command == "analyze" else [])])
    report = tmp_path / "out" / "report.json"
    return code, "".join(capsys.readouterr()), json.loads(report.read_text()) if report.exists() else None


@pytest.mark.parametrize("number", ["1e999", "9e18", "-1e999"])
def test_a_time_that_no_clock_has(run, tmp_path, capsys, number):
    text = (run / "rank_1.json").read_text()
    (run / "rank_1.json").write_text(re.sub(r'"ts": \d+', f'"ts": {number}', text, count=1))
    code, said, report = told("analyze", run, tmp_path, capsys)
    assert code == 0 and [row["rank"] for row in report["ranks"]] == [0, 1] and "please report" not in said
    assert told("view", run, tmp_path, capsys)[0] == 0


def test_a_number_that_nothing_can_hold_costs_the_view_its_event(run, tmp_path, capsys):
    text = (run / "rank_1.json").read_text()
    (run / "rank_1.json").write_text(text.replace('"correlation": 51', '"correlation": 1e999', 1))
    code, said, _ = told("view", run, tmp_path, capsys)
    assert code == 0 and "event is without a valid time" in said


@pytest.mark.parametrize("rank", [[0], {}, "0", -1, 10**30, None])
def test_a_rank_that_is_no_number(run, tmp_path, capsys, rank):
    (run / "run.json").write_text(json.dumps({"name": "mine", "ranks": [{"rank": rank, "light": {}}, {"rank": 1}]}))
    code, said, report = told("analyze", run, tmp_path, capsys)
    assert code == 0 and len(report["ranks"]) == 2 and "please report" not in said
    assert any("has unusable fields: ranks" in one["message"] for one in report["findings"])


def test_steps_without_a_length(run, tmp_path, capsys, recwarn):
    for rank in (0, 1):
        trace = _small_trace(rank)
        trace["traceEvents"] = [{**event, "ts": 5, "dur": 0} for event in trace["traceEvents"]]
        (run / f"rank_{rank}.json").write_bytes(written(trace))
    assert told("analyze", run, tmp_path, capsys)[0] == 0 and not list(recwarn)


def test_what_nobody_foresaw_of_run_json_costs_run_json(run, tmp_path, capsys, monkeypatch):
    read = concluding.run_block

    def fails(discovery, ranks):
        if discovery.manifest:
            raise TypeError("unhashable type: 'list'")
        return read(discovery, ranks)

    monkeypatch.setattr(concluding, "run_block", fails)
    (run / "run.json").write_text(json.dumps({"name": "mine"}))
    code, _, report = told("analyze", run, tmp_path, capsys)
    assert code == 0 and len(report["ranks"]) == 2
    reason = odd_value_text(TypeError("unhashable type: 'list'"))
    assert any(f"run.json: {reason}" in one["message"] for one in report["findings"])


def test_a_fault_of_ours_beside_a_sound_run_json_is_not_blamed_on_it(run, monkeypatch):
    def fails(known, *_):
        raise TypeError("a fault of ours")

    monkeypatch.setattr(concluding, "judge", fails)
    (run / "run.json").write_text(json.dumps({"name": "mine"}))
    with pytest.raises(TypeError, match="a fault of ours"):
        analyze(run, cache=False)


def test_what_nobody_foresaw_of_a_run_costs_that_run(run, tmp_path, capsys, monkeypatch):
    (run / "run.json").write_text(json.dumps({"name": "mine"}))
    shutil.copytree(run, tmp_path / "runs" / "one")
    shutil.copytree(run, tmp_path / "runs" / "two")
    read = concluding.run_block

    def fails(found, ranks):
        if found.root.endswith("one"):
            raise ZeroDivisionError
        return read(found, ranks)

    monkeypatch.setattr(concluding, "run_block", fails)
    code, said, _ = told("analyze", tmp_path / "runs", tmp_path, capsys)
    assert code == 0 and "it could not be analysed (ZeroDivisionError" in said and (tmp_path / "out" / "two").exists()


def test_a_cell_has_no_end_of_a_line():
    assert csv_text([{"name": "gemm\r\n=cmd()", "n": 1}]) == "name,n\ngemm  =cmd(),1\n"


def test_a_trace_that_is_gone_is_not_counted(tmp_path):
    rank = RankManifest(0, 0, 1, "a", 1, {}, {}, {}, traces=["rank_0/x.pt.trace.json.gz"])
    assert not has_whole_steps(rank, tmp_path)
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / "x.pt.trace.json.gz").write_bytes(b"x")
    assert has_whole_steps(rank, tmp_path)


# No control character of a trace, a path or a run's name reaches a terminal or a file, and no name is a formula.


_ESC = "\x1b]0;mine\x07\x1b[31m\x9b2J\x7f\u202e\u2067"
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")


@pytest.mark.slow
def test_no_product_and_no_terminal_gets_a_control_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, started in (("a\x1b[31m", 1), ("b", 2)):
        folder = tmp_path / "profile" / name
        shutil.copytree(DATA / "ddp4", folder)
        told = {
            "name": f"run{_ESC}",
            "started_ns": 10**18 + started,
            "environment": {f"NCCL_{_ESC}": f"{_ESC}{started}"},
        }
        (folder / "run.json").write_text(json.dumps(told))
        trace = folder / "rank_1.pt.trace.json.gz"
        text = gzip.decompress(trace.read_bytes()).decode()
        escaped = json.dumps(_ESC)[1:-1]
        text = text.replace('"aten::', f'"=aten{escaped}::').replace('"void ', f'"=void{escaped} ')
        trace.write_bytes(gzip.compress(text.encode()))
        (folder / "rank_9\x1b[2J.pt.trace.json").write_text("{")
    for words in (
        ["analyze", "profile/a\x1b[31m"],
        ["analyze", "profile/b", "-q", "-o", "reports/b\x1b[31m"],
        ["compare", "profile/a\x1b[31m", "profile/b"],
        ["baseline", "save", "profile/b"],
        ["baseline", "show", "unknown*", "--json"],
        ["baseline", "history", "-o", "reports/history"],
        ["view", "profile/a\x1b[31m"],
        ["show", "reports/a\x1b[31m"],
        ["show", "reports/a\x1b[31m", "kernels"],
        ["show", "reports/a\x1b[31m", "kernels", "--json"],
        ["show", "reports/a\x1b[31m", "collectives", "--group", _ESC],
        ["analyze", f"nowhere{_ESC}"],
    ):
        main(words)
    shown = "".join(capfd.readouterr())
    assert shown and not _CONTROL.search(shown), _CONTROL.search(shown)
    products = [path for path in (tmp_path / "reports").rglob("*") if path.is_file() and path.suffix != ".gz"]
    assert len(products) > 25
    for path in products:
        text = path.read_text().replace(plotly(path), "")
        assert not _CONTROL.search(text), (path, _CONTROL.search(text))
        assert not _TURNS.search(text) or path.suffix not in (".html", ".csv"), path
    cells = [cell for path in products if path.suffix == ".csv" for row in csv.reader(path.open()) for cell in row]
    assert any(cell.startswith("'=void") for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]


def plotly(path: Path) -> str:
    """plotly.js in a page, which has such characters in its tables of letters."""
    library = Path(__file__).parents[1] / "templates" / "plotly" / "plotly-cartesian.min.js"
    return library.read_text() if path.suffix == ".html" else "\0"


@pytest.mark.parametrize("cell", ["=cmd|' /C calc'!A0", " =1+1", "\t=1", "+1+1", "@SUM(A1)", "-1+cmd", "＝1+1"])
def test_no_cell_is_a_formula(cell: str) -> None:
    shown = csv_text([{"name": cell, "several": [cell]}])
    assert [value[0] for value in list(csv.reader(shown.splitlines()))[1]] == ["'", "'"]


def test_a_number_stays_one() -> None:
    assert csv_text([{"a": -1, "b": -1.5, "c": None}]) == "a,b,c\n-1,-1.5,\n"


# No variant of a real file ends a command in a traceback or makes it write much more than it read.


@pytest.mark.parametrize("name", READERS)
@examples(12)
@given(seed=st.integers(0, 2**32))
def test_a_hostile_variant_costs_itself_only(name, seed):
    with tempfile.TemporaryDirectory() as folder:
        assert attempt(name, seed, Path(folder)) == ""
