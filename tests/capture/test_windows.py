"""Windows without the light way: first steps of a short program, and the trace of a script's own profiler."""

import gzip
import json
import re
import sys
import types
from pathlib import Path

import pytest
from capture_reading import run_json, step_numbers

from traceops.capture import trace_file
from traceops.capture.recorder import FIRST, may_have_gpu
from traceops.capture.script_profiler import ScriptProfiler
from traceops.capture.trace_file import Adoption, TraceFolder, with_steps
from traceops.core.capture_failure import FIRST_STEPS
from traceops.core.errors import InputError
from traceops.core.rank_files import RECORD, RECORDED
from traceops.pipeline.analyze import analyze

_TRAIN = """
import json, sys, torch, traceops
from traceops.capture import session
from traceops.capture.recorder import Recorder

session.may_have_gpu = lambda: {gpu}

def train(out, steps, fail_at=None, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        with traceops.capture(out, **options) as profile:
            for step in range(steps):
                model(torch.randn(4, 8)).square().mean().backward()
                if step == fail_at:
                    raise ValueError("planted")
                optimizer.step()
                optimizer.zero_grad()
                profile.step()
    except ValueError:
        pass
    return float(model.weight.double().sum())
{then}
"""


@pytest.fixture
def train(python, tmp_path):
    """Runs `then` in a process in which `train` trains under a capture, and gives what it prints as JSON."""

    def run(then, gpu=False):
        done = python("-c", _TRAIN.format(then=then, gpu=gpu))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), tmp_path, done.stderr

    return run


def windows(out):
    (rank,) = run_json(out)["ranks"]
    kept = [(window["index"], window["steps"], window["complete"]) for window in rank["windows"]]
    assert len(list((out / "rank_0").glob("*.gz"))) == len(rank["traces"]) == len(kept)
    return kept, rank


def test_a_machine_with_a_gpu_is_known_by_its_devices(tmp_path):
    (tmp_path / "nvidia-caps").touch()
    assert not may_have_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert may_have_gpu(tmp_path)
    assert FIRST.total_steps == FIRST_STEPS


@pytest.mark.torch
@pytest.mark.slow
def test_the_first_steps_stand_for_a_window_that_was_not_reached(train):
    then = "print(json.dumps([train(f'run{n}', n) for n in (1, 2, 3, 10, 11, 14)]))"
    sums, folder, said = train(then)
    found = {steps: windows(folder / f"run{steps}") for steps in (1, 2, 3, 10, 11, 14)}
    assert {steps: kept for steps, (kept, _) in found.items()} == {
        1: [],
        2: [(0, [1], False)],
        3: [(0, [1, 2], True)],
        10: [(0, [1, 2], True)],
        11: [(0, [10], False)],
        14: [(0, [10, 11, 12, 13], True)],
    }
    rank = found[10][1]
    trace = folder / "run10" / rank["traces"][0]
    assert step_numbers(trace) == [1, 2] == rank["profiled_steps"]
    assert (len(rank["profiled_step_ms"]), len(rank["unprofiled_step_ms"])) == (2, 5)
    assert len(found[14][1]["unprofiled_step_ms"]) == 5, "step 2 was recorded"
    assert "steps 1 and 2; for later ones: --skip-first 2 --unprofiled 2 --warmup 2 --active 4" in rank["note"]
    assert found[2][1]["note"].endswith("step 1"), "no schedule would have recorded a later one"
    assert "only 1 step, the schedule needs 14" in said

    plain, _, _ = train("print(json.dumps([train(f'plain{n}', n, first_window=False) for n in (3, 14)]))")
    assert plain == [sums[2], sums[5]], "the weights are those without it"


