"""Whoever runs the map, the report is the same; a worker that dies costs its rank, and Ctrl-C ends all."""

import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from changed import replace
from started import environment
from summary_folders import DATA, report_text, to_summaries

from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping import executors, ranks
from traceops.pipeline.mapping.executors import map_files, map_in_processes
from traceops.pipeline.mapping.ranks import Done, MapOptions, Outcome, ProgressLine, progress_text, summarize_all
from traceops.pipeline.mapping.summary_file import unpack
from traceops.traces.discover import TraceFile, discover


@pytest.fixture
def processes_pay(monkeypatch):
    monkeypatch.setattr(ranks, "_POOL_WORTH_BYTES", 0)


def kill_on(monkeypatch, *bad):
    """Whoever summarises one of these ranks is killed."""
    summarize = ranks.summarize

    def die(file, *options):
        if file.rank in bad:
            os.kill(os.getpid(), signal.SIGKILL)
        return summarize(file, *options)

    monkeypatch.setattr(ranks, "summarize", die)


def damaged(report):
    return [finding.message for finding in report.findings if finding.rule == "TO-V002"]


@pytest.mark.parametrize("options", [{"jobs": 1}, {"jobs": 3}, {"executor": "threads"}, {"executor": "pool"}])
def test_every_executor_gives_the_same_report(ddp, processes_pay, options):
    expected = report_text(ddp)
    if options.get("executor") == "threads":
        with ThreadPoolExecutor(2) as given:
            assert report_text(ddp, executor=given) == expected
    elif options.get("executor") == "pool":
        with ProcessPoolExecutor(2, get_context("fork")) as given:
            assert report_text(ddp, executor=given) == expected
            assert given.submit(int, 5).result() == 5  # it is the caller's, and still open
    else:
        assert report_text(ddp, **options) == expected


def test_traces_and_summaries_together_in_processes(ddp, processes_pay):
    expected = report_text(ddp)
    to_summaries(ddp, ranks=(1, 2))
    assert report_text(ddp, jobs=2) == expected


@pytest.mark.parametrize("bad", [(2,), (0, 3), (0, 1, 2)])
def test_killed_workers_cost_their_ranks(ddp, processes_pay, monkeypatch, bad):
    kill_on(monkeypatch, *bad)
    report = analyze(ddp, jobs=2, cache=False)
    assert set(report.run.ranks_present) == {0, 1, 2, 3} - set(bad)
    assert len(damaged(report)) == len(bad)
    for rank, message in zip(bad, damaged(report), strict=True):
        assert f"rank_{rank}.pt" in message
        assert "killed" in message


def test_workers_die_of_what_their_parent_handles():
    """Else a pool that broke ends them in vain, and waits for them for ever."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        with executors.processes(1) as workers:
            futures = [workers.executor.submit(is_default, number) for number in numbers]
            assert [future.result() for future in futures] == [True] * 3
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_default(number):
    return signal.getsignal(number) is signal.SIG_DFL


def half_a_result(wrote=None):
    """Writes as much of a result as a worker that is killed meanwhile; is killed, unless `wrote` is to be told."""
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1 << 20) + b"half of it")
    if wrote is None:
        os.kill(os.getpid(), signal.SIGKILL)
    wrote.touch()
    time.sleep(600)


def test_a_worker_that_is_killed_while_it_writes_its_result_costs_its_rank(ddp, processes_pay, monkeypatch):
    summarize = ranks.summarize
    monkeypatch.setattr(
        ranks, "summarize", lambda file, *rest: half_a_result() if file.rank == 1 else summarize(file, *rest)
    )
    report = analyze(ddp, jobs=2, cache=False)  # would wait for the other half, for ever
    assert report.run.ranks_present == (0, 2, 3)
    [message] = damaged(report)
    assert "rank_1.pt" in message


def test_an_interruption_while_a_result_is_written_ends_the_pool(tmp_path):
    wrote = tmp_path / "wrote"
    with pytest.raises(KeyboardInterrupt), executors.processes(2) as workers:
        workers.executor.submit(half_a_result, wrote)
        thread = workers.executor._executor_manager_thread
        while not wrote.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not thread.is_alive()  # else Python wakes it at its end, by a pipe that it may just have closed


_GARBAGE = """
import gc, os
from traceops.pipeline.mapping import executors

