"""torch's caching allocator for CUDA, as far as it decides how much memory is reserved. Needs no torch.

Sizes and rules are those of c10/cuda/CUDACachingAllocator.cpp with default settings: blocks of 512 bytes, segments of
2 MiB for blocks up to 1 MiB, of 20 MiB for blocks below 10 MiB, else rounded up to 2 MiB; a block is split where what
is left is of use, and what is free is joined with its neighbours. With ``expandable_segments:True`` each pool is one
segment, which grows at its end by 20 MiB (2 MiB for blocks up to 1 MiB). What waits for another stream is not
modelled."""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from traceops.memory.model import CategoryMemory, ModuleMemory, RankMemory


class Category(str, Enum):
    """What an allocation is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    LOSS = "loss"
    CASTS = "parameter_casts"
    SHARDING = "sharding_buffers"
    BEFORE_STEPS = "before_steps"
    INPUTS = "inputs"
    BACKWARD = "backward_temporaries"
    OPTIMIZER = "optimizer_temporaries"
    WORKSPACE = "library_workspaces"


class TrainingPhase(str, Enum):
    """Where in a step something happens."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass
class Allocation:
    """One block of memory; `size` in bytes as asked for. `module` is the path of the module that ran, "" for none.
    `stream` is the one it was made on, 0 for the usual. `lingers` where a library may hold it for longer than the event
    says: the first buckets of DDP, which NCCL lets go of when its thread looks at them next."""

    size: int
    category: Category
    module: str
    phase: TrainingPhase
    step: int
    op: str
    stream: int = 0
    lingers: bool = False


# (allocation, True) where it was made, (allocation, False) where it was freed.
Event = tuple[Allocation, bool]

ROUND = 512
_SMALL = 1 << 20
_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 20 << 20
_MIN_LARGE = 10 << 20
_LARGE_ROUND = 2 << 20


def expandable_segments() -> bool:
    """Whether this process's environment asks torch for them, by either of the names that it reads."""
    said = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    pairs = (word.partition(":") for word in said.split(","))
    return any(name.strip() == "expandable_segments" and value.strip() == "True" for name, _, value in pairs)