@pytest.mark.torch
@pytest.mark.slow
def test_what_the_first_window_gives_way_to(train):
    _, folder, _ = train(
        """
train("died", 20, fail_at=7)
train("known", 14, total_steps=14)
train("own", 10, schedule=traceops.Schedule(skip_first=3))

opened = Recorder.open
def refuse(self, step, give_way):
    if step == 1:
        raise MemoryError
    opened(self, step, give_way)
Recorder.open = refuse
train("refused", 14)
Recorder.open = opened

with traceops.capture("theirs") as profile:
    for step in range(6):
        if step == 2:
            theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            theirs.start()
        torch.ones(3).sum()
        if step == 4:
            theirs.stop()
        profile.step()
print(len(theirs.key_averages()))
"""
    )
    kept, rank = windows(folder / "died")
    assert kept == [(0, [1, 2], True)] and (rank["status"], rank["steps"]) == ("failed", 7)
    assert windows(folder / "known")[1]["profiled_steps"] == [10, 11, 12, 13]
    assert len(windows(folder / "known")[1]["unprofiled_step_ms"]) == 6, "of a known length none is needed"
    assert windows(folder / "own")[0] in ([], [(0, [], False)]), "a schedule of the user's own is kept to"
    kept, rank = windows(folder / "refused")
    assert kept == [(0, [10, 11, 12, 13], True)] and not run_json(folder / "refused")["failures"]
    kept, rank = windows(folder / "theirs")
    assert kept == [(0, [1], False)] and rank["status"] == "finished"


@pytest.mark.torch
@pytest.mark.slow
def test_torch_warns_of_the_scripts_own_profiler_also_after_a_window(train):
    shown, _, errors = train("""
from torch.profiler import profiler
from traceops.capture.recorder import _without_remark
remark = "Warning: Profiler clears events at the end of each cycle."
with _without_remark():
    profiler._warn_once(remark)
    profiler._warn_once("another")
print(json.dumps(sorted(profiler._WARNINGS_SHOWN)))
profiler._warn_once(remark)
""")
    assert shown == ["another"]
    assert errors.count("clears events") == 1 and errors.count("another") == 1


def test_a_profiler_of_the_scripts_own_at_its_start_costs_it_no_later_window(train):
    table, folder, _ = train(
        """
with traceops.capture("run") as profile:
    for step in range(20):
        if step == 2:
            theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            theirs.start()
        torch.ones(3).sum()
        if step == 2:
            theirs.stop()
        profile.step()
print(len(theirs.key_averages()))
"""
    )
    assert table > 0
    kept, rank = windows(folder / "run")
    assert (kept, rank["status"], rank["note"]) == ([(0, [10, 11, 12, 13], True)], "finished", None)
    _magic, _header, records = (folder / "run/rank_0/steps.bin").read_bytes().split(b"\n", 2)
    recorded = [step for step, (*_, flags) in enumerate(RECORD.iter_unpack(records)) if flags & RECORDED]
    assert recorded == [1, 2, 3, *range(8, 15)], "step 2 began under the profiler"


_THREADS = """
import threading

def step(profile):
    torch.ones(3).sum()
    profile.step()

def trained(out, steps, others, **options):
    with traceops.capture(out, **options) as profile:
        for number in range(steps):
            if number in others:
                thread = threading.Thread(target=step, args=(profile,))
                thread.start()
                thread.join()
            else:
                step(profile)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_steps_that_end_in_several_threads_do_not_crash(train):
    _, folder, said = train(
        _THREADS
        + """
trained("each", 20, range(20))
trained("first", 14, [0])
trained("second", 14, [1])
assert not torch._C._autograd._profiler_enabled(), "what was left open is stopped where its thread comes again"
trained("late", 20, [11], first_window=False)
with traceops.capture("other") as profile:
    def train_there():
        for _ in range(20):
            step(profile)
    thread = threading.Thread(target=train_there)
    thread.start()
    thread.join()
assert not torch._C._autograd._profiler_enabled()
print(json.dumps(float(torch.ones(3).sum())))
"""
    )
    kept, rank = windows(folder / "each")
    assert (kept, rank["status"], rank["steps"]) == ([], "given_way", 20)
    assert rank["note"] == "the capture gave way: steps end in several threads, and torch's profiler records one"
    for out in ("first", "second", "other"):
        assert windows(folder / out)[0] == [(0, [10, 11, 12, 13], True)], out
    kept, rank = windows(folder / "late")
    assert (kept, rank["status"], rank["steps"]) == ([], "given_way", 20)
    assert said.count("in several threads") == 2 and not run_json(folder / "late")["failures"]
    for out in ("each", "first", "second", "late", "other"):
        assert windows(folder / out)[1]["script_profiler"] is None, "what was left open is ours"


@pytest.mark.torch
@pytest.mark.slow
def test_a_machine_with_a_gpu_records_no_step_twice(train):
    _, folder, _ = train("print(json.dumps(train('run', 10)))", gpu=True)
    kept, rank = windows(folder / "run")
    assert kept in ([], [(0, [], False)])
    assert len(rank["unprofiled_step_ms"]) == 6


_OWN = """
def profiled(out, steps, begin, end, **options):
    with traceops.capture(out, **options) as profile:
        for step in range(steps):
            if step == begin:
                theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                theirs.start()
            torch.ones(3).sum()
            profile.step()
            if step == end:
                theirs.stop()
