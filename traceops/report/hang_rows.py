"""Equal ranks and equal waits of a hang merged, so that hundreds of ranks stay a few lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from traceops.hangs.json_types import RankState, RankStatus
from traceops.hangs.model import Diagnosis, Root, Wait, WaitReason

# What ranks have to share to be one line, given up from the right as long as there are too many lines.
_ALIKE = ("state", "op", "exit_code", "sequence", "where", "doing", "op_state", "group", "step", "waits_for", "bytes")
_LEVELS = tuple(_ALIKE[:kept] for kept in (11, 10, 8, 7, 5, 3, 1))
_ORDER: tuple[RankState, ...] = ("root", "dead", "stopped", "idle", "waiting", "unclear", "absent")


class RankGroup(Struct, frozen=True):
    """Ranks that are in the same state. differ: field of RankStatus -> the several values, where they differ. root:
    which of the diagnosis' roots they belong to, counted from 0; None for ranks that only wait."""

    ranks: tuple[int, ...]
    first: RankStatus
    differ: Mapping[str, tuple[Any, ...]]
    root: int | None = None

    def shared(self, field: str) -> Any:
        """What the ranks have in common of a field of RankStatus; None where they differ or it is not known."""
        return None if field in self.differ else getattr(self.first, field)

    def values(self, field: str) -> tuple[Any, ...]:
        """The different values of a field of RankStatus."""
        return self.differ.get(field, (getattr(self.first, field),))

    @property
    def state(self) -> RankState | None:
        """None where it differs."""
        return None if "state" in self.differ else self.first.state

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The ranks that these wait for, each for some of them at least."""
        return tuple(sorted({rank for ranks in self.values("waits_for") for rank in ranks}))


class MergedWait(Struct, frozen=True):
    """Ranks that wait for the same ranks in the same operation."""

    ranks: tuple[int, ...]
    on: tuple[int, ...]
    reason: WaitReason
    group: str | None
    op: str | None
    sequence: int | None


def merged_ranks(diagnosis: Diagnosis, most: int) -> list[RankGroup]:
    """Rows of equal ranks, roots first; as many as `most` if merging what is nearly equal can do that."""
    root_of = roots_by_rank(diagnosis.roots)
    groups: list[RankGroup] = []
    last = len(_LEVELS) - 1
    # Causes stay apart as long as those that wait can be merged further.
    for own, others in [(0, level) for level in range(last + 1)] + [(level, last) for level in range(1, last + 1)]:
        groups = _merge(diagnosis.ranks, root_of, _LEVELS[own], _LEVELS[others])
        if len(groups) <= most:
            break
    return groups


def shown_waits(diagnosis: Diagnosis) -> list[Wait]:
    """The graph's edges, and for ranks that only a root says are waiting an edge to that root."""
    waits = list(diagnosis.waits)
    known = {wait.rank for wait in waits}
    for root in diagnosis.roots:
        for rank in root.waiting:
            if rank not in known and rank not in root.ranks:
                waits += [Wait(rank, on, "cause", root.group, root.op, root.sequence) for on in root.ranks]
    return waits


def merged_waits(waits: Sequence[Wait]) -> list[MergedWait]:
    """Waits with equal operation and reason: those of several ranks for the same ones become one."""
    on: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for wait in waits:
        on[wait.rank, wait.reason, wait.group, wait.op, wait.sequence].append(wait.on)
    ranks: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for (rank, *what), targets in on.items():
        waited_for = (tuple(sorted(set(targets))), *what)
        ranks[waited_for].append(rank)
    return [MergedWait(tuple(sorted(own)), *key) for key, own in ranks.items()]


def roots_by_rank(roots: Sequence[Root]) -> dict[int, int]:
    """Rank -> the first of the roots it belongs to."""
    result: dict[int, int] = {}
    for number, root in enumerate(roots):
        for rank in root.ranks:
            result.setdefault(rank, number)
    return result


def _merge(
    rows: Sequence[RankStatus], root_of: Mapping[int, int], own: Sequence[str], others: Sequence[str]
) -> list[RankGroup]:
    same: dict[Hashable, list[RankStatus]] = defaultdict(list)
    for row in rows:
        root = root_of.get(row.rank)
        alike = tuple(getattr(row, field) for field in (others if root is None else own))
        same[root, alike].append(row)
    groups = [_group(members, root_of.get(members[0].rank)) for members in same.values()]
    return sorted(groups, key=_place)


def _group(rows: Sequence[RankStatus], root: int | None) -> RankGroup:
    differ: dict[str, tuple[Any, ...]] = {}
    for field in RankStatus.__struct_fields__:
        values = tuple(dict.fromkeys(getattr(row, field) for row in rows))
        if len(values) > 1 and field != "rank":
            differ[field] = values
    return RankGroup(tuple(sorted(row.rank for row in rows)), rows[0], differ, root)


def _place(group: RankGroup) -> tuple[int, int, int]:
    order = len(_ORDER) if group.state is None else _ORDER.index(group.state)
    return (0, group.root, group.ranks[0]) if group.root is not None else (1, order, group.ranks[0])
