"""`--gather` around a run: the first node collects, the others send their files, and each says what came of it."""

from __future__ import annotations

import errno
import hashlib
import hmac
import http.client
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.capture.environment import host
from traceops.core.claims import Wording
from traceops.launch.display import Screen
from traceops.launch.folder import short_path
from traceops.launch.gather.meeting import SECRET_ENV, Meeting, files_to_send, may_travel, meeting_of, seal
from traceops.launch.gather.relay import MOST_BYTES, LiveFiles, Refused, Relay, Unreachable
from traceops.launch.plan import Plan

CHUNK = 1 << 20
SILENT_S = 60.0  # nothing of a node that has not said that it comes
COMING_S = 900.0  # of one that has: it may be summarising its traces
_STILL_S = 15.0  # what a node says of its ranks is true for so long
_STALLED_S = 60.0  # a connection
_POLL_S = 0.05


class Body(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


class _NodeFiles(Struct):
    """What came of the other nodes, by what they call themselves. heard_s: when the last of anything came."""

    heard_s: float
    coming: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    still: dict[str, float] = field(default_factory=dict)  # when each last said so
    files: int = 0
    bytes: int = 0


class Collector:
    """Listens from the start of the run, so that no node has to wait for this one. Raises OSError where it cannot.
    anywhere: this is the first node for certain, whatever addresses it has."""

    def __init__(
        self, folder: Path, run: str, address: str, port: int, *, anywhere: bool = False, secret: str = ""
    ) -> None:
        self.folder, self.run, self.secret = folder, run, secret
        self.marker = f".gather.{secrets.token_hex(8)}"  # who finds it in its own folder shares this one
        self.live = LiveFiles(folder)
        self._lock = threading.Lock()
        self._seen = _NodeFiles(time.monotonic())
        self._server = _listen(address, port, self, anywhere)
        (folder / self.marker).touch()
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()

    def wait(
        self, others: int, stop: Callable[[], bool], silent_s: float = SILENT_S, coming_s: float = COMING_S
    ) -> set[str]:
        """Until all `others` nodes are done, `stop` says so, or nothing comes any more; returns those that are."""
        self._heard()
        while True:
            with self._lock:
                seen, patience = self._seen, silent_s
                if len(seen.done) >= others:
                    return set(seen.done)
                if len(seen.coming) >= others:
                    patience = coming_s
                still = time.monotonic() - seen.heard_s
                if still > patience or stop():
                    return set(seen.done)
            time.sleep(_POLL_S)

    @property
    def still(self) -> int:
        """Nodes that say again and again that their ranks make no progress."""
        with self._lock:
            return sum(time.monotonic() - said_s < _STILL_S for said_s in self._seen.still.values())

    @property
    def taken(self) -> tuple[int, int]:
        """Files that came, and their bytes."""
        return self._seen.files, self._seen.bytes

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for path in (self.folder / self.marker, *self.folder.glob(".gather.*.part")):
            path.unlink(missing_ok=True)

    def announce(self, node: str, state: str) -> None:
        """A node says that its files are "coming" or "done", or that its ranks are "still" or "moving"."""
        with self._lock:
            self._seen.heard_s = time.monotonic()
            if state in ("still", "moving"):
                self._seen.still.pop(node, None)
                if state == "still":
                    self._seen.still[node] = self._seen.heard_s
            else:
                (self._seen.done if state == "done" else self._seen.coming).add(node)

    def store(self, name: str, node: str, length: int, digest: str, body: Body) -> HTTPStatus:
        """Take one file: CREATED, or OK where the same is there. Raises Refused, and OSError where it cannot be kept. A
        file of that name that differs stays; of logs and the like the new one gets the node's name too."""
        part = self.folder / f".gather.{secrets.token_hex(8)}.part"
        try:
            made, left = hashlib.sha256(), length
            with part.open("xb") as file:
                while left and (chunk := body.read(min(left, CHUNK))):
                    file.write(chunk)
                    made.update(chunk)
                    left -= len(chunk)
                    self._heard()
            if made.hexdigest() != digest:
                raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} came damaged or cut short")
            with self._lock:
                target = self.folder / name
                if target.exists() and digest_of(target) != digest and not self.live.are_of(node, name):
                    if name.startswith("rank_"):
                        raise Refused(HTTPStatus.CONFLICT, f"{name} is there already, and differs")
                    target = target.with_name(f"{target.stem}-{node}{target.suffix}")
                if target.exists() and digest_of(target) == digest:
                    return HTTPStatus.OK
                target.parent.mkdir(parents=True, exist_ok=True)
                part.replace(target)
                self._seen.files, self._seen.bytes = self._seen.files + 1, self._seen.bytes + length
            return HTTPStatus.CREATED
        finally:
            part.unlink(missing_ok=True)

    def _heard(self) -> None:
        self._seen.heard_s = time.monotonic()


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    made = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            made.update(chunk)
    return made.hexdigest()