def rounded(size: int) -> int:
    """The bytes that a block of `size` bytes takes."""
    return max(ROUND, -(-size // ROUND) * ROUND)


@dataclass(eq=False)
class MemoryBlock:
    """A part of a segment; `before` and `after` are its neighbours there. A pool: stream, whether of small blocks."""

    size: int
    pool: tuple[int, bool]
    number: int
    free: bool = False
    before: MemoryBlock | None = field(default=None, repr=False)
    after: MemoryBlock | None = field(default=None, repr=False)


class CachingAllocator:
    """Counts `allocated` and `reserved` bytes and their peaks, for one device without a limit. expandable: with
    expandable segments."""

    def __init__(self, expandable: bool = False) -> None:
        self.expandable = expandable
        self._ends: dict[tuple[int, bool], MemoryBlock] = {}  # of expandable segments: the last block of each pool
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self._free: dict[tuple[int, bool], list[tuple[int, int, MemoryBlock]]] = {}
        self._numbers = 0

    def allocate(self, size: int, stream: int = 0) -> MemoryBlock:
        """A block of at least `size` bytes: the smallest free one that fits, or of a new segment."""
        want = rounded(size)
        small = want <= _SMALL
        pool = (stream, small)
        free = self._free.setdefault(pool, [])
        at = bisect_left(free, (want, -1))
        if at < len(free) - 1 and free[at][2] is self._ends.get(pool):
            at += 1  # the last block can grow, so it counts as the largest
        if at < len(free):
            block = free.pop(at)[2]
        elif self.expandable:
            block = self._grown(want, pool)
        else:
            if small:
                segment_size = _SMALL_SEGMENT
            elif want < _MIN_LARGE:
                segment_size = _LARGE_SEGMENT
            else:
                segment_size = -(-want // _LARGE_ROUND) * _LARGE_ROUND
            block = self._new(segment_size, pool)
            self._reserve(block.size)
        left = block.size - want
        if left >= ROUND if small or self.expandable else left > _SMALL:
            rest = self._new(left, pool)
            rest.before, rest.after = block, block.after
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, want
            if self._ends.get(pool) is block:
                self._ends[pool] = rest
            self._add_free(rest)
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: MemoryBlock) -> None:
        """Give a block back to the cache."""
        self.allocated -= block.size
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self._take_free(neighbour)
                if self._ends.get(block.pool) is neighbour:
                    self._ends[block.pool] = block
                if neighbour is block.before:
                    block.before = neighbour.before
                    if block.before is not None:
                        block.before.after = block
                else:
                    block.after = neighbour.after
                    if block.after is not None:
                        block.after.before = block
                block.size += neighbour.size
        self._add_free(block)

    def empty_cache(self) -> None:
        """Give segments back that are free as a whole, and begin the peaks anew: not of expandable ones."""
        for rows in self._free.values():
            whole = [row for row in rows if row[2].before is None and row[2].after is None]
            self.reserved -= sum(row[0] for row in whole)
            rows[:] = [row for row in rows if row not in whole]
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def _grown(self, want: int, pool: tuple[int, bool]) -> MemoryBlock:
        """A block of at least `want` bytes at the end of the pool's segment, joined with what is free there."""
        end = self._ends.get(pool)
        free = end.size if end is not None and end.free else 0
        page = _SMALL_SEGMENT if pool[1] else _LARGE_SEGMENT
        more = -(-(want - free) // page) * page
        self._reserve(more)
        if end is not None and end.free:
            self._take_free(end)
            end.size += more
            return end
        block = self._ends[pool] = self._new(more, pool)
        if end is not None:
            end.after, block.before = block, end
        return block

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _new(self, size: int, pool: tuple[int, bool]) -> MemoryBlock:
        self._numbers += 1
        return MemoryBlock(size, pool, self._numbers)

    def _add_free(self, block: MemoryBlock) -> None:
        block.free = True
        insort(self._free[block.pool], (block.size, block.number, block))

    def _take_free(self, block: MemoryBlock) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, (block.size, block.number))]


# From what was allocated and freed to a rank's peaks, and what held the memory at the peak.


def summarize(rank: int, events: Sequence[Event], expandable: bool = False) -> RankMemory:
    """The peaks of the rank whose `events` these are, on a device without a limit. expandable: torch's allocator has
    expandable segments."""
    # Late: what may linger does so to the end.
    lingering = [event for event in events if event[1] or not event[0].lingers]
    early, late = _Replay(events, expandable), _Replay(lingering, expandable)
    peak = late if late.allocator.peak_allocated > early.allocator.peak_allocated else early
    by_category: dict[Category, int] = defaultdict(int)
    by_module: dict[str, int] = defaultdict(int)
    for allocation in peak.alive:
        by_category[allocation.category] += rounded(allocation.size)
        if allocation.category is Category.ACTIVATIONS:
            by_module[allocation.module] += rounded(allocation.size)
    at = peak.at
    return RankMemory(
        rank=rank,
        peak_allocated_bytes=peak.allocator.peak_allocated,
        peak_reserved_bytes=max(early.allocator.peak_reserved, late.allocator.peak_reserved),
        least_allocated_bytes=early.allocator.peak_allocated,
        least_reserved_bytes=early.allocator.peak_reserved,
        categories=[CategoryMemory(name.value, by_category[name]) for name in Category if by_category[name]],
        activations=[ModuleMemory(name, held) for name, held in sorted(by_module.items(), key=lambda item: -item[1])],
        peak_step=at.step if at else 0,
        peak_phase=at.phase.value if at else "setup",
        peak_module=at.module if at else "",
        peak_operation=at.op if at else "",
        peak_operation_bytes=at.size if at else 0,
    )


class _Replay:
    """The events, given to a caching allocator: `alive` at the peak, which the allocation `at` reached."""

    def __init__(self, events: Sequence[Event], expandable: bool) -> None:
        self.allocator = allocator = CachingAllocator(expandable)
        self.at: Allocation | None = None
        blocks: dict[int, MemoryBlock] = {}
        peak_index = -1
        for index, (allocation, made) in enumerate(events):
            if not made:
                allocator.release(blocks.pop(id(allocation)))
                continue
            before = allocator.peak_allocated
            blocks[id(allocation)] = allocator.allocate(allocation.size, allocation.stream)
            if allocator.peak_allocated > before:
                peak_index, self.at = index, allocation
        alive: dict[int, Allocation] = {}
        for allocation, made in events[: peak_index + 1]:
            if made:
                alive[id(allocation)] = allocation
            else:
                del alive[id(allocation)]
        self.alive = list(alive.values())
