"""From what was allocated and freed to a rank's peaks, and what held the memory at the peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from traceops.memory.allocator import CachingAllocator, MemoryBlock, rounded
from traceops.memory.events import Allocation, Category, Event
from traceops.memory.model import CategoryMemory, ModuleMemory, RankMemory


def summarize(rank: int, events: Sequence[Event], expandable: bool = False) -> RankMemory:
    """The peaks of the rank whose `events` these are, on a device without a limit.

    expandable: torch's allocator has expandable segments.
    """
    early, late = _Replay(events, expandable), _Replay(_lingering(events), expandable)
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

    def __init__(self, events: Iterable[Event], expandable: bool) -> None:
        self.allocator = allocator = CachingAllocator(expandable)
        self.at: Allocation | None = None
        self.alive: list[Allocation] = []
        events = list(events)
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


def _lingering(events: Sequence[Event]) -> list[Event]:
    """The events where what may linger does so to the end."""
    return [event for event in events if event[1] or not event[0].lingers]
