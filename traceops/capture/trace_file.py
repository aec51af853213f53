"""The trace of a window, whole and packed under its final name or not at all: ours, or the script's own."""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import re
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceops.capture.environment import host
from traceops.capture.guard import contained
from traceops.core.capture_failure import CaptureOperation
from traceops.core.rank_files import COLLECTIVES

if TYPE_CHECKING:
    from torch.profiler import profile

_TAIL_BYTES = 4096
_BACKEND = "gloo"


def recorded_collectives() -> list[list[Any]]:
    """The latest collectives of this rank by torch's flight recorder: in a trace, gloo's events name no group. torch
    records them where TORCH_FR_BUFFER_SIZE is set, as `traceops run` does."""
    dist = sys.modules.get("torch.distributed")
    native = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(native, "_dump_fr_trace_json", None)
    if dist is None or dump is None or not dist.is_available() or not dist.is_initialized():
        return []
    if _BACKEND not in str(dist.get_backend_config()):
        return []
    rows = []
    try:
        for entry in json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", []):
            if entry["profiling_name"].startswith(f"{_BACKEND}:"):
                group, description = entry["process_group"]
                sent, got = (sum(map(math.prod, entry[sizes])) for sizes in ("input_sizes", "output_sizes"))
                dtype = next(iter(entry["input_dtypes"]), None)
                rows.append(
                    [entry["profiling_name"], group, description, entry["collective_seq_id"], sent, got, dtype,
                     entry["time_created_ns"]]
                )  # fmt: skip
    except (KeyError, TypeError, ValueError, RuntimeError):  # another torch's record: the trace holds all else
        return []
    return rows


def add_to_trace(plain: Path, rows: list[list[Any]]) -> None:
    """Add them to a trace's metadata, behind its events. Raises OSError where the disk is full."""
    if not rows:
        return
    with plain.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        file.seek(max(0, size - _TAIL_BYTES) + tail.rindex(b"}"))
        file.write(f',\n"{COLLECTIVES}": {json.dumps(rows)}\n}}\n'.encode())
        file.truncate()


_EVENT_BYTES = 700  # measured: 280 to 420 on a CPU, with shapes or stacks; a GPU's kernels have more to say
_PACKED = 0.2  # of the plain size, which lies beside it for a moment; measured: 0.1
_LEAVE_FREE = 32 << 20  # for the training's own files
_FILES = 2  # of one trace at once
_PLENTY = 16 << 30  # of free bytes a rank: nobody has to count events
_FULL = 1 << 16  # less is free than a file's buffer


class NoRoom(OSError):
    """The disk cannot take the trace."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


class TraceFolder:
    """One rank's folder of traces. last_bytes: of the window before, unpacked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.last_bytes: int | None = None

    def write(
        self,
        session: profile,
        window: int,
        doing: Callable[[CaptureOperation], None],
        collectives: list[list[Any]] | None = None,
    ) -> Path:
        """The window's trace, with `collectives` added to it. `doing` is told what comes next. Raises OSError where it
        could not be written, NoRoom before it is tried where the disk is too small."""
        doing(CaptureOperation.ROOM)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._look_for_room(session)
        final, plain, packed = self._names(window)
        try:
            doing(CaptureOperation.EXPORT)
            with _plainly_named(plain) as name:
                session.export_chrome_trace(name)
            self.last_bytes = _whole_size(plain)
            add_to_trace(plain, collectives or [])
            doing(CaptureOperation.COMPRESS)
            with plain.open("rb") as reader, packer().open(packed, "wb", compresslevel=1) as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
            packed.replace(final)
        finally:
            for path in (plain, packed, Path(f"{plain}.tmp")):  # Kineto's own, which it leaves where the disk is full
                with suppress(OSError):
                    path.unlink()
        return final

    def plain(self, window: int) -> Path:
        """Where a trace of that window can lie unpacked for a moment."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._names(window)[1]

    def pack(self, window: int, content: Iterable[bytes]) -> Path:
        """The window's trace from the bytes of an unpacked one. Raises OSError where it could not be written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        final, _plain, packed = self._names(window)
        try:
            with packer().open(packed, "wb", compresslevel=1) as writer:
                for block in content:
                    writer.write(block)
            packed.replace(final)
        finally:
            with suppress(OSError):
                packed.unlink()
        return final

    def _names(self, window: int) -> tuple[Path, Path, Path]:
        """The final file, and where its content lies unpacked and packed until it is whole."""
        stem = f"{host()}_{os.getpid()}.window_{window}.{time.time_ns() // 1_000_000}"
        return (
            self._folder / f"{stem}.pt.trace.json.gz",
            self._folder / f".{stem}.json.part",
            self._folder / f".{stem}.gz.part",
        )

    def _look_for_room(self, session: profile) -> None:
        """Raise NoRoom where the traces of this machine's ranks, which are written at once, do not fit."""
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        disk = os.statvfs(self._folder)
        if disk.f_files and disk.f_favail < ranks * _FILES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if (free := shutil.disk_usage(self._folder).free) >= _PLENTY * ranks:
            return
        if (plain := self.last_bytes) is None:
            results = session.profiler.kineto_results if session.profiler is not None else None
            plain = _EVENT_BYTES * len(results.events()) if results is not None else 0
        needed = int(plain * (1 + _PACKED)) * ranks + _LEAVE_FREE
        if free < needed:
            raise NoRoom(needed, free)


