"""The trace of a profiler of the script's own, taken as a rank's window."""

import gzip
import json
import sys
import types
from pathlib import Path

import pytest

from traceops.capture import trace_file
from traceops.capture.trace_file import Adoption, TraceFolder, with_steps

BASE_NS = 1_790_000_000_000_000_000
ROWS = [
    {"ph": "X", "name": "ProfilerStep#2", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 0, "dur": 9},
    {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
]


def write(path, **more):
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": ROWS, **more}))


@pytest.mark.parametrize("base", [None, "head", "tail"])
def test_our_steps_are_added_and_the_scripts_are_renamed(tmp_path, base):
    source = tmp_path / "own.json"
    write(source, **({"baseTimeNanoseconds": BASE_NS} if base == "tail" else {}))
    if base == "head":
        text = source.read_text()
        source.write_text(f'{{"baseTimeNanoseconds": {BASE_NS}, {text[1:]}')
    steps = [(7, BASE_NS + 1000, BASE_NS + 5000), (8, BASE_NS + 5000, BASE_NS + 6500)]
    rows = json.loads(b"".join(with_steps(source, steps, 42)))["traceEvents"]
    assert [row["name"] for row in rows] == ["ProfilerStep#7", "ProfilerStep#8", "ScriptStep#2", "aten::mm"]
    since = 0 if base else BASE_NS / 1000
    assert [(row["ts"] - since, row["dur"], row["tid"]) for row in rows[:2]] == [(1, 4, 42), (5, 1.5, 42)]


def test_a_name_across_two_blocks_is_renamed_too(tmp_path):
    source = tmp_path / "own.json"
    write(source, filler="x" * (1 << 20), rows=["ProfilerStep#1"] * 70_000)
    text = b"".join(with_steps(source, [(0, 1, 2)], 1))
    assert text.count(b"ProfilerStep#") == 1
    assert text.count(b"ScriptStep#") == 70_001


@pytest.mark.parametrize("rows", ["[]", "[ \n ]"])
def test_a_trace_without_events_gets_our_steps(tmp_path, rows):
    (tmp_path / "own.json").write_text(f'{{"traceEvents": {rows}, "traceName": "x"}}')
    text = b"".join(with_steps(tmp_path / "own.json", [(3, 1, 2)], 1))
    assert [row["name"] for row in json.loads(text)["traceEvents"]] == ["ProfilerStep#3"]


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    (tmp_path / "own.json").write_text("{}")
    with pytest.raises(ValueError, match=r"own\.json: no traceEvents"):
        list(with_steps(tmp_path / "own.json", [(0, 1, 2)], 1))


class Results:
    def __init__(self):
        self.saved = []

    def save(self, path):
        assert not self.saved, "Kineto raises: Trace is already saved"
        self.saved.append(path)
        write(Path(path), baseTimeNanoseconds=0)


class Session:
    """Of torch.autograd.profiler.profile what the adoption listens to."""

    def __init__(self, results):
        self.kineto_results = None
        self._results = results

    def _start_trace(self):
        return "started"

    def __exit__(self, *error):
        self.kineto_results = self._results
        return False

    def export_chrome_trace(self, path, metadata=None, use_python_export=False):
        self.told = (metadata, use_python_export)
        self.kineto_results.save(path)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets, and a torch whose profiler is Session."""
    names = ("torch", "torch.autograd", "torch.autograd.profiler")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["torch.autograd.profiler"], "profile", Session, raising=False)
    methods = {name: vars(Session)[name] for name in ("_start_trace", "__exit__", "export_chrome_trace")}
    now = [0]
    monkeypatch.setattr(trace_file.time, "time_ns", lambda: now[0])
    yield now
    assert {name: vars(Session)[name] for name in methods} == methods, "torch's own methods are back"


def run(adoption, session, clock, leave_at):
    """Ten steps that end at 10, 20, ...; the session is from 25 to leave_at."""
    for step in range(10):
        clock[0] = 10 * step + 5
        if clock[0] == 25:
            assert session._start_trace() == "started"
        if clock[0] == leave_at:
            assert session.__exit__(None, None, None) is False
        clock[0] = 10 * step + 10
        adoption.step_ended(step)


def marks(trace):
    rows = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [row["name"] for row in rows]


def test_what_the_script_exports_is_copied(tmp_path, clock):
    adoption, session = Adoption(TraceFolder(tmp_path / "rank_0"), 1), Session(Results())
    run(adoption, session, clock, 65)
    session.export_chrome_trace(str(tmp_path / "own.json"), {"a": 1}, use_python_export=True)  # as torch 2.13 has it
    assert session.told == ({"a": 1}, True)
    own = (tmp_path / "own.json").read_text()
    adoption.close(last=True)
    assert adoption.steps == [3, 4, 5] and ".window_1." in adoption.trace.name
    assert marks(adoption.trace)[:4] == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5", "ScriptStep#2"]
    assert session.kineto_results.saved == [str(tmp_path / "own.json")], "the script's export only"
    assert json.loads(own)["traceEvents"] == ROWS, "and it has what torch wrote"


def test_what_the_script_drops_is_exported_in_its_stead(tmp_path, clock):
    adoption, session, results = Adoption(TraceFolder(tmp_path / "rank_0"), 0), Session(Results()), Results()
    session._results = results
    run(adoption, session, clock, 65)
    assert not results.saved, "as long as the script could export it itself"
    del session
    assert len(results.saved) == 1 and adoption.steps == [3, 4, 5]
    assert [path.name for path in (tmp_path / "rank_0").iterdir()] == [adoption.trace.name]
    adoption.close(last=True)


@pytest.mark.parametrize(("last", "steps"), [(True, [3, 4, 5]), (False, [])])
def test_a_session_that_is_kept_is_exported_only_when_the_script_has_ended(tmp_path, clock, last, steps):
    adoption, session = Adoption(TraceFolder(tmp_path / "rank_0"), 0), Session(Results())
    run(adoption, session, clock, 65)
    adoption.close(last=last)
    assert adoption.steps == steps and len(session.kineto_results.saved) == bool(steps)


def test_a_session_without_a_whole_step_is_no_window(tmp_path, clock):
    adoption, session = Adoption(TraceFolder(tmp_path / "rank_0"), 0), Session(Results())
    run(adoption, session, clock, 35)
    session.export_chrome_trace(str(tmp_path / "own.json"))
    adoption.close(last=True)
    assert adoption.trace is None and not (tmp_path / "rank_0").exists()
