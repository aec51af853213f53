"""Reads what others measured of communication: tables of nccl-tests and rccl-tests, and NCCL Inspector's JSON lines.

Inspector's lines are those of NCCL's plugins/profiler/inspector/inspector_json.cc. To v4.2 each line says of which
communicator and rank it is; from v4.3 only the marker (`dump_stats`) before a communicator's lines does.
"""

from __future__ import annotations

import math
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from traceops.core.claims import first_phrase, reason
from traceops.core.errors import InputError, problem_of
from traceops.fabric import nccl
from traceops.fabric.model import Quote
from traceops.traces.text_index import Words, holds
from traceops.traces.text_lines import blocks, lines

_WORDS = Words(b"algbw", b"Avg bus bandwidth")
_SNIFFED_BYTES = 1 << 26
_MOST_RANKS = 4096
_MOST_SIZES = 64  # of one run of a test
_MOST_BENCHMARKS = 400  # of one file
_QUOTED = 300
_SAME_FACTOR = 0.03  # bandwidths are printed with two decimals
_TYPES = "half|float|double|bfloat16|u?int8|u?int32|u?int64|char|uchar|int|fp8_e[45]m[23]|f8e[45]m[23]|float8\\w{0,8}"
_OPS = "none|sum|prod|max|min|avg|all|mulsum|premulsum"
_NUMBER = r"\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?"  # always finite
_GAP, _BLANKS = " {1,80}", " {0,80}"
_TIMES = rf"({_NUMBER}){_GAP}({_NUMBER}){_GAP}({_NUMBER}){_GAP}({_NUMBER}|N/A)"
# size, count, type, operation (of old ones, where there is any) and, since 2.11, root; then once or twice time, two
# bandwidths and what was wrong. The in-place half is missing where a test has none.
_HEAD = rf"(?<![\w.])(\d{{1,15}}){_GAP}\d{{1,15}}{_GAP}(?:{_TYPES})(?:{_GAP}({_OPS}))?"
_ROOT = rf"{_GAP}-?\d{{1,7}}"
_ROW = {
    has: re.compile(rf"{_HEAD}{_ROOT if has else ''}{_GAP}{_TIMES}(?:{_GAP}{_TIMES})?(?!\S)") for has in (True, False)
}
# NCCL_DEBUG=INFO writes lines into a row: what it began with ends a line, and each half follows on one of its own.
_ROW_BEGIN = {has: re.compile(rf"{_HEAD}{_ROOT if has else ''}{_BLANKS}\Z") for has in (True, False)}
_ROW_HALF = re.compile(rf"{_BLANKS}{_TIMES}{_BLANKS}\Z")
_NCCL_HEAD = re.compile(r"[A-Za-z_][\w.-]{0,250}:\d{1,10}:\d{1,10} \[\d{1,4}\] (?:\S{1,80}:\d{1,6} )?NCCL ")
_TAG = re.compile(
    r"\[\d{1,6},\d{1,7}\]<std(?:out|err)>:"
)  # Open MPI's --tag-output, also where a row is written in parts
_RANK = re.compile(
    rf"Rank{_GAP}(\d{{1,7}}){_GAP}(?:Group{_GAP}\d{{1,7}}{_GAP})?Pid{_GAP}\d{{1,10}}{_GAP}on{_GAP}(\S{{1,255}}){_GAP}device"
    rf"{_GAP}(\d{{1,4}}){_GAP}\[([0-9a-fx:.]{{1,16}})\]{_GAP}(\S.{{0,79}}?){_BLANKS}$",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"\bnThread \d{1,6} nGpus \d{1,6} minBytes ")
_PROGRAM = re.compile(r"\b(\w{3,24})_perf(?:_mpi)?\b")
_FAILURE = re.compile(r"\bTest (?:(?:NCCL|CUDA|MPI) failure .{1,160}|timeout \(\d{1,9}s\))")
_BOUNDS = re.compile(r"Out of bounds values : (\d{1,18})")
_AVERAGE = re.compile(rf"Avg bus bandwidth{_BLANKS}:{_BLANKS}({_NUMBER})")
_NAMES = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv", "gather", "scatter",
    "hypercube", "alltoallv",
}  # fmt: skip
_Way = tuple[float, float, float, str]  # time in µs, algorithm and bus bandwidth in GB/s, and what was wrong


class _BrokenRow(Struct):
    """A row that NCCL's lines broke into: its size, operation and first line, and the halves that came so far."""

    bytes: int
    reduction: str | None
    quote: Quote
    ways: list[_Way] = field(default_factory=list)