@contextmanager
def _plainly_named(path: Path) -> Iterator[str]:
    """A path to the same file that Kineto can take: it writes the path into the trace as it is, and cuts it at \\n."""
    text = str(path)
    if text.isprintable() and not set(text) & {'"', "\\\\"}:
        yield text
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _whole_size(path: Path) -> int:
    """Bytes of a plain trace. Raises OSError where it is not whole: Kineto says nothing when it cannot write."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read().rstrip()
        if b'"traceName"' in tail and tail.endswith(b"}"):
            return size
    full = shutil.disk_usage(path.parent).free < _FULL
    raise OSError(
        errno.ENOSPC if full else errno.EIO, os.strerror(errno.ENOSPC) if full else "torch wrote no whole trace"
    )


def packer() -> Any:
    """gzip, or isal's, which packs several times faster: the other ranks wait while this one writes. A training machine
    that runs from a checkout may lack it."""
    try:
        from isal import igzip as module
    except ImportError:
        import gzip as module
    return module


_HEAD_BYTES = 1 << 16
_ROWS = re.compile(rb'"traceEvents"\s*:\s*\[')
_EMPTY = re.compile(rb"\s*\]")  # a list of events without one
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_STEP, _OTHERS_STEP = b'"ProfilerStep#', b'"ScriptStep#'


class Adoption:
    """Waits for the trace of the script's profiler, from the moment that ours gave way to it. The script's profiler
    runs, exports and steps as it always does. Ours copies the file that it exports. A session that the script drops
    without an export is exported in its stead, when nobody can ask it for anything any more."""

    def __init__(self, folder: TraceFolder, window: int) -> None:
        self.trace: Path | None = None
        self.steps: list[int] = []
        self._folder, self._window = folder, window
        self._ends: list[tuple[int, int]] = []  # number of a step, Unix time in ns at which it ended
        self._begun_ns = time.time_ns()
        self._ended_ns: int | None = None
        self._thread = threading.get_native_id()
        self._dropped: weakref.finalize[..., Any] | None = None
        self._undo = self._listen()

    def step_ended(self, step: int) -> None:
        """Step number `step` ended now."""
        if self.trace is None:
            self._ends.append((step, time.time_ns()))

    def close(self, *, last: bool) -> None:
        """Hear no more. last: the script has ended, so that a session of its can be exported now."""
        if self._dropped is not None and last:
            self._dropped()
        elif self._dropped is not None:
            self._dropped.detach()
        self._undo()

    def _listen(self) -> Callable[[], None]:
        from torch.autograd.profiler import profile

        saved = {name: getattr(profile, name) for name in ("_start_trace", "__exit__", "export_chrome_trace")}

        @functools.wraps(saved["_start_trace"])
        def start(session: Any, *args: Any, **kwargs: Any) -> Any:
            if self.trace is None:
                self._begun_ns, self._ended_ns = time.time_ns(), None
            return saved["_start_trace"](session, *args, **kwargs)

        @functools.wraps(saved["__exit__"])
        def leave(session: Any, *args: Any, **kwargs: Any) -> Any:
            ended_ns = time.time_ns()
            result = saved["__exit__"](session, *args, **kwargs)
            contained(self._left, session, ended_ns)
            return result

        @functools.wraps(saved["export_chrome_trace"])
        def export(session: Any, *args: Any, **kwargs: Any) -> Any:  # torch 2.13 passes more than a path
            result = saved["export_chrome_trace"](session, *args, **kwargs)
            contained(functools.partial(self._exported, *args, **kwargs))
            return result

        ours = {"_start_trace": start, "__exit__": leave, "export_chrome_trace": export}
        for name, method in ours.items():
            setattr(profile, name, method)

        def undo() -> None:
            for name, method in ours.items():
                if getattr(profile, name) is method:
                    setattr(profile, name, saved[name])

        return undo

    def _left(self, session: Any, ended_ns: int) -> None:
        self._ended_ns = ended_ns
        results = getattr(session, "kineto_results", None)
        if self.trace is None and results is not None:
            self._dropped = weakref.finalize(session, contained, self._export, results)
            self._dropped.atexit = False

    def _exported(self, path: Any, *_args: Any, **_kwargs: Any) -> None:
        if self._dropped is not None:
            self._dropped.detach()
        self._take(Path(path))

    def _export(self, results: Any) -> None:
        """Save what nobody else can save any more."""
        plain = self._folder.plain(self._window)
        try:
            results.save(str(plain))
            self._take(plain)
        finally:
            with suppress(OSError):
                plain.unlink()

    def _take(self, source: Path) -> None:
        steps = list(self._whole_steps())
        if self.trace is not None or not steps:
            return
        self.trace = self._folder.pack(self._window, with_steps(source, steps, self._thread))
        self.steps = [step for step, _begin, _end in steps]

    def _whole_steps(self) -> Iterator[tuple[int, int, int]]:
        """Number, begin and end in Unix ns of each step that the session holds whole."""
        end_ns = self._ended_ns if self._ended_ns is not None else time.time_ns()
        for (_, begin), (step, end) in zip(self._ends, self._ends[1:], strict=False):
            if begin >= self._begun_ns and end <= end_ns:
                yield step, begin, end


def with_steps(source: Path, steps: list[tuple[int, int, int]], thread: int) -> Iterator[bytes]:
    """The bytes of a trace of torch.profiler with a ``ProfilerStep#`` for each of `steps`, on that thread. steps:
    number, begin and end in Unix ns. The script's own steps become ``ScriptStep#``. Raises ValueError where the file is
    no such trace."""
    with source.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _HEAD_BYTES))
        tail = file.read()
        if (rows := _ROWS.search(head)) is None:
            raise ValueError(f"{source}: no traceEvents in its first {_HEAD_BYTES} bytes")
        base = _BASE.search(head) or _BASE.search(tail)
        base_ns = 0 if base is None else int(base[1])
        marks = [
            {
                "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": os.getpid(), "tid": thread,
                "ts": (begin - base_ns) / 1000, "dur": (end - begin) / 1000,
            }
            for step, begin, end in steps
        ]  # fmt: skip
        file.seek(rows.end())
        yield head[: rows.end()]
        yield ",".join(json.dumps(mark) for mark in marks).encode()
        if not _EMPTY.match(head, rows.end()):
            yield b","
        kept = b""
        while block := file.read(1 << 20):
            text = (kept + block).replace(_STEP, _OTHERS_STEP)
            kept, text = text[-len(_STEP) :], text[: -len(_STEP)]
            yield text
        yield kept
