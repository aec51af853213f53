"""One rank's trace: columns of events, Python frames, what collectives say, and what the file says of itself."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.core.units import count
from traceops.traces.event import LONGEST_NS, RawEvent, Times

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
    return [frames[at] for at in kept.nonzero()[0].tolist() if frames[at].ph == "X"]


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


class CommArgs(Struct, frozen=True):
    """What the trace says about the collective behind one event; None where it says nothing. `source` and `destination`
    are the other end of a receive and of a send, counted inside the group."""

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
    """The complete events ("ph": "X") of one trace as equally long columns, in file order. `ts` and `dur` are int64 ns
    since the Unix epoch where the file has `baseTimeNanoseconds`, else since the file's own zero. -1 stands for a
    missing stream, correlation or tid that is no number."""

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

    @cached_property
    def end(self) -> Int:
        end = self.ts + self.dur
        end.flags.writeable = False
        return end

    def in_cats(self, *cats: str) -> NDArray[np.bool_]:
        """Mask of the rows whose category is one of `cats`, whatever its case (older torch wrote 'Kernel')."""
        if cats not in self._masks:
            mask = _among(self.cats, cats).take(self.cat)
            mask.flags.writeable = False
            self._masks[cats] = mask
        return self._masks[cats]

    @cached_property
    def _masks(self) -> dict[tuple[str, ...], NDArray[np.bool_]]:
        """What was asked of `in_cats` before."""
        return {}

    @cached_property
    def rows_found(self) -> dict[Any, Int]:
        """Rows that were looked for by their name before."""
        return {}


@lru_cache(maxsize=256)
def _among(own: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which of a trace's own categories are wanted; ranks of a run have the same ones."""
    lower = {cat.lower() for cat in wanted}
    return np.array([cat.lower() in lower for cat in own], dtype=bool)


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
    """One trace file, read as far as it could be; `damage` says in words what could not. incomplete: much is missing,
    at moments that nobody knows. torch writes one thread behind the other and the device's activity last, as its
    buffers came: a file that is cut off lacks some of every step."""

    path: str
    meta: TraceMeta
    events: Events
    damage: tuple[str, ...] = ()
    size_bytes: int = 0
    frames: Frames = NO_FRAMES
    incomplete: bool = False
    untimed: int = 0  # events without a valid time


_ANNOTATION = re.compile(r"^(gloo|nccl|mpi|ucc|xccl|hccl):")


def collective_of(event: RawEvent) -> CommArgs | None:
    """What an event with a "Collective name" says; None for others."""
    if (args := event.args) is None or args.op is None:
        return None
    ranks = args.group_ranks
    members = _parse_text(ranks) if isinstance(ranks, str) else parse_ranks(ranks)
    sizes = _counts(args.elements_in, args.elements_out, args.group_size, args.source, args.destination)
    elements_in, elements_out, group_size, source, destination = sizes
    return CommArgs(
        args.op, elements_in, elements_out, args.dtype, group_size, args.group_name, args.group_description, members,
        count(args.sequence), source, destination,
    )  # fmt: skip


@functools.lru_cache(maxsize=1 << 12, typed=True)  # all the same in each step
def _counts(*values: int | None) -> tuple[int | None, ...]:
    return tuple(map(count, values))


@functools.lru_cache(maxsize=1 << 12)
def is_annotation(name: str) -> bool:
    """Whether an event of this name is a backend's note of a collective, such as gloo's, with shapes only."""
    return _ANNOTATION.match(name) is not None


@functools.lru_cache(maxsize=1 << 12)
def collective_of_annotation(name: str, shapes: str) -> CommArgs:
    """What a note named `gloo:all_reduce` with these input shapes says: the elements of its inputs."""
    return CommArgs(op=name.partition(":")[2], elements_in=_elements(shapes))


def with_known_ranks(comm: dict[int, CommArgs], groups: Sequence[Group]) -> dict[int, CommArgs]:
    """The same with the members of those groups that an event only names, as the trace's header lists them. torch cuts
    the list in an event off after 30 ranks."""
    ranks_of: dict[str, tuple[int, ...] | None] = {}
    for group in groups:  # a name that two groups have tells nothing
        ranks_of[group.name] = None if ranks_of.get(group.name, group.ranks) != group.ranks else group.ranks
    known = dict(comm)
    for row, args in comm.items():
        ranks = ranks_of.get(args.group_name or "") if args.group_ranks is None else None
        if ranks is not None and args.group_size in (None, len(ranks)):
            known[row] = replace(args, group_ranks=ranks)
    return known


def parse_ranks(value: Any) -> tuple[int, ...] | None:
    """Sorted ranks from a list, or from kineto's text such as "[0, 1, 2, 3]"; None if cut short with '...'."""
    if isinstance(value, list) and all(count(rank) is not None for rank in value):
        return tuple(sorted(set(value))) or None
    if isinstance(value, str) and re.fullmatch(r"\[[\d,\s]*\]", value.strip()):
        return tuple(sorted({int(rank[:9]) for rank in re.findall(r"\d+", value)})) or None
    return None


@functools.lru_cache(maxsize=1024)
def _parse_text(text: str) -> tuple[int, ...] | None:
    """The same, once for all the events of a group, which then share the result."""
    return parse_ranks(text)


def _elements(shapes: str) -> int | None:
    """Elements of all tensors in an "Input Dims" argument, None where it is no list of shapes."""
    try:
        sizes = msgspec.json.decode(shapes)
    except (msgspec.DecodeError, RecursionError):
        return None
    total = 0
    pending = list(sizes) if isinstance(sizes, list) else []
    while pending:
        shape = pending.pop()
        if not isinstance(shape, list) or not shape:
            continue
        if all(isinstance(size, int) for size in shape):
            total += math.prod(shape)
        else:
            pending.extend(shape)
    return count(total) or None
