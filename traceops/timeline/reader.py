"""Reads a trace's events as the file has them, each field's JSON untouched; times are exact integers on one clock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median_low
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.clocks import ClockFit
from traceops.core.arrays import Int
from traceops.core.errors import InputError, UsageError
from traceops.traces.event import decode_events, digits_to_ns
from traceops.traces.kineto import read_meta
from traceops.traces.scan import Scanner
from traceops.traces.source import chunks, open_binary

_LATEST_NS = 1 << 61  # 73 years; with a file's zero added it still fits an int64
LONGEST_NS = 1 << 56  # 2 years: a longer event is garbage


class Placement(Struct, frozen=True):
    """Where one file's moments lie on the timeline, all in ns. `base_ns` is the file's own zero, `clock` corrects what
    lies on it (None: as it is), `origin_ns` is the timeline's zero."""

    base_ns: int = 0
    clock: ClockFit | None = None
    origin_ns: int = 0

    def place(self, t: Int) -> Int:
        """Moments as the analysis has them (the file's zero added) to ns since the timeline's zero."""
        moved: Int = (t if self.clock is None else self.clock.correct(t)) - self.origin_ns
        return moved

    def place_one(self, t: int) -> int:
        """The same for one moment."""
        return int(self.place(np.array([t], dtype=np.int64))[0])


def parse_us(text: bytes) -> int | None:
    """Decimal µs as a file has them to ns; None where it is no number, or none that can be a time."""
    if text[-4:-3] == b".":  # three decimals, which is nearly all there are
        digits = text[:-4] + text[-3:]
        if digits.isdigit() and len(digits) < 19:
            return int(digits)
    ns = digits_to_ns(text)
    return ns if ns is not None and abs(ns) < _LATEST_NS else None


def format_us(ns: int) -> bytes:
    """Nanoseconds as decimal µs with three digits behind the point."""
    return b"%d.%03d" % divmod(ns, 1000) if ns >= 0 else b"-" + format_us(-ns)


WholeEvent = dict[str, msgspec.Raw]


class TimelineHeader(Struct, frozen=True):
    """What placing a file needs to know of it: its zero (ns, None if it names none) and its first moment. `first_ns` is
    the time of its earliest event, the zero added; None without any."""

    base_ns: int | None
    first_ns: int | None
    host: str | None


def read_header(path: str) -> TimelineHeader:
    """Read a trace for its zero, which most files name behind their events. Raises InputError where the file cannot be
    opened."""
    first: int | None = None

    def note(batch: list[WholeEvent]) -> None:
        nonlocal first
        times = (parse_us(bytes(event["ts"])) for event in batch if "ts" in event)
        first = min((time for time in (first, *times) if time is not None), default=None)

    with open_binary(path) as file:
        scanner = read_whole_events(chunks(file), note)
    base = scanner.meta.get("baseTimeNanoseconds")
    # As the analysis reads it, or the two would disagree about when things were.
    base = base if isinstance(base, int) and 0 <= base < (1 << 62) else None
    return TimelineHeader(base, None if first is None else first + (base or 0), read_meta(scanner.meta).host)


class WholeEvents:
    """A sink whose events are dicts from key to undecoded JSON, nothing left out, handed on in batches."""

    def __init__(self, use: Callable[[list[WholeEvent]], None]) -> None:
        # Numbers keep their digits; constants become text, as JSON has no such numbers.
        self.decoder = json.JSONDecoder(parse_float=_verbatim, parse_int=_verbatim, parse_constant=str)
        self._use = use
        self._pending: list[WholeEvent] = []  # read one by one

    def take(self, text: bytes, ended: bool) -> tuple[int, int]:
        """As Sink says."""
        self.flush()
        events, done, state = decode_events(_decode_checked, text, ended)
        self._use(events)
        return done, state

    def add(self, value: Any, text: str) -> bool:
        """As Sink says."""
        try:
            event = {key: msgspec.Raw(msgspec.json.encode(part)) for key, part in value.items()}
        except (AttributeError, RecursionError, UnicodeEncodeError):  # no object, or none that JSON can hold
            return False
        self._pending.append(event)
        return True

    def flush(self) -> None:
        """Hand on what is left, once all has been read."""
        pending, self._pending = self._pending, []
        self._use(pending)


def read_whole_events(chunks: Iterator[bytes], use: Callable[[list[WholeEvent]], None]) -> Scanner:
    """Hand all events of a trace to `use`, in batches; the scanner tells about the rest of the file."""
    scanner, sink = Scanner(chunks), WholeEvents(use)
    scanner.peek()
    scanner.read(sink)
    sink.flush()
    return scanner


_decode = msgspec.json.Decoder(list[WholeEvent]).decode


