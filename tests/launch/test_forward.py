"""What is shown of the ranks' output, in a log and on a terminal."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from started import environment

from traceops.capture.progress import Progress, make_pipes, print_to_launcher
from traceops.launch import display, forward, supervise
from traceops.launch.conclusion import show_end
from traceops.launch.display import LineSource, Screen
from traceops.launch.forward import PIECE_BYTES, Forwarder, Shown, TerminalRows
from traceops.launch.process import StepRate

NEVER = lambda: False  # noqa: E731
BAR = b"".join(b"\r%3d%%|%s" % (percent, b"#" * (percent // 10)) for percent in range(101)) + b"\n"


class Job:
    """torchrun's pipes and its ranks' files, written to by hand."""

    def __init__(self, folder):
        self.logs = folder / "logs"
        self._writing = {}
        self._reading = []
        for name in ("stdout", "stderr"):
            read, write = os.pipe()
            self._reading.append(os.fdopen(read, "rb", 0))
            self._writing[name] = os.fdopen(write, "wb", 0)

    def forward(self, *, ranks=(), rank_of=lambda local: local, screen=None, files=True, **shown):
        """Start to pass on; `ranks`: what each writes, (stdout, stderr)."""
        for local, written in enumerate(ranks):
            folder = self.logs / "id" / "attempt_0" / str(local)
            folder.mkdir(parents=True)
            for name, data in zip(("stdout", "stderr"), written, strict=True):
                (folder / f"{name}.log").write_bytes(data)
        logs = self.logs if files else None
        return Forwarder(tuple(self._reading), logs, rank_of, screen or Screen(), Shown(**shown))

    def write(self, data, name="stderr"):
        self._writing[name].write(data)

    def close(self):
        for pipe in self._writing.values():
            pipe.close()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    job.close()


def passed(job, capfdbinary, **options):
    """What reaches stdout and stderr of a job that ends at once."""
    output = job.forward(**options)
    job.close()
    output.finish(60, NEVER)
    return capfdbinary.readouterr()


def test_each_line_has_the_mark_of_its_rank(job, capfdbinary):
    out, err = passed(job, capfdbinary, ranks=[(b"a\nb\n", b"w\n"), (b"c\r\nno end", b"\xff\n")])
    assert set(out.split(b"\n")) == {b"[rank 0] a", b"[rank 0] b", b"[rank 1] c", b"[rank 1] no end"}
    assert set(err.splitlines()) == {b"[rank 0] w", b"[rank 1] \xff"}


def test_a_line_of_megabytes_has_one_mark_and_comes_in_pieces(job, capfdbinary, monkeypatch):
    pieces = []
    monkeypatch.setattr(display, "_write", lambda error, data: pieces.append(data))
    line = b"x" * (3 << 20) + b"\n"
    passed(job, capfdbinary, ranks=[(line, b"")])
    assert b"".join(pieces) == b"[rank 0] " + line
    assert max(map(len, pieces)) <= forward._READ_BYTES + PIECE_BYTES


def test_a_line_that_another_interrupts_is_ended_and_marked_again(capfdbinary):
    screen, one, two = Screen(), LineSource(b"[rank 0] "), LineSource(b"[rank 1] ")
    screen.output(b"begin", one)
    screen.output(b"whole\n", two)
    screen.output(b"end\n", one)
    assert capfdbinary.readouterr().out == b"[rank 0] begin\n[rank 1] whole\n[rank 0] end\n"


def test_in_a_log_a_progress_bar_is_its_last_state(job, capfdbinary):
    """torchrun's own way of showing a file has a marked line for each of the 101."""
    _, err = passed(job, capfdbinary, ranks=[(b"", BAR), (b"", b"before\n" + BAR + b"after\n")])
    lines = err.decode().splitlines()
    assert sorted(lines) == [
        "[rank 0] 100%|##########", "[rank 1] 100%|##########", "[rank 1] after", "[rank 1] before",
    ]  # fmt: skip


