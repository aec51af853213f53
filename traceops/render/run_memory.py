"""What a run's ranks held of their GPUs' memory, for people at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.across.run_use import MemoryUse
from traceops.core.units import UNKNOWN, gib_text
from traceops.memory.run_memory import RunMemory
from traceops.pipeline.assemble_whole import recorded_memory
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import Block, TableBlock, bold, soft, text
from traceops.render.memory import compared, describe_device, kinds_table, makers_table, recorded_headline
from traceops.render.out_of_memory import describe_ran_out

_GIB = 1 << 30
_MOST_ROWS = 32
_MOST_RAN_OUT = 4
_COLUMNS = ("rank", "peak", "reserved", "GPU", "between steps", "parameters", "gradients", "optimizer", "a step")


def describe_run(found: RunMemory) -> list[Block]:
    """Peaks by rank, where memory ran out, and what a snapshot says of the rank that held most."""
    blocks: list[Block] = []
    if found.uses:
        most = max(found.uses, key=lambda use: use.peak or 0)
        of = "" if most.capacity is None else f" of {gib_text(most.capacity)}"
        blocks.append(text(bold(f"Tensors held {gib_text(most.peak or 0)}{of} at the most, on rank {most.rank}.")))
        blocks.append(TableBlock(_table(found.uses)))
    for one in found.ran_out[:_MOST_RAN_OUT]:
        blocks += describe_ran_out(one, named=True)
    if len(found.ran_out) > _MOST_RAN_OUT:
        blocks.append(soft(f"Memory ran out on {len(found.ran_out) - _MOST_RAN_OUT} further ranks."))
    if found.recorded is not None:
        rows = recorded_memory(*found.recorded)
        blocks += [text(bold(recorded_headline(rows))), TableBlock(kinds_table(rows)), TableBlock(makers_table(rows))]
    blocks += _snapshots(found)
    blocks += [soft(problem) for problem in found.problems]
    return blocks


def _snapshots(found: RunMemory) -> list[Block]:
    """Of the rank that held most, and what it holds more than the one that held least."""
    if not found.snapshots:
        return []
    ranks = sorted(found.snapshots, key=lambda rank: found.snapshots[rank].peak)
    most, least = ranks[-1], ranks[0]
    blocks = describe_device(f"rank {most}", found.snapshots[most])
    if most != least and found.snapshots[most].peak > 1.1 * found.snapshots[least].peak:
        blocks.append(text(f"Beside rank {least}:"))
        blocks.append(compared(found.snapshots[least], found.snapshots[most]))
    return blocks


def _table(uses: Sequence[MemoryUse]) -> Table:
    """GiB; the ranks with the highest peaks where there are many."""
    shown = sorted(sorted(uses, key=lambda use: -(use.peak or 0))[:_MOST_ROWS], key=lambda use: use.rank)
    columns = tuple(Column(name, name, number=True) for name in _COLUMNS)
    rows = tuple(tuple(map(Cell, _row(use))) for use in shown)
    left = len(uses) - len(shown)
    caption = "By rank, GiB" + (f" ({left} ranks with less left out)" if left else "")
    return Table(caption, columns, rows)


def _row(use: MemoryUse) -> tuple[str, ...]:
    grows = "" if use.growth is None else f"+{use.growth.per_step / (1 << 20):,.1f} MiB"
    held = (use.held.get(name) for name in ("allocated", "parameters", "gradients", "optimizer_state"))
    return (str(use.rank), *map(_gib, (use.peak, use.reserved, use.capacity, *held)), grows)


def _gib(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / _GIB:.2f}"
