"""One odd value costs its own file at most: no traceback, and the files and runs beside it are read."""

import json
import re
import shutil

import pytest
from hostile_variants import _small_trace, written

from traceops.capture.manifest import RankManifest
from traceops.cli import main
from traceops.core.errors import odd_value_text
from traceops.launch.conclusion import has_whole_steps
from traceops.pipeline import conclude as concluding
from traceops.pipeline.analyze import analyze
from traceops.render.writers.csv import csv_text


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
