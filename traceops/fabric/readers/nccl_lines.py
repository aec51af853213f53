"""Who says each NCCL line of a text file, and what: prefixes, run-together lines and timestamps come off here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from traceops.traces.text_lines import blocks, holds_any, holds_within

QUOTED_CHARACTERS = 300
# A file that holds none of these holds no NCCL line; the second pair is printed without a host and a process.
NEEDLES: tuple[bytes, ...] = (b"NCCL INFO ", b"NCCL WARN ", b"NCCL version ", b"RCCL version ")
_MARK = re.compile(rb"NCCL (?:INFO|WARN) ")
# ``host:123:456 [0] NCCL INFO ``, ``host:123:456 [0] init.cc:12 NCCL WARN ``; a plugin's function may have spaces, and
# from 2.29 on the function's name follows in brackets.
_DEVICE = re.compile(rb" \[(\d{1,4})\] (?:[^\n]{1,400}:\d{1,6} (?:\([^() \n]{1,200}\) )?)?\Z")
_NUMBERS = re.compile(rb":(\d{1,10}):(\d{1,10})\Z")
_HOST = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_REDACTED = re.compile(rb"<([A-Za-z][\w.-]{0,60})>\Z|\[([A-Za-z][\w.-]{0,60})\]\Z")  # ``<host>``, ``[pod-name]``
_TIME_ZONE = re.compile(rb"\d\d:\d\d:\d\d[0-9.,]{0,12}[+-]\d\d:\Z")  # …-07:00host: two digits are not the host's
# Others, like torch, say it too, but without what it was built for.
_VERSION = re.compile(rb"(?:[NR]CCL version \d{1,3}\.\d{1,3}[.0-9]{0,8}\+|RCCL version : \d)")
_ESCAPE = re.compile(rb"\x1b(?:\[[0-9;:?]{0,32}[A-Za-z]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")
# Ray says a line of several workers once; of the colours around it, posts often lose the escape character.
_REPEATED = re.compile(
    rb"[ \t]{0,4}(?:(?:ESC|\^\[)?\[32m)?[ \t]{0,4}\[repeated \d{1,9}x across cluster\][^\r\n]{0,4000}"
)
_REPEATED_NEEDLE = b"x across cluster]"
# Lines as Docker keeps them (``{"log":"…\\n","stream":…}``) and as tables of log services are saved: ``"…",``.
_EXPORTED_END = re.compile(rb'"(?:,"stream":"[^\r\n]{0,4000}|,)?[ \t]{0,8}(?=[\r\n]|\Z)')
_EXPORTED_SIGNS = ((b'\\n"', b'"'), (b"\\u003c", b"<"), (b"\\u003e", b">"))
_HEAD_BYTES = 600
_MOST_BRACKETS = 8
_SNIFFED_BYTES = 1 << 26
_MOST_HEADS = 1 << 16


class Speaker(NamedTuple):
    """A thread's device within a process. host: cut at its first dot. device: as CUDA counts there; -1: not told."""

    host: str
    pid: int
    device: int


NOBODY = Speaker("", 0, -1)  # the line names no process


class NcclLine(NamedTuple):
    """One NCCL message. number: its line, from 1. raw: the whole message with its head, without foreign prefixes."""

    number: int
    speaker: Speaker
    warns: bool
    message: bytes
    raw: bytes


def holds_nccl_lines(path: str) -> bool:
    """Whether a text file holds lines of NCCL or RCCL; of a large one, the first 64 MiB count.

    Raises InputError where it cannot be read.
    """
    return holds_within(path, NEEDLES, _SNIFFED_BYTES)


def quoted(raw: bytes) -> str:
    return raw[:QUOTED_CHARACTERS].decode(errors="replace")[:QUOTED_CHARACTERS]


