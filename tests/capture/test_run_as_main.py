"""Programs that run in our process: their arguments, their folder, and Python's safe path."""

import py_compile
import subprocess
import sys
from types import SimpleNamespace

import pytest
from started import environment

from traceops.capture import run_as_main


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
