"""Python frames of a trace that was recorded with stacks: calls of modules, and those that last long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.traces.event import RawEvent
from traceops.traces.times import LONGEST_NS, Times

CAT = "python_function"
LEAST_FRAME_NS = 500_000  # of many thousands a step, some hundreds last so long; events.c has both, too
MODULE = "nn.Module: "  # begins the names of calls of modules, all of which are kept


def _none() -> Int:
    return np.empty(0, dtype=np.int64)


class Frames(Struct, frozen=True):
    """Calls of modules, and of functions that last LEAST_FRAME_NS or longer, in file order, timed like Events."""

    name: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # into `names`
    ts: Int = field(default_factory=_none)
    dur: Int = field(default_factory=_none)
    tid: Int = field(default_factory=_none)
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def long(self) -> Frames:
        """Those that last LEAST_FRAME_NS or longer, modules or not."""
        kept = self.dur >= LEAST_FRAME_NS
        return Frames(self.name[kept], self.ts[kept], self.dur[kept], self.tid[kept], self.names)


NO_FRAMES = Frames()


def kept_frames(frames: Sequence[RawEvent], to_ns: Callable[[list[Any]], Times]) -> list[RawEvent]:
    """Those of a batch of frames that are a module's, or last long."""
    dur, valid = to_ns([event.dur for event in frames])
    modules = np.array([event.name.startswith(MODULE) for event in frames], dtype=bool)
    kept = valid & (dur >= np.where(modules, 0, LEAST_FRAME_NS)) & (dur < LONGEST_NS)
    return [frames[at] for at in np.flatnonzero(kept).tolist() if frames[at].ph == "X"]


def frames_of(
    frames: Sequence[RawEvent], to_ns: Callable[[list[Any]], Times], ids: Callable[[list[Any]], Int], base_ns: int
) -> Frames:
    """Columns of those with a usable time; `base_ns` is the zero of the file's clock."""
    if not frames:
        return NO_FRAMES
    ts, valid = to_ns([event.ts for event in frames])
    dur, _ = to_ns([event.dur for event in frames])
    numbers: dict[str, int] = {}
    kept = [event for event, ok in zip(frames, valid.tolist(), strict=True) if ok]
    name = np.array([numbers.setdefault(event.name, len(numbers)) for event in kept], dtype=np.int32)
    return Frames(name, ts[valid] + base_ns, dur[valid], ids([event.tid for event in kept]), tuple(numbers))
