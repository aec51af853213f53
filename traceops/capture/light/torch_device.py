"""The device alone, by torch's profiler: where CUPTI is not to be had by itself, and on ROCm."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from traceops.capture.detaching import Detaching
from traceops.capture.guard import contained
from traceops.capture.light.source import Activities
from traceops.core.rank_files import KERNEL, MEMCPY, MEMSET, NO_NAME, ROW

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
            return "another profiler is running"
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
            return "it did not record"
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
    return Activities(b"".join(rows), tuple(numbers)) if rows else "torch's profiler recorded nothing on the device"
