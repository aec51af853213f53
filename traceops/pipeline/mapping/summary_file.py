"""A rank's summary as a file: packed, zipped, read back whole or not at all, and kept by the content of its trace."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, cast, get_args, get_origin

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import FEW_ROWS, Intervals, native
from traceops.core.errors import FileError, InputError, UsageError
from traceops.core.files import cache_folder as folder_of
from traceops.core.files import make_own_folder, open_own, touch_own, write_own
from traceops.core.installation import PACKAGE
from traceops.measure.copies import BY_STEP
from traceops.measure.host_places import IDLE
from traceops.measure.ledger import OWN_BUCKETS
from traceops.measure.program import EXPOSED, PAINTED
from traceops.measure.summary import RankSummary
from traceops.traces.model import CommArgs, Group
from traceops.traces.run_manifest import MOST_RANKS
from traceops.traces.source import Damaged, chunks, filesystem, is_remote, open_binary, store_errors
from traceops.traces.windows import ANEW, FORMAT, SUFFIX, SummaryHeader, split, with_header

# Frozen structs of numbers, text, tuples and arrays as MessagePack, read back by their types.

T = TypeVar("T")

_OF_NUMBERS = re.compile(r"(?:int|float|bool|Int|NDArray\[np\.\w+\])(?: \| None)?")  # as annotations are written
_LEAVES = frozenset({int, float, bool, bytes, type(None), np.ndarray})  # nothing in them is shared or replaced
_INT64 = np.dtype(np.int64)
# Narrower integers, as an array's header names them, and what they hold; made once, as a rank has 50 arrays.
_NARROWER = tuple(
    (dtype, dtype.str, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for dtype in (np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32))
)

_NAMES = {dtype.itemsize: name for dtype, name, _, _ in _NARROWER}


class _PackedArray(msgspec.Struct, array_like=True):
    """An array: `data` in C order in `dtype`, differences to the row before if there is a `first` row."""

    shape: tuple[int, ...]
    dtype: str
    first: tuple[int, ...] | None
    data: bytes


def encode(value: Any) -> bytes:
    """A struct as bytes. Raises TypeError where it holds what MessagePack has no word for."""
    try:
        return _encoder().encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, from a file's name for instance
        return _encoder().encode(_replace(copy.deepcopy(value), _well_formed))


def decode(data: bytes | memoryview, kind: type[T], seen: dict[Any, Any], shared: frozenset[type] = frozenset()) -> T:
    """What `encode` made of a `kind`, every value checked against its type. Text and instances of the `shared` types
    that equal one in `seen` are that one: many decoded with one `seen` take little memory. Raises ValueError where the
    bytes are anything else."""
    try:
        value = _decoder(cast(Any, kind)).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    unpacked: T = _replace(value, seen.setdefault, shared)
    return unpacked


@functools.cache
def _encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_pack)


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_unpack)


def _pack(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # Store it, or its differences along the first axis (times only grow), in the narrowest integers that hold them.
        if value.dtype == _INT64 and value.size and value.ndim:
            if native is not None and (packed := native.narrow(value)) is not None:
                size, differences, numbers = packed
                first = tuple(value[0].ravel().tolist()) if differences else None
                return _PackedArray(value.shape, _NAMES[size], first, numbers)
            if narrow := _narrow(value):
                return _PackedArray(value.shape, narrow[0], None, narrow[1])
            steps = value[1:] - value[:-1]  # wraps around where it overflows, and so does the sum
            if narrow := _narrow(steps):
                return _PackedArray(value.shape, narrow[0], tuple(value[0].ravel().tolist()), narrow[1])
        return _PackedArray(value.shape, value.dtype.str, None, value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written to a summary")


def _narrow(array: NDArray[Any]) -> tuple[str, bytes] | None:
    """The array's numbers in the narrowest integers that hold them, if any do."""
    low, high = (int(np.minimum.reduce(array, None)), int(np.maximum.reduce(array, None))) if array.size else (0, 0)
    for dtype, name, least, most in _NARROWER:
        if least <= low and high <= most:
            return name, array.astype(dtype).tobytes()
    return None


