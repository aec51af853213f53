"""The other nodes' side: sends the files of a run folder to the first node's launcher."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field

from traceops.launch.gather.collector import digest_of
from traceops.launch.gather.meeting import Meeting, seal

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

    def tell(self, state: str) -> int:
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
