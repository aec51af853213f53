"""Faults injected into the monitor, what it serves and asks, and the observer of a rank: a table of what came of them.

    python -m benchmarks.live.faults --seeds 8

Held after each: no exception but OSErrors, which the loop of `traceops live` outlives; ranks whose files are whole are
followed on; no thread, child or open file is left; the steps of a training compute the same, and none of them fails.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from random import Random
from unittest import mock
from urllib.parse import quote

from benchmarks.live.generated import START_NS, GeneratedRank, StepParts, write_host
from traceops.capture.observing.observer import Observer
from traceops.core.live_pulses import CLOSER, EVENTS_FILE, HEAD, MAGIC, PULSES_FILE, SIZE, STATE_FILE
from traceops.core.rank_files import MOST_US, OBSERVED_FILE, RECORD, STEPS_FILE, machine_file
from traceops.launch.gather.gathering import Collector, Sender
from traceops.launch.gather.meeting import Meeting
from traceops.launch.gather.relay import LiveFiles, Unreachable
from traceops.live.machines import ask
from traceops.live.monitor import Monitor
from traceops.live.outlets import Metrics, Webhook, metrics_text

_RANKS, _SECONDS = 3, 16
_HOST = machine_file("host")


# Files that the monitor reads and writes: each damages what rank 1 wrote, or what all share.


def _cut(path: Path, size: int) -> None:
    os.truncate(path, max(min(size, path.stat().st_size), 0))


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def _as_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def _as_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def _folders(out: Path, names: Sequence[str]) -> None:
    for name in names:
        (out / f"rank_{name}").mkdir()


def _touch_often(path: Path) -> None:
    for _ in range(100):
        path.touch()


FileFault = Callable[[Path, Random], object]
FILES: dict[str, FileFault] = {
    "steps: empty": lambda out, random: _cut(out / "rank_1" / STEPS_FILE, 0),
    "steps: cut within a record": lambda out, random: _cut(out / "rank_1" / STEPS_FILE, random.randrange(200, 2000)),
    "steps: bytes of chance": lambda out, random: _append(out / "rank_1" / STEPS_FILE, random.randbytes(999)),
    "steps: another header": lambda out, random: (out / "rank_1" / STEPS_FILE).write_bytes(random.randbytes(500)),
    "steps: removed": lambda out, random: (out / "rank_1" / STEPS_FILE).unlink(),
    "steps: the longest there can be": lambda out, random: _append(
        out / "rank_1" / STEPS_FILE, RECORD.pack(*[MOST_US] * 5, 65535, 255, 0) * 9
    ),
    "pulses: empty": lambda out, random: _cut(out / "rank_1" / PULSES_FILE, 0),
    "pulses: bytes of chance": lambda out, random: (out / "rank_1" / PULSES_FILE).write_bytes(random.randbytes(4000)),
    "pulses: chance behind the head": lambda out, random: (out / "rank_1" / PULSES_FILE).write_bytes(
        HEAD.pack(MAGIC, 1, 1, 20).ljust(SIZE, b"\0") + random.randbytes(20 * SIZE)
    ),
    "pulses: too many": lambda out, random: (out / "rank_1" / PULSES_FILE).write_bytes(
        HEAD.pack(MAGIC, 1, 1, 1 << 60).ljust(SIZE, b"\0")
    ),
    "pulses: removed": lambda out, random: (out / "rank_1" / PULSES_FILE).unlink(),
    "looks: lines of chance": lambda out, random: _append(
        out / "rank_1" / OBSERVED_FILE, random.randbytes(500).replace(b"\n", b"") + b"\n"
    ),
    "looks: half a line": lambda out, random: _append(out / "rank_1" / OBSERVED_FILE, b'["t",[1,2'),
    "looks: unknown frames": lambda out, random: _append(
        out / "rank_1" / OBSERVED_FILE, b'["s",[999]]\n["t",[1,99,5]]\n'
    ),
    "looks: other JSON": lambda out, random: _append(
        out / "rank_1" / OBSERVED_FILE, b'{}\n[]\n7\nnull\n["t"]\n["f"]\n'
    ),
    "looks: a line of 5 MB": lambda out, random: _append(out / "rank_1" / OBSERVED_FILE, b"x" * 5_000_000 + b"\n"),
    "a rank's folder is removed": lambda out, random: shutil.rmtree(out / "rank_1"),
    "a rank's folder is a file": lambda out, random: _as_file(out / "rank_1"),
    "odd names": lambda out, random: _folders(out, ("x", "-1", "", "٣", "9" * 30)),
    "host's log: lines of chance": lambda out, random: _append(out / _HOST, random.randbytes(700) + b"\n"),
    "host's log: other JSON": lambda out, random: _append(out / _HOST, b'["r",1]\n{}\n["G"]\n["p","a"]\n'),
    "host's log: removed": lambda out, random: (out / _HOST).unlink(),
    "the state is a folder": lambda out, random: _as_folder(out / STATE_FILE),
    "the events are a folder": lambda out, random: _as_folder(out / EVENTS_FILE),
}  # fmt: skip


def _write_second(ranks: list[GeneratedRank], second: int, random: Random, broken: set[int], leap_ns: int = 0) -> None:
    for rank in ranks:
        for _ in range(15):
            slow = 30.0 if rank.rank == 2 and second > 10 else 0.0
            rank.take(StepParts(fault=slow), (33.0 + slow) * random.lognormvariate(0, 0.02))
        now_ns = START_NS + (second + 1) * 1_000_000_000 + leap_ns
        try:
            rank.write(now_ns, now_ns - 1000)
        except OSError:  # its files are gone: so it goes to a rank too
            broken.add(rank.rank)


def play_files(fault: FileFault | None, seed: int, *, full: bool = False, leap_ns: int = 0, again: bool = False) -> str:
    """A job of three ranks, damaged in its fifth second; what went wrong, or nothing."""
    random, out = Random(seed), Path(tempfile.mkdtemp(prefix="live"))
    broken: set[int] = set()
    monitor = Monitor(out, lambda line: None, windows=0)
    try:
        ranks = [GeneratedRank(out / f"rank_{rank}", rank, random, looks_s=10) for rank in range(_RANKS)]
        for second in range(_SECONDS):
            _write_second(ranks, second, random, broken, leap_ns if second > 5 else 0)
            with suppress(OSError):
                write_host(out, ranks, START_NS + second * 1_000_000_000)
            if second == 5 and fault is not None:
                with suppress(FileNotFoundError):
                    fault(out, random)
            if second == 7 and again:
                monitor.close()
                monitor = Monitor(out, lambda line: None, windows=0)
            disk = mock.patch("traceops.live.monitor.write_whole", _no_space) if full and second > 5 else _as_it_is()
            with disk, suppress(OSError):
                monitor.look()
        steps = {number: state.steps for number, state in monitor.job.ranks.items()}
        wanted = 15 * _SECONDS
        behind = [rank for rank in (0, 2) if steps.get(rank) != wanted]
        return f"ranks {behind} are not followed" if behind else "" if metrics_text(monitor.state) else "no metrics"
    finally:
        monitor.close()
        shutil.rmtree(out, ignore_errors=True)


def _no_space(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


# What it serves, posts and asks.


class _Server:
    """Answers each connection with some bytes, or with nothing for so long."""

    def __init__(self, answer: bytes, seconds: float = 0.0) -> None:
        self._answer, self._seconds = answer, seconds
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True, name="fault").start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(1)
                connection.recv(65536)
                time.sleep(self._seconds)
                connection.sendall(self._answer)

    def close(self) -> None:
        """Serve no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _post(answer: bytes, seconds: float = 0.0) -> str:
    server = _Server(answer, seconds)
    try:
        hook = Webhook(f"http://127.0.0.1:{server.port}/x")
        begin = time.monotonic()
        for number in range(300):
            hook.post({"message": str(number)})
        return "posting waits" if time.monotonic() - begin > 0.5 else ""
    finally:
        server.close()


