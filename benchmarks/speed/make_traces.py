"""Makes large inputs out of small real traces: one long trace, or the traces of many ranks.

python -m benchmarks.speed.make_traces long TRACE OUT.json.gz --mb 500
python -m benchmarks.speed.make_traces ranks FOLDER_OF_TRACES OUT --ranks 64 256 1024     # OUT/64, OUT/256, OUT/1024

The text is edited where it has to differ and is kineto's byte for byte elsewhere. The long trace repeats one rank's
events one after the other in time, each repetition with steps and ids of its own. Of many ranks, rank r is a copy of
the folder's rank r mod n (n traces) in a group of all, with a clock of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

_EVENTS = b'  "traceEvents": ['
_BETWEEN = b"\n  },"
_FIRST_METADATA = re.compile(rb'\n  \{\n    "name": "process_name", "ph": "M"')
_SPAN = re.compile(rb'"pid": (\S+), "tid": (\S+),\n    "ts": (\d+\.\d+), "dur": (\d+\.\d+)')  # of a complete event
_COUNTED = re.compile(rb'("External id": |"correlation": |"id": |"ts": |ProfilerStep#)(\d+)')
_IDS = (b'"External id": ', b'"correlation": ', b'"id": ')
_PIECE_BYTES = 1 << 22

_INFO = re.compile(rb'(?<="distributedInfo": )\{.*\}(?=,\n)')
_CLOCK = re.compile(rb'(?<="baseTimeNanoseconds": )\d+')
_GROUP_SIZE = re.compile(rb'(?<="Group size": )\d+')
_GROUP_RANKS = re.compile(rb'(?<="Process Group Ranks": )"[^"]*"')
_OWN_RANK = re.compile(rb'(?<="Rank": )\d+')
_LISTED_RANKS = 30  # torch writes so many into an event and '...' for the rest (kTruncatLength)
_CLOCKS_APART_NS = 20_000_000  # either way, as between hosts that NTP keeps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    long = commands.add_parser("long")
    long.add_argument("trace", type=Path)
    long.add_argument("out", type=Path)
    long.add_argument("--mb", type=float, default=500, help="of JSON, to whole repetitions")
    ranks = commands.add_parser("ranks")
    ranks.add_argument("folder", type=Path)
    ranks.add_argument("out", type=Path)
    ranks.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    args = parser.parse_args()
    if args.command == "long":
        print(f"{args.out}: {make_long(args.trace, args.out, args.mb) / 1e6:.0f} MB of JSON")
    else:
        for world in args.ranks:
            size = make_ranks(args.folder, args.out / str(world), world)
            print(f"{args.out / str(world)}: {world} ranks, {size / 1e6 / world:.1f} MB of JSON each")
    return 0


def make_long(source: Path, out: Path, megabytes: float) -> int:
    """Write a trace that repeats the source's until it has about so many MB of JSON; returns its bytes of JSON."""
    header, events, trailer = _parts(source)
    repetitions = max(round(megabytes * 1e6 / len(events)), 1)
    written = 0
    unfinished = out.with_name(out.name + ".part")
    with gzip.open(unfinished, "wb") as file:  # at torch's own level
        written += file.write(header)
        for piece in _repeated(events, repetitions):
            written += file.write(piece)
        written += file.write(trailer)
    unfinished.rename(out)
    return written


def _repeated(events: bytes, repetitions: int) -> Iterator[bytes]:
    """The events again and again, in pieces: moved in time, steps and ids going on where the last ones ended."""
    numbers: dict[bytes, list[int]] = {}
    for key, digits in _COUNTED.findall(events):
        numbers.setdefault(key, []).append(int(digits))
    steps = numbers.get(b"ProfilerStep#", [0])
    ids = max(max(numbers.get(key, [0])) for key in _IDS) + 1
    stride = {**dict.fromkeys(_IDS, ids), b'"ts": ': _window_us(events), b"ProfilerStep#": max(steps) - min(steps) + 1}
    del numbers
    for repetition in range(repetitions):
        moved = {key: repetition * by for key, by in stride.items()}

        def move(found: re.Match[bytes], moved: dict[bytes, int] = moved) -> bytes:
            return found[1] + b"%d" % (int(found[2]) + moved[found[1]])

        at = 0
        while at < len(events):
            end = events.find(_BETWEEN, at + _PIECE_BYTES) + 1 or len(events)
            yield _COUNTED.sub(move, events[at:end])
            at = end


