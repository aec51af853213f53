"""The root of a broadcast, reduce, gather or scatter: traces do not name it, but who waits for whom tells it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceops.across.clocks import ClockAlignment
from traceops.across.match import Collective, MatchedCollectives
from traceops.core.arrays import Int
from traceops.measure.summary import RankSummary

_FROM_ROOT = re.compile(r"broadcast|^scatter", re.I)
_EXPLAINED = 0.9  # of the waiting, that a root must explain
_NEXT_BEST = 0.5  # of what the root explains: the most that another one may explain
_ALL = -1  # in place of a root: each member needs all others
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
        root = _root(op, begins, ends, waits)
        for row, (number, one) in enumerate(zip(numbers, own, strict=True)):
            if root == _ALL:
                found[number] = replace(one, came_last=one.members[int(begins[row].argmax())][0])
            elif root is not None:
                found[number] = _waiting_for(one, root, begins[row].tolist(), ends[row].tolist())
    return replace(
        matching,
        collectives=tuple(found.get(number, one) for number, one in enumerate(matching.collectives)),
    )


def _root(op: str, begins: Int, ends: Int, waits: Int) -> int | None:
    """The root's place, _ALL where all wait for the last, None where times tell neither.

    Arrays have the shape (operations, members).
    """
    together = _until_came(op, _ALL, begins)
    whole = _explained(waits, together)
    if not whole:
        return None
    explained = np.zeros(begins.shape[1])
    for root in range(begins.shape[1]):
        until = _until_came(op, root, begins)
        if _possible(until, begins, ends):
            explained[root] = _explained(waits, until)
    order = np.argsort(explained, kind="stable")
    best, following = explained[order[-1]], explained[order[-2]] if len(order) > 1 else 0.0
    if best >= _EXPLAINED * whole and following <= _NEXT_BEST * best:
        return int(order[-1])
    return _ALL if best < _EXPLAINED * whole and _possible(together, begins, ends) else None


def _until_came(op: str, root: int, begins: Int) -> Int:
    """How long each member waits until those that it needs have begun, ns; shape (operations, members)."""
    last = begins.max(axis=1, keepdims=True)
    if root == _ALL:
        until: Int = last - begins
    elif _FROM_ROOT.search(op):
        until = np.maximum(begins[:, [root]] - begins, 0)
    else:
        until = np.zeros_like(begins)
        until[:, [root]] = last - begins[:, [root]]
    return until


def _explained(waits: Int, until: Int) -> float:
    """Waiting that ends with the coming of one that is needed, ns."""
    return float(np.minimum(waits, until).sum())


def _possible(until: Int, begins: Int, ends: Int) -> bool:
    """Whether no member ends before one that it needs has begun."""
    return bool((begins + until <= ends + _EARLY_NS).all())


def _waiting_for(one: Collective, root: int, begins: Sequence[int], ends: Sequence[int]) -> Collective:
    """The operation with each member's waiting for those that it needs.

    The side that gives its data needs the other as well where it did not end before that came: it could not hand over.
    """
    gives = bool(_FROM_ROOT.search(one.op))
    of_root = [i for i, begin in enumerate(begins) if i == root or not gives or ends[root] > begin]
    of_others = [gives or end > begins[root] for end in ends]
    needs = [
        of_root if i == root else sorted((i, root)) if needed else [i] for i, needed in enumerate(of_others)
    ]
    waits = zip(one.wait_ns, needs, begins, strict=True)
    return replace(
        one,
        wait_ns=tuple(min(wait, max(begins[i] for i in own) - begin) for wait, own, begin in waits),
        needs=tuple(map(tuple, needs)),
    )
