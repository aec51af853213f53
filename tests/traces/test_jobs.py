"""Several jobs that recorded into one folder: no window holds ranks of two of them."""

import json

import pytest

from traceops.traces.discover import discover

SECOND = 1_000_000  # us


def write(folder, name, rank, pid, begin_us, host="node", world=2):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "ts": begin_us, "dur": 1}
    told = {"distributedInfo": {"rank": rank, "world_size": world}, "host_name": host}
    text = {"schemaVersion": 1, "baseTimeNanoseconds": 10**18, **told, "traceEvents": [event]}
    (folder / f"rank{rank}.{name}.pt.trace.json").write_text(json.dumps(text))


def names(folder):
    """Of each window, its job and the middle of its files' names."""
    found = discover(str(folder))
    return found, [
        (one.job, [file.path.rsplit("/", 1)[1].split(".")[1] for file in one.files]) for one in found.windows
    ]


def test_windows_of_one_process_are_of_one_job(tmp_path):
    for rank in (0, 1):
        for at in (0, 1):
            write(tmp_path, f"w{at}", rank, 10 + rank, 100 + at * SECOND)
    found, windows = names(tmp_path)
    assert windows == [(0, ["w0", "w0"]), (0, ["w1", "w1"])]
    assert not found.notes and not found.doubts


def test_a_second_job_is_no_second_window(tmp_path):
    """Two runs of a script into one folder were two windows of one run, and nobody was told."""
    for at, job in enumerate("ab"):
        for rank in (0, 1):
            for window in (0, 1):
                write(tmp_path, f"{job}{window}", rank, 10 * at + rank, (60 * at + window) * SECOND + 900 * rank)
    found, windows = names(tmp_path)
    assert windows == [(0, ["a0"] * 2), (0, ["a1"] * 2), (1, ["b0"] * 2), (1, ["b1"] * 2)]
    assert [one.index for one in found.windows] == [0, 1, 2, 3]
    assert found.latest.index == 3
    [note] = found.notes
    assert "of 2 jobs" in note and not found.doubts


@pytest.mark.parametrize("missing", [0, 1])
def test_a_job_that_recorded_fewer_ranks_gets_none_of_the_other(tmp_path, missing):
    """Rank 1 of the first job was joined to rank 0 of the second."""
    for rank in (0, 1):
        write(tmp_path, "a", rank, 10 + rank, 100 + rank)
    write(tmp_path, "b", 1 - missing, 20, 60 * SECOND)
    found, windows = names(tmp_path)
    assert windows == [(0, ["a", "a"]), (1, ["b"])]
    assert found.latest.job == 1 and not found.problems


def test_jobs_at_the_same_time_are_told_apart_by_their_pids_and_that_is_said(tmp_path):
    """By time, rank 1 of each was the other's."""
    for job, pid, begins in (("a", 10, (100, 108)), ("b", 20, (110, 102))):
        for rank in (0, 1):
            write(tmp_path, job, rank, pid + rank, begins[rank])
    found, windows = names(tmp_path)
    assert sorted(windows) == [(0, ["a", "a"]), (1, ["b", "b"])]
    assert [what for _, what in found.doubts if "another of the jobs" in what]


def test_the_same_pid_on_another_host_is_another_process(tmp_path):
    for at, host in enumerate(("one", "two")):
        for rank in (0, 1):
            write(tmp_path, host, rank, 10 + rank, 60 * at * SECOND + rank, host)
    assert names(tmp_path)[1] == [(0, ["one"] * 2), (1, ["two"] * 2)]
