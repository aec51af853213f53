"""NCCL Inspector's JSON lines: which operations each rank completed, and at which bus bandwidth.

After NCCL's plugins/profiler/inspector/inspector_json.cc. To v4.2 each line says of which communicator and rank it is;
from v4.3 only the marker (`dump_stats`) before the lines of a communicator does, and says how many follow.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from traceops.core.errors import InputError, problem_of
from traceops.fabric.measured import Inspector, InspectorRank, InspectorSpeed, InspectorTally
from traceops.traces.text_lines import blocks

_NEEDLES = (b'"inspector_output_format_version"', b'"coll_busbw_gbs"', b'"p2p_busbw_gbs"')
_LONGEST = 1 << 20  # bytes of a line: verbose ones tell of every channel
_MOST_KEYS = 20_000  # of a rank, communicator and operation; beyond them nothing is kept
_MOST_VALUES = 1 << 15  # of which a median is taken
_MOST_SECONDS = 1 << 17  # a day and a half
_GZIP = b"\x1f\x8b"
_HEAD = 1 << 16

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


class _Coll(msgspec.Struct):
    coll: _Name
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_busbw_gbs: float | str = math.nan  # "nan" where it is none


class _P2p(msgspec.Struct):
    p2p: _Name
    p2p_sn: _Count
    p2p_msg_size_bytes: _Count
    p2p_busbw_gbs: float | str = math.nan


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
            head = zlib.decompressobj(31).decompress(head, _HEAD)
        except zlib.error:
            return False
    return any(needle in head for needle in _NEEDLES)


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
        self.tallies: dict[tuple[_Who, str, bool], InspectorTally] = {}
        self.values: dict[tuple[_Who, str, int], _Values] = {}
        self.dropped: defaultdict[_Who, int] = defaultdict(int)

    def add(self, header: _Header, path: str, line: int, second: int, one: _Coll | _P2p) -> None:
        is_p2p = isinstance(one, _P2p)
        if isinstance(one, _P2p):
            op, number, nbytes, gbs = one.p2p, one.p2p_sn, one.p2p_msg_size_bytes, one.p2p_busbw_gbs
        else:
            op, number, nbytes, gbs = one.coll, one.coll_sn, one.coll_msg_size_bytes, one.coll_busbw_gbs
        who = header.id, header.rank
        tally = self.tallies.get((who, op, is_p2p))
        if tally is None:
            if len(self.tallies) >= _MOST_KEYS:
                return
            self.headers.setdefault(who, (header, path))
            tally = self.tallies[who, op, is_p2p] = InspectorTally(line=line)
        tally.count += 1
        if number >= tally.last:
            tally.last, tally.line = number, line
        if second in tally.written or len(tally.written) < _MOST_SECONDS:
            tally.written[second] = tally.last
        if isinstance(gbs, float) and math.isfinite(gbs) and gbs > 0:
            key = who, op, nbytes.bit_length()
            values = self.values.get(key)
            if values is None:
                if len(self.values) >= _MOST_KEYS:
                    return
                values = self.values[key] = _Values(nbytes, nbytes)
            values.add(nbytes, gbs)


def read_inspector(paths: Sequence[str], problems: list[tuple[str, str]]) -> Inspector | None:
    """What the files tell together; None where no line could be used. What was left out goes to `problems`."""
    reading = _Reading()
    used = tuple(path for path in paths if _read_or_tell(path, reading, problems))
    if not used:
        return None
    completed = []
    for (who, op, is_p2p), tally in sorted(reading.tallies.items()):
        header, path = reading.headers[who]
        completed.append(InspectorRank(
            *_of(header), op, is_p2p, tally.count, tally.last, tuple(sorted(tally.written.items())), path, tally.line
        ))  # fmt: skip
    speeds = tuple(
        InspectorSpeed(*_of(reading.headers[who][0]), op, values.least, values.most, values.count, median(values.kept))
        for (who, op, _), values in sorted(reading.values.items())
    )
    return Inspector(used, tuple(completed), speeds, sum(reading.dropped.values()))


def _of(header: _Header) -> tuple[str, str, int, int]:
    name = "" if header.comm_name == "unknown" else header.comm_name
    return header.id.removeprefix("0x"), name, header.n_ranks, header.rank


def _read_or_tell(path: str, reading: _Reading, problems: list[tuple[str, str]]) -> bool:
    try:
        return _read(path, reading, problems)
    except InputError as error:
        problems.append((path, problem_of(error)))
        return False


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
        lines = "1 line" if bad == 1 else f"{bad:,} lines"
        problems.append((path, f"{lines} of NCCL Inspector cannot be read (cut or damaged) and are left out"))
    if lost:
        what = f"{lost:,} operations of NCCL Inspector stand without the line that says of which rank they are"
        problems.append((path, f"{what}; give the file whole, as Inspector wrote it"))
    return used > 0
