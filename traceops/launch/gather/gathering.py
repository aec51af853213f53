"""`--gather` around a run: the first node collects, the others send their files, and each says what came of it."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, field

from traceops.capture.environment import host
from traceops.core.claims import Wording
from traceops.launch.display import Screen
from traceops.launch.folder import short_path
from traceops.launch.gather.collector import Collector, digest_of
from traceops.launch.gather.meeting import SECRET_ENV, Meeting, files_to_send, meeting_of, seal
from traceops.launch.plan import Plan

_text = Wording("launch", "gather")
REACH_S = 60.0  # to reach the first node's launcher
_ANSWER_S = 120.0
_PASSING_S = 2.0  # the launcher looks after its ranks meanwhile
_TRIES = 3
_PAUSE_S = 0.5


class Unreachable(Exception):
    """The first node's launcher does not answer, or another run's does."""


class Sent(Struct):
    """files, bytes: that are with the first node now, in `folder` there. left: files that are not, with why.

    shared: that folder is the same as here.
    """

    files: int = 0
    bytes: int = 0
    folder: str = ""
    shared: bool = False
    left: dict[str, str] = field(default_factory=dict)


class Sender:
    """One connection to the first node; `stop` ends its waiting."""

    def __init__(
        self,
        meeting: Meeting,
        run: str,
        node: str,
        stop: Callable[[], bool],
        answer_s: float = _ANSWER_S,
        secret: str = "",
    ) -> None:
        self._secret = secret
        self._meeting, self._run, self._node, self._stop, self._answer_s = meeting, run, node, stop, answer_s
        self._connection: http.client.HTTPConnection | None = None

    def coming(self, reach_s: float = REACH_S) -> None:
        """Say that files will come, so that the first node waits. Raises Unreachable."""
        self._reach(reach_s, "POST", f"/{quote(self._node, safe='')}/coming")

    def send(self, folder: Path, names: Sequence[str], reach_s: float = REACH_S) -> Sent:
        """Send these files; one that fails hinders no other. Raises Unreachable where none can be sent."""
        answer = self._reach(reach_s, "GET", "/")
        sent = Sent(folder=str(answer.get("folder", "")))
        sent.shared = (folder / str(answer.get("marker", ".none"))).exists()
        for name in () if sent.shared else names:
            if self._stop():
                sent.left[name] = "interrupted"
                continue
            try:
                sent.bytes += self._put(folder, name)
                sent.files += 1
            except (OSError, http.client.HTTPException, Unreachable) as error:
                sent.left[name] = str(error)
        if not sent.left:
            self._reach(reach_s, "POST", f"/{quote(self._node, safe='')}/done")
        return sent

    def announce(self, state: str) -> int:
        """Say "still" or "moving" in passing; how many nodes are still.

        Raises OSError, HTTPException or Unreachable where nobody answers soon.
        """
        passing = Sender(self._meeting, self._run, self._node, self._stop, _PASSING_S, self._secret)
        try:
            answer = passing._ask("POST", f"/{quote(self._node, safe='')}/{state}", None, {})
        finally:
            passing.close()
        count = answer.get("still")
        return count if isinstance(count, int) else 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _put(self, folder: Path, name: str) -> int:
        path = folder / name
        size, digest = path.stat().st_size, digest_of(path)
        for tried in range(_TRIES):
            try:
                with path.open("rb") as body:
                    self._ask("PUT", f"/{quote(name)}", body, {"Content-Length": str(size), "X-SHA256": digest})
                return size
            except (OSError, http.client.HTTPException):
                self.close()
                if tried == _TRIES - 1 or self._stop():
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError

    def _reach(self, reach_s: float, method: str, path: str) -> dict[str, Any]:
        until = time.monotonic() + reach_s
        while True:
            try:
                return self._ask(method, path, None, {})
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if time.monotonic() > until or self._stop():
                    raise Unreachable(str(error)) from error
            time.sleep(_PAUSE_S)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                self._meeting.address, self._meeting.port, timeout=self._answer_s
            )
        told = {"X-Run": quote(self._run), "X-Node": quote(self._node, safe="")}
        digest = headers.get("X-SHA256", "")
        told["X-Seal"] = seal(self._secret, method, path, self._run, told["X-Node"], digest)
        self._connection.request(method, path, body=body, headers=told | headers)
        answer = self._connection.getresponse()
        text = answer.read()
        try:
            said = json.loads(text)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise Unreachable("another program answers there")
        if answer.status >= 400:
            raise Unreachable(str(said.get("why", answer.reason)))
        return said


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
            self._collector.announce(_FIRST, state)
            return here and self._collector.still >= self._plan.cluster.nnodes
        now = time.monotonic()
        if self._sender is None or not (here or self._told) or now < self._ask_again_s:
            return False
        self._ask_again_s = now + _ASK_EVERY_S
        try:
            count = self._sender.announce(state)
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
                self._screen.say(_text("gathered", files=files, mb=count / 1e6))
            if len(done) < others:
                out = short_path(self._plan.out)
                self._screen.say(_text("missing", missing=others - len(done), others=others, out=out))

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
        address = f"{self._meeting.address}:{sent.folder}"
        self._screen.say(_text("sent", files=sent.files, mb=sent.bytes / 1e6, address=address))

    def _stays(self, why: str) -> None:
        to = self._meeting
        self._screen.say(
            _text(
                "not_taken",
                first=to.address,
                port=to.port,
                why=why or "no answer",
                here=host(),
                out=str(self._plan.out),
            )
        )


def _node_name() -> str:
    return re.sub(r"[^\w.-]", "_", f"{host()}-{os.getpid()}")