def _decode_checked(text: bytes) -> list[WholeEvent]:
    text.decode()  # bytes that are no UTF-8 would pass through undecoded fields
    return _decode(text)


def _verbatim(digits: str) -> msgspec.Raw:
    return msgspec.Raw(digits.encode())


_ORIGIN_NS = 1_000_000
_FAR_NS = 3600 * 10**9  # no clock of a cluster is off by that


def place_files(
    headers: Mapping[int, TimelineHeader], clocks: Mapping[int, ClockFit]
) -> tuple[dict[int, Placement], tuple[int, ...]]:
    """For each rank its placement; the timeline's zero is the last whole ms before all events. Viewers keep times as
    doubles, which hold a ns only where the numbers are small. The ranks returned besides name no zero, which stands at
    a file's end and may be cut off. They were given that of the others, because they would lie far from those
    otherwise."""
    placements = {
        rank: Placement(header.base_ns or 0, _needed(clocks.get(rank), header)) for rank, header in headers.items()
    }
    known = [rank for rank, header in headers.items() if header.base_ns and header.first_ns is not None]
    borrowed = []
    if known:
        usual = median_low([placements[rank].base_ns for rank in known])
        about = median_low([placements[rank].place_one(headers[rank].first_ns or 0) for rank in known])
        for rank, header in headers.items():
            if header.base_ns or header.first_ns is None:
                continue
            apart = abs(placements[rank].place_one(header.first_ns) - about)
            if apart > _FAR_NS and abs(header.first_ns + usual - about) < apart:
                placements[rank] = replace(placements[rank], clock=ClockFit(usual))
                borrowed.append(rank)
    firsts = [own.place_one(first) for rank, own in placements.items() if (first := headers[rank].first_ns) is not None]
    origin = min(firsts, default=0) // _ORIGIN_NS * _ORIGIN_NS
    return {rank: replace(own, origin_ns=origin) for rank, own in placements.items()}, tuple(borrowed)


def _needed(clock: ClockFit | None, header: TimelineHeader) -> ClockFit | None:
    """None for a clock that moves nothing: two moments that stay are enough to know of a line."""
    if clock is None:
        return None
    moments = np.array([0, header.first_ns or 0], dtype=np.int64)
    return None if np.array_equal(clock.correct(moments), moments) else clock


VARIABLE = "TRACE_PROCESSOR"
NAMES = ("trace_processor_shell", "trace_processor")
_ENDINGS = (".pftrace", ".pftrace.gz", ".perfetto-trace")
_HOW = (
    "get it from https://get.perfetto.dev/trace_processor and put it on PATH, or name it in "
    f"{VARIABLE}; or pip install perfetto (traceops's extra [perfetto]), which downloads it when it is first asked"
)


def is_timeline(path: str) -> bool:
    """Whether this is a timeline that was written already: by its name, or because it stands beside a report."""
    name = Path(path).name
    return name.endswith(_ENDINGS) or name in ("timeline.json", "timeline.json.gz")


def find_processor() -> str:
    """The program: of TRACE_PROCESSOR, of PATH, or of the package `perfetto`, which downloads it once. Raises
    UsageError where none can be had."""
    if named := os.environ.get(VARIABLE):
        if shutil.which(named) is None:
            raise UsageError(f"{VARIABLE} names {named}, which is not a program that can be started; {_HOW}")
        return named
    for name in NAMES:
        if path := shutil.which(name):
            return path
    try:
        from perfetto.trace_processor.platform import PlatformDelegate
    except ImportError:
        raise UsageError(f"Perfetto's trace processor is not on this machine; {_HOW}") from None
    try:
        return str(PlatformDelegate().get_shell_path(None))
    except Exception as error:  # it downloads: no network, no such platform, another checksum
        code = error.returncode if isinstance(error, subprocess.CalledProcessError) else None
        why = error if code is None else f"curl: exit code {code}"
        raise UsageError(f"the package perfetto could not download its trace processor ({why}); {_HOW}") from error


def run_query(processor: str, timeline: Path, sql: str) -> str:
    """The answer as CSV, its header first. Raises InputError with the processor's own words where it has none."""
    if not timeline.is_file():
        raise InputError(f"{timeline} does not exist; traceops view writes one")
    with tempfile.NamedTemporaryFile("w", suffix=".sql", encoding="utf-8") as query:
        query.write(sql.rstrip().rstrip(";") + ";\n")
        query.flush()
        try:
            ended = subprocess.run(
                [processor, "-q", query.name, str(timeline)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise UsageError(f"{processor} cannot be started ({error.strerror or error}); {_HOW}") from error
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if line.strip()][-12:]
        raise InputError("the trace processor could not answer:\n" + "\n".join(said or ["it said nothing"]))
    return ended.stdout