def test_in_a_log_a_long_bar_is_told_every_few_seconds(capfdbinary, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    screen, source = Screen(), LineSource(b"[rank 0] ", error=True)
    for number in range(100):
        now[0] += 0.25
        screen.bar(b"step %d" % number, source)
    assert capfdbinary.readouterr().err.splitlines() == [b"[rank 0] step 40", b"[rank 0] step 80"]


class Terminal:
    """A pseudo-terminal of 60 columns."""

    def __init__(self):
        self._ours, self._theirs = os.openpty()
        os.set_blocking(self._ours, False)
        self._stream = open(self._theirs, "w", closefd=False)  # noqa: SIM115

    def become_ours(self, monkeypatch):
        """Be stdout and stderr from here on; pytest sets its own between a fixture and its test."""
        monkeypatch.setattr(sys, "stdout", self._stream)
        monkeypatch.setattr(sys, "stderr", self._stream)
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setattr(display, "_REDRAW_S", 0.0)

    def written(self):
        told = b""
        with suppress(BlockingIOError):
            while piece := os.read(self._ours, 1 << 16):
                told += piece
        return told.replace(b"\r\n", b"\n")

    def close(self):
        self._stream.close()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.close()


def screen_of(written):
    """The lines that a terminal shows after all this."""
    lines, at = [""], 0
    for part in re.split(r"(\n|\r|\x1b\[\d*[AK])", written.decode()):
        if part == "\n":
            at += 1
            lines += [""] if at == len(lines) else []
        elif part == "\x1b[1A":
            at -= 1
        elif part == "\x1b[2K":
            lines[at] = ""
        elif part != "\r":
            lines[at] += part
    return [line for line in lines if line]


def test_on_a_terminal_there_is_one_line_for_the_bars_and_one_for_our_progress(terminal, monkeypatch):
    monkeypatch.setattr(display, "_TERMINAL_EVERY_S", 0.0)
    terminal.become_ours(monkeypatch)
    screen = Screen()
    ranks = [LineSource(f"[rank {rank}] ".encode(), True, rank) for rank in range(3)]
    seen = b""
    for percent in range(100):
        for source in ranks:
            screen.bar(b"%d%%|" % percent, source)
        screen.progress(f"step {percent}")
        seen += terminal.written()
    screen.output(b"told\n", ranks[2])
    seen += terminal.written()
    assert screen_of(seen) == ["[rank 2] told", "[rank 0] 99%| (and 2 more ranks)", "step 99"]
    for source in ranks:
        screen.bar(b"", source)
        screen.output(b"100%|\n", source)
    screen.say("the end")
    screen.rest()
    assert screen_of(terminal.written())[-1] == "traceops: the end"


def test_a_bar_that_is_too_wide_does_not_wrap(terminal, monkeypatch):
    terminal.become_ours(monkeypatch)
    Screen().bar(("█" * 300).encode(), LineSource(b"[rank 0] ", True))
    (line,) = screen_of(terminal.written())
    assert len(line) == 59


def test_torchruns_report_of_a_failure_is_kept_and_not_shown(job, capfdbinary):
    told = b"warning\nE1122 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 1)\nTraceback\n"
    job.write(told)
    output = job.forward()
    job.close()
    output.finish(60, NEVER)
    assert output.has_failure and output.own_words() == told.decode()
    assert capfdbinary.readouterr().err == b"warning\n"


def test_without_log_files_all_is_passed_on_as_it_is(job, capfdbinary):
    job.write(b"Traceback of a rank\n")
    job.write(b"a\nb", "stdout")
    out, err = passed(job, capfdbinary, files=False)
    assert (out, err) == (b"a\nb", b"Traceback of a rank\n")


def test_of_torchruns_words_the_end_is_kept(job):
    output = job.forward(files=False)
    for number in range(40):
        job.write(b"%07d\n" % number * (1 << 13))
    job.close()
    output.finish(60, NEVER)
    assert len(output.own_words()) <= 2 * forward._KEPT_BYTES and output.own_words().endswith("0000039\n")


def test_a_pipe_that_somebody_keeps_open_does_not_hold_the_end_back(job, capfdbinary, monkeypatch):
    monkeypatch.setattr(forward, "_OPEN_PIPE_S", 0.2)
    output = job.forward()
    job.write(b"last words\n")
    output.finish(3600, NEVER)  # the pipes are still open
    assert capfdbinary.readouterr().err == b"last words\n"


def test_nobody_who_reads_does_not_hold_the_end_back(job, monkeypatch):
    """A pager that has stopped to read, or a terminal after Ctrl-S."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while os.write(write, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(write, True)
    full = os.fdopen(write, "wb", 0)
    monkeypatch.setattr(display, "_BUSY_S", 0.1)

    def write(error, data):
        with suppress(BrokenPipeError):
            full.write(data)

    monkeypatch.setattr(display, "_write", write)
    screen = Screen()
    job.write(b"more\n")
    output = job.forward(screen=screen)
    output.finish(0.5, NEVER)
    screen.say("goes on")
    screen.progress("step 1")
    os.close(read)  # frees the thread


def test_a_reader_that_is_gone_costs_the_output_only(job, capfdbinary, monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr(sys, "stdout", Gone())
    job.write(b"lost\n", "stdout")
    _, err = passed(job, capfdbinary, ranks=[(b"lost\n", b"kept\n")])
    assert err == b"[rank 0] kept\n"


def test_a_mistake_of_ours_stops_neither_torchrun_nor_the_run(job, capfdbinary, monkeypatch):
    def mistaken(rows, data, now):
        raise ValueError("cannot be")

    monkeypatch.setattr(forward.TerminalRows, "feed", mistaken)
    output = job.forward(files=False)
    for _ in range(20):  # more than a pipe holds
        job.write(b"x" * (1 << 16))
    output.finish(60, NEVER)
    told = capfdbinary.readouterr().err.splitlines()
    assert told == [b"traceops: the output is no longer shown (ValueError: cannot be)"]


def test_the_chatter_of_kineto_is_left_out(job, capfdbinary):
    chatter = b"STAGE:2026-01-01 10:00:00 12:34 ActivityProfilerController.cpp:312] Completed Stage: Warm Up\n"
    _, err = passed(job, capfdbinary, ranks=[(b"", b"a\n" + chatter + b"b\n")])
    assert err == b"[rank 0] a\n[rank 0] b\n"


def test_the_chatter_of_kineto_behind_a_progress_bar_is_left_out(job, capfdbinary):
    bar = b"\r 5%|x| 2/40\r 7%|x| 3/40"
    chatter = b"USDT:2026-11-23 16:40:30 4483:4483 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
    _, err = passed(job, capfdbinary, ranks=[(b"", bar + chatter + b"b\n")])
    assert err == b"[rank 0]  7%|x| 3/40\n[rank 0] b\n"


@pytest.mark.parametrize(("code", "shown"), [(35, b""), (100, b""), (3, b"[rank 0] " + b"{line}")])
def test_kineto_finds_no_gpu_where_there_is_none(code, shown, job, capfdbinary):
    line = b"ERROR:2026-11-24 00:21:36 53:53 DeviceProperties.cpp:56] gpuGetDeviceCount failed with code %d\n" % code
    _, err = passed(job, capfdbinary, ranks=[(b"", line + b"b\n")])
    assert err == shown.replace(b"{line}", line) + b"[rank 0] b\n"


def test_ranks_of_several_machines_are_marked_once_they_are_known(job, capfdbinary):
    known = {}
    output = job.forward(ranks=[(b"a\n", b"")], rank_of=known.get)
    known[0] = 5
    job.close()
    output.finish(60, NEVER)
    assert capfdbinary.readouterr().out == b"[rank 5] a\n"


def test_only_rank_0_is_shown_and_its_colours_pass(job, capfdbinary):
    coloured = b"\x1b[31mred\x1b[0m\n"
    out, err = passed(job, capfdbinary, ranks=[(coloured, b"w"), (b"quiet\n", b"quiet\n")], all_ranks=False)
    assert out == b"[rank 0] " + coloured and err.rstrip() == b"[rank 0] w"


def test_lines_without_marks(job, capfdbinary):
    out, _ = passed(job, capfdbinary, ranks=[(b"a\nb\n", b""), (b"c\n", b"")], marks=False)
    assert sorted(out.splitlines()) == [b"a", b"b", b"c"]


def test_on_another_machine_no_rank_is_rank_0(job, capfdbinary):
    ranks = [(b"a\n", b""), (b"b\n", b"")]
    out, _ = passed(job, capfdbinary, ranks=ranks, rank_of=lambda local: 2 + local, all_ranks=False)
    assert out == b""


def test_of_a_rank_that_failed_unseen_the_end_is_shown(tmp_path, capfdbinary):
    log = tmp_path / "rank_3.stderr.log"
    log.write_bytes(b"".join(b"line %d\n" % i for i in range(100)) + b"ValueError: planted")
    show_end(Screen(), log, LineSource(b"[rank 3] ", error=True))
    lines = capfdbinary.readouterr().err.splitlines()
    assert len(lines) == 20 and lines[-1] == b"[rank 3] ValueError: planted" and lines[0] == b"[rank 3] line 81"


UP = b"\x1b[A"
OUTER, INNER = b"outer 50%|##", b"inner 33%|#"
# As tqdm writes two bars, one below the other: down, the lower one, and up again.
NESTED = b"\router  0%|\n\rinner  0%|" + UP + b"\n\r" + INNER + UP + b"\r" + OUTER


def final(data, sizes=None):
    """What is passed on of `data` when it comes in pieces of these sizes."""
    rows, at, passed = TerminalRows(), 0, b""
    draw = random.Random(7)
    while at < len(data):
        size = draw.randint(*sizes) if sizes else len(data)
        passed += rows.feed(data[at : at + size], 0.0)
        at += size
    return passed + rows.end()


@pytest.mark.parametrize("sizes", [None, (1, 1), (1, 4), (5, 9)])
@pytest.mark.parametrize(
    ("data", "passed"),
    [
        (b"a\nb\n", b"a\nb\n"),
        (b"a\r\n\r\nb\r\n", b"a\n\nb\n"),
        (b"no end", b"no end"),
        (b"\n\n", b"\n\n"),
        ("é€𝄞\n".encode() * 3, "é€𝄞\n".encode() * 3),
        (b"\xff\xfe\x80\n", b"\xff\xfe\x80\n"),
        (b"\x1b[32mgreen\x1b[0m\n", b"\x1b[32mgreen\x1b[0m\n"),
        (b"\r 10%|\r 50%|\r100%|\n", b"100%|\n"),
        (b"before\n\r 10%|\r100%|\nafter\n", b"before\n100%|\nafter\n"),
        (b"\r 10%|\r      \r", b""),  # tqdm(leave=False)
        (b"\r 10%|\r      \rtold\n\r 20%|\n", b"told\n 20%|\n"),  # tqdm.write
        (NESTED + b"\n\r" + b" " * 30 + b"\r" + UP + b"\r100%|\n", b"100%|\n"),
        (NESTED + b"\n\n", OUTER + b"\n" + INNER + b"\n"),
        (b"\x1b[2K\r 10%|\x1b[2K\r 60%|\x1b[2K\rlast\n", b"last\n"),
    ],
)  # fmt: skip
def test_lines_pass_and_of_a_bar_the_last_state(data, passed, sizes):
    assert final(data, sizes) == passed


def test_a_bar_can_be_seen_before_it_is_final():
    rows = TerminalRows()
    assert rows.feed(NESTED, 0.0) == b"" and rows.draws and rows.live == OUTER
    rows.feed(b"\n\r" + INNER + b"\x1b[1mx" + UP, 0.0)
    assert rows.live == INNER + b"x"
    assert rows.settle(10.0, partial=True) == b"", "the program may go back to its bars after any time"
    assert rows.end() == OUTER + b"\n" + INNER + b"\x1b[1mx"


def test_a_bar_is_final_once_the_program_stays_below_it():
    rows = TerminalRows()
    assert rows.feed(b"\r100%|\n", 1.0) == b"" == rows.settle(1.2, partial=True)
    assert rows.settle(2.0, partial=True) == b"100%|\n" and not rows.draws


def test_a_line_without_its_end_is_shown_after_a_while_where_nobody_sees_it_grow():
    rows = TerminalRows()
    assert rows.feed(b"..", 1.0) == b"" == rows.settle(1.5, partial=True) == rows.settle(9.0, partial=False)
    assert rows.settle(9.0, partial=True) == b".."
    assert rows.feed(b".\n", 9.5) == b".\n"


@pytest.mark.parametrize("before", [b"", b"\r 10%|\n"], ids=["plain", "below a bar"])
def test_a_line_of_megabytes_passes_in_pieces_and_is_not_kept(before):
    """20 MB without a newline took 56 s: everything that had come was searched again with each piece."""
    rows = TerminalRows()
    text = "é".encode() * (PIECE_BYTES // 2 + 3)
    rows.feed(before, 0.0)
    passed = b""
    for piece in (text[at : at + 1000] for at in range(0, len(text), 1000)):
        passed += rows.feed(piece, 0.0)
        assert sum(len(row.text) for row in rows._rows) < PIECE_BYTES + len(before)
    assert passed.endswith("é".encode()), "cut between two characters"
    assert passed + rows.end() == before.lstrip(b"\r") + text


def test_bars_that_go_down_and_never_up_are_not_kept():
    rows = TerminalRows()
    passed = rows.feed(b"".join(b"\rbar %d\n" % number for number in range(1000)), 0.0)
    assert len(rows._rows) < 20
    assert passed + rows.end() == b"".join(b"bar %d\n" % number for number in range(1000))


DEADLOCK_S = 600
TRAINING = """
import os, subprocess, sys
for number in range(20):
    print("out", number)
    print("err", number, file=sys.stderr)
os.system("echo from a shell > /dev/stdout")
print("behind it")
waits = "import os, time; [time.sleep(0.05) for _ in iter(lambda: os.path.exists('upload'), True)]; "
code = waits + "print('uploaded', flush=True); open('printed', 'w')"
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
    assert done.returncode == 3, done.stdout  # which trains nothing
    told = [line for line in done.stdout.splitlines() if not line.startswith("traceops: ")]
    expected = [f"{name} {number}" for number in range(20) for name in ("out", "err")]
    assert told[:-1] == [*expected, "from a shell", "behind it"]
    log = tmp_path / "run" / "logs" / "rank_0.output.log"
    assert log.read_text().splitlines() == told, "a file was truncated by the shell"
    (tmp_path / "upload").touch()  # after the run, which waits for nothing
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


@pytest.mark.parametrize(
    ("phases", "alive", "told"),
    [
        (("active", "active"), 2, "2/2 ranks alive"),
        (("ended", "ended"), 2, "2/2 ranks alive"),
        (("ended", "ended"), 0, "2/2 ranks have ended"),
        (("ended", "active"), 1, "1/2 ranks alive"),
        (("active", "active"), 1, "1/2 ranks alive"),
    ],
)
def test_ranks_that_ended_are_not_told_as_dead(phases: tuple[str, ...], alive: int, told: str) -> None:
    records = [Progress(rank, 1, phase, 30, None, 0) for rank, phase in enumerate(phases)]
    assert StepRate(2).line(records, alive).endswith(f" · {told}")


def test_of_several_nodes_the_line_says_whose_ranks_it_counts() -> None:
    records = [Progress(rank, 1, "active", 30, None, 0) for rank in range(2)]
    assert StepRate(2, "gpu-12").line(records, 2).endswith("2/2 ranks alive on gpu-12")
    assert StepRate(2, "gpu-12").line([], 0) == "before the first step · 0/2 ranks alive on gpu-12"


class Clock:
    """Seconds since the start, as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def told_in_a_log(screen: Screen, clock: Clock, seconds: range, line: str, capfd: pytest.CaptureFixture[str]) -> int:
    for second in seconds:
        clock.now = float(second)
        screen.progress(line.format(second))
    return capfd.readouterr().err.count("traceops: ")


def test_a_log_of_a_day_has_one_line_of_progress_a_minute(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It had 17,280, from each node, and 'before the first step' every five seconds."""
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    screen = Screen()
    assert told_in_a_log(screen, clock, range(100), "step {}", capfd) == 19, "soon, whether it goes on"
    assert told_in_a_log(screen, clock, range(3_600, 7_200), "step {}", capfd) == 60
    assert told_in_a_log(Screen(), clock, range(7_200, 7_320), "before the first step", capfd) == 2, "5 s, 65 s"
    assert told_in_a_log(Screen(shows_progress=False), clock, range(100), "step {}", capfd) == 0
