"""Pairs of ranks to test, and their order."""

from __future__ import annotations

Pair = tuple[int, int]
ALL_PAIRS_TO = 16  # ranks: 120 pairs; 64 ranks would have 2,016


def pair_order(ranks: int) -> list[Pair]:
    """Pairs (a < b) in rounds in which no rank comes twice, so that those of a round can run side by side.

    Up to ALL_PAIRS_TO ranks these are all pairs, as in a tournament. Above that, each rank is paired with the next
    one, as in NCCL's rings, and with the one half the world away. That one is on another node where there are
    several.
    """
    if ranks > ALL_PAIRS_TO:
        far = {_pair(rank, (rank + ranks // 2) % ranks) for rank in range(ranks)}
        near = {_pair(rank, (rank + 1) % ranks) for rank in range(ranks)} - far
        return [*sorted(near, key=lambda pair: (pair[0] % 2, pair)), *sorted(far)]
    seats: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    order = []
    for _ in range(len(seats) - 1):
        for one, other in zip(seats[: len(seats) // 2], reversed(seats), strict=False):
            if one is not None and other is not None:
                order.append(_pair(one, other))
        seats = [seats[0], seats[-1], *seats[1:-1]]  # the circle method: all but one move a seat on
    return order


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)