class _TestRun(Struct):
    """A run of a test while it is read."""

    op: str | None = None
    ranks: dict[int, nccl.BenchmarkRank] = field(default_factory=dict)
    sizes: list[nccl.BenchmarkSize] = field(default_factory=list)
    broken: _BrokenRow | None = None
    factors: dict[int, tuple[float, str | None]] = field(default_factory=dict)  # bus over algorithm bandwidth
    first: Quote | None = None
    header: bool = False
    counts_wrong: bool = False
    has_root: bool = True
    checked: bool = False
    out_of_bounds: int | None = None
    average: float | None = None
    alone: int = 0
    ended: bool = False


def holds_nccl_tests(path: str) -> bool:
    """Whether a text file has the head of such a table; of a large one, the first 64 MiB count. Raises InputError where
    it cannot be read."""
    return holds(path, _WORDS, _SNIFFED_BYTES)


def read_nccl_tests(path: str, problems: list[str] | None = None) -> tuple[nccl.Benchmark, ...]:
    """The runs of tests in a log, in its order; those without a whole row are left out. problems: where it is said of
    the last one that it began and has no result, with what it says of its failure. Of a row that another process wrote
    into, its whole columns count. Raises InputError where the file cannot be read."""
    reader = _TestsReader(path)
    for first, block in blocks(path):
        for number, line in lines(block, first):
            if len(line) < 2_000:
                reader.take(number, line)
    found = reader.finish()
    if problems is not None and reader.without_result is not None:
        failure = None if reader.failure is None else repr(reader.failure)
        problems.append(first_phrase("fabric", "words", "no_result", test=reader.without_result, failure=failure))
    return found


