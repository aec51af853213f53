"""Which files are traces, of which job, process, rank and window; and what is said about the others."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from traceops.core.errors import InputError
from traceops.measure.summary import summarize
from traceops.traces.discover import discover
from traceops.traces.kineto import load_trace, why_foreign


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


# Several jobs that recorded into one folder: no window holds ranks of two of them.


SECOND = 1_000_000  # us


def write_rank(folder, name, rank, pid, begin_us, host="node", world=2):
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
            write_rank(tmp_path, f"w{at}", rank, 10 + rank, 100 + at * SECOND)
    found, windows = names(tmp_path)
    assert windows == [(0, ["w0", "w0"]), (0, ["w1", "w1"])]
    assert not found.notes and not found.doubts


def test_a_second_job_is_no_second_window(tmp_path):
    """Two runs of a script into one folder were two windows of one run, and nobody was told."""
    for at, job in enumerate("ab"):
        for rank in (0, 1):
            for window in (0, 1):
                write_rank(tmp_path, f"{job}{window}", rank, 10 * at + rank, (60 * at + window) * SECOND + 900 * rank)
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
        write_rank(tmp_path, "a", rank, 10 + rank, 100 + rank)
    write_rank(tmp_path, "b", 1 - missing, 20, 60 * SECOND)
    found, windows = names(tmp_path)
    assert windows == [(0, ["a", "a"]), (1, ["b"])]
    assert found.latest.job == 1 and not found.problems


def test_jobs_at_the_same_time_are_told_apart_by_their_pids_and_that_is_said(tmp_path):
    """By time, rank 1 of each was the other's."""
    for job, pid, begins in (("a", 10, (100, 108)), ("b", 20, (110, 102))):
        for rank in (0, 1):
            write_rank(tmp_path, job, rank, pid + rank, begins[rank])
    found, windows = names(tmp_path)
    assert sorted(windows) == [(0, ["a", "a"]), (1, ["b", "b"])]
    assert [what for _, what in found.doubts if "another of the jobs" in what]


def test_the_same_pid_on_another_host_is_another_process(tmp_path):
    for at, host in enumerate(("one", "two")):
        for rank in (0, 1):
            write_rank(tmp_path, host, rank, 10 + rank, 60 * at * SECOND + rank, host)
    assert names(tmp_path)[1] == [(0, ["one"] * 2), (1, ["two"] * 2)]


# Several traces of one process under names of its own: windows of one rank, not ranks.


def write_trace(path, begin_us, end_us, pid=585, cat="cpu_op"):
    host = {"ph": "X", "cat": cat, "name": "aten::mm", "pid": pid, "tid": pid, "ts": begin_us, "dur": 1}
    end = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": end_us}
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 10**18, "traceEvents": [host, end]}))


def windows(folder):
    return [[file.rank for file in one.files] for one in discover(str(folder)).windows]


def test_names_by_steps_are_windows(tmp_path):
    """trace_7.json and trace_12.json of one process were two ranks that cover different steps (TO-V003)."""
    write_trace(tmp_path / "trace_12.json", 700.0, 900.0)
    write_trace(tmp_path / "trace_7.json", 100.0, 300.0)
    assert windows(tmp_path) == [[0], [0]]
    assert [one.files[0].path.rsplit("/", 1)[1] for one in discover(str(tmp_path)).windows] == [
        "trace_7.json",
        "trace_12.json",
    ]


@pytest.mark.parametrize("second", [{"pid": 586}, {"begin_us": 200.0}, {"cat": "kernel"}])
def test_other_processes_times_and_unknown_ones_are_ranks(tmp_path, second):
    """Ranks of containers may have one pid: they record at the same time."""
    write_trace(tmp_path / "trace_0.json", 100.0, 300.0)
    write_trace(tmp_path / "trace_1.json", **({"begin_us": 700.0, "end_us": 900.0} | second))
    assert windows(tmp_path) == [[0, 1]]


def test_a_trace_that_tells_no_end_is_a_rank(tmp_path):
    write_trace(tmp_path / "trace_1.json", 700.0, 900.0)
    (tmp_path / "trace_0.json").write_text((tmp_path / "trace_1.json").read_text().replace("Record Window End", "x"))
    assert windows(tmp_path) == [[0, 1]]


def test_profiles_of_one_process_are_windows_whatever_their_names(tmp_path):
    """A model on the CPU, then on the GPU, each with a profile: they were two ranks that exchange nothing (TO-V009)."""
    write_trace(tmp_path / "trace_cpu.json", 100.0, 300.0)
    write_trace(tmp_path / "trace_cuda.json", 700.0, 900.0)
    assert windows(tmp_path) == [[0], [0]]


# Chrome traces of other programs are told as what they are; torch's own, whatever is left of them, are not.


