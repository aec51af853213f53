"""While a run with a monitor goes on: what its ranks write for the monitor, from each node to the first node's folder.

A request is a line of JSON, ``[[name, offset, length], …]``, and the bytes of these pieces.
"""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any

from traceops.core.live_pulses import CLOSER, HEAD, PULSES_FILE, SIZE, SLOTS, place_of
from traceops.core.rank_files import OBSERVED_FILE, PREFIX, STEPS_FILE, SUFFIX

_NAME = re.compile(
    rf"rank_\d+/({STEPS_FILE}|{OBSERVED_FILE}|{PULSES_FILE})|{re.escape(PREFIX)}[\w.-]+{re.escape(SUFFIX)}"
)
_EVERY_S, _AFTER_FAILURE_S, _LAST_S = 0.5, 5.0, 5.0
_PIECE = 1 << 20  # bytes of a file in one request
MOST_BYTES = 1 << 28  # of a request


class Refused(Exception):
    """A request that cannot be served; `status` says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Unreachable(Exception):
    """The first node's launcher does not answer, or another run's does."""


class LiveFiles:
    """On the first node: files of other nodes that still grow. Nothing that this node has itself is touched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._nodes: dict[str, str] = {}  # by the name in the folder: whose it is

    def are_of(self, node: str, name: str) -> bool:
        """Whether this file came while it grew, from this node."""
        return self._nodes.get(name) == node

    def take(self, node: str, body: bytes) -> dict[str, Any]:
        """Write pieces; the answer has the size here of files of which an earlier piece is missing. Raises Refused,
        ValueError where it is no such request, and OSError."""
        head, _, body = body.partition(b"\n")
        pieces, missing = json.loads(head), dict[str, int]()
        if not all(_NAME.fullmatch(name) and offset >= 0 and length >= 0 for name, offset, length in pieces):
            raise Refused(HTTPStatus.BAD_REQUEST, "not written for a monitor")
        with self._lock:
            for name, offset, length in pieces:
                piece, body = body[:length], body[length:]
                target = self._place(node, name)
                target.parent.mkdir(exist_ok=True)
                with target.open("r+b" if target.exists() else "w+b", buffering=0) as file:
                    in_ring = name.endswith(PULSES_FILE)
                    size = SLOTS * SIZE if in_ring else file.seek(0, 2)
                    if offset > size:
                        missing[name] = size
                        continue
                    file.seek(offset)
                    file.write(piece)
                    if not offset and not in_ring:  # the file was begun anew
                        file.truncate()
        asked_ns = 0  # when the monitor last asked for more looks at hosts
        with suppress(OSError):
            asked_ns = (self._folder / CLOSER).stat().st_mtime_ns
        return {"missing": missing, "closer": asked_ns}

    def _place(self, node: str, name: str) -> Path:
        target = self._folder / name
        if self._nodes.get(name, node) != node or (target.exists() and name not in self._nodes):
            if "/" in name:
                raise Refused(HTTPStatus.CONFLICT, f"{name} is there already, from another node")
            target = target.with_name(f"{target.stem}-{node}{target.suffix}")
            name = target.name
        self._nodes[name] = node
        return target


class Relay:
    """On another node: a thread that sends what is new, and passes the monitor's wishes on. The run never waits for it.
    send: a request with that method and body; returns the first node's answer. Raises Unreachable, HTTPException or
    OSError."""

    def __init__(self, folder: Path, send: Callable[[str, bytes], dict[str, Any]]) -> None:
        self._folder, self._send = folder, send
        self._sent: dict[str, int] = {}  # bytes; of rings, pulses
        self._closer: object = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traceops-relay", daemon=True)

    def start(self) -> None:
        """Begin, about twice a second."""
        self._thread.start()

    def finish(self) -> None:
        """Send the rest, if that does not take long."""
        self._ended.set()
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        pause, shared = _EVERY_S, None
        while True:
            last = self._ended.wait(pause)
            try:
                if shared is None:
                    shared = (self._folder / str(self._send("GET", b"").get("marker"))).exists()
                if shared:
                    return
                self.look()
                pause = _EVERY_S
            except (Unreachable, HTTPException, OSError):
                pause = _AFTER_FAILURE_S
            if last:
                return

    def look(self) -> None:
        """Send what is new now."""
        sent = dict(self._sent)
        found = [*self._folder.glob("rank_*/*"), *self._folder.glob(f"{PREFIX}*{SUFFIX}")]
        names = filter(_NAME.fullmatch, (path.relative_to(self._folder).as_posix() for path in found))
        # Pulses last: then the steps that they count are there.
        in_order = sorted(names, key=lambda name: (name.endswith(PULSES_FILE), name))
        pieces = [piece for name in in_order for piece in self._new(name, sent)]
        head = json.dumps([[name, offset, len(piece)] for name, offset, piece in pieces]).encode()
        answer = self._send("PATCH", head + b"\n" + b"".join(piece for *_, piece in pieces))
        missing, closer = answer.get("missing"), answer.get("closer")
        if not isinstance(missing, dict):
            raise Unreachable("it takes nothing while the ranks run")
        self._sent = sent | {name: size for name, size in missing.items() if name in sent and isinstance(size, int)}
        if closer != self._closer:
            self._closer = closer
            (self._folder / CLOSER).touch()

    def _new(self, name: str, sent: dict[str, int]) -> Iterator[tuple[str, int, bytes]]:
        path, before = self._folder / name, sent.get(name, 0)
        with suppress(OSError, struct.error), path.open("rb", buffering=0) as file:
            if not name.endswith(PULSES_FILE):
                anew = path.stat().st_size < before
                file.seek(before := 0 if anew else before)
                piece = file.read(_PIECE)
                sent[name] = before + len(piece)
                if piece or anew:
                    yield name, before, piece
                return
            head = file.read(SIZE)
            count = HEAD.unpack(head[: HEAD.size])[-1]
            for number in range(max(before if before <= count else 0, count - SLOTS), count):
                file.seek(place_of(number))
                yield name, place_of(number), file.read(SIZE)
            sent[name] = count
            yield name, 0, head