class Ends:
    parent = os.getpid()

    def __del__(self):
        if os.getpid() != self.parent:
            os.abort()

gc.disable()
one = Ends()
one.itself = one
del one
with executors.processes(1) as workers:
    print("collected", workers.executor.submit(gc.collect).result())
"""


def test_a_worker_leaves_alone_what_its_parent_no_longer_used():
    """A destructor that ends the parent's threads, as some of torch's do, would end the worker."""
    done = subprocess.run(
        [sys.executable, "-c", _GARBAGE], capture_output=True, text=True, env=environment(compiler=True)
    )
    assert done.returncode == 0 and done.stdout.startswith("collected"), done.stderr


def test_a_daemon_which_may_have_no_processes_does_it_itself(ddp, processes_pay):
    expected = report_text(ddp)
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(report_text, (ddp,), {"jobs": 2}) == expected


def test_a_given_pool_that_breaks_costs_the_rank_that_broke_it(ddp, monkeypatch):
    kill_on(monkeypatch, 1)
    with ProcessPoolExecutor(2, get_context("fork")) as given:
        report = analyze(ddp, executor=given, cache=False)
    assert report.run.ranks_present == (0, 2, 3)
    [message] = damaged(report)
    assert "rank_1.pt" in message


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory"),
        (KeyError("x"), "could not be analysed (KeyError: 'x')"),
        (OSError("gone"), "gone"),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_rank_that_fails_is_named_with_why(ddp, processes_pay, monkeypatch, error, said, jobs):
    summarize = ranks.summarize

    def fail(file, *options):
        if file.rank == 2:
            raise error
        return summarize(file, *options)

    monkeypatch.setattr(ranks, "summarize", fail)
    report = analyze(ddp, jobs=jobs, cache=False)
    assert report.run.ranks_present == (0, 1, 3)
    [message] = damaged(report)
    assert "rank_2.pt" in message
    assert said in message


class _Counting(Executor):
    """Does tasks one after the other, and counts how many wait."""

    _max_workers = 3

    def __init__(self):
        self.most, self.order, self._waiting, self._more = 0, [], [], threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, function, /, file):
        future = Future()
        with self._more:
            self._waiting.append((future, function, file))
            self.most = max(self.most, len(self._waiting))
            self._more.notify()
        return future

    def _work(self):
        while True:
            with self._more:
                self._more.wait_for(lambda: self._waiting)
                future, function, file = self._waiting[0]
            self.order.append(file.size_bytes)
            result = function(file)
            with self._more:
                self._waiting.pop(0)
            future.set_result(result)


class _Collected:
    def __init__(self):
        self.taken = []

    def take(self, file, result, elsewhere):
        self.taken.append((file.rank, result))

    def tick(self):
        pass


def test_many_ranks_wait_here_and_not_in_the_queue_and_the_largest_go_first():
    sizes = [(7 * rank) % 1000 for rank in range(1000)]
    files = [TraceFile(f"/t/{rank}", rank, "name", size_bytes=size) for rank, size in enumerate(sizes)]
    executor, collected = _Counting(), _Collected()
    map_files(lambda file: -file.rank, files, collected, None, executor)
    assert executor.most <= 3 * executor._max_workers
    assert executor.order == sorted(sizes, reverse=True)
    assert Counter(collected.taken) == Counter((rank, -rank) for rank in range(1000))


def test_results_are_in_the_order_of_ranks_whatever_came_first(ddp, processes_pay):
    files = [replace(file, size_bytes=10**7 * file.rank) for file in discover(str(ddp)).windows[0].files]
    summaries, _ = summarize_all(files, MapOptions(2, cache=False))
    assert [summary.rank for summary in summaries] == [0, 1, 2, 3]


def test_a_worker_that_does_not_see_the_file_says_what_to_do(ddp):
    [file, *_] = discover(str(ddp)).windows[0].files
    results = ranks._Results([file], None)
    results.take(file, Outcome(problem="No such file or directory", missing_on="node7"), elsewhere=True)
    _, [(path, what)] = results.in_order()
    assert path == file.path
    assert "worker on node7 has no such file; put the traces where all workers see them" in what


def test_a_worker_with_another_traceops_is_told_so(ddp, monkeypatch):
    [file, *_] = discover(str(ddp)).windows[0].files
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "__version__", "9.9")
        outcome = ranks._outcome(file, MapOptions(cache=False), ahead=False)
    assert unpack(outcome.packed, {})[0].version == "9.9"
    results = ranks._Results([file], None)
    results.take(file, outcome, elsewhere=True)
    _, [(_, what)] = results.in_order()
    assert "its worker has traceops 9.9" in what


def test_a_relative_path_is_absolute_for_workers_that_are_elsewhere(ddp, monkeypatch):
    monkeypatch.chdir(ddp)
    [window] = discover("rank_1.pt.trace.json.gz").windows
    assert window.files[0].path == str(ddp / "rank_1.pt.trace.json.gz")


@pytest.mark.parametrize("chosen", ["dask", "dask://", "slurm://x", "http://x:1", ""])
def test_an_unknown_executor_is_wrong_usage(ddp, chosen, capsys):
    assert main(["analyze", str(ddp), "-o", str(ddp / "out"), "--executor", chosen]) == UsageError.exit_code
    assert "--executor takes dask://HOST:PORT or mpi" in capsys.readouterr().err


@pytest.mark.parametrize(("chosen", "module"), [("dask://x:1", "distributed"), ("mpi", "mpi4py.futures")])
def test_a_missing_package_is_named(ddp, monkeypatch, chosen, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match="pip install"):
        analyze(ddp, executor=chosen)


def test_no_more_processes_than_cores_that_may_be_used(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert executors.cores() == 2


def test_mapping_in_processes_keeps_the_order_and_survives_a_killed_one():
    first = os.getpid()

    def double(number):
        if number == 3 and os.getpid() != first:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * number

    globals()["_double"] = double
    assert list(map_in_processes(_by_name, range(6), 2)) == [0, 2, 4, 6, 8, 10]


def _by_name(number):
    return globals()["_double"](number)


@pytest.fixture
def dask_cluster():
    """Starts clusters of two worker processes and gives their addresses."""
    pytest.importorskip("distributed")
    started = []

    def start(*arguments):
        command = [sys.executable, str(Path(__file__).with_name("dask_cluster.py")), *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process.stdout.readline().strip().removeprefix("tcp://")

    yield start
    for process in started:
        process.communicate()


def by_dask(address, output, *arguments):
    """report.json of tests' traces that a dask cluster read, as a command of its own makes it."""
    command = [sys.executable, "-m", "traceops", "analyze", str(DATA / "ddp4"), "-o", str(output)]
    command += ["--format", "json", "-q", "--executor", f"dask://{address}", *arguments]
    subprocess.run(command, check=True)
    return (output / "report.json").read_text()


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_report(dask_cluster, tmp_path):
    address = dask_cluster()
    assert by_dask(address, tmp_path / "a") == report_text(DATA / "ddp4")
    assert by_dask(address, tmp_path / "b", "--jobs", "1") == report_text(DATA / "ddp4")


