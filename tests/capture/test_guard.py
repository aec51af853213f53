"""Whatever fails in the capture: the script's exit code, output and result are those without it."""

import os
import resource
import signal
import subprocess
import sys
from itertools import cycle
from types import SimpleNamespace

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _signals_as_before():
    """A capture whose call to give SIGTERM back fails keeps it, and another test's SIGTERM would then end pytest."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    from fault_table import Table

    made = Table(tmp_path_factory.mktemp("faults"))
    made.run()
    return made


@pytest.fixture(scope="module")
def clean(table):
    outcome, calls = table.clean()
    assert (outcome.code, outcome.traced, outcome.reason) == (3, 2, None)
    return outcome, calls


def test_every_call_of_the_capture_may_fail(table, clean):
    from fault_table import ERRORS

    outcome, calls = clean
    # One of what each module calls; every call with every error: python tests/capture/fault_table.py
    chosen = {(call.file, call.called): number for number, call in reversed(list(enumerate(calls)))}
    called = {name for _, name in chosen}
    assert {"pwrite", "mkdir", "Path.replace", "profile.start", "profile.step", "profile.stop"} & called
    assert len(chosen) > 120
    for number, error in zip(chosen.values(), cycle(ERRORS), strict=False):
        failed = table.failing(number, error)
        assert (failed.code, failed.printed) == (outcome.code, outcome.printed), calls[number]
        assert failed.reason is not None or failed.traced == outcome.traced, calls[number]


@pytest.mark.parametrize("step", range(0, 9, 2))
def test_a_disk_that_is_full_from_a_step_on(table, clean, step):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(number):
        if number == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # no file of this process can grow

    try:
        full = table.run(during=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (full.code, full.printed) == (clean[0].code, clean[0].printed)
    assert full.traced == (0 if step < 4 else 1 if step < 8 else 2)
    assert full.reason["operation"] in ("heartbeat", "export", "compress", "manifest")
    assert full.reason["step"] >= step


def test_ctrl_c_in_the_middle_of_the_capture_is_the_scripts(table, clean):
    number = next(n for n, call in enumerate(clean[1]) if call.called.endswith("export_chrome_trace"))
    stopped = table.failing(number, KeyboardInterrupt())
    assert stopped.code == 130 and stopped.traced == 0
    assert (stopped.reason["operation"], stopped.reason["error"]) == ("export", "KeyboardInterrupt")


def test_what_a_signal_handler_of_the_script_raises_is_the_scripts():
    from traceops.capture.guard import Guard
    from traceops.core.capture_failure import CaptureOperation

    class OutOfTime(Exception):
        pass

    def alarm(number, frame):
        raise OutOfTime

    heard = []
    guard = Guard(lambda operation, error: heard.append((operation, type(error))))
    before = signal.signal(signal.SIGUSR1, alarm)
    try:
        with pytest.raises(OutOfTime):
            guard.run(CaptureOperation.EXPORT, os.kill, os.getpid(), signal.SIGUSR1)
        guard.run(CaptureOperation.EXPORT, int, "no number")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [(CaptureOperation.EXPORT, OutOfTime), (CaptureOperation.EXPORT, ValueError)]


FORKS = """
import os
from traceops.capture.guard import Guard
from traceops.core.capture_failure import CaptureOperation

guard = Guard(lambda operation, error: None)
assert guard.run(CaptureOperation.RECORD, lambda: 7) == 7
child = os.fork()
if child == 0:
    os._exit(0 if guard.run(CaptureOperation.RECORD, lambda: 7) is None else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_captures_nothing():
    """In a process of its own: a fork of one with torch's threads may never get a lock that they hold."""
    subprocess.run([sys.executable, "-c", FORKS], check=True)


def test_the_heartbeat_never_writes_into_a_file_of_the_scripts(tmp_path):
    from traceops.capture.progress import ProgressWriter

    writer = ProgressWriter(tmp_path, 0)
    os.close(writer._fd)  # as a script does that closes all it did not open
    with (tmp_path / "log.txt").open("w") as log:
        assert log.fileno() == writer._fd
        log.write("the script's\n")
        with pytest.raises(OSError, match="Bad file descriptor"):
            writer.write("active", 1, None)
        writer.write("active", 2, None)
    assert (tmp_path / "log.txt").read_text() == "the script's\n"


def test_with_a_responder_too(table, clean):
    from traceops.capture.threads import our_threads

    threads = len(our_threads())
    watched = table.run(evidence=True)
    assert (watched.code, watched.printed, watched.traced) == (3, clean[0].printed, 2)
    assert len(our_threads()) == threads + 1, "a daemon, which ends with the process"


def test_room_is_looked_at_before_the_trace_is_written(table, clean, monkeypatch):
    from traceops.capture import trace_file
    from traceops.core.capture_failure import cause_text, read_failure

    usage = trace_file.shutil.disk_usage("/")
    monkeypatch.setattr(trace_file.shutil, "disk_usage", lambda path: usage._replace(free=20 << 20))
    full = table.run()
    assert (full.code, full.printed, full.traced) == (3, clean[0].printed, 0)
    failure = read_failure(full.reason)
    assert failure.operation == "room" and failure.no_space and failure.free_bytes == 20 << 20
    assert "no space left on device (needs about 3" in cause_text(failure) and "21.0 MB free" in cause_text(failure)


def test_a_disk_without_a_free_inode_has_no_room(table, clean, monkeypatch):
    from traceops.capture import trace_file
    from traceops.core.capture_failure import read_failure

    disk = SimpleNamespace(f_files=100, f_favail=1)
    monkeypatch.setattr(trace_file.os, "statvfs", lambda path: disk)
    full = table.run()
    assert (full.code, full.printed, full.traced) == (3, clean[0].printed, 0)
    assert read_failure(full.reason).operation == "room" and read_failure(full.reason).no_space


@pytest.mark.parametrize("name", ["new\nline", 'tab\t "quotes" back\\slash %d {}', "\udcff"])
def test_odd_names_of_folders_work(table, tmp_path, name):
    from traceops.traces.discover import discover

    out = tmp_path / name
    odd = table.run(out=out)
    assert odd.code == 3 and odd.reason is None
    assert len([file for window in discover(str(out)).windows for file in window.files]) == 2


_EXPLICIT = """
import sys, torch, traceops
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with traceops.capture(sys.argv[1], schedule=traceops.Schedule(0, 1, 1, 1)) as profiler:
    while not profiler.done:
        optimizer.step()
        profiler.step()
print(profiler.steps)
"""


def test_a_folder_that_cannot_be_made_costs_the_capture_only(python, tmp_path):
    (tmp_path / "file").write_text("")
    done = python("-c", _EXPLICIT, "file/run")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("traceops:")]
    assert len(said) == 1 and "the capture ended early: Not a directory while it was set up, in step 0" in said[0]


def test_an_error_that_cannot_say_itself_has_its_name():
    from traceops.capture.guard import describe

    class Odd(Exception):
        def __str__(self):
            raise ValueError("no words")

    assert describe(Odd()) == "Odd" and describe(ValueError(" x ")) == "ValueError: x"