def _unpack(kind: type, packed: Any) -> Any:
    dtype, stored_as = _dtypes(kind)
    array = msgspec.convert(packed, _PackedArray)
    if (stored := stored_as.get(array.dtype)) is None or (array.first is not None and not array.shape):
        raise ValueError(f"an array of {array.dtype!r:.20} where {dtype} belongs")
    shape = array.shape if array.first is None else (array.shape[0] - 1, *array.shape[1:])
    if min(shape, default=0) < 0 or math.prod(shape) * stored.itemsize != len(array.data):
        raise ValueError("an array of another size than it says")
    width = math.prod(array.shape[1:])
    if native is not None and stored is not dtype and (array.first is None or width == len(array.first)):
        made = np.empty(array.shape, dtype)
        if array.first is not None:
            made[0] = np.array(array.first, dtype=dtype).reshape(array.shape[1:])
        if native.widen(array.data, stored.itemsize, len(array.first or ()), made) is not None:
            return made
    values = np.frombuffer(array.data, stored).reshape(shape).astype(dtype)
    if array.first is None:
        return values
    first = np.array(array.first, dtype=dtype).reshape(1, *array.shape[1:])
    return np.concatenate((first, values)).cumsum(axis=0, dtype=dtype)


@functools.cache
def _dtypes(kind: type) -> tuple[np.dtype[Any], dict[str, np.dtype[Any]]]:
    """What an array of this type holds, and by name how it may be stored."""
    if get_origin(kind) is not np.ndarray:
        raise NotImplementedError(f"{kind} in a summary")
    dtype: np.dtype[Any] = np.dtype(get_args(get_args(kind)[1])[0])
    narrower = {name: narrow for narrow, name, _, _ in _NARROWER} if dtype == _INT64 else {}
    return dtype, {dtype.str: dtype, **narrower}


def _replace(value: Any, known: Callable[[Any, Any], Any], shared: frozenset[type] = frozenset()) -> Any:
    """The value with `known(part, part)` in place of each text, tuple of integers and instance of the shared types.
    Structs are changed in place: nobody else has them yet."""
    kind: Any = type(value)
    if kind in _LEAVES:
        return value
    if kind is str or (kind is tuple and value and type(value[0]) is type(value[-1]) is int):
        return known(value, value)
    if kind is tuple or kind is list:  # most items are handled without a call
        return kind(
            [
                item
                if (own := type(item)) in _LEAVES
                else known(item, item)
                if own is str
                else _replace(item, known, shared)
                for item in value
            ]
        )
    if kind is dict:
        return {known(key, key): _replace(item, known, shared) for key, item in value.items()}
    if kind in shared and (same := known(value, value)) is not value:
        return same
    for name in _field_names(kind):
        item = getattr(value, name)
        if (own := type(item)) not in _LEAVES:
            msgspec.structs.force_setattr(
                value, name, known(item, item) if own is str else _replace(item, known, shared)
            )
    return value


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    """The fields that may hold text: those of a number or an array, as their decoder has checked, are left out."""
    if not issubclass(kind, msgspec.Struct):  # where the types allow anything, a file may have what we never write
        raise ValueError(f"a value of the kind {kind.__name__} is in it")
    hints = {
        name: str(hint) for one in reversed(kind.__mro__) for name, hint in vars(one).get("__annotations__", {}).items()
    }
    return tuple(name for name in kind.__struct_fields__ if not _OF_NUMBERS.fullmatch(hints.get(name, "")))


def _well_formed(part: Any, _: Any) -> Any:
    return part.encode("utf-8", "replace").decode() if isinstance(part, str) else part


_CELL = (str, int, float, type(None))
_MOST_TIME = 1 << 61  # ns, in 2043; sums of some still fit an int64


def check_summary(summary: RankSummary) -> None:
    """Raises ValueError naming the part that does not fit the others."""
    for what, fits in _conditions(summary):
        if not fits:
            raise ValueError(f"its {what} does not fit the rest")