class _TestsReader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._done: list[nccl.Benchmark] = []
        self._open = _TestRun()
        self._program: str | None = None  # the last one that a line named
        self.without_result: str | None = None  # the test that the file ends in, before its first row
        self.failure: str | None = None  # the first thing that it says went wrong
        self._headless: list[tuple[int, str]] = []  # rows whose table's head is missing, until its end tells

    def take(self, number: int, line: str) -> None:
        line = _TAG.sub(" ", line) if "]<std" in line else line
        if "Test " in line and (failed := _FAILURE.search(line)) is not None:
            self.failure = self.failure or failed[0].strip()
            return
        if " NCCL " in line and "_perf" not in line:
            # What stands before NCCL's own words, which may be a row; empty where nothing does.
            head = _NCCL_HEAD.search(line)
            own = line[: line.find(" NCCL ") if head is None else head.start()]
            line = own if own.strip() else ""
            if not line:
                return
        if self._open.header and self._take_row(number, line):
            return
        if not self._open.header and len(self._headless) < _MOST_SIZES and _headless(line) is not None:
            self._headless.append((number, line))
            return
        self._take_other(line)

    def _take_other(self, line: str) -> None:
        """A line that is no row of a table."""
        if "algbw" in line and "busbw" in line and "size" in line:
            self._header(line)
        elif "Rank" in line and (rank := _RANK.search(line)) is not None:
            self._rank(rank)
        elif _BEGIN.search(line) is not None or "Using devices" in line:
            self._begin(says_program=False)
        elif "_perf" in line:
            self._named(line)
        elif (bounds := _BOUNDS.search(line)) is not None:
            self._open.out_of_bounds = (self._open.out_of_bounds or 0) + int(bounds[1])
        elif (average := _AVERAGE.search(line)) is not None:
            self._end_broken()
            # These rows belong to a table whose head is missing.
            if not self._open.header:
                self._open.has_root = all(_headless(line) for _, line in self._headless)
                for number, line in self._headless:
                    self._take_row(number, line)
            self._headless.clear()
            self._open.average, self._open.ended = float(average[1]), True

    def _take_row(self, number: int, line: str) -> bool:
        """Whether the line is a row or a part of one."""
        row = _ROW[self._open.has_root].search(line)
        begins = _ROW_BEGIN[self._open.has_root].search(line) if row is None else None
        if row is not None:
            self._end_broken()
            self._row(int(row[1]), row[2], _ways(row, (3, 7)), self._quote(number, line))
        elif begins is not None:
            self._end_broken()
            self._open.broken = _BrokenRow(int(begins[1]), begins[2], self._quote(number, line))
        elif self._open.broken is not None and (half := _ROW_HALF.match(line)) is not None:
            self._open.broken.ways += _ways(half, (1,))
            if len(self._open.broken.ways) == 2:
                self._end_broken()
        else:
            return False
        return True

    def _quote(self, number: int, line: str) -> Quote:
        return Quote(self._path, number, line.strip()[:_QUOTED])

    def _end_broken(self) -> None:
        broken, self._open.broken = self._open.broken, None
        if broken is not None:
            self._row(broken.bytes, broken.reduction, broken.ways, broken.quote)

    def _named(self, line: str) -> None:
        found = [match[1] for match in _PROGRAM.finditer(line) if match[1] in _NAMES]
        if found and "concluded" in line and not self._open.header and self._open.sizes:
            self._open.op = self._open.op or found[-1]
        if not found or "concluded" in line:
            return
        self._program = found[-1]
        if "test starting" in line:
            self._begin(says_program=True)
        if not self._open.sizes:
            self._open.op = self._program

    def _begin(self, *, says_program: bool) -> None:
        if not self._open.sizes:
            return
        self._close()
        if not says_program and self._done[-1:] and self._done[-1].op == self._program:
            self._program = None  # the next table is of another command, which nothing may name
        self._open = _TestRun(op=self._program)

    def _rank(self, match: re.Match[str]) -> None:
        if self._open.sizes:
            self._begin(says_program=False)
        if not self._open.ranks:
            self.failure = None
        rank = int(match[1])
        if rank in self._open.ranks and rank == 0 and set(self._open.ranks) == {0}:
            self._open.alone += 1 if self._open.alone else 2
        if len(self._open.ranks) < _MOST_RANKS:
            self._open.ranks[rank] = nccl.BenchmarkRank(rank, match[2], int(match[3]), match[5], _bus(match[4]))

    def _header(self, line: str) -> None:
        self._headless.clear()
        if self._open.ended or self._open.sizes:
            self._begin(says_program=False)
        self._open.header = True
        self._open.counts_wrong = "#wrong" in line
        self._open.has_root = " root " in line

    def _row(self, size: int, reduction: str | None, ways: Sequence[_Way], quote: Quote) -> None:
        timed = [way for way in ways if way[0] > 0]
        if self._open.ended or len(self._open.sizes) >= _MOST_SIZES or not timed:
            return
        time, algbw, busbw, _ = max(timed, key=lambda way: way[2])
        wrong = [int(float(way[3])) for way in timed if way[3] != "N/A" and self._open.counts_wrong]
        self._open.checked |= any(way[3] != "N/A" for way in timed)
        self._open.first = self._open.first or quote
        if algbw > 1:
            self._open.factors[size] = busbw / algbw, reduction
        self._open.sizes.append(nccl.BenchmarkSize(size, time, busbw, sum(wrong) if wrong else None, quote))

    def _close(self) -> None:
        self._end_broken()
        one = self._open
        if not one.sizes or one.first is None or len(self._done) >= _MOST_BENCHMARKS:
            return
        ranks = tuple(one.ranks[rank] for rank in sorted(one.ranks))
        op = one.op or _op_by_factor(one.factors, len(ranks))
        bounds = one.out_of_bounds if one.checked or one.out_of_bounds else None
        made = nccl.Benchmark(op, ranks, tuple(one.sizes), one.first, one.average, bounds, one.alone)
        last = self._done[-1] if self._done else None
        if last is not None and _continues(last, made):  # a script that runs every size by itself
            both = last.out_of_bounds, made.out_of_bounds
            self._done[-1] = replace(
                last,
                op=last.op or made.op,
                sizes=last.sizes + made.sizes,
                average_gbs=None,
                out_of_bounds=None if both == (None, None) else (both[0] or 0) + (both[1] or 0),
            )
        else:
            self._done.append(made)

    def finish(self) -> tuple[nccl.Benchmark, ...]:
        self._close()
        begun = self._done or self._open.header
        if begun and self._open.ranks and not self._open.sizes:
            self.without_result = self._open.op or "a test"
        return tuple(self._done)


def _headless(line: str) -> bool | None:
    """Whether a whole row has a root; None where the line is no whole row, which both halves make certain."""
    for has_root, pattern in _ROW.items():
        row = pattern.search(line)
        if row is not None and row[7] is not None and not line[row.end() :].strip():
            return has_root
    return None


