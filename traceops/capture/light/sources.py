"""What records the device alone in a light window: CUPTI itself, or torch's profiler where CUPTI is not available.

CUPTI is used through the libcupti that torch has loaded. It gives way to everything else: it does not begin where
another tool holds CUPTI, or torch's profiler is at work or might be started from outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from traceops.capture.detaching import VARIABLE, Detaching, other_tool
from traceops.capture.guard import contained, text
from traceops.core.rank_files import KERNEL, MEMCPY, MEMSET, NO_NAME, ROW


@dataclass(frozen=True)
class Activities:
    """What the device did, `ROW`s of `core/rank_files.py`.

    discarded: activities that are missing. clocks: before and after, where the times are not Unix ns.
    """

    rows: bytes
    names: tuple[str, ...]
    discarded: int = 0
    clocks: tuple[tuple[int, ...], ...] = ()


class Source(Protocol):
    """Started where a step begins, stopped where one ends and the device is idle. Each may raise: then `abandon`."""

    name: str

    def start(self) -> str | None:
        """Record; what is in the way, None where nothing is."""

    def stop(self) -> Activities | str:
        """What was recorded, or why there is nothing. Afterwards nothing is on any more."""

    def abandon(self) -> None:
        """Stop, whatever state it is in, and keep nothing."""


_BUFFER_BYTES = 4 << 20  # as torch's own
_MOST_BUFFERS = 64  # 1.2 million kernels
_MAPS = Path("/proc/self/maps")


class Cupti:
    """One window. calls: what CUPTI returned for each call, in order. detaching: ends CUPTI in `stop`."""

    name = "cupti"

    def __init__(self, library: str | None = None, *, detaching: Detaching | None = None) -> None:
        self._library = library
        self._detaching = detaching
        self._native: ModuleType | None = None
        self._began: tuple[int, ...] = ()
        self.calls: list[tuple[str, int, int]] = []

    def start(self) -> str | None:
        """Enable the three kinds; what is in the way, None where nothing is."""
        if (other := other_tool()) is not None:
            return other
        if os.environ.get(VARIABLE) == "1":
            return text("cupti_taken", variable=VARIABLE)
        try:
            from traceops.capture.light import _cupti as native
        except ImportError:
            return text("not_compiled")
        library = self._library or loaded_library()
        if library is None:
            return text("no_libcupti")
        records, self.calls = native.start(library, _BUFFER_BYTES, _MOST_BUFFERS)
        if not records:
            name, argument, result = self.calls[-1] if self.calls else ("start", 0, -1)
            failed = next(((n, a, r) for n, a, r in self.calls if r != 0), (name, argument, result))
            return f"CUPTI refuses: {failed[0]}({failed[1]}) gave {failed[2]}"
        self._native = native
        self._began = native.clocks()
        if self._detaching is not None:
            self._detaching.attached()
        return None

    def stop(self) -> Activities | str:
        """What was recorded."""
        native, self._native = self._native, None
        if native is None:
            return text("did_not_record")
        ended = native.clocks()
        self.calls = [*self.calls, *native.stop()]
        rows, names, incomplete, discarded = native.take()
        failed = [(name, result) for name, _, result in self.calls if result != 0]
        if self._detaching is not None:
            self._end(native, self._detaching, failed=bool(failed))  # the names of kernels are gone with it
        if failed:
            return f"CUPTI failed: {failed[0][0]} gave {failed[0][1]}"
        if not rows:
            return text("no_records", incomplete=incomplete)
        return Activities(rows, tuple(names), incomplete + discarded, (self._began, ended))

    def _end(self, native: ModuleType, detaching: Detaching, *, failed: bool) -> None:
        """End CUPTI in this process, unless something speaks against it."""
        why_not = "CUPTI failed" if failed else detaching.in_the_way()
        if why_not is None:
            calls = native.detach()
            self.calls = [*self.calls, *calls]
            why_not = next((f"{name} gave {result}" for name, _, result in calls if result != 0), None)
        detaching.ended(why_not)

    def abandon(self) -> None:
        """Disable what was enabled; the records go."""
        native, self._native = self._native, None
        if native is not None:
            self.calls = [*self.calls, *native.stop()]
            native.take()


def loaded_library(maps: Iterable[str] | None = None) -> str | None:
    """The one libcupti of this process; None where there is none, or where it cannot be told which is torch's."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines() if maps is None else maps
    except OSError:
        return None
    paths = {line.split(None, 5)[5] for line in lines if "libcupti.so" in line and len(line.split(None, 5)) == 6}
    return paths.pop() if len(paths) == 1 else None


_COPIES = (("memcpy", MEMCPY), ("memset", MEMSET))
_MOST_NAMES = 1 << 16


class TorchDevice:
    """One window. detaching: ends CUPTI in `stop`."""

    name = "torch"

    def __init__(self, detaching: Detaching | None = None) -> None:
        self._session: Any = None
        self._detaching = detaching

    def start(self) -> str | None:
        """Start torch's profiler; what is in the way, None where nothing is."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled():
            return text("other_profiler")
        session = profile(activities=[ProfilerActivity.CUDA])
        self._session = session
        session.start()
        if self._detaching is not None:
            self._detaching.attached()
        return None

    @property
    def own(self) -> Any:
        """The session that is ours, None where none runs."""
        return None if self._session is None else self._session.profiler

    def stop(self) -> Activities | str:
        """What was recorded."""
        session, self._session = self._session, None
        if session is None:
            return text("did_not_record")
        with nullcontext() if self._detaching is None else self._detaching.around_stop():
            session.stop()
        return activities_of(session.profiler.kineto_results.events())

    def abandon(self) -> None:
        """Stop; the records go."""
        session, self._session = self._session, None
        if session is not None:
            contained(session.stop)


def activities_of(events: Any) -> Activities | str:
    """Of kineto's events, those that ran on a device."""
    numbers: dict[str, int] = {}
    rows = []
    for event in events:
        if "CUDA" not in str(event.device_type()) or event.is_user_annotation():
            continue
        name = event.name()
        kind = next((kind for word, kind in _COPIES if name.lower().startswith(word)), KERNEL)
        number = NO_NAME
        if kind == KERNEL and (name in numbers or len(numbers) < _MOST_NAMES):
            number = numbers.setdefault(name, len(numbers))
        begin = event.start_ns()
        rows.append(
            ROW.pack(
                begin, begin + event.duration_ns(), event.nbytes() if kind != KERNEL else 0, number,
                event.device_resource_id() & 0xFFFFFFFF, event.correlation_id() & 0xFFFFFFFF,
                kind, 0, event.device_index() & 0xFF, 0,
            )
        )  # fmt: skip
    return Activities(b"".join(rows), tuple(numbers)) if rows else text("nothing_on_device")
