"""The moment in which a GPU's memory ran out, for people at a terminal: who held what, and what was left."""

from __future__ import annotations

from traceops.core.units import gib_text
from traceops.render.document import Block, TableBlock, text
from traceops.render.memory import places_table
from traceops.traces.ran_out import RanOut
from traceops.traces.snapshot_rows import NO_STACK

_NAMES = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state"}
_PLACES = 6
_OTHERS = 0.15  # of the device
_WORTH = 0.02  # share of what tensors hold that a line has at least


def describe_ran_out(found: RanOut, phase: str | None = None, *, named: bool = False) -> list[Block]:
    """What tensors held, by kind and, where a history was recorded, by line; what was free, and why it was no use.

    phase: of the step, where a stack tells. named: the rank is, because no sentence before has done so.
    """
    where = f"step {found.step}" + (f", in {phase}" if phase else "")
    subject = f"Rank {found.rank} ran out of memory in {where}. It" if named else f"In {where} it"
    blocks: list[Block] = [
        text(
            f"{subject} asked for {gib_text(found.asked)}. Tensors held {gib_text(found.allocated)}{_kinds(found)}. "
            f"Torch had {gib_text(found.unused)} more reserved, and {_left(found)}.",
            indent=(2, 2),
        ),
        text(_why(found), indent=(2, 2)),
    ]
    if found.snapshot is not None:
        lines = [own for own in found.snapshot.held if own.place != NO_STACK]
        lines = [own for own in lines if own.bytes >= _WORTH * found.allocated]
        if lines:
            blocks.append(TableBlock(places_table("Held then, by the line that made it", found.snapshot.held, _PLACES)))
        else:
            blocks.append(
                text("With --with-memory the lines that made what was held are told.", look="soft", indent=(2, 2))
            )
    return blocks


def _kinds(found: RanOut) -> str:
    if not found.held:
        return ""
    told = [f"{gib_text(found.held[name])} {_NAMES[name]}" for name in _NAMES if found.held.get(name)]
    return f": {', '.join([*told, f'{gib_text(found.rest)} activations, temporaries and all else'])}"


def _left(found: RanOut) -> str:
    if found.limited:
        return f"may have {gib_text(found.total)} in all"
    return f"{gib_text(found.free)} of {gib_text(found.total)} were free on the device"


def _why(found: RanOut) -> str:
    """Too large, in pieces, or held by others."""
    others = 0 if found.limited else found.total - found.free - found.reserved
    own = found.snapshot
    if own is not None and own.free_between >= found.asked > own.largest_free:
        return (
            f"The memory is fragmented: {gib_text(own.free_between)} lay free between blocks in use, in pieces of at "
            f"most {gib_text(own.largest_free)}."
        )
    if others >= found.asked and others > _OTHERS * found.total:
        return (
            f"{gib_text(others)} of the device were held by neither this process's tensors nor its cache: see who else "
            "is on it."
        )
    if found.left >= found.asked:
        return (
            "As much was free when this was written: another process gave memory back meanwhile, or the driver "
            "refused it."
        )
    if own is not None and own.largest_free >= found.asked:
        return (
            f"A piece of {gib_text(own.largest_free)} lay free in torch's cache, and torch may not use it for this: "
            "it is of another stream, of a CUDA graph, or above max_split_size_mb."
        )
    if found.unused >= found.asked:
        return "The memory is fragmented: enough was reserved and unused, in pieces that were too small."
    if found.unused + found.left >= found.asked:
        return (
            f"The memory is fragmented: {gib_text(found.unused)} reserved and unused and {gib_text(found.left)} not "
            "reserved would do together, and neither alone."
        )
    lacked = found.asked - found.unused - found.left
    return f"It is too large: {gib_text(lacked)} more than all that was free, torch's cache included."
