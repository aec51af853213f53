"""What ranks print is theirs: it fails for no disk, keeps its order, and goes on where they leave something running."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from started import environment

from traceops.capture.pipes import make_pipes, print_to_launcher
from traceops.launch import supervise

DEADLOCK_S = 120
TRAINING = """
import os, subprocess, sys
for number in range(20):
    print("out", number)
    print("err", number, file=sys.stderr)
os.system("echo from a shell > /dev/stdout")
print("behind it")
code = "import time; time.sleep(4); open('uploaded', 'w'); print('uploaded', flush=True); open('printed', 'w')"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("pid", os.getpid())
"""


@pytest.mark.torch
@pytest.mark.slow
def test_what_a_rank_prints_and_what_it_leaves_running(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "traceops", "run", "--nproc", "1", "--no-prefix", "--out", "run", "--", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    told = [line for line in done.stdout.splitlines() if not line.startswith("traceops: ")]
    expected = [f"{name} {number}" for number in range(20) for name in ("out", "err")]
    assert told[:-1] == [*expected, "from a shell", "behind it"]
    log = tmp_path / "run" / "logs" / "rank_0.output.log"
    assert log.read_text().splitlines() == told, "a file was truncated by the shell"
    assert not (tmp_path / "uploaded").exists(), "the run waits for nothing"
    deadline = time.monotonic() + DEADLOCK_S
    while not (tmp_path / "printed").exists():
        assert time.monotonic() < deadline, "what was to outlive the run was killed, or died of what it printed"
        time.sleep(0.1)
    while "uploaded" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    sessions = {int(told[-1].split()[1])}
    left = [pid for pid, _ in supervise._parents() if supervise._session(pid) in sessions]
    assert left == [], "a helper in the rank's own session ends with it"


@pytest.mark.parametrize("log", ["/dev/full", "file/below"])
def test_a_full_disk_fails_no_print(tmp_path, log):
    (tmp_path / "file").write_text("")
    ((_, pipe),) = make_pipes(tmp_path, 1, one_place=True)
    read, write = os.pipe()
    settings = supervise.SupervisorSettings(read, outputs=[(str(pipe), str(tmp_path / log))])
    code = f"import sys; sys.stdout = open({str(pipe)!r}, 'w'); print('kept', flush=True); sys.stdout.close()"
    done = subprocess.run(
        supervise.command_line(settings, [sys.executable, "-c", code]), pass_fds=[read], capture_output=True, text=True
    )
    os.close(read)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, "kept\n")
    assert done.stderr.startswith("traceops: 5 bytes of the ranks' output are not in their logs (")


@pytest.mark.parametrize("one_place", [False, True])
def test_a_process_prints_into_the_pipes_that_there_are(tmp_path, one_place):
    pipes = [pipe for _, pipe in make_pipes(tmp_path, 2, one_place=one_place)][-1 if one_place else -2 :]
    reading = [os.open(pipe, os.O_RDWR | os.O_NONBLOCK) for pipe in pipes]
    pid = os.fork()
    if not pid:
        print_to_launcher(Path(tmp_path), {"LOCAL_RANK": "1"})
        os.write(1, b"out")
        os.write(2, b"err")
        os._exit(0)
    os.waitpid(pid, 0)
    assert [os.read(one, 100) for one in reading] == ([b"outerr"] if one_place else [b"out", b"err"])
    for one in reading:
        os.close(one)
