"""Which files are traces, of which rank, which window; and what is said about the others."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from traceops.core.errors import InputError
from traceops.traces.discover import discover


def trace(rank=None, world=2, ts=100.0, base=None):
    info = {"distributedInfo": {"rank": rank, "world_size": world}} if rank is not None else {}
    head = {"schemaVersion": 1, **info} | ({"baseTimeNanoseconds": base} if base is not None else {})
    return json.dumps({**head, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": ts, "dur": 1}]})


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def ranks(found, window=-1):
    return {file.rank: Path(file.path).name for file in found.windows[window].files}


@pytest.mark.parametrize("name", ["rank_{}/a.json", "rank-{}.json.gz", "x.rank{}.json", "host.worker{}.pt.trace.json"])
def test_ranks_from_names(tmp_path, name):
    for rank in (0, 3, 12):
        write(tmp_path / name.format(rank), trace())
    assert sorted(ranks(discover(str(tmp_path)))) == [0, 3, 12]


def test_rank_inside_counts_where_names_say_nothing(tmp_path):
    write(tmp_path / "b.json", trace(0))
    write(tmp_path / "a.json", trace(1))
    assert ranks(discover(str(tmp_path))) == {0: "b.json", 1: "a.json"}


def test_names_win_where_every_trace_claims_one_rank(tmp_path):
    for rank in range(3):
        write(tmp_path / f"rank_{rank}.json", trace(0))
    found = discover(str(tmp_path))
    assert sorted(ranks(found)) == [0, 1, 2]
    assert "names are used" in found.notes[0]


def test_trace_that_says_nothing_is_numbered_and_said(tmp_path):
    write(tmp_path / "some.pt.trace.json", trace())
    found = discover(str(tmp_path))
    assert ranks(found) == {0: "some.pt.trace.json"}
    assert "nowhere which rank" in found.notes[0]


def test_other_json_is_no_trace_and_no_problem(tmp_path):
    write(tmp_path / "rank_0.json", trace(0))
    write(tmp_path / "config.json", '{"a": [1, 2]}')
    write(tmp_path / "report.json", trace(1))
    write(tmp_path / "evidence" / "rank_7.json", trace(7))
    found = discover(str(tmp_path))
    assert ranks(found) == {0: "rank_0.json"}
    assert found.problems == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "empty"), (b"not json", "not JSON"), (b'{"a": 1}', "traceEvents"), (gzip.compress(b"{")[:12], "cut off")],
    ids=["empty", "text", "other-json", "cut-gzip"],
)
def test_bad_file_is_named_and_hides_no_good_one(tmp_path, content, said):
    write(tmp_path / "rank_0.json", trace(0))
    (tmp_path / "rank_1.pt.trace.json").write_bytes(content)
    found = discover(str(tmp_path))
    assert ranks(found) == {0: "rank_0.json"}
    [(path, what)] = found.problems
    assert path.endswith("rank_1.pt.trace.json")
    assert said in what


def test_only_bad_files_is_an_error_that_names_each(tmp_path):
    write(tmp_path / "rank_0.json", "")
    write(tmp_path / "rank_1.json", "nope")
    with pytest.raises(InputError, match=r"(?s)rank_0\.json.*rank_1\.json"):
        discover(str(tmp_path))


def test_the_folder_of_a_single_trace_tells_its_rank(tmp_path):
    """A run of one process, whose trace says no rank inside: 'says nowhere which rank it is'."""
    alone = tmp_path / "rank_3"
    alone.mkdir()
    write(alone / "host.pt.trace.json", json.dumps({"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}))
    found = discover(str(tmp_path))
    assert [file.rank for window in found.windows for file in window.files] == [3]
    assert not any("says nowhere" in note for note in found.notes)


def test_nothing_to_analyse(tmp_path):
    with pytest.raises(InputError, match="holds no traces"):
        discover(str(tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        discover(str(tmp_path / "no"))
    write(tmp_path / "report.json", "{}")
    with pytest.raises(InputError, match="is a report and holds no traces: show it with: traceops show "):
        discover(str(tmp_path))


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"status": "failed", "steps": 4}, "the program failed after 4 steps$"),
        ({"status": "failed", "steps": 1}, "the program failed after 1 step$"),
        ({"status": "hung", "steps": 0}, "the program hung before its first step ended$"),
        ({"status": "finished", "steps": 9}, "ended after 9 steps, and the schedule needs 14"),
        (
            {"status": "finished", "steps": 30, "ranks": [{"rank": 0, "status": "given_way"}]},
            "a profiler of its own and two cannot record at once, or ends its steps in several threads",
        ),
        ({"status": "finished", "steps": 30}, "Expected torch.profiler's"),
        ({"status": "finished", "steps": None, "ranks": []}, "no process was seen to train; mark the"),
    ],
)
def test_a_run_without_traces_says_why(tmp_path, told, why):
    """A program that crashed needs no other schedule."""
    schedule = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}
    write(tmp_path / "run.json", json.dumps({"schedule": schedule, **told}))
    with pytest.raises(InputError, match=why):
        discover(str(tmp_path))


def test_second_trace_of_a_rank_is_named(tmp_path):
    write(tmp_path / "old" / "rank_1.json", trace(1, ts=5))
    write(tmp_path / "new" / "rank_1.json", trace(1, ts=9))
    write(tmp_path / "new" / "rank_0.json", trace(0, ts=9))
    found = discover(str(tmp_path))
    assert {Path(f.path).parent.name for f in found.windows[0].files} == {"new"}
    [(path, what)] = found.problems
    assert path.endswith("old/rank_1.json")
    assert "second trace of rank 1" in what


def test_windows_by_number_and_by_time(tmp_path):
    for rank in range(2):
        for window in range(3):
            write(tmp_path / "n" / f"rank_{rank}" / f"h_1.window_{window}.9.pt.trace.json", trace(rank))
            write(tmp_path / "t" / f"rank_{rank}" / f"{'cab'[window]}.pt.trace.json", trace(rank, ts=window))
    numbered, timed = discover(str(tmp_path / "n")), discover(str(tmp_path / "t"))
    assert [w.index for w in numbered.windows] == [0, 1, 2]
    assert ranks(numbered, 1) == dict.fromkeys(range(2), "h_1.window_1.9.pt.trace.json")
    assert [ranks(timed, i)[0][0] for i in range(3)] == ["c", "a", "b"]


def test_windows_of_a_process_that_names_no_rank_are_of_one_rank(tmp_path):
    """tensorboard_trace_handler with repeat=2 in a program of one process: they were two ranks with other steps."""
    for pid, time in ((527, 1795459301268310482), (527, 1795459301418544227), (528, 1795459301268310499)):
        write(tmp_path / f"host_{pid}.{time}.pt.trace.json", trace(None, world=None, ts=time // 1000))
    found = discover(str(tmp_path))
    assert [sorted(ranks(found, i)) for i in range(len(found.windows))] == [[0, 1]]
    [(path, what)] = found.problems
    assert "host_527.1795459301268310482" in path and "second trace of rank 0" in what
    (tmp_path / "host_528.1795459301268310499.pt.trace.json").unlink()
    found = discover(str(tmp_path))
    assert [sorted(ranks(found, i)) for i in range(len(found.windows))] == [[0], [0]]


def test_ranks_of_another_run_are_left_out(tmp_path):
    for rank in range(3):
        write(tmp_path / f"rank_{rank}.json", trace(rank, world=3))
    write(tmp_path / "rank_7.json", trace(7, world=8))
    found = discover(str(tmp_path))
    assert sorted(ranks(found)) == [0, 1, 2]
    assert "of a run with 8 ranks" in found.problems[0][1]


@pytest.mark.parametrize("text", ["{", "[1]", '{"world_size": "two", "ranks": 5, "profiled_step_ms": []}'])
def test_damaged_manifest_is_named_and_not_believed(tmp_path, text):
    write(tmp_path / "rank_0.json", trace(0))
    (tmp_path / "run.json").write_text(text)
    found = discover(str(tmp_path))
    assert found.manifest == {}
    assert found.problems[0][0].endswith("run.json")


def test_one_file_and_a_link_to_one(tmp_path):
    real = write(tmp_path / "a" / "thing.json.gz", trace(5, world=8))
    link = tmp_path / "rank_1.json"
    link.symlink_to(real)
    assert ranks(discover(str(real))) == {5: "thing.json.gz"}
    assert sorted(ranks(discover(str(link)))) == [5]


def test_remote_folder_and_file(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for rank in range(2):
        memory.pipe(f"/bucket/run/rank_{rank}.json.gz", gzip.compress(trace(rank).encode()))
    memory.pipe("/bucket/run/run.json", b'{"name": "far", "world_size": 2}')
    found = discover("memory://bucket/run")
    assert sorted(ranks(found)) == [0, 1]
    assert found.manifest["name"] == "far"
    assert sorted(ranks(discover("memory://bucket/run/rank_1.json.gz"))) == [1]
    shutil.rmtree(tmp_path)


def test_a_folder_that_may_not_be_entered_costs_its_traces_only(tmp_path, monkeypatch):
    write(tmp_path / "rank_0.json", trace(0, world=2))
    write(tmp_path / "locked" / "rank_1.json", trace(1, world=2))
    is_file = Path.is_file

    def entered(path):
        if path.parent.name == "locked":
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", entered)
    found = discover(str(tmp_path))
    assert sorted(ranks(found)) == [0]
    [(path, what)] = found.problems
    assert path.endswith("locked/rank_1.json")
    assert what == "Permission denied"


def test_a_path_that_may_not_be_read_is_an_error_that_names_it(tmp_path, monkeypatch):
    write(tmp_path / "rank_0.json", trace(0))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for path in (tmp_path, tmp_path / "rank_0.json"):
        with pytest.raises(InputError, match=f"{path} may not be read"):
            discover(str(path))
