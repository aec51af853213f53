"""Programs that run in our process: their arguments, their folder, and Python's safe path."""

import importlib
import importlib.util
import py_compile
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from started import environment

from traceops.capture import run_as_main, script
from traceops.capture.after_import import when_loaded
from traceops.capture.guard import Guard
from traceops.capture.settings import ENV, CaptureSettings, from_environment, keep_to_this_process


@pytest.mark.parametrize("safe", [False, True])
def test_a_script_has_its_own_folder_unless_python_keeps_the_path_safe(tmp_path, monkeypatch, safe):
    script = tmp_path / "train.py"
    script.write_text("import sys\nassert __name__ == '__main__'\nraise SystemExit(sys.path[0])")
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    own = SimpleNamespace(flags=SimpleNamespace(safe_path=safe), path=sys.path, argv=[], modules={})
    monkeypatch.setattr(run_as_main, "sys", own)
    with pytest.raises(SystemExit) as left:
        run_as_main.run_as_main([str(script), "--x"])
    assert left.value.code == ("first" if safe else str(tmp_path))
    assert own.argv == [str(script), "--x"]


PROGRAM = '''"""A program."""
import atexit, pickle, sys, threading

class Item:
    def __del__(self):
        print("the last item goes")

item = Item()
print(sys.argv, __name__, __file__, __doc__, __package__, __spec__ and __spec__.name, type(__loader__).__name__)
print(type(__builtins__), sys.path[0], sorted(name for name in globals() if name != "__cached__"))

def late():
    threading.main_thread().join()
    again = pickle.loads(pickle.dumps(item))
    print(type(again) is Item, sys.modules["__main__"].__dict__ is globals())

atexit.register(print, "at exit")
threading.Thread(target=late).start()
if sys.argv[1:] == ["fails"]:
    raise ValueError
sys.exit(3)
'''
RUN = """
import os, sys
from traceops.capture.run_as_main import run_as_main
sys.path[0] = os.getcwd()
run_as_main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words",
    [["program.py", "--x"], ["program.py", "fails"], ["program.pyc", "x"], ["-m", "program", "--x"], ["folder", "x"]],
)
def test_a_program_lives_as_under_python_itself(tmp_path, words):
    """A thread of it that went on found traceops in `__main__`, and its objects went before its handlers ran."""
    (tmp_path / "folder").mkdir()
    for path in ("program.py", "folder/__main__.py"):
        (tmp_path / path).write_text(PROGRAM)
    py_compile.compile(str(tmp_path / "program.py"), str(tmp_path / "program.pyc"))
    env = {**environment(compiler=True), "PYTHONDONTWRITEBYTECODE": "1"}
    theirs, ours = (
        subprocess.run([sys.executable, *start, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        for start in ([], ["-c", RUN])
    )
    assert "at exit" in theirs.stdout and "the last item goes" in theirs.stdout
    assert (ours.stdout, ours.returncode) == (theirs.stdout, theirs.returncode)
    assert theirs.stderr.splitlines()[-1:] == ours.stderr.splitlines()[-1:]


class Finder:
    """An import hook of a program's: adds to what a module defines, as tracing packages do."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.told.append("the program's")

        spec.loader.exec_module = exec_module
        return spec


@pytest.mark.parametrize("ours_first", [True, False])
def test_an_import_hook_of_the_programs_sees_the_module_too(tmp_path, monkeypatch, ours_first):
    (tmp_path / "watched_by_both.py").write_text("told = []")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "watched_by_both", raising=False)
    theirs, undo = Finder("watched_by_both"), []
    change = {"watched_by_both": lambda module: module.told.append("ours")}
    for hook in (True, False):
        if hook is ours_first:
            when_loaded(change, Guard(lambda *failure: None), undo)
        else:
            sys.meta_path.insert(0, theirs)
    before = [finder for finder in sys.meta_path if finder is not theirs]
    module = importlib.import_module("watched_by_both")
    assert sorted(module.told) == ["ours", "the program's"]
    assert len(sys.meta_path) == len(before) - 1, "both look no more"


def test_a_finder_without_find_spec_is_passed_over_as_python_does(tmp_path, monkeypatch):
    """The capture ended early where the program had one of before Python 3.4."""
    (tmp_path / "watched_beside_it.py").write_text("told = []")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "watched_beside_it", raising=False)
    failures = []
    change = {"watched_beside_it": lambda module: module.told.append("ours")}
    when_loaded(change, Guard(lambda *failure: failures.append(failure)), [])
    assert importlib.import_module("watched_beside_it").told == ["ours"] and failures == []


def test_the_settings_of_a_rank_are_not_its_childrens(tmp_path, monkeypatch):
    """A child that opened a capture of its own wrote into its parent's folder."""
    environ = {ENV: '{"out": "run"}'}
    keep_to_this_process(environ)
    monkeypatch.setenv(ENV, environ[ENV])
    assert from_environment(CaptureSettings()).out == "run"
    code = "from traceops.capture.settings import *; print(from_environment(CaptureSettings()).out)"
    child = subprocess.run([sys.executable, "-c", code], env=environment(compiler=True), text=True, capture_output=True)
    assert child.stdout == "None\n", child.stderr
    for text in ("", "not JSON", "[]", "{}"):
        kept = {ENV: text}
        keep_to_this_process(kept)
        assert kept == {ENV: text}


_LIGHT = "import sys; assert not {'torch', 'pandas', 'numpy'} & set(sys.modules), 'not light'"


@pytest.mark.parametrize(
    "program",
    [
        "import traceops; traceops.capture('x'); traceops.Schedule()",
        "import traceops.capture, traceops; traceops.capture('x')",
        "import traceops; import traceops.capture; traceops.capture('x')",
        "import traceops; traceops.capture; import traceops.capture; traceops.capture('x')",
        "from traceops.capture import capture, Schedule, CaptureSettings; capture('x', schedule=Schedule())",
        "import traceops.capture.schedule, traceops; traceops.capture('x'); traceops.Schedule()",
        "import traceops.cli.run",
    ],
)
def test_capture_is_callable_in_every_import_order_and_light(program):
    subprocess.run([sys.executable, "-c", f"{program}; {_LIGHT}"], check=True)


def through_ours(work):
    names = {"work": work}
    exec(compile("def call():\n    work()", str(Path(script.__file__).with_name("steps.py")), "exec"), names)
    names["call"]()


def test_an_uncaught_error_is_shown_without_our_frames_unless_it_is_ours():
    def inner():
        raise ValueError("inner")

    def outer():
        try:
            through_ours(inner)
        except ValueError as error:
            raise RuntimeError("outer") from error

    with pytest.raises(RuntimeError) as raised:
        through_ours(outer)
    shown = "".join(traceback.format_exception(script._own_traceback(raised.value)))
    assert "in inner" in shown and "in outer" in shown and "steps.py" not in shown
    before = SyntaxError()  # the program has not begun, so no frame is its own
    assert script._own_traceback(before).__traceback__ is None
    with pytest.raises(ZeroDivisionError) as raised:
        through_ours(lambda: exec(compile("1 / 0", script.__file__, "exec")))
    shown = "".join(traceback.format_exception(script._own_traceback(raised.value)))
    assert "script.py" in shown and "steps.py" not in shown