def _ways(match: re.Match[str], first: Sequence[int]) -> list[_Way]:
    """The halves of a row that a match has, each from its first group on."""
    return [
        (float(match[at]), float(match[at + 1]), float(match[at + 2]), match[at + 3])
        for at in first
        if match[at] is not None
    ]


def _op_by_factor(factors: Mapping[int, tuple[float, str | None]], ranks: int) -> str | None:
    """What the bandwidths of the largest message tell of the operation; None where several have that ratio."""
    if ranks < 3 or not factors:
        return None
    factor, reduction = factors[max(factors)]
    part = (ranks - 1) / ranks
    if abs(factor / (2 * part) - 1) < _SAME_FACTOR:
        return "all_reduce"
    sums = reduction not in (None, "none")
    return "reduce_scatter" if sums and abs(factor / part - 1) < _SAME_FACTOR else None


def _continues(last: nccl.Benchmark, made: nccl.Benchmark) -> bool:
    same_op = made.op is None or last.op in (None, made.op)
    where = [[(rank.rank, rank.host, rank.bus_id, rank.gpu) for rank in one.ranks] for one in (last, made)]
    more = min(row.bytes for row in made.sizes) > max(row.bytes for row in last.sizes)
    return same_op and more and where[0] == where[1] and len(last.sizes) < _MOST_SIZES


def _bus(text: str) -> str | None:
    """``0000:1b:00`` as ``0000:1b:00.0``; older tests print the bus alone (``0x1b``)."""
    if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}", text):
        return f"{text[-10:]}.0"
    return f"0000:{int(text, 16):02x}:00.0" if re.fullmatch(r"0x[0-9a-f]{1,2}", text) else None


_INSPECTOR_NEEDLES = (b'"inspector_output_format_version"', b'"coll_busbw_gbs"', b'"p2p_busbw_gbs"')
_LONGEST = 1 << 20  # bytes of a line: verbose ones tell of every channel
_MOST_KEYS = 20_000  # of a rank, communicator and operation; beyond them nothing is kept
_MOST_VALUES = 1 << 15  # of which a median is taken
_MOST_SECONDS = 1 << 17  # a day and a half
_GZIP = b"\x1f\x8b"
_INSPECTOR_HEAD = 1 << 16
_Rank = Annotated[int, Meta(ge=0, le=1 << 20)]
_Count = Annotated[int, Meta(ge=0, le=1 << 62)]
_Name = Annotated[str, Meta(pattern=r"^\w{1,40}$")]


class _Header(msgspec.Struct):
    id: Annotated[str, Meta(pattern=r"^[0-9a-zA-Z]{1,40}$")]
    rank: _Rank
    n_ranks: _Rank
    comm_name: Annotated[str, Meta(max_length=300)] = ""


class _Metadata(msgspec.Struct):
    dump_timestamp_us: _Count = 0


class _Coll(msgspec.Struct, rename=lambda name: "coll" if name == "op" else f"coll_{name}"):
    op: _Name
    sn: _Count
    msg_size_bytes: _Count
    busbw_gbs: float | str = math.nan  # "nan" where it is none


class _P2p(msgspec.Struct, rename=lambda name: "p2p" if name == "op" else f"p2p_{name}"):
    op: _Name
    sn: _Count
    msg_size_bytes: _Count
    busbw_gbs: float | str = math.nan


class _Stats(msgspec.Struct):
    coll_records: _Count = 0
    p2p_records: _Count = 0
    proxy_records: _Count = 0
    coll_dropped_total: _Count = 0
    p2p_dropped_total: _Count = 0


