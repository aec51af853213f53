"""Reads the tables of nccl-tests and rccl-tests from logs, whatever stands around and between their lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.fabric.measured import Benchmark, BenchmarkRank, BenchmarkSize
from traceops.fabric.model import Quote
from traceops.traces.text_lines import blocks, holds_within, lines

_NEEDLES = (b"algbw", b"Avg bus bandwidth")
_SNIFFED_BYTES = 1 << 26
_MOST_RANKS = 4096
_MOST_SIZES = 64  # of one run of a test
_MOST_BENCHMARKS = 400  # of one file
_QUOTED = 300
_SAME_FACTOR = 0.03  # bandwidths are printed with two decimals

_TYPES = "half|float|double|bfloat16|u?int8|u?int32|u?int64|char|uchar|int|fp8_e[45]m[23]|f8e[45]m[23]|float8\\w{0,8}"
_OPS = "none|sum|prod|max|min|avg|all|mulsum|premulsum"
_NUMBER = r"\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?"
_TIMES = rf"({_NUMBER}) +({_NUMBER}) +({_NUMBER}) +({_NUMBER}|N/A)"
# size, count, type, operation (of old ones, where there is any) and, since 2.11, root; then once or twice time, two
# bandwidths and what was wrong. The in-place half is missing where a test has none.
_HEAD = rf"(?<![\w.])(\d{{1,15}}) +\d{{1,15}} +(?:{_TYPES})(?: +({_OPS}))?"
_ROOT = r" +-?\d{1,7}"
_ROW = {has: re.compile(rf"{_HEAD}{_ROOT if has else ''} +{_TIMES}(?: +{_TIMES})?(?!\S)") for has in (True, False)}
# NCCL_DEBUG=INFO writes lines into a row: what it began with ends a line, and each half follows on one of its own.
_ROW_BEGIN = {has: re.compile(rf"{_HEAD}{_ROOT if has else ''} *\Z") for has in (True, False)}
_ROW_HALF = re.compile(rf" *{_TIMES} *\Z")
_NCCL_HEAD = re.compile(r"[A-Za-z_][\w.-]{0,250}:\d{1,10}:\d{1,10} \[\d{1,4}\] (?:\S{1,80}:\d{1,6} )?NCCL ")
_TAG = re.compile(
    r"\[\d{1,6},\d{1,7}\]<std(?:out|err)>:"
)  # Open MPI's --tag-output, also where a row is written in parts
_RANK = re.compile(
    r"Rank +(\d{1,7}) +(?:Group +\d{1,7} +)?Pid +\d{1,10} +on +(\S{1,255}) +device +(\d{1,4}) +"
    r"\[([0-9a-fx:.]{1,16})\] +(\S.{0,79}?) *$",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"\bnThread \d{1,6} nGpus \d{1,6} minBytes ")
_PROGRAM = re.compile(r"\b(\w{3,24})_perf(?:_mpi)?\b")
_FAILURE = re.compile(r"\bTest (?:(?:NCCL|CUDA|MPI) failure .{1,160}|timeout \(\d{1,9}s\))")
_BOUNDS = re.compile(r"Out of bounds values : (\d{1,18})")
_AVERAGE = re.compile(rf"Avg bus bandwidth *: *({_NUMBER})")
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
    ranks: dict[int, BenchmarkRank] = field(default_factory=dict)
    sizes: list[BenchmarkSize] = field(default_factory=list)
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
    """Whether a text file has the head of such a table; of a large one, the first 64 MiB count.

    Raises InputError where it cannot be read.
    """
    return holds_within(path, _NEEDLES, _SNIFFED_BYTES)


def read_nccl_tests(path: str, problems: list[str] | None = None) -> tuple[Benchmark, ...]:
    """The runs of tests in a log, in its order; those without a whole row are left out.

    problems: where it is said of the last one that it began and has no result, with what it says of its failure.

    Of a row that another process wrote into, its whole columns count. Raises InputError where the file cannot be read.
    """
    reader = _TestsReader(path)
    for first, block in blocks(path):
        for number, line in lines(block, first):
            if len(line) < 2_000:
                reader.take(number, line)
    found = reader.finish()
    if problems is not None and reader.without_result is not None:
        why = "it hung or was ended, or the log is cut" if reader.failure is None else f"it says {reader.failure!r}"
        problems.append(f"{reader.without_result} of nccl-tests began and has no result: {why}")
    return found


class _TestsReader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._done: list[Benchmark] = []
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
            head = _NCCL_HEAD.search(line)
            line = line[: head.start() if head is not None else line.find(" NCCL ")]  # a row may stand before it
            if not line.strip():
                return
        if self._open.header and self._take_row(number, line):
            return
        if not self._open.header and len(self._headless) < _MOST_SIZES and _headless(line) is not None:
            self._headless.append((number, line))
            return
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
            self._take_headless()
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

    def _take_headless(self) -> None:
        """The rows of a table whose end came without its head."""
        if not self._open.header:
            self._open.has_root = all(_headless(line) for _, line in self._headless)
            for number, line in self._headless:
                self._take_row(number, line)
        self._headless.clear()

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
            self._open.ranks[rank] = BenchmarkRank(rank, match[2], int(match[3]), match[5], _bus(match[4]))

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
        self._open.sizes.append(BenchmarkSize(size, time, busbw, sum(wrong) if wrong else None, quote))

    def _close(self) -> None:
        self._end_broken()
        one = self._open
        if not one.sizes or one.first is None or len(self._done) >= _MOST_BENCHMARKS:
            return
        ranks = tuple(one.ranks[rank] for rank in sorted(one.ranks))
        op = one.op or _op_by_factor(one.factors, len(ranks))
        bounds = one.out_of_bounds if one.checked or one.out_of_bounds else None
        made = Benchmark(op, ranks, tuple(one.sizes), one.first, one.average, bounds, one.alone)
        last = self._done[-1] if self._done else None
        if last is not None and _continues(last, made):  # a script that runs every size by itself
            self._done[-1] = replace(
                last,
                op=last.op or made.op,
                sizes=last.sizes + made.sizes,
                average_gbs=None,
                out_of_bounds=_sum(last.out_of_bounds, made.out_of_bounds),
            )
        else:
            self._done.append(made)

    def finish(self) -> tuple[Benchmark, ...]:
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


def _continues(last: Benchmark, made: Benchmark) -> bool:
    same_op = made.op is None or last.op in (None, made.op)
    where = [[(rank.rank, rank.host, rank.bus_id, rank.gpu) for rank in one.ranks] for one in (last, made)]
    more = min(row.bytes for row in made.sizes) > max(row.bytes for row in last.sizes)
    return same_op and more and where[0] == where[1] and len(last.sizes) < _MOST_SIZES


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _bus(text: str) -> str | None:
    """``0000:1b:00`` as ``0000:1b:00.0``; older tests print the bus alone (``0x1b``)."""
    if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}", text):
        return f"{text[-10:]}.0"
    return f"0000:{int(text, 16):02x}:00.0" if re.fullmatch(r"0x[0-9a-f]{1,2}", text) else None