def _refused() -> str:
    hook = Webhook("http://127.0.0.1:9/x")
    hook.post({"message": "x"})
    hook.finish(2)
    return "" if hook.failed == 1 else f"failed {hook.failed}"


def _asked(answer: bytes, seconds: float = 0.0) -> str:
    server = _Server(answer, seconds)
    try:
        begin = time.monotonic()
        ask(("127.0.0.1", server.port))
        return "asking takes too long" if time.monotonic() - begin > 6 else ""
    finally:
        server.close()


def _served(*requests: bytes, close: bool = False) -> str:
    metrics = Metrics(("127.0.0.1", 0), lambda: {"run": "x", "ranks": [{"rank": 0, "step": 1}]})
    port = int(metrics.url.rsplit(":", 1)[1].split("/")[0])
    open_ones = []
    try:
        for request in requests:
            one = socket.create_connection(("127.0.0.1", port), timeout=2)
            with suppress(OSError):
                one.sendall(request)
            if close:
                one.close()
            else:
                open_ones.append(one)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as whole:
            whole.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return "" if b" 200 " in whole.recv(4096) else "no metrics"
    finally:
        for one in open_ones:
            one.close()
        metrics.close()


NETWORK: dict[str, Callable[[Random], str]] = {
    "webhook: refused": lambda random: _refused(),
    "webhook: does not answer": lambda random: _post(b"", 0.8),
    "webhook: an error": lambda random: _post(b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n"),
    "webhook: bytes of chance": lambda random: _post(random.randbytes(300)),
    "RAS: another server": lambda random: _asked(b"HTTP/1.1 200 OK\r\n\r\n"),
    "RAS: bytes of chance": lambda random: _asked(b"SERVER PROTOCOL 2\n" + random.randbytes(3000)),
    "RAS: half an answer": lambda random: _asked(b'SERVER PROTOCOL 2\nOK\n{"communicators": [{"size": '),
    "RAS: other JSON": lambda random: _asked(b'SERVER PROTOCOL 2\nOK\n{"communicators": [7, {"size": "x"}]}'),
    "RAS: does not answer": lambda random: _asked(b"", 2.5),
    "metrics: clients that send nothing": lambda random: _served(*[b""] * 30),
    "metrics: half a request": lambda random: _served(*[b"GET /met"] * 10),
    "metrics: clients that leave": lambda random: _served(*[b"GET /metrics HTTP/1.1\r\n\r\n"] * 30, close=True),
    "metrics: bytes of chance": lambda random: _served(*[random.randbytes(900) for _ in range(10)]),
}  # fmt: skip


# Between two nodes that share no folder.

_RUN = "job of 2 ranks"


class _Nodes:
    """The first node's collector, and another node with one rank that writes."""

    def __init__(self, out: Path, random: Random) -> None:
        self.random, self.first, self.other = random, out / "first", out / "other"
        self.first.mkdir()
        self.collector: Collector | None = None
        self.live: LiveFiles | None = None
        self.port = _free_port()
        self.listen()
        self.rank = GeneratedRank(self.other / "rank_1", 1, random)
        sender = Sender(Meeting("127.0.0.1", self.port, False), _RUN, "n1", lambda: False)
        self.relay = sender.relay(self.other)

    def listen(self, run: str = _RUN) -> None:
        """The first node's launcher, of this run or of another one."""
        self.close()
        self.collector = Collector(self.first, run, "127.0.0.1", self.port)
        if self.live is not None:  # what came before is known on
            self.collector.live = self.live
        self.live = self.collector.live

    def close(self) -> None:
        """It is gone."""
        if self.collector is not None:
            self.collector.close()
        self.collector = None

    def look(self) -> None:
        """A second of training, of which the first node hears if it can."""
        for _ in range(15):
            self.rank.take(StepParts(), 60.0)
        self.rank.write(START_NS, START_NS)
        with suppress(OSError, HTTPException, Unreachable):
            self.relay.look()

    def send(self, raw: bytes) -> None:
        """To the collector's port, from anybody."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(raw)
            connection.settimeout(0.3)
            connection.recv(4096)

    def patch(self, head: object, length: int | None = None) -> None:
        """A request with these pieces, whole or not."""
        body = json.dumps(head).encode() + b"\nabc"
        told = {"Content-Length": len(body) if length is None else length, "X-Run": quote(_RUN), "X-Node": "n2",
                "X-SHA256": hashlib.sha256(body).hexdigest()}  # fmt: skip
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        self.send(f"PATCH / HTTP/1.1\r\n{lines}\r\n".encode() + body)

    def patch_oddly(self) -> None:
        """Requests that no relay makes."""
        for head in (7, [7], [["rank_7/steps.bin", -5, 3]], [[1, 2, 3]]):
            self.patch(head)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


NODES: dict[str, Callable[[_Nodes], object]] = {
    "the first one is gone for a while": _Nodes.close,
    "another run answers there": lambda nodes: nodes.listen("another"),
    "the first one lost a file": lambda nodes: (nodes.first / "rank_1" / STEPS_FILE).unlink(),
    "the first one lost the rank": lambda nodes: shutil.rmtree(nodes.first / "rank_1"),
    "a file is cut there": lambda nodes: _cut(nodes.first / "rank_1" / OBSERVED_FILE, 100),
    "a file is a folder there": lambda nodes: _as_folder(nodes.first / "rank_1" / STEPS_FILE),
    "bytes of chance": lambda nodes: nodes.send(nodes.random.randbytes(3000)),
    "a request that ends early": lambda nodes: nodes.patch([["rank_1/steps.bin", 0, 3]], 9_000_000),
    "a request without an end": lambda nodes: nodes.patch([["rank_1/steps.bin", 0, 3]], 1 << 60),
    "another node's rank": lambda nodes: nodes.patch([["rank_1/steps.bin", 0, 3]]),
    "a file out of the folder": lambda nodes: nodes.patch([["rank_1/../../x", 0, 3]]),
    "odd pieces": _Nodes.patch_oddly,
    "the rank starts anew": lambda nodes: GeneratedRank(nodes.other / "rank_1", 1, nodes.random),
}  # fmt: skip


def play_nodes(fault: Callable[[_Nodes], object], seed: int) -> str:
    """What went wrong, or nothing: at the end the first node has what the other one wrote."""
    out = Path(tempfile.mkdtemp(prefix="live"))
    nodes = _Nodes(out, Random(seed))
    try:
        for second in range(9):
            if second == 3:
                with suppress(FileNotFoundError):
                    fault(nodes)
            if second == 6 and (nodes.collector is None or nodes.collector.run != _RUN):
                nodes.listen()
            if second == 6 and (nodes.first / "rank_1" / STEPS_FILE).is_dir():
                (nodes.first / "rank_1" / STEPS_FILE).rmdir()
            nodes.look()
        names = [f"rank_1/{name}" for name in (STEPS_FILE, OBSERVED_FILE)]
        differ = [name for name in names if (nodes.first / name).read_bytes() != (nodes.other / name).read_bytes()]
        strange = [path.name for path in nodes.first.iterdir() if path.name != "rank_1" and path.name[0] != "."]
        return f"{differ} differ, {strange} appeared" if differ or strange else ""
    finally:
        nodes.close()
        shutil.rmtree(out, ignore_errors=True)


# The observer of a rank, within the training.


def _close_files(folder: Path, random: Random) -> None:
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names of numbers
        path = Path(f"/proc/self/fd/{number}")
        with suppress(OSError):
            if str(path.readlink()).startswith(str(folder.parent)):
                os.close(int(number))


RANK: dict[str, FileFault] = {
    "its folder is removed": lambda folder, random: shutil.rmtree(folder),
    "pulses: removed": lambda folder, random: (folder / PULSES_FILE).unlink(),
    "pulses: a folder": lambda folder, random: _as_folder(folder / PULSES_FILE),
    "steps: removed": lambda folder, random: (folder / STEPS_FILE).unlink(),
    "steps: a folder": lambda folder, random: _as_folder(folder / STEPS_FILE),
    "looks: a folder": lambda folder, random: _as_folder(folder / OBSERVED_FILE),
    "closer looks all the time": lambda folder, random: _touch_often(folder.parent / CLOSER),
    "the request is a folder": lambda folder, random: _as_folder(folder.parent / CLOSER),
    "the script closes our files": _close_files,
    "the script forks": lambda folder, random: os.waitpid(os.fork() or os._exit(0), 0),
}  # fmt: skip


_STEPS = 120


def _computed(value: float, number: int) -> float:
    return (value * 1.000123 + number) % 97.0


def train(fault: FileFault | None, seed: int, *, full: bool = False) -> tuple[float, str]:
    """Some steps under the observer; what they compute, and what went wrong."""
    random, out = Random(seed), Path(tempfile.mkdtemp(prefix="live"))
    folder = out / "rank_0"
    folder.mkdir()
    value = 1.0
    observer = Observer(folder, 0, live=True)
    disk = mock.patch("traceops.capture.observing.observer._append", _no_space) if full else _as_it_is()
    try:
        with disk:
            for number in range(_STEPS):
                value = _computed(value, number)
                time.sleep(0.01)
                observer.step_ended(recorded=False)
                observer.step_begins(recorded=False)
                if number == 40 and fault is not None:
                    with suppress(FileNotFoundError):
                        fault(folder, random)
            observer.close()
    except Exception as error:
        return value, f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return value, ""


# All of them.


def _left(begin: tuple[int, int]) -> str:
    """What is there that was not at the beginning."""
    for _ in range(60):
        now = _held()
        if now[0] <= begin[0] and now[1] <= begin[1]:
            return ""
        time.sleep(0.1)
    return f"threads {now[0] - begin[0]:+d}, files {now[1] - begin[1]:+d} are left"


def _held() -> tuple[int, int]:
    # A webhook's thread is a daemon's, for as long as the process: it ends with `traceops live`.
    threads = [one for one in threading.enumerate() if one.name not in ("poster", "fault")]
    return len(threads), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names of numbers


def _faults(seed: int) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Part, name, and how it is played."""
    for name, fault in FILES.items():
        yield "monitor", name, partial(play_files, fault, seed)
    yield "monitor", "the disk is full", partial(play_files, None, seed, full=True)
    yield "monitor", "the clock leaps on", partial(play_files, None, seed, leap_ns=86_400 * 10**9)
    yield "monitor", "the clock leaps back", partial(play_files, None, seed, leap_ns=-3_600 * 10**9)
    yield "monitor", "it is started again", partial(play_files, None, seed, again=True)
    if seed % 2 == 0:
        for name, request in NETWORK.items():
            yield "network", name, partial(request, Random(seed))
        for name, of_nodes in NODES.items():
            yield "nodes", name, partial(play_nodes, of_nodes, seed)
        for name, fault in RANK.items():
            yield "rank", name, partial(_train_alike, fault, seed)
        yield "rank", "the disk is full", partial(_train_alike, None, seed, full=True)


def run(seeds: int) -> list[tuple[str, str, str]]:
    """Part, fault, and what went wrong; nothing where all held."""
    found = []
    for seed in range(seeds):
        for part, name, play in _faults(seed):
            begin = _held()
            try:
                trouble = play() or _left(begin)
            except Exception as error:
                trouble = f"{type(error).__name__}: {error}"
            found.append((part, name, trouble))
    return found


def _train_alike(fault: FileFault | None, seed: int, *, full: bool = False) -> str:
    plain = 1.0
    for number in range(_STEPS):
        plain = _computed(plain, number)
    value, trouble = train(fault, seed, full=full)
    return trouble or ("" if value == plain else "the training computes something else")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    before = int(Path("/proc/self/statm").read_text().split()[1])
    found = run(args.seeds)
    whole = Counter((part, name) for part, name, _ in found)
    bad = Counter((part, name) for part, name, trouble in found if trouble)
    for part, name in whole:
        print(f"{part:8} {name:36} {whole[part, name]:3}  held {whole[part, name] - bad[part, name]:3}")
    for part, name, trouble in found:
        if trouble:
            print(f"{part}, {name}: {trouble}")
    grown = (int(Path("/proc/self/statm").read_text().split()[1]) - before) * os.sysconf("SC_PAGE_SIZE") / 1e6
    print(f"{len(found)} faults, {len(found) - sum(bad.values())} held; this process grew by {grown:.0f} MB")


if __name__ == "__main__":
    main()