class _Record(msgspec.Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Coll | None = None
    p2p_perf: _P2p | None = None
    dump_stats: _Stats | None = None


def is_inspector(head: bytes) -> bool:
    """Whether a file that begins so has lines of Inspector, zipped or not."""
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(31).decompress(head, _INSPECTOR_HEAD)
        except zlib.error:
            return False
    return any(needle in head for needle in _INSPECTOR_NEEDLES)


class _Values(Struct):
    """Bandwidths of one size class, evenly thinned where they are many."""

    least: int
    most: int
    count: int = 0
    stride: int = 1
    kept: array[float] = field(default_factory=lambda: array("d"))

    def add(self, nbytes: int, gbs: float) -> None:
        self.least, self.most = min(self.least, nbytes), max(self.most, nbytes)
        if self.count % self.stride == 0:
            self.kept.append(gbs)
            if len(self.kept) >= _MOST_VALUES:
                self.kept, self.stride = self.kept[::2], self.stride * 2
        self.count += 1


_Who = tuple[str, int]  # communicator, rank


class _Reading:
    def __init__(self) -> None:
        self.headers: dict[_Who, tuple[_Header, str]] = {}
        self.tallies: dict[tuple[_Who, str, bool], nccl.InspectorTally] = {}
        self.values: dict[tuple[_Who, str, int], _Values] = {}
        self.dropped: defaultdict[_Who, int] = defaultdict(int)

    def add(self, header: _Header, path: str, line: int, second: int, one: _Coll | _P2p) -> None:
        is_p2p = isinstance(one, _P2p)
        op, number, nbytes, gbs = one.op, one.sn, one.msg_size_bytes, one.busbw_gbs
        who = header.id, header.rank
        if (tally := self.tallies.get((who, op, is_p2p))) is None:
            if len(self.tallies) >= _MOST_KEYS:
                return
            self.headers.setdefault(who, (header, path))
            tally = self.tallies[who, op, is_p2p] = nccl.InspectorTally(line=line)
        tally.count += 1
        if number >= tally.last:
            tally.last, tally.line = number, line
        if second in tally.written or len(tally.written) < _MOST_SECONDS:
            tally.written[second] = tally.last
        if isinstance(gbs, float) and math.isfinite(gbs) and gbs > 0:
            key = who, op, nbytes.bit_length()
            if (values := self.values.get(key)) is None:
                if len(self.values) >= _MOST_KEYS:
                    return
                values = self.values[key] = _Values(nbytes, nbytes)
            values.add(nbytes, gbs)


def read_inspector(paths: Sequence[str], problems: list[tuple[str, str]]) -> nccl.Inspector | None:
    """What the files tell together; None where no line could be used. What was left out goes to `problems`."""
    reading = _Reading()
    used = []
    for path in paths:
        try:
            used += [path] if _read(path, reading, problems) else []
        except InputError as error:
            problems.append((path, problem_of(error)))
    if not used:
        return None
    completed = []
    for (who, op, is_p2p), tally in sorted(reading.tallies.items()):
        header, path = reading.headers[who]
        completed.append(nccl.InspectorRank(
            *_of(header), op, is_p2p, tally.count, tally.last, tuple(sorted(tally.written.items())), path, tally.line
        ))  # fmt: skip
    speeds = tuple(
        nccl.InspectorSpeed(
            *_of(reading.headers[who][0]), op, values.least, values.most, values.count, median(values.kept)
        )
        for (who, op, _), values in sorted(reading.values.items())
    )
    return nccl.Inspector(tuple(used), tuple(completed), speeds, sum(reading.dropped.values()))


def _of(header: _Header) -> tuple[str, str, int, int]:
    name = "" if header.comm_name == "unknown" else header.comm_name
    return header.id.removeprefix("0x"), name, header.n_ranks, header.rank


def _read(path: str, reading: _Reading, problems: list[tuple[str, str]]) -> bool:
    """Whether the file had a line that could be used."""
    decoder = msgspec.json.Decoder(_Record)
    header: _Header | None = None
    second, left, used, bad, lost = 0, 0, 0, 0, 0
    for first, block in blocks(path, _LONGEST):
        for number, line in enumerate(block.split(b"\n"), first):
            line = line.strip()
            if not line.startswith(b"{"):
                continue
            try:
                record = decoder.decode(line)
            except (msgspec.DecodeError, ValueError, RecursionError):
                bad += b'"header"' in line or b"_perf" in line  # a log may have other lines in braces
                left -= 1  # a marker may have been here: what follows it is not the last one's
                continue
            if record.header is not None:
                header, left = record.header, 0
                second = record.metadata.dump_timestamp_us // 1_000_000 if record.metadata is not None else 0
            else:
                left -= 1
            if (stats := record.dump_stats) is not None and header is not None:
                left = stats.coll_records + stats.p2p_records + stats.proxy_records
                who = header.id, header.rank
                dropped = stats.coll_dropped_total + stats.p2p_dropped_total
                reading.dropped[who] = max(reading.dropped[who], dropped)
            one = record.coll_perf or record.p2p_perf
            if one is None:
                continue
            if header is None or (record.header is None and left < 0):
                lost += 1
                continue
            reading.add(header, path, number, second, one)
            used += 1
    if bad:
        problems.append((path, reason("fabric", "inspector_lines_left_out", count=bad)))
    if lost:
        problems.append((path, reason("fabric", "inspector_without_rank", count=lost)))
    return used > 0