SPAN = {"ph": "X", "pid": 1, "tid": 1, "ts": 100.0, "dur": 10.0}
NAMED = {"ph": "M", "pid": 1, "tid": 1, "name": "process_name"}
FOREIGN = {
    "JAX": {
        "displayTimeUnit": "ns",
        "metadata": {"highres-ticks": True},
        "traceEvents": [NAMED | {"args": {"name": "/device:GPU:0"}}, SPAN | {"name": "fusion.1"}, {}],
    },
    "VizTracer": {"traceEvents": [SPAN | {"name": "f (a.py:1)", "cat": "FEE"}], "viztracer_metadata": {"version": "1"}},
    "ONNX Runtime": [SPAN | {"cat": "Session", "name": "model_loading_uri", "args": {}}],
    "Horovod": [NAMED | {"args": {"name": "w"}}, {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1}],
    "Chrome": {
        "traceEvents": [SPAN | {"cat": "toplevel", "name": "ThreadControllerImpl::RunTask"}],
        "metadata": {"source": "DevTools"},
    },
    "torch.autograd.profiler": [SPAN | {"name": "aten::mm", "pid": "CPU functions", "args": {}}],
    "none of torch's profiler": {"traceEvents": [SPAN | {"cat": "mine", "name": "work"}]},
}


@pytest.mark.parametrize("maker", FOREIGN)
def test_the_program_is_named_and_nothing_is_called_damaged(tmp_path, maker):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(FOREIGN[maker]).encode()))
    (window,) = discover(str(path)).windows
    with pytest.raises(InputError) as told:
        summarize(window.files[0])
    said = str(told.value)
    assert said.startswith(str(path)) and maker in said and "Chrome trace" in said
    assert "damaged" not in said and "summary" not in said


@pytest.mark.parametrize(
    "content", [[{"id": 1, "timestamps": [{"name": "RECV", "ns": 5}]}], [{"frame": {"name": "k"}}]]
)
def test_a_list_of_something_else_is_no_chrome_trace(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    (window,) = discover(str(path)).windows
    with pytest.raises(InputError, match="it is no Chrome trace: what it lists has no phase"):
        summarize(window.files[0])


@pytest.mark.parametrize(
    "content",
    [
        {"traceEvents": [SPAN | {"cat": "Kernel", "name": "k"}]},  # older torch wrote capitals
        {"traceEvents": [SPAN | {"cat": "privateuse1_runtime", "name": "launch"}]},
        {"distributedInfo": {"rank": 3, "world_size": 4}, "traceEvents": [SPAN | {"cat": "mine", "name": "x"}]},
    ],
)
def test_what_torch_wrote_is_torchs(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    assert why_foreign(load_trace(str(path))) == ""


def test_a_trace_that_was_cut_off_stays_damaged(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "mi')
    assert why_foreign(load_trace(str(path))) == ""


OPERATOR = SPAN | {"cat": "cpu_op", "name": "aten::mm"}
CALL = SPAN | {"cat": "cuda_runtime", "name": "cudaGetDeviceCount", "args": {"correlation": 1}}


@pytest.mark.parametrize(
    ("events", "cut", "says"),
    [
        ([OPERATOR, SPAN | {"cat": "enqueue"}, SPAN | {"cat": "dequeue"}], "", "Ascend NPU"),
        ([CALL, CALL], "", "2 calls of the GPU's runtime, but no operator, no kernel and no step"),
        (
            [{"name": "k", "ph": "b", "cat": "GPU", "ts": 1, "pid": 1, "tid": 1}],
            ", ",
            "what can be read of it holds no",
        ),
    ],
)
def test_a_trace_of_which_nothing_can_be_judged_says_why(tmp_path, events, cut, says):
    path = tmp_path / "rank0.json"
    text = json.dumps(events)
    path.write_text(text[:-1] + cut if cut else text)
    (window,) = discover(str(path)).windows
    with pytest.raises(InputError) as told:
        summarize(window.files[0])
    assert says in str(told.value) and "cannot be read as a summary" not in str(told.value)


def test_collectives_of_nccl_without_a_gpu_in_the_trace_are_not_missed_in_backward(tmp_path):
    path = tmp_path / "rank0.json"
    host = [
        ("user_annotation", "ProfilerStep#1", 0, 100),
        ("cpu_op", "DistributedDataParallel.forward", 1, 10),
        ("cpu_op", "autograd::engine::evaluate_function: Mm", 20, 10),
        ("user_annotation", "nccl:all_to_all", 50, 5),
        ("cpu_op", "record_param_comms", 50, 5),
    ]
    events = [SPAN | {"cat": cat, "name": name, "ts": ts, "dur": dur} for cat, name, ts, dur in host]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    (window,) = discover(str(path)).windows
    backward = summarize(window.files[0]).backward
    assert backward.steps_with_backward == 1 and not backward.launches_known
