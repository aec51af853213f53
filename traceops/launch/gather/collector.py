"""The first node's side: takes the files of the other nodes into the run folder, over HTTP."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field

from traceops.launch.gather.meeting import SECRET_ENV, may_travel, seal

CHUNK = 1 << 20
SILENT_S = 60.0  # nothing of a node that has not said that it comes
COMING_S = 900.0  # of one that has: it may be summarising its traces
_STILL_S = 15.0  # what a node says of its ranks is true for so long
_STALLED_S = 60.0  # a connection
_POLL_S = 0.05


class Body(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


class Refused(Exception):
    """A request that cannot be served; `status` says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


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

    anywhere: this is the first node for certain, whatever addresses it has.
    """

    def __init__(
        self, folder: Path, run: str, address: str, port: int, *, anywhere: bool = False, secret: str = ""
    ) -> None:
        self.folder, self.run, self.secret = folder, run, secret
        self.marker = f".gather.{secrets.token_hex(8)}"  # who finds it in its own folder shares this one
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
        """Take one file: CREATED, or OK where the same is there. Raises Refused, and OSError where it cannot be kept.

        A file of that name that differs stays; of logs and the like the new one gets the node's name too.
        """
        part = self.folder / f".gather.{secrets.token_hex(8)}.part"
        try:
            with part.open("xb") as file:
                got = _copy(body, file, length, self._heard)
            if got != digest:
                raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} came damaged or cut short")
            with self._lock:
                target = self.folder / name
                if target.exists() and digest_of(target) != digest:
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


def _copy(body: Body, file: BinaryIO, length: int, heard: Callable[[], None]) -> str:
    made = hashlib.sha256()
    while length and (chunk := body.read(min(length, CHUNK))):
        file.write(chunk)
        made.update(chunk)
        length -= len(chunk)
        heard()
    return made.hexdigest()


def _listen(address: str, port: int, collector: Collector, anywhere: bool) -> ThreadingHTTPServer:
    """A server at that address; `anywhere`: else at all, where it is none of this machine's, or no name yet."""

    class Handler(_Handler):
        to = collector

    family, place = socket.AF_INET, ""
    try:
        family, *_, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        place = str(found[0])
        if _only_within(address, place):
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


def _only_within(name: str, place: str) -> bool:
    """Whether a machine has its own name in /etc/hosts as a loopback address (Debian's 127.0.1.1): others know it by
    another one. Who writes localhost, or the address itself, means it."""
    if name == place or name.partition(".")[0] in ("localhost", "ip6-localhost"):
        return False
    return place == "::1" or place.startswith("127.")


class _Handler(BaseHTTPRequestHandler):
    to: Collector
    protocol_version = "HTTP/1.1"
    timeout = _STALLED_S

    def do_GET(self) -> None:
        self._answer(lambda: HTTPStatus.OK)

    def do_POST(self) -> None:
        node, _, state = self.path.strip("/").partition("/")
        self._answer(lambda: self._announce(unquote(node), state))

    def do_PUT(self) -> None:
        self._answer(self._store)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def _announce(self, node: str, state: str) -> HTTPStatus:
        self.to.announce(node, state)
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

    def _answer(self, serve: Callable[[], HTTPStatus]) -> None:
        told: dict[str, object] = {}
        try:
            run, node, digest = (self.headers.get(name, "") for name in ("X-Run", "X-Node", "X-SHA256"))
            sealed = seal(self.to.secret, self.command, self.path, unquote(run), node, digest)
            if not hmac.compare_digest(sealed.encode(), self.headers.get("X-Seal", "").encode()):
                raise Refused(HTTPStatus.FORBIDDEN, f"{SECRET_ENV} is not the same on both nodes")
            if unquote(run) != self.to.run:
                raise Refused(HTTPStatus.MISDIRECTED_REQUEST, f"here is the run {self.to.run}")
            status, why = serve(), ""
            told = {"marker": self.to.marker, "folder": str(self.to.folder), "still": self.to.still}
        except Refused as error:
            status, why, self.close_connection = error.status, str(error), True
        except OSError as error:
            status, why = HTTPStatus.INSUFFICIENT_STORAGE, error.strerror or str(error)
            self.close_connection = True
        answer = json.dumps({"why": why, **told}).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer)