def _conditions(summary: RankSummary) -> Iterator[tuple[str, bool]]:
    comm, program, steps = summary.comm, summary.program, len(summary.step_numbers)
    count = len(comm.args)
    edges = summary.step_edges
    yield "rank", 0 <= summary.rank < MOST_RANKS and _is_world(summary.meta.world_size)
    yield "steps", steps > 0 and edges.shape == (steps + 1,) and _sorted(edges)
    yield ("collectives", all(column.shape == (count,) for column in (comm.start, comm.end, comm.step, comm.stream)))
    yield "collectives", len(comm.name) == len(comm.parts) == count and _sorted(comm.start)
    beside = (comm.before, comm.after, comm.stage, comm.micro_batch, comm.phase, comm.slowed)
    yield "collectives", all(column.shape == (count,) for column in beside)
    yield "collectives", _within(comm.step, -1, steps + 1) and _within(comm.slowed, 0, _MOST_TIME)
    yield "collectives", bool((comm.start <= comm.end).all()) and _within(comm.end, -_MOST_TIME, _MOST_TIME)
    yield "ledger", summary.ledger.duration.shape == (steps,)
    yield "ledger", summary.ledger.buckets.keys() >= {"comm", *OWN_BUCKETS}
    yield "ledger", all(column.shape == (steps,) for column in summary.ledger.buckets.values())
    exposed = summary.ledger.exposed
    yield "ledger", exposed.start.shape == exposed.end.shape == (len(exposed.start),)
    yield "ledger", _in_turn(exposed)
    moments = len(program.times)
    yield ("program", moments > 0 and _sorted(program.times) and program.own.shape == (moments, len(OWN_BUCKETS)))
    yield "program", program.ready.shape == (count,)
    for start, end, waited_for in (
        (program.join_start, program.join_end, program.join_comm),
        (program.spell_start, program.spell_end, program.spell_comm),
    ):
        yield "program", start.shape == end.shape == waited_for.shape == (len(waited_for),)
        yield "program", _within(waited_for, 0, count) and bool((start <= end).all())
    unheld = program.unheld
    yield "program", unheld.start.shape == unheld.end.shape == (len(unheld.start),)
    yield "program", _in_turn(unheld)
    edges_of_waits = (program.join_start, program.join_end, program.spell_start, program.spell_end)
    times_of_host = (program.ready, program.own, program.host)
    yield "program", all(_within(own, -_MOST_TIME, _MOST_TIME) for own in (*times_of_host, *edges_of_waits))
    yield "program", program.host.shape == program.host_input.shape == (count + steps + 1,)
    syncs, waits = program.syncs, len(program.syncs.done)
    yield "program", all(own.shape == (waits,) for own in (syncs.done, syncs.end, syncs.host, syncs.host_input))
    times_of_syncs = (syncs.done, syncs.host)
    yield "program", _sorted(syncs.end) and all(_within(own, -_MOST_TIME, _MOST_TIME) for own in times_of_syncs)
    yield "program", program.syncs_before.shape == program.host.shape and _within(program.syncs_before, 0, waits + 1)
    yield "timeline", program.painted.shape == (steps, PAINTED) and _within(program.painted, 0, EXPOSED + 1)
    inventory = summary.inventory
    counts = (inventory.step_kernels, inventory.step_collectives, inventory.step_bytes, inventory.step_blocking)
    yield "inventory", all(column.shape == (steps,) for column in counts)
    yield "kernels", all(kernel.count > 0 for kernel in summary.kernels)
    yield "stacks", all(one.host_ns.shape == (steps,) for one in summary.stacks)
    yield "stacks", all(one.idle_ns.shape == (len(IDLE), steps) for one in summary.stacks)
    if (anomaly := summary.anomaly) is not None:
        yield "anomaly", anomaly.count.shape == anomaly.host_ns.shape == (steps,)
    yield "work of the host", summary.host_work is None or summary.host_work.idle_ns.shape == (steps,)
    yield "held launches", all(one.idle_ns.shape == one.count.shape == (steps,) for one in summary.held)
    columns = (getattr(kind, name) for kind in summary.copies.kinds for name in BY_STEP)
    yield "copies", all(own.shape == (steps,) for own in (summary.copies.sync_ns, *columns))
    yield "backward", summary.backward.device_end.shape == (steps,)
    tables = [table for table in msgspec.structs.asdict(summary.hta).values() if isinstance(table, dict)]
    yield "HTA tables", all(len({len(column) for column in table.values()}) < 2 for table in tables)
    cells = (cell for table in tables for column in table.values() for cell in column)
    yield "HTA tables", all(isinstance(cell, _CELL) for cell in cells)


def _is_world(size: int | None) -> bool:
    return size is None or 0 < size <= MOST_RANKS


def _sorted(values: NDArray[np.int64]) -> bool:
    if values.size <= FEW_ROWS:
        return _sorted_times(values.tolist())
    return bool((values[:-1] <= values[1:]).all()) and _within(values, -_MOST_TIME, _MOST_TIME)