def _window_us(events: bytes) -> int:
    """The least whole µs by which no thread and no stream begins again before it ended."""
    first: dict[tuple[bytes, bytes], float] = {}
    last: dict[tuple[bytes, bytes], float] = {}
    for pid, tid, ts, dur in _SPAN.findall(events):
        lane, start = (pid, tid), float(ts)
        first[lane] = min(first.get(lane, start), start)
        last[lane] = max(last.get(lane, start), start + float(dur))
    return math.ceil(max(last[lane] - first[lane] for lane in first)) + 1


def make_ranks(folder: Path, out: Path, world: int) -> int:
    """Write traces of so many ranks, made of the folder's; returns their bytes of JSON."""
    sources = sorted(folder.glob("*.json.gz"))
    if not sources:
        raise SystemExit(f"{folder} holds no *.json.gz")
    out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        return sum(pool.map(partial(_write_rank, sources, out, world), range(world), chunksize=8))


def _write_rank(sources: list[Path], out: Path, world: int, rank: int) -> int:
    header, pieces, trailer = _template(sources[rank % len(sources)], world)
    info = json.loads(_only(_INFO, header))
    info |= {"rank": rank, "world_size": world}
    for group in info["pg_config"]:
        group |= {"pg_size": world, "ranks": list(range(world))}
    apart = random.Random(rank).randint(-_CLOCKS_APART_NS, _CLOCKS_APART_NS)
    header = _INFO.sub(json.dumps(info).encode(), header)
    header = _CLOCK.sub(b"%d" % (int(_only(_CLOCK, header)) + apart), header)
    text = header + (b"%d" % rank).join(pieces) + trailer
    packer = zlib.compressobj(level=1, wbits=31)
    name = out / f"rank_{rank}.pt.trace.json.gz"
    unfinished = name.with_name(name.name + ".part")
    unfinished.write_bytes(packer.compress(text) + packer.flush())
    unfinished.rename(name)
    return len(text)


@lru_cache
def _template(source: Path, world: int) -> tuple[bytes, list[bytes], bytes]:
    """The source's header, its events in a group of `world` ranks, split where they name the rank, and the trailer."""
    header, events, trailer = _parts(source)
    info = json.loads(_only(_INFO, header))
    if any(len(group["ranks"]) != info["world_size"] for group in info["pg_config"]):
        raise SystemExit(f"{source}: it has groups of some ranks only, choose a run whose groups hold all")
    listed = ", ".join(map(str, range(min(world, _LISTED_RANKS))))
    text = f'"[{listed}{", ..." if world > _LISTED_RANKS else ""}]"'
    events = _GROUP_RANKS.sub(text.encode(), _GROUP_SIZE.sub(b"%d" % world, events))
    return header, _OWN_RANK.split(events), trailer


def _parts(source: Path) -> tuple[bytes, bytes, bytes]:
    """A trace as kineto writes it: up to the list of events, the events, and the metadata behind them."""
    with gzip.open(source) as file:
        text = file.read()
    begin = text.find(_EVENTS) + len(_EVENTS)
    behind = _FIRST_METADATA.search(text, begin)
    if begin < len(_EVENTS) or behind is None:
        raise SystemExit(f"{source} is not laid out as kineto lays out a trace")
    return text[:begin], text[begin : behind.start()], text[behind.start() :]


def _only(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    found = pattern.search(text)
    if found is None:
        raise SystemExit(f"a trace without {pattern.pattern.decode()} in its header cannot be given another rank")
    return found[0]


if __name__ == "__main__":
    raise SystemExit(main())
