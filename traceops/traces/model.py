"""One rank's trace as columns, and what the file says of itself."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.traces.frames import NO_FRAMES, Frames


class CommArgs(Struct, frozen=True):
    """What the trace says about the collective behind one event; None where it says nothing.

    `source` and `destination` are the other end of a receive and of a send, counted inside the group.
    """

    op: str
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    group_name: str | None = None
    group_description: str | None = None
    group_ranks: tuple[int, ...] | None = None
    sequence: int | None = None
    source: int | None = None
    destination: int | None = None


class Events(Struct, frozen=True, dict=True):
    """The complete events ("ph": "X") of one trace as equally long columns, in file order.

    `ts` and `dur` are int64 ns since the Unix epoch where the file has `baseTimeNanoseconds`, else
    since the file's own zero. -1 stands for a missing stream, correlation or tid that is no number.
    """

    index: Int  # position in traceEvents, counting events of every phase
    name: NDArray[np.int32]  # into `names`
    cat: NDArray[np.int32]  # into `cats`
    ts: Int
    dur: Int
    pid: Int
    tid: Int
    stream: Int
    correlation: Int
    external: Int  # of a kernel: the operator that launched it
    sequence: Int  # of autograd: a backward operator has the number of its forward one
    shape: NDArray[np.int32]  # into `shapes`, -1 where the file has neither input shapes nor a grid nor bytes
    types: NDArray[np.int32]  # into `type_lists`, -1 where there are none; so are the next two
    strides: NDArray[np.int32]
    concrete: NDArray[np.int32]
    names: tuple[str, ...]
    cats: tuple[str, ...]
    shapes: tuple[str, ...]  # an operator's input shapes, a kernel's grid or a copy's bytes, as the file writes them
    type_lists: tuple[str, ...]  # of an operator's inputs, as the file writes them
    stride_lists: tuple[str, ...]
    concrete_lists: tuple[str, ...]
    comm: dict[int, CommArgs]  # row -> what its arguments say of the collective

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def end(self) -> Int:
        return self.ts + self.dur

    def in_cats(self, *cats: str) -> NDArray[np.bool_]:
        """Mask of the rows whose category is one of `cats`, whatever its case (older torch wrote 'Kernel')."""
        if cats not in self._masks:
            wanted = {cat.lower() for cat in cats}
            mask = np.array([cat.lower() in wanted for cat in self.cats], dtype=bool).take(self.cat)
            mask.flags.writeable = False
            self._masks[cats] = mask
        return self._masks[cats]

    @cached_property
    def _masks(self) -> dict[tuple[str, ...], NDArray[np.bool_]]:
        """What was asked of `in_cats` before."""
        return {}


class Group(Struct, frozen=True):
    """A process group as the trace's `pg_config` lists it."""

    name: str
    description: str
    ranks: tuple[int, ...]


class TraceMeta(Struct, frozen=True):
    """What a trace file says about itself; None where it says nothing. devices: GPUs that the process saw."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    device: str | None = None
    torch_version: str | None = None
    nccl_version: str | None = None
    groups: tuple[Group, ...] = ()
    with_stack: bool = False
    profile_memory: bool = False
    devices: int | None = None


class RankTrace(Struct, frozen=True):
    """One trace file, read as far as it could be; `damage` says in words what could not.

    incomplete: much is missing, at moments that nobody knows. torch writes one thread behind the other and the
    device's activity last, as its buffers came: a file that is cut off lacks some of every step.
    """

    path: str
    meta: TraceMeta
    events: Events
    damage: tuple[str, ...] = ()
    size_bytes: int = 0
    frames: Frames = NO_FRAMES
    incomplete: bool = False