@pytest.mark.slow
def test_a_killed_dask_worker_costs_its_rank(dask_cluster, tmp_path):
    text = by_dask(dask_cluster("2"), tmp_path / "out")
    assert '"ranks_present": [\n   0,\n   1,\n   3\n  ]' in text
    assert "rank_2.pt.trace.json.gz: no worker brought it to an end (each was killed" in text


@pytest.mark.slow
def test_a_dask_cluster_with_tls_reads_the_traces_and_is_asked_for_by_name(dask_cluster, tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: there is no certificate")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", key, "-out", certificate], check=True, capture_output=True,
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setenv("DASK_DISTRIBUTED__COMM__TLS__CA_FILE", certificate)
        for role in ("SCHEDULER", "WORKER", "CLIENT"):
            patch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT", certificate)
            patch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY", key)
        address = dask_cluster("tls")
        assert address.startswith("tls://")
        assert by_dask(address, tmp_path / "a") == report_text(DATA / "ddp4")
    command = [sys.executable, "-m", "traceops", "analyze", str(DATA / "ddp4"), "-o", str(tmp_path / "b")]
    done = subprocess.run([*command, "--executor", address], capture_output=True, text=True)
    assert done.returncode == UsageError.exit_code and "DASK_DISTRIBUTED__COMM__TLS__CA_FILE" in done.stderr


