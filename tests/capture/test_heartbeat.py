"""The heartbeat: of short steps few are written to its file, and a reader has the last one all the same."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traceops.capture import progress
from traceops.capture.progress import ProgressWriter, read_progress

STEPS = """
import os, signal, sys
from pathlib import Path
from traceops.capture.progress import ProgressWriter
writer = ProgressWriter(Path(sys.argv[1]), 3)
for step in range(500):
    writer.write("active", step, 8 * step)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_rank_that_is_stopped_shows_its_last_step(tmp_path):
    rank = subprocess.Popen([sys.executable, "-c", STEPS, tmp_path])
    try:
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        (record,) = read_progress(tmp_path)
    finally:
        rank.kill()
        rank.wait()
    assert (record.rank, record.pid, record.phase) == (3, rank.pid, "active")
    assert (record.step, record.samples) == (499, 8 * 499)


@pytest.fixture
def still(monkeypatch):
    """A clock that goes on only when told, and the time that it shows; nothing known of other memories."""
    monkeypatch.setattr(progress, "_memories", {})
    now = [time.time_ns()]
    monkeypatch.setattr(progress.time, "time_ns", lambda: now[0])
    return now


def in_file(folder):
    return progress.json.loads((folder / "rank_0.json").read_text())["step"]


def each_step_is_in_the_file(folder, writer, phase):
    for step in range(300, 303):
        writer.write(phase, step, None)
        assert in_file(folder) == read_progress(folder)[0].step == step


def test_the_file_is_written_every_200_ms_and_where_the_phase_changes(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    seen = []
    for step in range(200, 260):
        writer.write("skipped" if step < 250 else "done", step, None)
        seen.append(in_file(tmp_path))
        assert read_progress(tmp_path)[0].step == step
        still[0] += 10_000_000
    assert sorted(set(seen)) == [200, 220, 240, 250]
    writer.close()
    assert in_file(tmp_path) == 250


def test_every_step_is_in_the_file_until_a_reader_has_the_memory(tmp_path, still):
    """It may be another user's, in another container, or not have looked when the rank is killed after 2 ms."""
    writer = ProgressWriter(tmp_path, 0)
    for step in range(1000):
        writer.write("active", step, None)
        assert in_file(tmp_path) == step
    read_progress(tmp_path)
    for step in range(1000, 1010):
        writer.write("active", step, None)
        assert (in_file(tmp_path), read_progress(tmp_path)[0].step) == (999, step)


def test_a_reader_who_cannot_have_the_memory_has_every_step(tmp_path, still, monkeypatch):
    writer = ProgressWriter(tmp_path, 0)
    monkeypatch.setattr(progress, "_is_memory", lambda path, name: path.parts[2] == "self")
    each_step_is_in_the_file(tmp_path, writer, "active")


def test_a_rank_that_was_killed_while_it_wrote_has_told_the_step_before(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    writer.write("active", 300, None)
    read_progress(tmp_path)
    for step in (301, 302):
        writer.write("active", step, None)
    size = progress._MEMORY.size
    at = progress._SLOTS[writer._memory[progress._LAST] != b"\0"]
    for written in range(0, size, 8):  # the record is cleared first, and then written from its begin
        whole = bytes(writer._memory)
        writer._memory[at : at + size] = whole[at : at + written] + bytes(size - written)
        assert read_progress(tmp_path)[0].step == 301
        writer._memory[: len(whole)] = whole
    assert read_progress(tmp_path)[0].step == 302


def test_a_look_between_the_file_and_the_memory_does_not_lose_the_memory(tmp_path, still):
    """The rank may be gone at the next look."""
    writer = ProgressWriter(tmp_path, 0)
    writer.write("active", 300, None)
    read_progress(tmp_path)
    writer.write("active", 301, None)
    file = tmp_path / "rank_0.json"
    text = file.read_text()
    file.write_text(text.replace(str(still[0]), str(still[0] + 1)))
    assert read_progress(tmp_path)[0].step == 300
    os.close(writer._number)
    file.write_text(text)
    assert read_progress(tmp_path)[0].step == 301


KILLED = """
import os, signal, sys
from pathlib import Path
from traceops.capture.progress import ProgressWriter
writer = ProgressWriter(Path(sys.argv[1]), 3)
writer.write("active", 300, None)
print("there", flush=True)
sys.stdin.readline()
for step in range(301, 900):
    writer.write("active", step, None)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_was_killed_has_told_its_last_step(tmp_path):
    """To one who has looked before: the memory would be gone with the process."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout.readline() == "there\n"
        assert read_progress(tmp_path)[0].step == 300
        rank.communicate("\n")
    assert rank.returncode < 0
    assert read_progress(tmp_path)[0].step == 899


def test_a_clock_that_is_set_back_does_not_stop_the_file(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    writer.write("done", 301, None)
    still[0] -= 3600 * 10**9
    writer.write("done", 302, None)
    assert in_file(tmp_path) == 302


def test_without_such_memory_every_step_is_in_the_file(tmp_path, still, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    each_step_is_in_the_file(tmp_path, ProgressWriter(tmp_path, 0), "done")


def test_another_file_under_its_number_is_not_read(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    writer.write("done", 301, None)
    number = writer._number
    os.close(number)  # as a script does that closes all it did not open
    other = os.memfd_create(progress._NAME)  # of another capture, say
    try:
        assert other == number
        os.write(other, bytes(progress._TAKEN + 1))
        os.pwrite(other, progress._MEMORY.pack(7, 7, 7, still[0]), 0)
        assert read_progress(tmp_path)[0].step == 301
        assert os.pread(other, 1, progress._TAKEN) == b"\0"  # nor written to
        writer.close()
        os.fstat(other)  # not ours to close
    finally:
        os.close(other)


def test_a_file_that_was_written_since_has_the_last_word(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    writer.write("active", 1, None)
    memory = bytes(writer._memory)
    still[0] += 1
    writer.write("profiler", 2, None)
    progress.ctypes.memmove(writer._memory, memory, len(memory))  # as if it had been stopped between the two
    (record,) = read_progress(tmp_path)
    assert (record.phase, record.step) == ("profiler", 2)


def test_closing_leaves_its_files_closed(tmp_path):
    writer = ProgressWriter(tmp_path, 0)
    numbers = writer._fd, writer._number
    writer.write("ended", 1, None)
    writer.close()
    for path in (Path(f"/proc/self/fd/{number}") for number in numbers):
        assert not path.exists() or "rank_0.json" not in str(path.readlink())
        assert not path.exists() or progress._NAME not in str(path.readlink())


def test_the_next_capture_of_a_process_may_have_the_same_number(tmp_path, still):
    for number in (300, 400):
        writer = ProgressWriter(tmp_path, 0)
        writer.write("done", number, None)
        writer.write("done", number + 1, None)
        steps = [read_progress(tmp_path)[0].step for _ in range(2)]
        assert steps[-1] == number + 1
        writer.close()
        still[0] += 1
