"""What the tests stand on: forked processes are as executed ones, draws are the same every time, no test is lost."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_first import SLOW, quickest, slow_first
from started import ROOT, environment

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# What a process can see of itself, without what differs from one to the next. As a script, and as a module.
_SHOWN = """
import atexit, json, os, resource, signal, sys, threading

def link(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:  # the folder itself, once it is read
        return "/proc/"

status = dict(line.split(":", 1) for line in open("/proc/self/status"))
main = sys.modules["__main__"]
shown = {
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "flags": list(sys.flags), "cwd": os.getcwd(),
    "executable": sys.executable, "variables": dict(os.environ),
    "name": __name__, "file": globals().get("__file__"), "main": main.__dict__ is globals(), "package": __package__,
    "descriptors": [name for name in os.listdir("/proc/self/fd") if not link(name).startswith("/proc/")],
    "standard": [link(number).split(":")[0] for number in (0, 1, 2)],
    "streams": [[one.encoding, one.errors, one.newlines, one.line_buffering, one.write_through, one.name, one.mode,
                 one.fileno(), one is getattr(sys, f"__{name}__"), type(one.buffer).__name__]
                for name in ("stdin", "stdout", "stderr") for one in [getattr(sys, name)]],
    "handlers": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "signals": {name: status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")},
    "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()], "parent": os.getppid(),
    "threads": [threading.current_thread() is threading.main_thread(), threading.active_count(), status["Threads"]],
    "command": open("/proc/self/cmdline").read().strip(chr(0)),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "umask": status["Umask"].strip(), "timer": signal.getitimer(signal.ITIMER_REAL),
}
json.dump(shown, open(f"{sys.argv[-1]}.json", "w"))
"""

_ENDS = """
import atexit, os, signal, sys, threading, time
atexit.register(print, "bye")
how = sys.argv[1]
print("partial", end="")
print("said", file=sys.stderr)
if how == "thread":
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
elif how == "raise":
    raise ValueError("boom")
elif how == "interrupt":
    signal.raise_signal(signal.SIGINT)
elif how == "kill":
    signal.raise_signal(signal.SIGKILL)
elif how == "text":
    sys.exit("a message")
elif how != "end":
    sys.exit(int(how))
"""

# Starts the same two ways: as subprocess does, and as it does where torch is loaded.
_STARTER = """
import json, os, signal, subprocess, sys
calls = json.loads(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: None)  # as torch.distributed.run has
os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"  # as it sets for its ranks
kept = open(os.devnull)
os.set_inheritable(kept.fileno(), True)
if sys.argv[2] == "fork":
    import torch
results = []
for words in calls:
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    done = subprocess.Popen([sys.executable, *words], **pipes, stdin=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "RANK": "1"})
    out, err = done.communicate()
    results.append([done.returncode, out.decode(), err.decode()])
print(json.dumps([results, os.getpid()]))
"""
_WAYS = ("end", "thread", "raise", "interrupt", "kill", "text", "0", "7", "-1", "256")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Folder, and of "execute" and "fork" the results of all calls and the pid of who made them."""
    folder = tmp_path_factory.mktemp("started")
    (folder / "shown.py").write_text(_SHOWN)
    (folder / "ends.py").write_text(_ENDS)
    (folder / "starter.py").write_text(_STARTER)
    env = environment()
    env.pop("PYTHONUNBUFFERED", None)
    found = {}
    for way in ("execute", "fork"):
        calls = [["-u", "-m", "shown", f"{way}.module"], ["shown.py", "--word", f"{way}.script"], ["nowhere.py"]]
        calls += [["-m", "nowhere"], *(["ends.py", how] for how in _WAYS)]
        done = subprocess.run(
            [sys.executable, "starter.py", json.dumps(calls), way], env=env, cwd=folder, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        found[way] = json.loads(done.stdout)
    return folder, found


@pytest.mark.torch
@on_linux
@pytest.mark.parametrize("kind", ["module", "script"])
def test_a_forked_process_sees_of_itself_what_an_executed_one_does(both, kind):
    folder, found = both
    execute, fork = (json.loads(Path(folder, f"{way}.{kind}.json").read_text()) for way in ("execute", "fork"))
    assert fork.pop("parent") == found["fork"][1] and execute.pop("parent") == found["execute"][1]
    for shown in (execute, fork):
        shown["argv"].pop(), shown["orig_argv"].pop()
        shown["command"] = shown["command"].split("\0")[:-1]
    if kind == "module":  # -u is no variable: the flag that it sets cannot be set later
        assert execute["flags"].pop(11) == 1
        fork["flags"].pop(11)
    assert fork == execute
    assert str(signal.SIG_DFL) == fork["handlers"][str(int(signal.SIGTERM))]


@pytest.mark.torch
@on_linux
def test_it_ends_as_an_executed_one_does(both):
    _, found = both
    (execute, _), (fork, _) = found["execute"], found["fork"]
    assert [one[0] for one in execute[4:]] == [0, 0, 1, -2, -9, 1, 0, 7, 255, 0]
    for ours, theirs in zip(fork, execute, strict=True):
        assert ours == theirs


@pytest.mark.torch
@on_linux
def test_a_test_s_own_process_forked_from_one_that_has_loaded_torch_sees_the_same(tmp_path):
    code = _SHOWN.replace(
        "json.dump(shown",
        "shown['said'] = sorted(open('/proc/self/environ').read().strip(chr(0)).split(chr(0)))\n"
        "shown['loaded'] = 'torch' in sys.modules\njson.dump(shown",
    )
    code += "import torch\n"
    found = []
    for before in ([], ["env"]):  # env executes what it is told to
        command = [*before, sys.executable, "-c", code, "shown"]
        subprocess.run(command, cwd=tmp_path, env=environment(WORD="=a="), stdin=subprocess.DEVNULL, check=True)
        found.append(json.loads((tmp_path / "shown.json").read_text()))
    fork, execute = found
    assert fork.pop("loaded") and not execute.pop("loaded")
    assert fork["said"] == sorted(f"{name}={value}" for name, value in fork["variables"].items())
    assert fork == execute


@pytest.mark.torch
@on_linux
def test_code_that_does_not_import_torch_does_not_find_it_loaded(tmp_path):
    code = "import sys\nsys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), check=True)


@pytest.mark.torch
@on_linux
def test_torch_is_not_loaded_while_tests_are_collected(loaded_torch):
    """Each worker of pytest collects all of them. A fixture imports it for the tests of a module."""
    assert loaded_torch in ([], ["before the tests"])


# `make test` is the same every time: what hypothesis draws depends on the test alone.


LARGE = 8_231_776_451


def drawn() -> list[int]:
    """What a property is tried on."""
    seen: list[int] = []

    @examples(200)
    @given(st.integers())
    def property_(number):
        seen.append(number)

    property_()
    return seen


def test_a_property_is_tried_on_the_same_examples_whatever_our_modules_hold(tmp_path, monkeypatch):
    before = drawn()
    (tmp_path / "some_module.py").write_text(f"NUMBER = {LARGE}\n")
    module = ModuleType("some_module")
    module.__file__ = str(tmp_path / "some_module.py")
    monkeypatch.setitem(sys.modules, "some_module", module)

    assert drawn() == before
    assert LARGE not in before


def test_nothing_is_kept_from_one_run_for_the_next():
    assert settings.default.derandomize
    assert settings.default.database is None


# The order of tests among the workers of pytest-xdist.


QUICK = [f"tests/core/test_a.py::test_{number}" for number in range(81)]
NAMES = [*QUICK, *(f"{slow}::test_{letter}" for slow in sorted(SLOW) for letter in "zab")]


def test_each_worker_begins_with_slow_tests_and_ends_with_quick_ones():
    ordered = slow_first(NAMES, NAMES, 3)
    part = len(NAMES) // 3
    for worker in range(3):
        mine = ordered[worker * part : (worker + 1) * part]
        slow = [name for name in mine if name not in QUICK]
        assert mine[: len(slow)] == slow
        assert slow == [f"{one}::test_{letter}" for one in SLOW[worker::3] for letter in "zab"]


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 40, 200])
@pytest.mark.parametrize("names", [[], NAMES[:1], NAMES, QUICK, NAMES[len(QUICK) :]])
def test_no_test_is_lost_or_run_twice(names, workers):
    ordered = slow_first(names, names, workers)
    assert sorted(ordered) == sorted(names)
    assert [name for name in ordered if name in QUICK] == [name for name in names if name in QUICK]


@pytest.mark.parametrize("slow", SLOW)
def test_what_is_named_exists(slow):
    assert (ROOT / slow).is_dir() if slow.endswith("/") else (ROOT / slow).is_file()


def test_a_check_leaves_the_longest_tests_out():
    seconds = {name: 0.25 * number for number, name in enumerate("abcd")}
    assert quickest("dcba", seconds, 0.75) == {"a", "b", "c"}
    assert quickest(["b", "never run"], seconds, 0.25) == {"never run"}
    assert quickest("dcba", seconds, 9.0) == set("abcd")
