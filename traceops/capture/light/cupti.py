"""Kernels, copies and memsets by CUPTI itself, through the libcupti that torch has loaded; nothing of the host.

It gives way to everything else: where another tool holds CUPTI, or torch's profiler is at work or might be started from
outside, it does not begin.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from traceops.capture.detaching import VARIABLE, Detaching, other_tool
from traceops.capture.light.source import Activities

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
            return f"{VARIABLE} is set: torch's profiler takes CUPTI away from a thread of its own"
        try:
            from traceops.capture.light import _cupti as native
        except ImportError:
            return "traceops was installed without its compiled part"
        library = self._library or loaded_library()
        if library is None:
            return "this process has no libcupti, or several"
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
            return "it did not record"
        ended = native.clocks()
        self.calls = [*self.calls, *native.stop()]
        rows, names, incomplete, discarded = native.take()
        failed = [(name, result) for name, _, result in self.calls if result != 0]
        if self._detaching is not None:
            self._end(native, self._detaching, failed=bool(failed))  # the names of kernels are gone with it
        if failed:
            return f"CUPTI failed: {failed[0][0]} gave {failed[0][1]}"
        if not rows:
            return f"CUPTI gave no records ({incomplete} incomplete)"
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
