"""What an event's arguments say of the collective behind it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from traceops.traces.event import RawEvent
from traceops.traces.model import CommArgs, Group

_MOST = 1 << 62
_ANNOTATION = re.compile(r"^(gloo|nccl|mpi|ucc|xccl|hccl):")


def collective_of(event: RawEvent) -> CommArgs | None:
    """What an event with a "Collective name" says; None for others."""
    args = event.args
    if args is None or args.op is None:
        return None
    ranks = args.group_ranks
    return CommArgs(
        op=args.op,
        elements_in=count(args.elements_in),
        elements_out=count(args.elements_out),
        dtype=args.dtype,
        group_size=count(args.group_size),
        group_name=args.group_name,
        group_description=args.group_description,
        group_ranks=_parse_text(ranks) if isinstance(ranks, str) else parse_ranks(ranks),
        sequence=count(args.sequence),
        source=count(args.source),
        destination=count(args.destination),
    )


@functools.lru_cache(maxsize=1 << 12)
def is_annotation(name: str) -> bool:
    """Whether an event of this name is a backend's note of a collective, such as gloo's, with shapes only."""
    return _ANNOTATION.match(name) is not None


def collective_of_annotation(name: str, shapes: str) -> CommArgs:
    """What a note named `gloo:all_reduce` with these input shapes says: the elements of its inputs."""
    return CommArgs(op=name.partition(":")[2], elements_in=_elements(shapes))


def with_known_ranks(comm: dict[int, CommArgs], groups: Sequence[Group]) -> dict[int, CommArgs]:
    """The same with the members of those groups that an event only names, as the trace's header lists them.

    torch cuts the list in an event off after 30 ranks.
    """
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


def count(value: Any) -> int | None:
    """A count or number that arithmetic on int64 survives."""
    return value if type(value) is int and 0 <= value < _MOST else None


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