def test_a_dask_cluster_without_traceops_is_told_to_install_it(dask_cluster, tmp_path, monkeypatch):
    (tmp_path / "traceops.py").write_text("raise ImportError('not here')")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        address = dask_cluster()
    command = [sys.executable, "-m", "traceops", "analyze", str(DATA / "ddp4"), "-o", str(tmp_path / "out")]
    done = subprocess.run([*command, "--executor", f"dask://{address}"], capture_output=True, text=True)
    assert done.returncode == UsageError.exit_code
    assert "its scheduler and its workers need traceops" in done.stderr


def test_where_the_system_gives_no_process_this_one_does_the_work(ddp, processes_pay, monkeypatch):
    expected = report_text(ddp, jobs=1)
    tried = []

    def no_fork():
        tried.append(1)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_fork)
    assert report_text(ddp, jobs=4) == expected
    assert tried


def test_a_containers_share_of_processor_time_bounds_the_processes(tmp_path, monkeypatch):
    share = tmp_path / "cpu.max"
    monkeypatch.setattr(executors, "_CGROUP_SHARE", share)
    visible = executors.cores()
    for text, most in (("max 100000", visible), ("50000 100000", 1), ("nonsense", visible)):
        share.write_text(text)
        assert executors.cores() == most
    share.write_text("150000 100000")
    assert executors.cores() == min(visible, 2)


# Ctrl-C while traces are read ends the command and its processes at once, and leaves nothing half-written.


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


# The line while traces are read: what it says, and where it says nothing.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def line(file, seconds, **options):
    """What reaches the file when the map calls at these moments."""
    clock = iter([0.0, *seconds])
    with ProgressLine(file, clock=lambda: next(clock), **options) as progress:
        for number, _ in enumerate(seconds, 1):
            progress(Done(number, 8, 10_000_000 * number, 80_000_000))
    return file.getvalue()


def test_it_says_how_far_how_fast_and_how_long(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    written = line(Terminal(), [0.2, 2.0])
    assert "2/8 ranks  20 MB  10 MB/s  0:06 left" in written
    assert "1/8" not in written  # what takes only a moment needs no line
    assert written.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("done", "seconds", "text"),
    [
        (Done(0, 4, 0, 80_000_000), 1, "reading traces  0/4 ranks"),
        (Done(3, 4, 0, 0), 3, "reading traces  3/4 ranks  0:01 left"),
        (Done(4, 4, 8_000_000, 8_000_000), 2, "reading traces  4/4 ranks  8 MB  4 MB/s"),
        (Done(1, 1024, 10**9, 1024 * 10**9), 20, "reading traces  1/1024 ranks  1,000 MB  50 MB/s  5:41:00 left"),
    ],
)
def test_texts(done, seconds, text):
    assert progress_text(done, seconds) == text
    assert len(text) < 80


def test_it_is_not_written_more_often_than_eyes_can_follow(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert line(Terminal(), [1.0, 1.01, 1.02, 1.2]).count("ranks") == 2


def test_nothing_in_a_pipe_or_where_nobody_wants_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert line(io.StringIO(), [2.0]) == ""
    assert line(Terminal(), [2.0], enabled=False) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert line(Terminal(), [2.0]) == ""
