"""What a collective carries, in words, as a sentence without its full stop."""

from __future__ import annotations

from traceops.hangs.model import Carried


def carried_text(carried: Carried, op: str) -> str:
    """'The all_reduce has the gradients of embed.weight and 3 more'."""
    if carried.shape is not None:
        rows, width = carried.shape
        told = f"{carried.elements:,} elements are likely {rows}×{width}, the embedding or head of a vocabulary of"
        return f"{told} {rows:,} ({carried.model})"
    more = carried.count - 1
    names = carried.names[0] + (f" and {more} more" if more > 0 else "")
    others = f", or of {_others(carried.alike)} of the same size" if carried.alike else ""
    return f"The {op} has the {carried.what} of {names}{others}"


def _others(count: int) -> str:
    return "another bucket" if count == 1 else f"one of {count} other buckets"
