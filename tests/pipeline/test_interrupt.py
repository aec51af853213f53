"""Ctrl-C while traces are read ends the command and its processes at once, and leaves nothing half-written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_COMMAND = """
import os, pathlib, signal, sys, time
from traceops.cli import main
from traceops.pipeline.mapping import ranks

folder, started = sys.argv[1], pathlib.Path(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)  # of a test in the background it is ignored

def slow(file, *options):
    (started / str(os.getpid())).touch()
    time.sleep(60)
    (started / "ended").touch()

ranks.summarize = slow
ranks._POOL_WORTH_BYTES = 0
sys.exit(main(["analyze", folder, "-o", folder + "/out", "--jobs", sys.argv[3]]))
"""


def alive(pid):
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("whole_group", [False, True], ids=["kill -INT", "Ctrl-C in a terminal"])
@pytest.mark.parametrize("jobs", [1, 3])
def test_interrupted(ddp, tmp_path, cache, jobs, whole_group):
    started = tmp_path / "started"
    started.mkdir()
    command = [sys.executable, "-c", _COMMAND, str(ddp), str(started), str(jobs)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while len(list(started.iterdir())) < jobs:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    workers = [int(path.name) for path in started.iterdir()]
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    out, said = process.communicate()
    assert process.returncode == 130
    assert (out, said) == ("", "traceops analyze: interrupted\n")
    assert not (started / "ended").exists()
    assert not any(map(alive, workers))
    assert list((ddp / "out").iterdir()) == []
    assert [path for path in cache.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end processes with their parent")
def test_workers_of_a_killed_command_end_too(ddp, tmp_path):
    started = tmp_path / "started"
    started.mkdir()
    process = subprocess.Popen([sys.executable, "-c", _COMMAND, str(ddp), str(started), "2"])
    while len(list(started.iterdir())) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    workers = [int(path.name) for path in started.iterdir()]
    process.kill()
    process.wait()
    while any(map(alive, workers)):
        time.sleep(0.02)
    assert not (started / "ended").exists()