def _in_turn(times: Intervals) -> bool:
    """Whether each interval ends before the next begins."""
    if 2 * len(times) <= FEW_ROWS:
        return _sorted_times(
            [each for both in zip(times.start.tolist(), times.end.tolist(), strict=True) for each in both]
        )
    return _sorted(np.stack((times.start, times.end), axis=1).ravel())


def _sorted_times(times: list[int]) -> bool:
    return times == sorted(times) and (not times or (times[0] >= -_MOST_TIME and times[-1] < _MOST_TIME))


def _within(values: NDArray[np.integer], low: int, high: int) -> bool:
    if values.size <= FEW_ROWS:
        return all(low <= value < high for value in values.ravel().tolist())
    return int(values.min()) >= low and int(values.max()) < high


_SHARED = frozenset({CommArgs, Group})  # ranks say the same of the same collective
_LARGEST = 1 << 28  # of the unzipped summary; real ones have less than a hundredth
_GZIP_WBITS = 31
_LEVEL = 1


def pack(header: SummaryHeader, summary: RankSummary) -> bytes:
    """A summary as bytes, not yet zipped."""
    return with_header(header, encode(summary))


def unpack(data: bytes, seen: dict[Any, Any], *, fits: bool = False) -> tuple[SummaryHeader, RankSummary]:
    """What `pack` made. Summaries unpacked with the same `seen` share what is equal in them. fits: `why_unfit` found
    nothing when it was made. Raises ValueError, which says what to do, where the bytes are anything else."""
    header, body = split(data)
    try:
        summary = decode(body, RankSummary, seen, _SHARED)
    except ValueError as error:
        raise ValueError(_unfit(error)) from error
    if not fits and (misfit := why_unfit(summary)):
        raise ValueError(misfit)
    return header, summary


def why_unfit(summary: RankSummary) -> str:
    """What is wrong where the parts of a summary do not fit each other."""
    try:
        check_summary(summary)
    except ValueError as error:
        return _unfit(error)
    return ""


def _unfit(error: ValueError) -> str:
    return f"it cannot be read as a summary ({error}); {ANEW}"


def zipped(data: bytes) -> bytes:
    """The bytes of a summary file."""
    packed: bytes = isal_zlib.compress(data, _LEVEL, _GZIP_WBITS)
    return packed


def read_packed(path: str) -> bytes:
    """The unzipped bytes of a summary file, local or remote. Raises FileError."""
    with open_binary(path) as file:
        return unzipped(file, path)


def unzipped(file: IO[bytes], path: str) -> bytes:
    """The unzipped bytes of an open summary file. Raises FileError naming it by `path`."""
    data = io.BytesIO()
    try:
        for piece in chunks(file):
            data.write(piece)
            if data.tell() > _LARGEST:
                raise FileError(path, f"it is larger than any summary; {ANEW}", ": ")
    except Damaged as error:
        raise FileError(path, f"{error}; {ANEW}", ": ") from error
    return data.getvalue()


_PIECE = 1 << 20
_CHECKSUMS = ("ETag", "etag", "md5Hash", "crc32c", "content_md5", "Content-MD5", "md5")  # as fsspec's stores name them
# Whatever the map runs, by its place in the package; other modules cannot change a summary.
MAP_CODE = ("core", "words", "traces", "compute", "measure", "pipeline/mapping/summary_file.py")


class Content(Struct, frozen=True):
    """A digest of a file's bytes, and what else changes when somebody writes to it."""

    digest: str
    state: tuple[Any, ...]


def content_of(path: str) -> Content | None:
    """What a file holds now; None for a remote one whose store tells no checksum. Raises InputError where it cannot be
    read."""
    if is_remote(path):
        return _remote_content(path)
    digest = hashlib.sha256()
    with open_binary(path) as file:
        state = _state(os.fstat(file.fileno()))
        while piece := file.read(_PIECE):
            digest.update(piece)
    return Content(digest.hexdigest(), state)


def is_unchanged(path: str, content: Content) -> bool:
    """Whether nobody has written to the file since `content_of`: a capture may still be at it."""
    if is_remote(path):
        return _remote_content(path) == content
    try:
        with open_binary(path) as file:  # opening asks a file server for what it has now
            return _state(os.fstat(file.fileno())) == content.state
    except InputError:
        return False


