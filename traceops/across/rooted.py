"""The root of a broadcast, reduce, gather or scatter: traces do not name it, but who waits for whom tells it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.clocks import ClockAlignment
from traceops.across.match import Collective, MatchedCollectives
from traceops.core.arrays import Int
from traceops.measure.summary import RankSummary

_FROM_ROOT = re.compile(r"broadcast|^scatter", re.I)
_EXPLAINED = 0.9  # of the waiting, that a root must explain
_NEXT_BEST = 0.5  # of what the root explains: the most that another one may explain
_EARLY_NS = 200_000  # by so much clocks may let a member end before the root that it waited for has begun


def with_roots(
    matching: MatchedCollectives, ranks: Sequence[RankSummary], clocks: ClockAlignment
) -> MatchedCollectives:
    """The same with the root of rooted operations where times tell it, and waiting only for whom it takes.

    Of one group's operations of one kind, a root is whose coming ends the others' waiting (broadcast, scatter), or who
    alone waits (reduce, gather), each time. No member may end before one that it needs has begun. Where no root
    explains the waiting and nobody ever ends before the last has come, all wait for the last, as in an all-reduce.
    """
    begin = {s.rank: clocks.fits[s.rank].correct(s.comm.start) for s in ranks}
    end = {s.rank: clocks.fits[s.rank].correct(s.comm.end) for s in ranks}
    alike: dict[tuple[tuple[int, ...], str, str], list[int]] = defaultdict(list)
    for number, one in enumerate(matching.collectives):
        if one.is_rooted and not set(one.group) & set(clocks.unaligned):
            alike[one.group, one.description, one.op].append(number)
    found = dict[int, Collective]()
    for (_, _, op), numbers in alike.items():
        own = [matching.collectives[number] for number in numbers]
        shape = (len(own), len(own[0].members))
        begins, ends = (
            np.array([at[rank][position] for one in own for rank, position in one.members]).reshape(shape)
            for at in (begin, end)
        )
        waits = np.array([one.wait_ns for one in own], dtype=np.int64)
        needed = _needed(op, begins, ends, waits)
        for row, (number, one) in enumerate(zip(numbers, own, strict=True)):
            found[number] = one if needed is None else _waiting_for(one, begins[row], ends[row], needed)
    return replace(
        matching,
        collectives=tuple(found.get(number, one) for number, one in enumerate(matching.collectives)),
    )


_Needed = NDArray[
    np.bool_
]  # [member, other]: whether the member's part cannot end before the other has begun


def _needed(op: str, begins: Int, ends: Int, waits: Int) -> _Needed | None:
    """Who needs whom in these operations, by place; None where times do not tell. Shapes (operations, members)."""
    count = begins.shape[1]
    together = np.ones((count, count), dtype=bool)
    whole = _explained(together, begins, waits)
    if not whole:
        return None
    by_root: list[_Needed] = [_of_root(op, root, count) for root in range(count)]
    explained = [
        _explained(needed, begins, waits) if _possible(needed, begins, ends) else 0.0 for needed in by_root
    ]
    order = np.argsort(explained, kind="stable")
    best, following = explained[order[-1]], explained[order[-2]] if count > 1 else 0.0
    if best >= _EXPLAINED * whole and following <= _NEXT_BEST * best:
        return by_root[int(order[-1])]
    return together if best < _EXPLAINED * whole and _possible(together, begins, ends) else None


def _of_root(op: str, root: int, count: int) -> _Needed:
    needed = np.eye(count, dtype=bool)
    if _FROM_ROOT.search(op):
        needed[:, root] = True
    else:
        needed[root, :] = True
    return needed


def _explained(needed: _Needed, begins: Int, waits: Int) -> float:
    """Waiting that ends with the coming of one that is needed, ns."""
    return float(
        sum(np.minimum(wait, _until_came(needed, row)).sum() for row, wait in zip(begins, waits, strict=True))
    )


def _until_came(needed: _Needed, begins: Int) -> Int:
    """How long each member of one operation waits until those that it needs have begun, ns."""
    came = np.where(needed, begins[None, :], np.iinfo(np.int64).min).max(axis=1)
    until: Int = np.maximum(came - begins, 0)
    return until


def _possible(needed: _Needed, begins: Int, ends: Int) -> bool:
    """Whether no member ends before one that it needs has begun."""
    return all(
        bool((begin + _until_came(needed, begin) <= end + _EARLY_NS).all())
        for begin, end in zip(begins, ends, strict=True)
    )


def _waiting_for(one: Collective, begins: Int, ends: Int, needed: _Needed) -> Collective:
    """The operation with each member's waiting for those that it needs.

    A root needs the others as well where it did not end before they came: it could not hand over its data.
    """
    if needed.all():
        return replace(one, came_last=one.members[int(begins.argmax())][0])
    mutual = needed | (needed.T & (ends[:, None] > begins[None, :]))
    waits = np.minimum(one.wait_ns, _until_came(mutual, begins))
    return replace(
        one,
        wait_ns=tuple(waits.tolist()),
        needs=tuple(tuple(np.flatnonzero(row).tolist()) for row in mutual),
    )