def _listen(address: str, port: int, collector: Collector, anywhere: bool) -> ThreadingHTTPServer:
    """A server at that address; `anywhere`: else at all, where it is none of this machine's, or no name yet."""

    class Handler(_Handler):
        to = collector

    family, place = socket.AF_INET, ""
    try:
        family, *_, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        place = str(found[0])
        # A machine may have its own name in /etc/hosts as a loopback address (Debian's 127.0.1.1): others know it by
        # another one. Who writes localhost, or the address itself, means it.
        meant = address == place or address.partition(".")[0] in ("localhost", "ip6-localhost")
        if not meant and (place == "::1" or place.startswith("127.")):
            place = "::" if family == socket.AF_INET6 else ""
    except socket.gaierror:  # a service of Kubernetes is named when its pod is ready
        if not anywhere:
            raise

    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True
        allow_reuse_address = os.name == "posix"

        def server_bind(self) -> None:
            TCPServer.server_bind(self)  # HTTPServer's asks the name service who this is

    try:
        return Server((place, port), Handler)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or not anywhere:
            raise
        return Server(("::" if family == socket.AF_INET6 else "", port), Handler)


class _Handler(BaseHTTPRequestHandler):
    to: Collector
    more: Mapping[str, object] = MappingProxyType({})  # of the answer
    protocol_version = "HTTP/1.1"
    timeout = _STALLED_S

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def _announce(self) -> HTTPStatus:
        node, _, state = self.path.strip("/").partition("/")
        self.to.announce(unquote(node), state)
        return HTTPStatus.OK

    def _grow(self) -> HTTPStatus:
        length = self.headers.get("Content-Length", "")
        self.close_connection = True  # unless the body was read to its end
        if not length.isdecimal() or int(length) > MOST_BYTES:
            raise Refused(HTTPStatus.BAD_REQUEST, "too much at once")
        body = self.rfile.read(int(length))
        if hashlib.sha256(body).hexdigest() != self.headers.get("X-SHA256", ""):
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "pieces came damaged or cut short")
        try:
            self.more = self.to.live.take(unquote(self.headers.get("X-Node", "")), body)
        except (ValueError, TypeError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        self.close_connection = False
        return HTTPStatus.OK

    def _store(self) -> HTTPStatus:
        name, node = unquote(urlsplit(self.path).path[1:]), unquote(self.headers.get("X-Node", ""))
        length = self.headers.get("Content-Length", "")
        self.close_connection = True  # unless the body was read to its end
        if not may_travel(name) or not node.isprintable() or "/" in node or not length.isdecimal():
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name}: no file of a run folder")
        status = self.to.store(name, node, int(length), self.headers.get("X-SHA256", ""), self.rfile)
        self.close_connection = False
        return status

    def _answer(self) -> None:
        serve = {"POST": self._announce, "PATCH": self._grow, "PUT": self._store}.get(self.command)
        state: dict[str, object] = {}
        try:
            run, node, digest = (self.headers.get(name, "") for name in ("X-Run", "X-Node", "X-SHA256"))
            sealed = seal(self.to.secret, self.command, self.path, unquote(run), node, digest)
            if not hmac.compare_digest(sealed.encode(), self.headers.get("X-Seal", "").encode()):
                raise Refused(HTTPStatus.FORBIDDEN, f"{SECRET_ENV} is not the same on both nodes")
            if unquote(run) != self.to.run:
                raise Refused(HTTPStatus.MISDIRECTED_REQUEST, f"here is the run {self.to.run}")
            status, why = HTTPStatus.OK if serve is None else serve(), ""
            state = {"marker": self.to.marker, "folder": str(self.to.folder), "still": self.to.still, **self.more}
        except Refused as error:
            status, why, self.close_connection = error.status, str(error), True
        except OSError as error:
            status, why = HTTPStatus.INSUFFICIENT_STORAGE, error.strerror or str(error)
            self.close_connection = True
        answer = json.dumps({"why": why, **state}).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer)

    do_GET = do_POST = do_PATCH = do_PUT = _answer


_text = Wording("launch", "gather")
REACH_S = 60.0  # to reach the first node's launcher
_ANSWER_S = 120.0
_PASSING_S = 2.0  # the launcher looks after its ranks meanwhile
_TRIES = 3
_PAUSE_S = 0.5


class Sent(Struct):
    """files, bytes: that are with the first node now, in `folder` there. left: files that are not, with why. shared:
    that folder is the same as here."""

    files: int = 0
    bytes: int = 0
    folder: str = ""
    shared: bool = False
    left: dict[str, str] = field(default_factory=dict)


