"""What `--gather` does around a run: the first node collects, the others send, and each says what came of it."""

from __future__ import annotations

import errno
import os
import re
import time
from http.client import HTTPException
from typing import Final

from traceops.capture.environment import host
from traceops.launch.display import Screen
from traceops.launch.folder import short_path
from traceops.launch.gather.collector import Collector
from traceops.launch.gather.meeting import SECRET_ENV, Meeting, files_to_send, meeting_of
from traceops.launch.gather.sender import REACH_S, Sender, Unreachable
from traceops.launch.plan import Plan

_FIRST = "the first node"
_ASK_EVERY_S, _ASK_AFTER_FAILURE_S = 1.0, 10.0
_AFTER_SIGNAL_S = 10.0  # whoever ended the run waits


class Gathering:
    """One of the two sides; nothing of it raises but OSError, and nothing of it touches the folder's own files."""

    def __init__(self, plan: Plan, screen: Screen, received: list[int]) -> None:
        """Begin to listen, on the first node. received: signals so far; one more ends the waiting."""
        self._plan, self._screen, self._received, self._known = plan, screen, received, 0
        self._meeting: Meeting = meeting_of(plan.cluster, plan.gather_port)
        self._told, self._ask_again_s = False, 0.0
        self._collector: Collector | None = None
        self._sender: Sender | None = None
        secret = os.environ.get(SECRET_ENV, "")
        first = self._meeting.first
        if first is not False:
            try:
                self._collector = Collector(
                    plan.out,
                    self._run,
                    self._meeting.address,
                    self._meeting.port,
                    anywhere=first is True,
                    secret=secret,
                )
            except OSError as error:
                if first or error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                    raise
                first = False  # another launcher of this machine is the first, or another machine
        if first is False:
            self._sender = Sender(self._meeting, self._run, _node_name(), self._stop, secret=secret)

    def _stop(self) -> bool:
        return len(self._received) > self._known

    @property
    def _run(self) -> str:
        return f"{self._plan.name} of {self._plan.cluster.world_size} ranks"

    def all_still(self, here: bool) -> bool:
        """Tell the first node whether the ranks are still here; whether they are on all nodes, if it says so."""
        state: Final = "still" if here else "moving"
        if self._collector is not None:
            self._collector.tell(_FIRST, state)
            return here and self._collector.still >= self._plan.cluster.nnodes
        now = time.monotonic()
        if self._sender is None or not (here or self._told) or now < self._ask_again_s:
            return False
        self._ask_again_s = now + _ASK_EVERY_S
        try:
            count = self._sender.tell(state)
        except (OSError, HTTPException, Unreachable):
            self._ask_again_s = now + _ASK_AFTER_FAILURE_S
            return False
        self._told = here
        return here and count >= self._plan.cluster.nnodes

    @property
    def first(self) -> bool:
        """Whether the files come here."""
        return self._collector is not None

    def ended(self, *, by_signal: bool) -> None:
        """The ranks of this node have ended: take in the other nodes' files, or say that ours come."""
        self._known = len(self._received)
        wait = {"silent_s": _AFTER_SIGNAL_S, "coming_s": 3 * _AFTER_SIGNAL_S} if by_signal else {}
        if self._sender is not None:
            try:
                self._sender.coming(_AFTER_SIGNAL_S if by_signal else REACH_S)
            except Unreachable as error:
                self._stays(str(error))
                self._sender = None
        elif self._collector is not None:
            others = self._plan.cluster.nnodes - 1
            done = self._collector.wait(others, self._stop, **wait)
            files, count = self._collector.taken
            self._collector.close()
            if files:
                self._screen.say(f"gathered {files} files ({_megabytes(count)}) of other nodes")
            if len(done) < others:
                missing, s = others - len(done), "s" if others > 1 else ""
                self._screen.say(
                    f"{missing} of {others} other node{s} did not send all files. The rest is in that node's own "
                    f"{short_path(self._plan.out)}: copy it here with rsync -a, then run traceops analyze"
                )

    def send(self) -> None:
        """Send what this node has, if it is not the first."""
        if self._sender is None:
            return
        names = files_to_send(self._plan.out, summaries_only=self._plan.summarize)
        try:
            sent = self._sender.send(self._plan.out, names)
        except Unreachable as error:
            return self._stays(str(error))
        finally:
            self._sender.close()
        if sent.shared:
            return
        if sent.left:
            name, why = next(iter(sent.left.items()))
            return self._stays(f"{len(sent.left)} of {len(names)} files, {name}: {why}")
        self._screen.say(
            f"{sent.files} files ({_megabytes(sent.bytes)}) sent to the first node, "
            f"{self._meeting.address}:{sent.folder}; they stay here too"
        )

    def _stays(self, why: str) -> None:
        out, first = self._plan.out, self._meeting.address
        self._screen.say(
            f"--gather: the first node, {first} port {self._meeting.port}, did not take this node's files ({why}). "
            f"They stay here. To copy them: rsync -a {host()}:{out}/ {first}:{out}/"
        )


def _node_name() -> str:
    return re.sub(r"[^\w.-]", "_", f"{host()}-{os.getpid()}")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
