"""Runs torchrun: passes its output on, shows progress, and ends every process it started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from traceops.capture.progress import Progress, read_progress
from traceops.launch.aside import Aside
from traceops.launch.display import Pace, Screen, is_chatter
from traceops.launch.hangs import HangWatch
from traceops.launch.process_activity import state
from traceops.launch.process_tree import ProcessTree
from traceops.launch.watch import is_alive

# torchrun itself gives its ranks 30 s; ours come after that only if torchrun is stuck as well.
GRACE_S = 35.0
HUNG_GRACE_S = 12.0  # ranks that hang seldom answer
_POLL_S = 0.1
_LOOK_EVERY_S = 2.0
# From the first of these lines on, torchrun tells of the failure at length; we do so in two lines.
_FAILURE = re.compile(rb"torch/distributed/elastic/.*(Sending process|failed \(exitcode)|^Traceback ")
_PREFIXED = re.compile(rb"^\[rank \d+\] ")


@dataclass(frozen=True)
class TorchrunResult:
    """How torchrun ended: its return code, the signal we were sent (or None), and what it said itself.

    hung: we ended it because its ranks hung. gone: ranks whose processes we saw end while torchrun knew of no
    failure yet, in this order.
    """

    returncode: int
    signal: int | None
    torchrun_log: str
    hung: bool = False
    gone: tuple[int, ...] = ()


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    progress: Path,
    ranks: int,
    prefixed: bool,
    screen: Screen,
    hangs: HangWatch | None = None,
    folder: Path | None = None,
) -> TorchrunResult:
    """Run `command` until it and all its processes have ended.

    folder: where it starts, None for here. progress: folder of the ranks' records. ranks: how many run on this
    machine. prefixed: whether the lines of the ranks are marked as theirs, so that torchrun's own can be told
    from them.
    SIGINT and SIGTERM end the run, and so does a hang: SIGTERM to torchrun, which passes it on, and SIGKILL to
    whatever is left.
    """
    with held_signals() as received:
        # A session of its own: Ctrl-C reaches us only, and we end the ranks in order.
        process = subprocess.Popen(
            command, env=dict(env), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        own = _Own(prefixed)
        assert process.stdout is not None and process.stderr is not None
        readers = [
            threading.Thread(target=_forward, args=(process.stdout, screen, False, None), daemon=True),
            threading.Thread(target=_forward, args=(process.stderr, screen, True, own), daemon=True),
        ]
        for reader in readers:
            reader.start()
        pace, tree, looked, told_at, hung = Pace(ranks), ProcessTree(process, env), 0.0, None, False
        gone: list[int] = []
        failed = False
        records: list[Progress] = []
        aside = Aside(screen)
        while process.poll() is None:
            now = time.monotonic()
            if told_at is None:
                with aside("watching the ranks"):
                    records = read_progress(progress)
                    ended = [record.rank for record in records if not is_alive(record)]
                    screen.progress(pace.line(records, len(records) - len(ended)))
                    if not own.muted:
                        gone += [rank for rank in ended if rank not in gone]
                    if hangs is not None and (hangs.stall is not None or not own.muted):
                        hung = hangs.observe(records) and not received
                    elif hangs is not None and not failed:
                        failed = True
                        hangs.rank_failed(records)
            ending = told_at is None and (hung or bool(received))
            if now - looked > _LOOK_EVERY_S or ending:
                with aside("looking for the run's processes"):
                    tree.refresh()
                looked = now
            if ending:
                if received:
                    with aside("telling of it"):
                        screen.say(
                            "stopping the ranks; what was captured is kept (again to kill them at once)"
                        )
                own.muted = True
                process.terminate()
                told_at = now
            impatient = len(received) > (0 if hung else 1)
            if impatient or (told_at is not None and now - told_at > _grace(hung, records)):
                break
            time.sleep(_POLL_S)
        with aside("ending the run's processes"):
            tree.end()
        for reader in readers:
            reader.join(timeout=5)
        if hangs is not None:
            with aside("explaining the hang"):
                hangs.finish()
            hung = hangs.stall is not None and (hung or not received)  # or it ended while evidence was saved
    signalled = received[0] if received and not hung else None
    return TorchrunResult(process.wait(), signalled, own.text(), hung, tuple(gone))


def _grace(hung: bool, records: Sequence[Progress]) -> float:
    """How long torchrun and its ranks have to end after SIGTERM."""
    if not hung:
        return GRACE_S
    alive = [record for record in records if is_alive(record)]
    stopped = alive and all(state(record.pid) in ("T", "t") for record in alive)  # they hear nothing
    return _POLL_S if stopped else HUNG_GRACE_S


class _Own:
    """torchrun's own lines, apart from those of its ranks."""

    def __init__(self, prefixed: bool) -> None:
        self._prefixed = prefixed
        self._lines: list[bytes] = []
        self.muted = False

    def take(self, line: bytes) -> bool:
        """Keep the line if it is torchrun's; returns whether to show it."""
        if self._prefixed and _PREFIXED.match(line):
            return True
        self._lines.append(line)
        if self._prefixed and _FAILURE.search(line):
            self.muted = True
        return not self.muted

    def text(self) -> str:
        return b"".join(self._lines).decode(errors="replace")


def _forward(pipe: IO[bytes], screen: Screen, error: bool, own: _Own | None) -> None:
    pending = b""
    while chunk := os.read(pipe.fileno(), 1 << 16):
        # Progress bars end their lines with \r: waiting for \n would hold them back.
        *lines, pending = re.split(rb"(?<=[\n\r])", pending + chunk)
        shown = [line for line in lines if not is_chatter(line) and (own is None or own.take(line))]
        if shown:
            screen.output(b"".join(shown), error=error)
    if pending and (own is None or own.take(pending)):
        screen.output(pending, error=error)


@contextmanager
def held_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list instead of dying of them."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