class Sender(Struct):
    """One connection to the first node; `stop` ends its waiting."""

    meeting: Meeting
    run: str
    node: str
    stop: Callable[[], bool]
    secret: str = ""
    answer_s: float = _ANSWER_S
    connection: http.client.HTTPConnection | None = None

    def coming(self, reach_s: float = REACH_S) -> None:
        """Say that files will come, so that the first node waits. Raises Unreachable."""
        self._reach(reach_s, "POST", f"/{quote(self.node, safe='')}/coming")

    def send(self, folder: Path, names: Sequence[str], reach_s: float = REACH_S) -> Sent:
        """Send these files; one that fails hinders no other. Raises Unreachable where none can be sent."""
        answer = self._reach(reach_s, "GET", "/")
        sent = Sent(folder=str(answer.get("folder", "")))
        sent.shared = (folder / str(answer.get("marker", ".none"))).exists()
        for name in () if sent.shared else names:
            if self.stop():
                sent.left[name] = "interrupted"
                continue
            try:
                sent.bytes += self._put(folder, name)
                sent.files += 1
            except (OSError, http.client.HTTPException, Unreachable) as error:
                sent.left[name] = str(error)
        if not sent.left:
            self._reach(reach_s, "POST", f"/{quote(self.node, safe='')}/done")
        return sent

    def _in_passing(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> dict[str, Any]:
        """A request by a connection of its own, which has to be answered soon."""
        passing = replace(self, answer_s=_PASSING_S, connection=None)
        try:
            return passing._ask(method, path, body, headers)
        finally:
            passing.close()

    def announce(self, state: str) -> int:
        """Say "still" or "moving" in passing; how many nodes are still. Raises OSError, HTTPException or Unreachable
        where nobody answers soon."""
        count = self._in_passing("POST", f"/{quote(self.node, safe='')}/{state}", None, {}).get("still")
        return count if isinstance(count, int) else 0

    def relay(self, folder: Path) -> Relay:
        """What sends beside this sender what the ranks write for a monitor, as long as they run."""

        def send(method: str, body: bytes) -> dict[str, Any]:
            digest = hashlib.sha256(body).hexdigest()
            return self._in_passing(method, "/", body, {"Content-Length": str(len(body)), "X-SHA256": digest})

        return Relay(folder, send)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

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
                if tried == _TRIES - 1 or self.stop():
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
                if time.monotonic() > until or self.stop():
                    raise Unreachable(str(error)) from error
            time.sleep(_PAUSE_S)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
        if self.connection is None:
            to = self.meeting
            self.connection = http.client.HTTPConnection(to.address, to.port, timeout=self.answer_s)
        own = {"X-Run": quote(self.run), "X-Node": quote(self.node, safe="")}
        own["X-Seal"] = seal(self.secret, method, path, self.run, own["X-Node"], headers.get("X-SHA256", ""))
        self.connection.request(method, path, body=body, headers=own | headers)
        response = self.connection.getresponse()
        text = response.read()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreachable("another program answers there")
        if response.status >= 400:
            raise Unreachable(str(answer.get("why", response.reason)))
        return answer


_FIRST = "the first node"
_ASK_EVERY_S, _ASK_AFTER_FAILURE_S = 1.0, 10.0
_AFTER_SIGNAL_S = 10.0  # whoever ended the run waits


class Gathering:
    """One of the two sides; nothing of it raises but OSError, and nothing of it touches the folder's own files."""

    def __init__(self, plan: Plan, screen: Screen, received: list[int]) -> None:
        """Begin to listen, on the first node. received: signals so far; one more ends the waiting."""
        self._plan, self._screen, self._received, self._known = plan, screen, received, 0
        self._meeting = to = meeting_of(plan.cluster, plan.gather_port)
        self._said_still, self._ask_again_s = False, 0.0
        self._collector: Collector | None = None
        self._sender: Sender | None = None
        run, secret = f"{plan.name} of {plan.cluster.world_size} ranks", os.environ.get(SECRET_ENV, "")
        if (first := to.first) is not False:
            try:
                anywhere = first is True
                self._collector = Collector(plan.out, run, to.address, to.port, anywhere=anywhere, secret=secret)
            except OSError as error:
                if first or error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                    raise
                first = False  # another launcher of this machine is the first, or another machine
        if first is False:
            node = re.sub(r"[^\w.-]", "_", f"{host()}-{os.getpid()}")
            self._sender = Sender(to, run, node, self._stop, secret)

    def _stop(self) -> bool:
        return len(self._received) > self._known

    def all_still(self, here: bool) -> bool:
        """Tell the first node whether the ranks are still here; whether they are on all nodes, if it says so."""
        state: Final = "still" if here else "moving"
        if self._collector is not None:
            self._collector.announce(_FIRST, state)
            return here and self._collector.still >= self._plan.cluster.nnodes
        now = time.monotonic()
        if self._sender is None or not (here or self._said_still) or now < self._ask_again_s:
            return False
        self._ask_again_s = now + _ASK_EVERY_S
        try:
            count = self._sender.announce(state)
        except (OSError, HTTPException, Unreachable):
            self._ask_again_s = now + _ASK_AFTER_FAILURE_S
            return False
        self._said_still = here
        return here and count >= self._plan.cluster.nnodes

    @property
    def first(self) -> bool:
        """Whether the files come here."""
        return self._collector is not None

    def relay(self) -> Relay | None:
        """To the monitor, which is beside the first node's launcher; None there."""
        if self._sender is None:
            return None
        relay = self._sender.relay(self._plan.out)
        relay.start()
        return relay

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
        first, port, out = self._meeting.address, self._meeting.port, str(self._plan.out)
        self._screen.say(_text("not_taken", first=first, port=port, why=why or "no answer", here=host(), out=out))