"""


def flagged(out):
    _magic, _header, records = (out / "rank_0/steps.bin").read_bytes().split(b"\n", 2)
    return [step for step, (*_, flags) in enumerate(RECORD.iter_unpack(records)) if flags & RECORDED]


def test_a_profiler_that_could_not_be_prepared_is_not_at_work():
    def fails(session):
        raise RuntimeError("there is one already")

    theirs = ScriptProfiler()
    with pytest.raises(RuntimeError, match="already"):
        theirs._heard(fails, prepares=True)(None)
    assert [theirs.step_ended(step, ours=False) for step in range(3)] == [True, False, False]


@pytest.mark.torch
@pytest.mark.slow
def test_steps_under_the_scripts_own_profiler_are_none_without_one(train):
    """They were among the steps that TO-V005 holds the recorded ones to, and typical ones of the whole run."""
    _, folder, _ = train(
        _OWN
        + """
before = {name: getattr(torch.autograd.profiler.profile, name) for name in ("_prepare_trace", "_start_trace")}
profiled("run", 20, 4, 5)
with traceops.capture("warming") as profile:
    schedule = torch.profiler.schedule(skip_first=4, wait=0, warmup=2, active=1, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as theirs:
        for step in range(20):
            torch.ones(3).sum()
            profile.step()
            theirs.step()
assert all(getattr(torch.autograd.profiler.profile, name) is method for name, method in before.items())
print(json.dumps(0))
"""
    )
    kept, rank = windows(folder / "run")
    assert kept == [(0, [10, 11, 12, 13], True)]
    assert re.fullmatch(r"<string>:\d+", rank["script_profiler"].pop("where")), "the script's line, not torch's"
    assert rank["script_profiler"] == {"first": 4, "last": 6, "steps": 3}, "it stopped in step 6"
    assert len(rank["unprofiled_step_ms"]) == 1, "step 3: 7 may still wait for what the ranks wrote"
    assert flagged(folder / "run") == [1, 2, 3, 4, 5, 6, 7, *range(8, 15)]
    kept, rank = windows(folder / "warming")
    assert kept == [(0, [10, 11, 12, 13], True)]
    assert re.fullmatch(r"<string>:\d+", rank["script_profiler"].pop("where")), "the script's line, not torch's"
    assert rank["script_profiler"] == {"first": 4, "last": 7, "steps": 4}, "prepared in step 4, stopped in step 7"
    assert len(rank["unprofiled_step_ms"]) == 1


@pytest.mark.torch
@pytest.mark.slow
def test_a_short_program_with_a_profiler_of_its_own_is_told_to_take_it_out(train):
    _, folder, said = train(_OWN + "profiled('late', 6, 2, 3)\nprofiled('early', 6, 0, 3)\nprint(json.dumps(0))")
    for name, steps, held in (
        ("late", [(0, [1], False)], "recorded was step 1 alone: the script's own profiler was at work from step 2 on"),
        ("early", [], "nothing was recorded: the script's own profiler was at work from step 0 on"),
    ):
        kept, rank = windows(folder / name)
        assert kept == steps
        assert held in rank["note"] and "Take it out for this run" in rank["note"]
        assert rank["note"] in said and "--skip-first" not in rank["note"]
    with pytest.raises(InputError, match="take its profiler out for this run"):
        analyze(folder / "early")
    (note,) = [note for note in analyze(folder / "late").summary.notes if "first whole ones" in note]
    assert "its own profiler was at work from step 2 on" in note and "--skip-first" not in note


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