def _state(status: os.stat_result) -> tuple[Any, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _remote_content(path: str) -> Content | None:
    file_system, within = filesystem(path)
    try:
        file_system.invalidate_cache()
        info = file_system.info(within)
    except store_errors():
        return None
    told = [f"{name}={info[name]}" for name in _CHECKSUMS if info.get(name)]
    if not told or any("=W/" in one for one in told):  # a weak ETag stays when bytes change
        return None
    text = "\n".join((path, str(info.get("size")), *told))
    return Content(f"store:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}", ())


@functools.cache
def code_fingerprint(with_hta: bool = False) -> str:
    """A digest of the code that makes summaries, HTA's version with it on demand; '' where it cannot be read."""
    if with_hta:
        from importlib import metadata

        from traceops.measure.hta_bridge import installed_hta

        return f"{code_fingerprint()} {installed_hta()} pandas {metadata.version('pandas')}"
    digest = hashlib.sha256(np.__version__.encode())
    files = [
        file
        for part in MAP_CODE
        for file in ([PACKAGE / part] if part.endswith(".py") else sorted((PACKAGE / part).iterdir()))
        if file.suffix in (".py", ".so", ".pyd")
    ]
    try:
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()[:32]


SIZE = "TRACEOPS_CACHE_SIZE"
_MOST_BYTES = 2 << 30
_SHARDS = 16  # folders; each is kept within its part of the size
_LEFT_BEHIND_S = 3600.0  # a part this old is of a process that was killed
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def cache_folder() -> Path | None:
    """Where summaries are kept; None for nowhere."""
    return folder_of("summaries")


def most_bytes() -> int:
    """How large the cache may grow: $TRACEOPS_CACHE_SIZE such as 500M or 4G, else 2 GiB. Raises UsageError."""
    if not (text := os.environ.get(SIZE)):
        return _MOST_BYTES
    if (match := re.fullmatch(r"(\d{1,15})([KMGT]?)B?", text.strip().upper())) is None:
        raise UsageError(f"{SIZE} is a size such as 500M or 4G, not {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def read_same(path: str, header: SummaryHeader) -> bytes | None:
    """The unzipped summary in a file, if it is of the same bytes, by the same code, for the same rank; else None."""
    try:
        return _if_same(read_packed(path), header)
    except InputError:
        return None


def _if_same(data: bytes, header: SummaryHeader) -> bytes | None:
    try:
        own, _ = split(data)
    except ValueError:
        return None
    return data if header.digest and header.code and _depends_on(own) == _depends_on(header) else None


def load(folder: Path, header: SummaryHeader) -> bytes | None:
    """The summary that is kept for this header, unzipped; None where there is none, or a damaged one. One that others
    could have written is none. Raises UsageError where $TRACEOPS_CACHE_TRUST cannot be read."""
    path = _place(folder, header)
    try:
        with open_own(path, folder) as file:
            if (data := _if_same(unzipped(file, str(path)), header)) is not None:
                touch_own(file)  # the least recently used go first
            return data
    except (OSError, InputError):
        return None


def store(folder: Path, header: SummaryHeader, data: bytes) -> None:
    """Keep a summary; where the folder cannot be written to, nothing is kept."""
    path = _place(folder, header)
    try:
        make_own_folder(path.parent, folder)
        write_own(path, zipped(data))
        if path.name.startswith("0"):  # one in sixteen; the others need not look
            trim(path.parent, most_bytes() // _SHARDS)
    except OSError:
        return


def trim(folder: Path, most: int) -> None:
    """Remove the least recently used files of a folder until it holds no more than `most` bytes."""
    entries = []
    with os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(OSError):  # others trim it as well
                status = entry.stat(follow_symlinks=False)
                if not entry.name.endswith(".part"):
                    entries.append((status.st_mtime_ns, status.st_size, entry.path))
                elif status.st_mtime < time.time() - _LEFT_BEHIND_S:
                    Path(entry.path).unlink()
    left = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if left <= most:
            break
        with contextlib.suppress(OSError):
            Path(path).unlink()
        left -= size


def _place(folder: Path, header: SummaryHeader) -> Path:
    key = hashlib.sha256(repr(_depends_on(header)).encode()).hexdigest()
    return folder / key[0] / f"{key[1:]}{SUFFIX}"


def _depends_on(header: SummaryHeader) -> tuple[object, ...]:
    return (FORMAT, header.version, header.code, header.digest, header.rank, header.steps, header.with_hta)