class LineReader:
    """Finds the NCCL messages of files; remembers the processes it has seen, to tell run-together lines apart."""

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[int, Speaker]] = {}
        self._hosts: dict[tuple[int, int], set[str]] = {}
        self._processes = 0

    def lines(self, path: str, passed_over: frozenset[bytes] = frozenset()) -> Iterator[NcclLine]:
        """The NCCL messages of one file in its order. Raises InputError where it cannot be read.

        passed_over: INFO messages that begin with these four bytes may be left out.
        """
        for first, block in blocks(path):
            if not holds_any(block, NEEDLES):
                continue
            if b"\x1b" in block:
                block = _ESCAPE.sub(b"", block)
            if _REPEATED_NEEDLE in block:
                block = _REPEATED.sub(b"", block)
            if b'"' in block:
                for sign, plain in _EXPORTED_SIGNS:
                    block = block.replace(sign, plain)
                block = _EXPORTED_END.sub(b"", block)
            for number, line in enumerate(block.split(b"\n"), first):
                at = line.find(b"NCCL INFO ") + 10
                if at < 10 and b"CCL " not in line:
                    continue
                if at < 10 or line.find(b"NCCL ", at) >= 0 or b"\r" in line:
                    for piece in line.split(b"\r"):  # a progress bar's, or the end of a line that Windows wrote
                        yield from self._messages(number, piece)
                elif line[at : at + 4] not in passed_over:  # nearly every line is one message
                    begin, speaker = self._head(line, 0, at - 10, True)
                    yield NcclLine(number, speaker, False, line[at:], line[begin:])

    def _messages(self, number: int, line: bytes) -> Iterator[NcclLine]:
        marks = list(_MARK.finditer(line))
        if not marks:
            if (version := _VERSION.search(line)) is not None:
                message = line[version.start() :]
                yield NcclLine(number, NOBODY, False, message, message)
            return
        heads = [self._head(line, 0, marks[0].start(), True)]
        for before, mark in pairwise(marks):
            heads.append(self._head(line, before.end(), mark.start(), False))
        for place, mark in enumerate(marks):
            begin, speaker = heads[place]
            is_last = place + 1 == len(marks)
            if not is_last and heads[place + 1][1] is NOBODY:
                continue  # nobody knows where this message ends
            if place and speaker is NOBODY:
                continue
            end = len(line) if is_last else heads[place + 1][0]
            if not is_last:  # a table of CloudWatch says each message twice
                end -= len(line[:end]) - len(line[:end].rstrip(b" |"))
            warns = mark.group() == b"NCCL WARN "
            yield NcclLine(number, speaker, warns, line[mark.end() : end], line[begin:end])

    def _head(self, line: bytes, start: int, end: int, is_first: bool) -> tuple[int, Speaker]:
        """Where the head that ends at `end` begins, and whose it is."""
        last = line.rfind(b" ", start, max(line.rfind(b" [", start, end), start)) + 1 or start
        if is_first and (known := self._heads.get(line[last:end])) is not None:
            return last + known[0], known[1]
        found = _parsed(line, max(start, end - _HEAD_BYTES), end)
        if found is None:
            return start, NOBODY
        begin, host, pid, device = found
        if not is_first and begin > start:
            # Joined to the line before: the host is one that was seen with this process where it was not.
            hosts = self._hosts.get((pid, device), ())
            joined = next((name for name in hosts if host.endswith(name)), None)
            if joined is None:
                return begin, NOBODY
            return begin + len(host) - len(joined), Speaker(joined, pid, device)
        if host[:2].isdigit() and _TIME_ZONE.search(line, start, begin) is not None:
            begin, host = begin + 2, host[2:]
        speaker = Speaker(host.partition(".")[0], pid, device)
        self._remember(speaker)
        if begin >= last:
            if len(self._heads) >= _MOST_HEADS:  # timestamps without a space make every one new
                self._heads.clear()
            self._heads[line[last:end]] = begin - last, speaker
        return begin, speaker

    def _remember(self, speaker: Speaker) -> None:
        if self._processes < _MOST_HEADS:
            hosts = self._hosts.setdefault((speaker.pid, speaker.device), set())
            self._processes += speaker.host not in hosts
            hosts.add(speaker.host)


def _parsed(line: bytes, start: int, end: int) -> tuple[int, str, int, int] | None:
    """Where the host's name begins, the name, process and device of the head that ends at `end`."""
    at = end
    for _ in range(_MOST_BRACKETS):
        at = line.rfind(b" [", start, at)
        if at < 0:
            return None
        device = _DEVICE.match(line, at, end)
        if device is None:
            continue
        numbers = _NUMBERS.search(line, max(start, at - 22), at)
        if numbers is None:
            continue
        before = line[start : numbers.start()]
        host = before[len(before.rstrip(_HOST)) :].lstrip(b".-")
        begin = numbers.start() - len(host)
        if not host and (redacted := _REDACTED.search(before)) is not None:
            host, begin = redacted[1] or redacted[2], start + redacted.start()
        if host:
            return begin, host.decode(), int(numbers[1]), int(device[1])
    return None
