"""Several traces of one process under names of its own: windows of one rank, not ranks."""

import json

import pytest

from traceops.traces.discover import discover


def write(path, begin_us, end_us, pid=585, cat="cpu_op"):
    host = {"ph": "X", "cat": cat, "name": "aten::mm", "pid": pid, "tid": pid, "ts": begin_us, "dur": 1}
    end = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": end_us}
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 10**18, "traceEvents": [host, end]}))


def windows(folder):
    return [[file.rank for file in one.files] for one in discover(str(folder)).windows]


def test_names_by_steps_are_windows(tmp_path):
    """trace_7.json and trace_12.json of one process were two ranks that cover different steps (TO-V003)."""
    write(tmp_path / "trace_12.json", 700.0, 900.0)
    write(tmp_path / "trace_7.json", 100.0, 300.0)
    assert windows(tmp_path) == [[0], [0]]
    assert [one.files[0].path.rsplit("/", 1)[1] for one in discover(str(tmp_path)).windows] == [
        "trace_7.json",
        "trace_12.json",
    ]


@pytest.mark.parametrize("second", [{"pid": 586}, {"begin_us": 200.0}, {"cat": "kernel"}])
def test_other_processes_times_and_unknown_ones_are_ranks(tmp_path, second):
    """Ranks of containers may have one pid: they record at the same time."""
    write(tmp_path / "trace_0.json", 100.0, 300.0)
    write(tmp_path / "trace_1.json", **({"begin_us": 700.0, "end_us": 900.0} | second))
    assert windows(tmp_path) == [[0, 1]]


def test_a_trace_that_tells_no_end_is_a_rank(tmp_path):
    write(tmp_path / "trace_1.json", 700.0, 900.0)
    (tmp_path / "trace_0.json").write_text((tmp_path / "trace_1.json").read_text().replace("Record Window End", "x"))
    assert windows(tmp_path) == [[0, 1]]


def test_other_names_are_ranks(tmp_path):
    write(tmp_path / "before.json", 100.0, 300.0)
    write(tmp_path / "after.json", 700.0, 900.0)
    assert windows(tmp_path) == [[0, 1]]
